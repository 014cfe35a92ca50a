"""Best replay share against the share in use, when replayed samples age: no, one, two or three fixed points."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from figures.style import drawing, save

RECORDS = ("equilibrium.json",)
WORDS = ("no equilibrium", "one equilibrium", "two equilibria", "three equilibria")


def draw(records: list[Any], out: Path) -> list[Path]:
    """Draw the best response in pieces; a leap over the diagonal is an open gap, a fixed point a dot."""
    drawn = records[0]["result"]
    with drawing("column", 4.0, nrows=2, ncols=2, sharex=True, sharey=True) as (figure, panels):
        for axes, case in zip(panels.flat, drawn["cases"], strict=True):
            axes.plot([0, 1], [0, 1], color="#777777", linestyle=":", linewidth=1, label="share = best share")
            for number, piece in enumerate(case["pieces"]):
                label = None if number else "best share for the variance $V(a)$"
                axes.plot(piece["share"], piece["response"], color="#2066b6", label=label)
            for before, after in itertools.pairwise(case["pieces"]):
                ends = (before["share"][-1], before["response"][-1]), (after["share"][0], after["response"][0])
                axes.plot(*zip(*ends, strict=True), "o", ms=3.5, mfc="white", mec="#2066b6", linestyle="none", zorder=3,
                          label="leap")  # fmt: skip
            settled = case["equilibria"]
            axes.plot(settled, settled, "o", ms=4.5, color="#d6561f", linestyle="none", zorder=4, label="equilibrium")
            axes.set(title=WORDS[len(settled)], xlim=(0, 1), ylim=(-0.03, 1.03))
            axes.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
            axes.set_yticks([0, 0.5, 1], ["0", "0.5", "1"])
        for axes in panels[:, 0]:
            axes.set_ylabel("best share")
        for axes in panels[-1]:
            axes.set_xlabel("share in use $a$")
        labels: dict[str, Any] = {}
        for axes in panels.flat:
            labels |= {label: handle for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
        figure.legend(list(labels.values()), list(labels), loc="outside lower center", ncols=2)
        return save(figure, "equilibrium", drawn, out)
