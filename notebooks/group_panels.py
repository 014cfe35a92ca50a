"""Figures of the notebook on group baselines: they draw the numbers they are given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from classroom import png

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


def difficulty(
    rates: Sequence[float],
    curves: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    references: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    titles: tuple[str, str],
) -> bytes:
    """Draw factor and pull against the success rate: a curve per group size, and those of no division and of the limit."""
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
        return png(figure)


def stale(errors: Mapping[str, Mapping[str, Sequence[float]]], marked: int) -> bytes:
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
        return png(figure)


def answer_lengths(paths: Mapping[str, Sequence[tuple[float, float, float]]]) -> bytes:
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
        return png(figure)
