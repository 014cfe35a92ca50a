"""Largest ratio that each token rule leaves alone, against the trainer's doubt 1 - p of the token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from figures.style import COLORS, DASHES, drawing, save

RECORDS = ("cap_vs_confidence.json",)
LOOK: dict[str, tuple[str, str, Any]] = {  # bound -> label, color, dash
    "tis_2": ("tis, cap 2", COLORS[3], "-"),
    "tis_1p13": ("tis, cap 1.13", COLORS[3], "--"),
    "cis_odds": ("cis, odds", COLORS[0], "-"),
    "cis_odds_no_floor": ("cis, odds, no floor", COLORS[0], ":"),
    "cis_linear": ("cis, linear", COLORS[4], "--"),
    "cis_loglinear": ("cis, log-linear", COLORS[4], DASHES[4]),
    "icepop": ("icepop and k1_token, [.5, 5]", COLORS[1], "-"),
    "mis": ("mis, 3", COLORS[5], "--"),
    "k2_token": ("k2_token, .25", COLORS[2], ":"),
    "k3_token": ("k3_token, .25", COLORS[2], "-."),
    "kpop": ("kpop, $\\varphi$ = 2", COLORS[4], "-"),
    "dppo_tv": ("dppo_tv, .2", COLORS[6], "-"),
    "dppo_kl": ("dppo_kl, .05", COLORS[6], "--"),
}
PANELS = {"truncates": "beyond it the ratio is cut back to it", "masks": "beyond it the token is dropped"}
TICKS = (1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1, 10, 100)
TOP = 300.0  # kpop's bound goes on


def draw(records: list[Any], out: Path) -> list[Path]:
    """Draw what is above 1 on a logarithmic axis, labeled with the ratio itself; a panel for caps, one for masks."""
    drawn = records[0]["result"]
    with drawing("column", 5.9, nrows=2, sharex=True) as (figure, panels):
        for axes, (beyond, title) in zip(panels, PANELS.items(), strict=True):
            for name, bound in drawn["bounds"].items():
                if bound["beyond"] != beyond:
                    continue
                label, color, dash = LOOK[name]
                heights = [float("nan") if x is None else x for x in bound["above_one"]]
                axes.plot(drawn["doubt"], heights, color=color, linestyle=dash, label=label)
            axes.set(xscale="log", yscale="log", xlim=(1, drawn["doubt"][0]), title=title, ylabel="largest ratio kept")
            axes.set_yticks(TICKS, [f"{1 + t:.10g}" for t in TICKS])
            axes.minorticks_off()
        crossing = drawn["crossing"]
        panels[0].plot([crossing], [1], "o", color="black", ms=4, zorder=4)
        panels[0].annotate(f"equal at {crossing:.3f}", (crossing, 1), (4, 5), textcoords="offset points", fontsize=6.5)
        panels[0].axvline(drawn["floor"], color="#777777", linewidth=0.8, zorder=0)
        panels[0].annotate("floor", (drawn["floor"], 2e-6), (3, 0), textcoords="offset points", fontsize=6.5)
        panels[0].set_ylim(1e-6, 30)
        panels[1].set_ylim(1e-3, TOP)
        panels[1].set_xlabel("1 - p, the trainer's doubt (surer to the right)")
        labeled = [pair for axes in panels[::-1] for pair in zip(*axes.get_legend_handles_labels(), strict=True)]
        figure.legend(*zip(*labeled, strict=True), loc="outside lower center", ncols=2)
        return save(figure, "cap_vs_confidence", drawn, out)
