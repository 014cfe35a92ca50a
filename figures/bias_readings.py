"""Bias of each reading of SPIRE's gradient, and of simpler weights, against the staleness of the oldest segment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from figures.style import drawing, rule_line, save

RECORDS = ("bias_readings.json",)
ROUNDING = 1e-13  # a bias below this is rounding: the reading is unbiased
LOOK: dict[str, tuple[str, str, str]] = {  # reading -> rule whose line it takes, marker, label
    "none": ("none", "", "no weight"),
    "token": ("exact", "s", "token ratio"),
    "segment_only": ("segment", "", "own segment only"),
    "prefix_with_reward": ("prefix", "v", "prefix, bare reward"),
    "segment_end_with_reward": ("segment_prefix", "^", "segment end, bare reward"),
    "full_product": ("sequence_product", "o", "full product"),
    "prefix_with_critic": ("prefix", "x", "prefix, target's critic"),
    "segment_end_with_critic": ("segment_prefix", "+", "segment end, critic"),
}


def draw(records: list[Any], out: Path) -> list[Path]:
    """Draw one line per reading; those of exact readings lie in the band of rounding, in a panel of its own."""
    drawn = records[0]["result"]
    ages = drawn["age"][1:]  # at age 0 all are exact
    with drawing("column", 4.2, nrows=2, sharex=True, height_ratios=(3, 1)) as (figure, (upper, lower)):
        for reading, (rule, marker, label) in LOOK.items():
            bias = drawn["relative_bias"][reading][1:]
            axes = lower if max(bias) < ROUNDING else upper
            axes.plot(ages, bias, marker=marker, ms=3.5, label=label, **rule_line(rule).keywords())
        upper.set(yscale="log", ylabel="norm of the bias / of the gradient")
        lower.set(
            yscale="log", ylim=(1e-16, ROUNDING), ylabel="rounding", xlabel="updates by which the oldest segment lags"
        )
        lower.set_facecolor("#f2f2f2")
        lower.set_xticks(drawn["age"])
        labeled = [pair for axes in (upper, lower) for pair in zip(*axes.get_legend_handles_labels(), strict=True)]
        figure.legend(*zip(*labeled, strict=True), loc="outside lower center", ncols=2)
        return save(figure, "bias_readings", drawn, out)
