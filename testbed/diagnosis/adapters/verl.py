"""verl: the tensors of a `DataProto` batch after old log-probs were computed.

| field | shape | read as |
|---|---|---|
| `rollout_log_probs` | [B, R] | behavior: what the inference engine reported (`calculate_log_probs=True`) |
| `old_log_probs` | [B, R] | target: the trainer's recomputation before the first update |
| `response_mask` | [B, R] | tokens the model produced; tool output is 0 and left out |
| `token_level_scores`, `rm_scores`, `token_level_rewards` | [B, R] | reward: the sum; the first one found |
| `uid` | [B] | group |
| `responses` | [B, R] | tokens |
| `min_global_steps`, `max_global_steps` | [B] | version, where the two agree in every response |

R is the padded response length; all of these are aligned with `responses`. With `--target COL` (the log-probs of the
update under way, which verl does not keep in the batch) `old_log_probs` becomes the proximal policy. In bypass mode
`old_log_probs` *is* `rollout_log_probs`, so that no mismatch is left to see. A mask already reduced by rejection (verl
replaces `response_mask`) hides the rejected tokens. `token_level_rewards` may contain a KL penalty.

Sign: verl's `rollout_corr/kl` is the mean of rollout - old, which is k1 here; weights are exp(old - rollout).

A pickled DataProto is not read. Save plain arrays: `numpy.savez(path, **{k: v.cpu().numpy() for k, v in
data.batch.items()}, uid=data.non_tensor_batch["uid"].astype(str))`, or `torch.save(dict(data.batch), path)`. verl's own
`rollout_data_dir` JSONL holds texts and scores, no log-probs.
"""

from __future__ import annotations

import numpy as np

from testbed.core.errors import InputError
from testbed.diagnosis.adapters.trainer_format import Masked, Trainer, TrainerFormat, three_policies
from testbed.diagnosis.tables import Table

REWARDS = ("token_level_scores", "rm_scores", "token_level_rewards")
FORMAT = TrainerFormat(
    name="verl",
    needs=(("rollout_log_probs",), ("old_log_probs",), ("response_mask",), REWARDS),
    reads=("uid", "responses", "min_global_steps", "max_global_steps"),
    source="github.com/verl-project/verl, 0.10.0.dev at 1dda039 (Aug 2026): verl/experimental/agent_loop/agent_loop.py "
    "(_postprocess), verl/trainer/ppo/rollout_corr_helper.py, verl/trainer/ppo/ray_trainer.py",
)


def read(table: Table, target: str | None, behavior: str | None) -> Trainer:
    """Turn the batch into flat fields."""
    at, notes = Masked(table, "response_mask"), []
    columns = three_policies("rollout_log_probs", "old_log_probs", target, behavior)
    fields = {name: at.tokens(column) for name, column in columns.items()}
    columns["reward"] = next(name for name in REWARDS if name in table.names)
    scores = at.tokens(columns["reward"])
    _refuse_missing(columns["reward"], scores, at)
    fields |= {"sequence": at.row, "position": at.position, "reward": at.total(scores)}
    if np.bincount(at.row, weights=scores != 0).max(initial=0) > 1:
        fields["token_reward"], columns["token_reward"] = scores, columns["reward"]
        notes.append(f"`{columns['reward']}` is not 0 at several tokens of a response: read as per-token rewards too")
    if "responses" in table.names:
        fields["token"], columns["token"] = at.tokens("responses"), "responses"
    if "uid" in table.names:
        fields["group"], columns["group"] = at.each("uid"), "uid"
    if {"min_global_steps", "max_global_steps"} <= set(table.names):
        low, high = at.each("min_global_steps"), at.each("max_global_steps")
        if (low == high).all():
            fields["version"], columns["version"] = high, "max_global_steps"
        else:
            notes.append("some responses were drawn by several versions, and verl does not record which token by which")
    return Trainer(fields, columns, notes)


def _refuse_missing(name: str, scores: np.ndarray, at: Masked) -> None:
    """Refuse NaN before it is summed over its response."""
    bad = np.flatnonzero(np.isnan(scores))
    if len(bad):
        raise InputError(
            f"`{name}` must not be NaN",
            found=f"{len(bad)} such, the first at (sequence {at.row[bad[0]]}, position {at.position[bad[0]]})",
            hint="a missing value is not 0",
        )
