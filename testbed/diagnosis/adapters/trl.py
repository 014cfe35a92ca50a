"""TRL: what `GRPOTrainer._generate_and_score_completions` returns with vLLM and its importance-sampling correction.

| field | shape | read as |
|---|---|---|
| `sampling_per_token_logps` | [B, C] | behavior: vLLM's log-probs, padded with 0 |
| `old_per_token_logps` | [B, C] | target: the trainer's recomputation |
| `completion_mask` | [B, C] | tokens of the completion |
| `tool_mask` | [B, C] | where present, 0 on tool output, which is left out |
| `rewards`, else `advantages` | [B] | reward |
| `completion_ids` | [B, C] | tokens |
| `prompt_ids` | [B, P] | group: equal prompts |

C is the padded completion length; log-probs are aligned with `completion_ids`. TRL's own dictionary has `advantages` and
no rewards; group-centered advantages may stand for rewards, since a diagnosis only uses them centered (the mean reward
is then 0 by construction). TRL records no version, and `old_per_token_logps` only where an update may differ from the
sampler (with vLLM: always). With `--target COL` it becomes the proximal policy. TRL's completions parquet holds texts,
no log-probs.

Sign: TRL's ratio is exp(old - sampling), as here; its logged `sampling_logp_difference` is the absolute value.
"""

from __future__ import annotations

from testbed.diagnosis.adapters.trainer_format import Masked, Trainer, TrainerFormat, three_policies
from testbed.diagnosis.tables import Table

REWARDS = ("rewards", "advantages")
FORMAT = TrainerFormat(
    name="trl",
    needs=(("sampling_per_token_logps",), ("old_per_token_logps",), ("completion_mask",), REWARDS),
    reads=("tool_mask", "completion_ids", "prompt_ids"),
    source="github.com/huggingface/trl, 1.10.0.dev0 at f2cd577 (Jul 2026): trl/trainer/grpo_trainer.py "
    "(_generate_and_score_completions)",
)


def read(table: Table, target: str | None, behavior: str | None) -> Trainer:
    """Turn the trainer's inputs into flat fields."""
    also = ("tool_mask",) if "tool_mask" in table.names else ()
    at, notes = Masked(table, "completion_mask", also=also), []
    columns = three_policies("sampling_per_token_logps", "old_per_token_logps", target, behavior)
    fields = {name: at.tokens(column) for name, column in columns.items()}
    columns["reward"] = next(name for name in REWARDS if name in table.names)
    if at.is_per_token(columns["reward"]):
        fields["reward"] = at.opening(at.tokens(columns["reward"]))
        notes.append(f"`{columns['reward']}` differs by token; a response counts with that of its first token")
    else:
        fields["reward"] = at.each(columns["reward"])
    if columns["reward"] == "advantages":
        notes.append("no `rewards`: `advantages` stand for them")
    fields |= {"sequence": at.row, "position": at.position}
    if "completion_ids" in table.names:
        fields["token"], columns["token"] = at.tokens("completion_ids"), "completion_ids"
    if "prompt_ids" in table.names:
        fields["group"], columns["group"] = at.prompts("prompt_ids", lambda row: None), "prompt_ids"
    return Trainer(fields, columns, notes)
