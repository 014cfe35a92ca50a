"""Spread and tail of the perturbation of one logit by the number of layers that route the token to other experts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from figures.style import COLORS, drawing, save

RECORDS = ("flips.json",)
REPRODUCED = "cis_fig8"  # records of the reproduction that hold such curves
SCALES = ("tiny",)  # the real model has no experts
LINES = [(COLORS[3], "-", "o"), (COLORS[1], "--", "s")]
DENSE = [(COLORS[4], "--"), (COLORS[5], ":")]
PANELS = {"sd": "sd of $\\delta$, nats", "beyond half": "share with $|\\delta| > 0.5$"}
FEWEST = 30  # positions of a sample behind a point


def draw(records: list[Any], out: Path, name: str = "flips") -> list[Path]:
    """Draw both against the number of layers; bars are the printed table's bins, level lines the dense model."""
    drawn = records[0]["result"]
    with drawing("column", 4.4, nrows=2, sharex=True) as (figure, panels):
        for axes, (key, label) in zip(panels, PANELS.items(), strict=True):
            sources = {source: curve for source, curve in drawn["curves"].items() if source != "dense"}
            for (source, curve), (color, dash, marker) in zip(sources.items(), LINES, strict=False):
                keep = [
                    k for k, n in enumerate(curve.get("positions", curve["flips"])) if n >= FEWEST or "share" in curve
                ]
                axes.plot([curve["flips"][k] for k in keep], [curve[key][k] for k in keep], color=color, linestyle=dash,
                          marker=marker, ms=3, label=source)  # fmt: skip
            for (source, dense), (color, dash) in zip(drawn["curves"]["dense"].items(), DENSE, strict=False):
                axes.axhline(dense[key], color=color, linestyle=dash, linewidth=1.2, label=source)
            for k, row in enumerate(drawn.get("printed", ())):
                axes.hlines(row[key], row["low"] - 0.3, row["high"] + 0.3, color="black", linewidth=3, alpha=0.55,
                            label=None if k else "printed, MoE, by bin")  # fmt: skip
            axes.set(ylabel=label, ylim=(0, None))
        panels[1].set_xlabel("layers that route differently in the two engines")
        found = {text: handle for ax in panels for handle, text in zip(*ax.get_legend_handles_labels(), strict=True)}
        figure.legend(list(found.values()), list(found), loc="outside lower center", ncols=1 if len(found) < 4 else 2)
        return save(figure, name, drawn, out)
