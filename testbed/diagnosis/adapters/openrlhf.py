"""OpenRLHF: the tensor fields of an `Experience`.

| field | shape | read as |
|---|---|---|
| `rollout_log_probs` | [B, A] | behavior: vLLM's log-probs |
| `action_log_probs` | [B, A] | target: the trainer's recomputation when the experience was made |
| `action_mask` | [B, A] | tokens the model produced |
| `rewards`, else `scores` | [B] | reward |
| `sequences` | [B, T] | tokens; group: equal prompts |
| `prompts` | [B] of text | group, before `sequences` |

T covers prompt and response. A is T - 1: place a speaks of token a + 1, that is, the per-action fields are the *last*
places of `sequences` (older versions keep the response only, which are its last places as well). With `--target COL`
`action_log_probs` becomes the proximal policy. OpenRLHF records no version.

Sign: OpenRLHF's `vllm_kl` is the mean of rollout - action, which is k1 here; weights are exp(action - rollout).
"""

from __future__ import annotations

from testbed.diagnosis.adapters.trainer_format import Masked, Trainer, TrainerFormat, three_policies
from testbed.diagnosis.tables import Table

REWARDS = ("rewards", "scores")
FORMAT = TrainerFormat(
    name="openrlhf",
    needs=(("rollout_log_probs",), ("action_log_probs",), ("action_mask",), REWARDS),
    reads=("sequences", "prompts"),
    source="github.com/OpenRLHF/OpenRLHF, 0.11.0 at 3c3be62 (Aug 2026): openrlhf/trainer/ppo_utils/experience.py, "
    "openrlhf/trainer/ppo_utils/samples_generator.py, openrlhf/models/{actor,loss}.py",
)


def read(table: Table, target: str | None, behavior: str | None) -> Trainer:
    """Turn experiences into flat fields."""
    at = Masked(table, "action_mask")
    columns = three_policies("rollout_log_probs", "action_log_probs", target, behavior)
    fields = {name: at.tokens(column) for name, column in columns.items()}
    columns["reward"] = next(name for name in REWARDS if name in table.names)
    fields |= {"sequence": at.row, "position": at.position, "reward": at.each(columns["reward"])}
    if "sequences" in table.names:
        fields["token"], columns["token"] = at.tokens("sequences", align="end"), "sequences"
    if "prompts" in table.names:
        fields["group"], columns["group"] = at.each("prompts"), "prompts"
    elif "sequences" in table.names:
        lengths = table.column("sequences").lengths
        assert lengths is not None
        before = lengths - at.lengths
        fields["group"] = at.prompts("sequences", lambda row: int(at.first[row] + before[row]))
        columns["group"] = "sequences"
    return Trainer(fields, columns)
