"""Which part of an engine's arithmetic makes how much mismatch, on a tiny transformer that answers additions.

Both engines run the same weights. The sampler draws the responses with everything changed at once (bfloat16, int8 weights,
another order of summation, its own router in low precision, cached steps); the trainer's full forward in float32 scores them.
"""

from __future__ import annotations

import math
from typing import Any

from testbed.core.choices import RandomChooser
from testbed.core.sections import Section, number
from testbed.core.seeds import SeedTree
from testbed.environments.arithmetic import ArithmeticTask
from testbed.policies.transformer import Transformer, TransformerConfig
from testbed.policies.transformer.attribution import Mismatch, attribute
from testbed.policies.transformer.numerics import Numerics
from testbed.policies.transformer.policy import TransformerPolicy
from testbed.policies.transformer.stepwise import StepwisePolicy
from testbed.rollout.engine import rollout

RESPONSES = 512
LEAST_TOKENS = 20  # behind a printed standard deviation
MEANS = {
    "none": "the trainer against itself",
    "dtype": "bfloat16 for float32",
    "weights": "int8 weights",
    "reduction": "four partial sums",
    "router": "router in bfloat16",
    "cache": "one token at a time, keys and values kept",
    "all": "all of these at once",
    "all, replayed": "all, the trainer using the sampler's experts",
    "fixed": "both in the fixed order, the sampler in cached steps",
}


def untrained(experts: int, seed: int) -> Transformer:
    """A random transformer for the addition task: four layers, dense or with experts, decided enough to have rare tokens."""
    config = TransformerConfig(vocab_size=ArithmeticTask().vocab_size, width=32, layers=4, hidden=32, experts=experts)
    return Transformer.random(config, SeedTree(seed)["engines"]["weights"], sharpness=1.0)


def sampling_numerics(experts: int) -> Numerics:
    """The sampler: everything that may differ does."""
    router = "low_precision" if experts else "own"
    return Numerics(dtype="bfloat16", weights="int8", reduction="split", router=router)


def measured(model: Transformer, seed: int = 0, responses: int = RESPONSES) -> list[Mismatch]:
    """Draw responses with the sampler and attribute the mismatch on them.

    Examples
    --------
    >>> found = measured(untrained(0, seed=0), responses=8)
    >>> found[0].ingredient, found[0].largest_log_ratio, found[-1].largest_log_ratio
    ('none', 0.0, 0.0)
    """
    task = ArithmeticTask(99 if model.config.context >= 10 else 9)
    group = task.sample_prompts(responses, SeedTree(seed)["engines"]["prompts"])
    trainer = TransformerPolicy(model, prompts=task.prompt_tokens(task.prompts()), numerics=Numerics(dtype="float32"))
    sampler = sampling_numerics(model.config.experts)
    drawn = rollout(
        task,
        StepwisePolicy(trainer.under(sampler)),
        responses,
        RandomChooser(SeedTree(seed)["engines"]["draws"]),
        group=group,
    )
    return attribute(trainer.at(group), sampler, drawn.tokens, drawn.mask)


def engine_report(models: dict[str, Transformer], seed: int = 0) -> tuple[list[Section], dict[str, Any]]:
    """Return sections and record for several models by name."""
    sections, record = [], {}
    for name, model in models.items():
        found = measured(model, seed)
        sections.append(_section(name, model, found))
        record[name] = [_as_record(m) for m in found]
    return sections, record


def _as_record(m: Mismatch) -> dict[str, Any]:
    return {
        "ingredient": m.ingredient, "tokens": m.tokens, "sd_displacement": m.sd_displacement,
        "largest_log_ratio": m.largest_log_ratio, "kl": m.kl, "flips": list(m.flips),
        "sd_by_flips": [None if math.isnan(x) else x for x in m.sd_by_flips],
    }  # fmt: skip


def _section(name: str, model: Transformer, found: list[Mismatch]) -> Section:
    config = model.config
    kind = f"{config.experts} experts, {config.experts_per_token} per token" if config.experts else "dense"
    by_name = {m.ingredient: m for m in found}
    alone = max(
        (m for m in found if m.ingredient in ("dtype", "weights", "reduction", "router", "cache")), key=lambda m: m.kl
    )
    header = ["changed", "sd(eps)", "max |log k|", "KL"]
    rows = [
        [m.ingredient, exact_zero(m.sd_displacement), exact_zero(m.largest_log_ratio), exact_zero(m.kl)] for m in found
    ]
    remarks = ["; ".join(f"{m.ingredient}: {MEANS[m.ingredient]}" for m in found) + "."]
    if config.experts:
        header.append("tokens by flipped layers")
        for row, m in zip(rows, found, strict=True):
            row.append(" ".join(map(str, m.flips)))
        remarks.append(_spread_by_flips(by_name["all"]))
    return Section(
        title=f"{name}: {kind}, {config.layers} layers, {model.parameter_count:,} parameters",
        says=f"Alone, {alone.ingredient} makes the most mismatch (KL {exact_zero(alone.kl)} nats per token of "
        f"{exact_zero(by_name['all'].kl)} for all); in the fixed order the two engines agree bit for bit.",
        header=tuple(header),
        rows=[tuple(row) for row in rows],
        remarks=remarks,
    )


def _spread_by_flips(m: Mismatch) -> str:
    """Say sd(eps) by the number of flipped layers, where enough tokens stand behind it."""
    counted = list(enumerate(zip(m.flips, m.sd_by_flips, strict=True)))
    known = [f"{j}: {exact_zero(sd)}" for j, (count, sd) in counted if count >= LEAST_TOKENS]
    few = [f"{j} ({count})" for j, (count, _) in counted if 0 < count < LEAST_TOKENS]
    said = f"All at once, sd(eps) by the number of layers that route differently: {', '.join(known) or 'none'}."
    return said + (f" Left out, with fewer than {LEAST_TOKENS} tokens: {', '.join(few)}." if few else "")


def exact_zero(value: float) -> str:
    """Format a number so that "0" is exactly 0, which here means equal bit for bit.

    Examples
    --------
    >>> exact_zero(0.0), exact_zero(2.1e-14), exact_zero(-3e-17), exact_zero(0.0123)
    ('0', '2e-14', '-3e-17', '0.0123')
    """
    return f"{value:.0e}" if 0 < abs(value) < 1e-12 else number(value)
