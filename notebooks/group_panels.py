"""Figures of the notebook on group baselines, which draw the numbers they are given, and those numbers in plain Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import comb, sqrt
from typing import Any

import torch
from checked_panels import Picture, picture
from plain_panels import errors_with_stale_members

import testbed
from figures.style import COLORS, drawing, rule_line

BLACK, BLUE, ORANGE, GREEN, GREY = COLORS[0], COLORS[3], COLORS[4], COLORS[5], "#888888"
CAPPED = "capped"
LINES = {  # the rule's own line, and a marker
    "product of ratios": (rule_line("sequence_product"), "s"),
    CAPPED: (rule_line("seq_tis"), "o"),
    "masked": (rule_line("seq_mis"), "^"),
    "no weight": (rule_line("none"), "x"),
}
NORMALIZERS = {"sequence mean": (ORANGE, "-"), "token mean": (BLUE, "--"), "constant": (BLACK, "-.")}


def difficulty(rates: Any, factor: Callable[[Any, int], Any], size: int, titles: tuple[str, str]) -> Picture:
    """Draw factor and pull against the success rate: a curve per group size, and those of no division and of the limit.

    Parameters
    ----------
    rates : tensor of success rates p
    factor : (tensor of rates, group size) -> what the gradient is multiplied by
    size : of the group that was chosen
    """
    variance, even = rates * (1 - rates), rates[:1] * 0 + 0.5
    curves = {}
    for m, name in ((2, "M = 2"), (8, "M = 8"), (size, f"M = {size}, chosen")):
        values = factor(rates, m)
        curves[name] = (values, variance * values / (0.25 * factor(even, m)))
    limit = (1 / variance.sqrt(), 2 * variance.sqrt())
    references = {"no division": (rates * 0 + 1, 4 * variance), "limit of large groups": limit}
    looks = ((GREEN, "--"), (ORANGE, "-."), (BLACK, "-"))
    with drawing("page", 3.1, ncols=2) as (figure, axes):
        for part, ax in enumerate(axes):
            for (name, pair), look in zip(references.items(), ((BLUE, "-", 4, 0.4), (GREY, ":", 1.4, 1)), strict=True):
                style = dict(zip(("color", "linestyle", "linewidth", "alpha"), look, strict=True))
                ax.plot(rates, pair[part], label=None if part else name, **style)
            for (name, pair), (color, dash) in zip(curves.items(), looks, strict=True):
                ax.plot(rates, pair[part], color=color, linestyle=dash, label=None if part else name)
            ax.set(xlim=(0, 1), xlabel="success rate p", title=titles[part])
        axes[0].set(ylim=(0, 8), ylabel="factor on the gradient")
        axes[1].set(ylim=(0, 1.3), ylabel="pull, relative to p = 1/2")
        figure.legend(loc="outside lower center", ncols=5)
        return picture(figure)


def stale(errors: Mapping[str, Mapping[str, Sequence[float]]], marked: int) -> Picture:
    """Draw the error of the expected update against the number of stale members: a panel per baseline, a line per weight."""
    with drawing("page", 3.1, ncols=len(errors), sharey=True) as (figure, axes):
        for ax, (baseline, lines) in zip(axes, errors.items(), strict=True):
            for weight, y in lines.items():
                line, marker = LINES[weight]
                label = weight if ax is axes[0] else None
                ax.plot(range(len(y)), y, marker=marker, markersize=5, clip_on=False, label=label, **line.keywords())
            many = len(lines[CAPPED]) - 1
            ax.axvline(marked, color=GREY, linewidth=0.8, zorder=0)
            ax.set(xlim=(0, many), xticks=range(many + 1), xlabel=f"stale responses among {many}")
            ax.set_title(f"{baseline}: the capped weight is off by {lines[CAPPED][marked]:.1%}")
        axes[0].set_ylabel("error of the mean (gradient lengths)")
        axes[0].set_ylim(0, None)
        figure.legend(loc="outside lower center", ncols=4)
        return picture(figure)


def answer_lengths(paths: Mapping[str, Sequence[tuple[float, float, float]]]) -> Picture:
    """Draw the mean length of right and of wrong answers against the success rate, a line per normalizer."""
    with drawing("page", 3.1, ncols=2, sharex=True, sharey=True) as (figure, axes):
        for part, (ax, kind) in enumerate(zip(axes, ("right answers", "wrong answers"), strict=True), 1):
            for name, path in paths.items():
                color, dash = NORMALIZERS[name]
                label = name if part == 1 else None
                x, y = [row[0] for row in path], [row[part] for row in path]
                ax.plot(x, y, color=color, linestyle=dash, marker="o", markersize=3, label=label)
            ax.set(xlabel="success rate, rising in training", title=kind)
        axes[0].set_ylabel("mean length (tokens)")
        figure.legend(loc="outside lower center", ncols=3)
        return picture(figure)


def four_answers() -> testbed.SegmentedBatch:
    """Four answers of 1, 1, 4 and 2 tokens, all rewarded with one, in one group."""
    lengths = torch.tensor([1, 1, 4, 2])
    mask, blank = torch.arange(4) < lengths[:, None], torch.zeros(4, 4, dtype=torch.int64)
    log_probs = torch.where(mask, -0.7, 0.0).double()
    return testbed.SegmentedBatch(
        tokens=blank, mask=mask, segment=blank, logp_target=log_probs, logp_behavior=log_probs,
        reward=torch.ones(4, dtype=torch.float64), group=torch.zeros(4, dtype=torch.int64),
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------ in plain Python
def factor_by_hand(p: float, size: int, again: bool) -> float:
    """What division by the group's standard deviation makes of the gradient of a prompt with success rate p.

    With k successes of M the spread is sqrt(k (M - k)) / M. A response's own part of it is worth its mean over p (1 - p);
    if groups without spread are drawn again, the mean is taken over the others.
    """
    spread = sum(comb(size, k) * p**k * (1 - p) ** (size - k) * sqrt(k * (size - k)) / size for k in range(size + 1))
    return spread / (p * (1 - p)) / (1 - p**size - (1 - p) ** size if again else 1)


def difficulty_by_hand(size: int, again: bool) -> list[float]:
    """Numbers that `difficulty` and the sentence below it print, in order."""
    hard, even = (factor_by_hand(p, size, again) for p in (0.1, 0.5))
    return [size, hard, 0.1, even, 0.5, hard / even, 2, 8, size, size, hard / even, hard, even]


def stale_by_hand(checkpoints: Sequence[Any], size: int, *, age: int, stale: int, cap: float) -> list[Any]:
    """Numbers that `stale` and the sentence below it print, in order: the last checkpoint is the target.

    The reward is one where at least two tokens are 1.
    """
    target, sampler = (checkpoints[-1 - back].table.exp() for back in (0, age))
    found = errors_with_stale_members(target, sampler, 2, size, stale, cap)
    return [*found[CAPPED], *found.values()]
