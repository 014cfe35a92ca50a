"""Moments of e^eps and of (1 - p) e^eps, the random part of the ratio, against their order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from figures.style import COLORS, DASHES, drawing, save

RECORDS: tuple[str, ...] = ()
REPRODUCED = "cis_fig3"  # records of the reproduction that hold such curves
LINES = [(COLORS[3], "-"), (COLORS[0], "--"), (COLORS[4], ":"), (COLORS[1], DASHES[3]), (COLORS[5], DASHES[4])]
PANELS = {
    "left": "$\\mathrm{E}\\,[e^{\\alpha\\varepsilon}]$",
    "right": "$\\mathrm{E}\\,[((1-p)\\,e^{\\varepsilon})^{\\alpha}]$",
}
LARGEST = 0.1  # a moment of which one token makes up more is not drawn: another sample would give another


def draw(records: list[Any], out: Path, name: str = "displacement_moments") -> list[Path]:
    """Draw a panel per moment; bands are 95 % intervals (whole responses drawn anew), a cross ends a curve cut short."""
    drawn, cut = records[0]["result"], False
    with drawing("column", 5.2, nrows=2, sharex=True) as (figure, panels):
        for axes, (side, label) in zip(panels, PANELS.items(), strict=True):
            for (source, curve), (color, dash) in zip(drawn["curves"].items(), LINES, strict=False):
                shares = curve[f"{side} largest share"]
                keep = next((k for k, share in enumerate(shares) if share > LARGEST), len(shares))
                x, y = curve["orders"][:keep], curve[side][:keep]
                axes.plot(x, y, color=color, linestyle=dash, label=source)
                axes.fill_between(
                    x, curve[f"{side} low"][:keep], curve[f"{side} high"][:keep], color=color, alpha=0.18, lw=0
                )
                if 0 < keep < len(shares):
                    axes.plot(x[-1:], y[-1:], "x", color=color, ms=5, mew=1.4, zorder=3)
                    cut = True
            axes.set(ylabel=label)
        panels[0].axhline(1, color="#777777", linewidth=0.6, zorder=0)
        panels[1].set(xlabel="order $\\alpha$", ylim=(0, 1.05))
        if cut:
            panels[0].plot(
                [], [], "x", color="#555555", ms=5, mew=1.4, label=f"beyond it one token makes up > {LARGEST:.0%}"
            )
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center")
        return save(figure, name, drawn, out)
