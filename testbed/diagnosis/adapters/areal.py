"""AReaL: the padded trajectory dictionary, as a workflow returns it or as `compute_advantages` leaves it.

| field | shape | read as |
|---|---|---|
| `logprobs` | [B, L] | behavior: the inference engine's log-probs |
| `prox_logp` | [B, L] | target: the trainer's recomputation (`prox_logp_method=recompute`) |
| `loss_mask` | [B, L] | tokens the model produced |
| `rewards` | [B] | reward |
| `versions` | [B, L] | version of each token, -1 on the prompt; a new one opens a new segment |
| `input_ids` | [B, L] | tokens; group: equal prompts |
| `attention_mask` | [B, L] | not needed |

L covers prompt and completion, and **two alignments are in use**. A workflow puts the log-prob of token t at place t
(`logprobs`, `loss_mask`, `versions`), whereas every forward pass, hence `prox_logp`, puts it at place t - 1, which
predicts token t. `compute_advantages` rolls `logprobs` and `loss_mask` by -1 to match, and leaves `versions` and
`input_ids`. Which of the two is in the file is told by `advantages`, which only `compute_advantages` adds.

With `--target COL` (aligned as `prox_logp`; the log-probs of the update under way, which AReaL keeps in the loss only)
`prox_logp` becomes the proximal policy. The proximal policy is that of the *update*, newer than the one that drew: what is
called mismatch here then contains staleness. AReaL's own trajectory JSONL holds texts and versions, no log-probs.

Sign: AReaL's `behave_approx_kl` is prox - behave, the log of the weight and **minus** k1; `approx_kl` is theta - prox.
"""

from __future__ import annotations

import numpy as np

from testbed.diagnosis.adapters.trainer_format import Masked, Trainer, TrainerFormat, three_policies
from testbed.diagnosis.tables import Table

FORMAT = TrainerFormat(
    name="areal",
    needs=(("logprobs",), ("prox_logp",), ("loss_mask",), ("rewards",)),
    reads=("versions", "input_ids", "advantages"),
    source="github.com/areal-project/AReaL, 2.0.0 at cbff54d (Aug 2026): areal/workflow/rlvr.py (arun_episode), "
    "areal/trainer/ppo/actor.py (_compute_advantages), areal/utils/functional/functional.py",
)


def read(table: Table, target: str | None, behavior: str | None) -> Trainer:
    """Turn trajectories into flat fields."""
    at = Masked(table, "loss_mask")
    rolled = "advantages" in table.names
    columns = three_policies("logprobs", "prox_logp", target, behavior)
    fields = {
        name: at.tokens(column, shift=0 if rolled or name == "logp_behavior" else -1)
        for name, column in columns.items()
    }
    fields |= {"sequence": at.row, "position": at.position, "reward": at.each("rewards")}
    columns["reward"] = "rewards"
    own = 1 if rolled else 0  # from a place of the mask to the token it speaks of
    if "versions" in table.names:
        version = at.tokens("versions", shift=own)
        fields["version"], columns["version"] = version, "versions"
        fields["segment"], columns["segment"] = legs(version, at.position), "versions"
    if "input_ids" in table.names:
        fields["token"], columns["token"] = at.tokens("input_ids", shift=own), "input_ids"
        fields["group"] = at.prompts("input_ids", lambda row: int(at.first[row]) + own)
        columns["group"] = "input_ids"
    stage = (
        "`compute_advantages` has aligned them" if rolled else "as a workflow returns them, before `compute_advantages`"
    )
    return Trainer(fields, columns, [f"alignment of the log-probs: {stage}"])


def legs(version: np.ndarray, position: np.ndarray) -> np.ndarray:
    """Number of version changes before each token of its response.

    Examples
    --------
    >>> legs(np.array([3, 3, 4, 4, 5]), np.array([0, 1, 2, 3, 0])).tolist()
    [0, 0, 1, 1, 0]
    """
    change = (np.diff(version, prepend=version[:1]) != 0) & (position > 0)
    total = np.cumsum(change)
    starts = np.flatnonzero(position == 0)
    return total - np.repeat(total[starts], np.diff(starts, append=len(version)))
