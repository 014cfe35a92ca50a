"""Bias of each reading of SPIRE's gradient, and of simpler weights, against the staleness of the oldest segment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from figures.style import drawing, rule_line, save

RECORDS = ("bias_readings.json",)
FLOOR = 1e-13  # below this a bias is rounding: it is drawn in the band at the bottom
LOOK: dict[str, tuple[str, str, str]] = {  # reading -> rule whose line it takes, marker, label
    "none": ("none", "", "no weight"),
    "token": ("exact", "", "token ratio"),
    "segment_only": ("segment", "", "own segment only"),
    "prefix_with_reward": ("prefix", "v", "prefix, bare reward"),
    "segment_end_with_reward": ("segment_prefix", "^", "segment end, bare reward"),
    "full_product": ("sequence_product", "o", "full product"),
    "prefix_with_critic": ("prefix", "x", "prefix, target's critic"),
    "segment_end_with_critic": ("segment_prefix", "+", "segment end, critic"),
}


def draw(records: list[Any], out: Path) -> list[Path]:
    """Draw one line per reading; those of exact readings lie in the band of rounding."""
    drawn = records[0]["result"]
    with drawing("column", 3.7) as (figure, axes):
        axes.axhspan(1e-16, FLOOR, color="#eeeeee", zorder=0)
        axes.text(drawn["age"][-1], FLOOR, "rounding: unbiased", ha="right", va="top", fontsize=7)
        for reading, (rule, marker, label) in LOOK.items():
            ages, bias = drawn["age"][1:], drawn["relative_bias"][reading][1:]  # at age 0 all are exact
            axes.plot(ages, bias, marker=marker, ms=3.5, label=label, **rule_line(rule).keywords())
        axes.set(yscale="log", ylim=(1e-16, 30), xlabel="updates between the oldest segment and the target",
                 ylabel="norm of the bias / norm of the gradient")  # fmt: skip
        axes.set_xticks(drawn["age"])
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2)
        return save(figure, "bias_readings", drawn, out)
