"""Tails of the perturbation of one logit and of the displacement: how often they exceed a size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from figures.style import COLORS, DASHES, drawing, save

RECORDS = ("displacement_tails.json",)
REPRODUCED = "cis_fig7"  # records of the reproduction that hold such curves
LINES = [
    (COLORS[3], "-"), (COLORS[4], "-."), (COLORS[0], "--"), (COLORS[1], ":"), (COLORS[5], DASHES[4]), (COLORS[6], "-"),
    (COLORS[2], "-"),
]  # fmt: skip
TITLES = {
    "delta": "perturbation of one logit, $|\\delta|$",
    "epsilon": "displacement of the log-odds, $|\\varepsilon|$",
}
PRINTED = {"Dense": ("o", "printed, dense"), "MoE": ("s", "printed, MoE")}
LEAST = 1e-5  # shares below this are not drawn


def draw(records: list[Any], out: Path, name: str = "displacement_tails") -> list[Path]:
    """Draw both tails on double logarithmic axes; bands are 95 % intervals of the rollouts, dots are printed numbers."""
    drawn, looks = records[0]["result"], {}
    with drawing("column", 5.6, nrows=2, sharex=True) as (figure, panels):
        for axes, (of, title) in zip(panels, TITLES.items(), strict=True):
            for source, curve in drawn["curves"].items():
                for label, shares in _tails(source, curve, of):
                    color, dash = looks.setdefault(label, LINES[len(looks) % len(LINES)])
                    heights = [share if share > 0 else float("nan") for share in shares]
                    axes.plot(curve["points"], heights, color=color, linestyle=dash, label=label)
                    if f"{of} interval" in curve:
                        low, high = ([max(x, LEAST) for x in end] for end in curve[f"{of} interval"])
                        axes.fill_between(curve["points"], low, high, color=color, alpha=0.18, lw=0)
            for point in (p for p in drawn.get("printed", ()) if p["of"] == of):
                marker, label = PRINTED[point["model"]]
                axes.plot(
                    point["x"], point["share"], marker, ms=5, mfc="none", mec="black", linestyle="none", label=label
                )
            axes.set(xscale="log", yscale="log", ylim=(LEAST, 1.3), ylabel="share beyond x", title=title)
        panels[1].set_xticks([0.01, 0.03, 0.1, 0.3, 1, 3], ["0.01", "0.03", "0.1", "0.3", "1", "3"])
        panels[1].minorticks_off()
        panels[1].set(xlim=(0.01, 4), xlabel="x, nats")
        found = {text: handle for ax in panels for handle, text in zip(*ax.get_legend_handles_labels(), strict=True)}
        narrow = max(map(len, found)) < 25
        figure.legend(list(found.values()), list(found), loc="outside lower center", ncols=2 if narrow else 1)
        return save(figure, name, drawn, out)


def _tails(source: str, curve: dict[str, Any], of: str) -> list[tuple[str, list[float]]]:
    """One tail, or one per way in which a perturbation was read off."""
    if isinstance(curve[of][0], dict):
        return [(reading["name"], reading["beyond"]) for reading in curve[of]]
    return [(source, curve[of])]
