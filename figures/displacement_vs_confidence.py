"""Displacement against the trainer's doubt 1 - p: quantile bands, and the spreads of displacement and log ratio."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from figures.style import COLORS, DASHES, drawing, save

RECORDS = ("displacement_vs_confidence.json",)
REPRODUCED = "cis_fig9"  # records of the reproduction that hold such curves
LINES = [
    (COLORS[3], "-"),
    (COLORS[4], "--"),
    (COLORS[0], ":"),
    (COLORS[1], DASHES[3]),
    (COLORS[5], "-"),
    (COLORS[6], "-"),
]
MARKERS = ("o", "s", "^", "v", "D", "x")
FEWEST = 40  # tokens of an interval of a sample whose quantiles are drawn
SPREADS = {"mad epsilon": "MAD of $\\varepsilon$, nats", "mad log k": "MAD of $\\log k$, nats"}


def draw(records: list[Any], out: Path, name: str = "displacement_vs_confidence") -> list[Path]:
    """Draw a panel of bands per source, then both MADs of all of them; bars are 95 % intervals, dots printed numbers."""
    drawn = records[0]["result"]
    curves = {source: _enough(curve) for source, curve in drawn["curves"].items()}
    curves = {source: curve for source, curve in curves.items() if curve["doubt"]}
    columns = 2
    rows = -(-(len(curves) + 2) // columns)
    with drawing("page", 0.7 + 2.0 * rows, nrows=rows, ncols=columns) as (figure, grid):
        panels = list(grid.flat)
        for axes, (source, curve) in zip(panels, curves.items(), strict=False):
            _bands(axes, source, curve)
        tallest = max(max(curve["q99"]) for curve in curves.values())
        for axes in panels[: len(curves)]:
            axes.set_ylim(-1.3 * tallest, 1.3 * tallest)
        for axes, (key, label) in zip(panels[len(curves) :], SPREADS.items(), strict=False):
            _spreads(axes, key, label, curves, drawn.get("printed"))
        for axes in panels[len(curves) + len(SPREADS) :]:
            axes.set_axis_off()
        for axes in panels:
            axes.set(xscale="log", xlim=(1, 5e-7))
        for axes in grid[-1]:
            axes.set_xlabel("1 - p, the trainer's doubt (surer to the right)")
        handles = {text: handle for ax in panels for handle, text in zip(*ax.get_legend_handles_labels(), strict=True)}
        figure.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=3)
        return save(figure, name, drawn, out)


def _enough(curve: dict[str, Any]) -> dict[str, Any]:
    """Leave out the intervals of a sample that hold few tokens."""
    if "tokens" not in curve:
        return curve
    keep = [k for k, count in enumerate(curve["tokens"]) if count >= FEWEST]
    kept = {key: [value[k] for k in keep] for key, value in curve.items() if isinstance(value, list)}
    ends = {key: [[end[k] for k in keep] for end in pair] for key, pair in curve.get("interval", {}).items()}
    return {**curve, **kept, "interval": ends}


def _bands(axes: Any, source: str, curve: dict[str, Any]) -> None:
    """Median, 10-90 % and 1-99 % of the displacement."""
    x = curve["doubt"]
    axes.fill_between(x, curve["q1"], curve["q99"], color="#b9cfe8", lw=0, label="1 to 99 %")
    axes.fill_between(x, curve["q10"], curve["q90"], color="#6f9fd0", lw=0, label="10 to 90 %")
    axes.plot(
        x, curve["q50"], color="black", linewidth=1.2, marker="o" if "tokens" in curve else "", ms=2.5, label="median"
    )
    if curve.get("interval"):
        low, high = curve["interval"]["q50"]
        axes.vlines(x, low, high, color="black", linewidth=1)
    axes.axhline(0, color="#777777", linewidth=0.6)
    axes.set(title=source, ylabel="$\\varepsilon$, nats")


def _spreads(axes: Any, key: str, label: str, curves: dict[str, Any], printed: dict[str, Any] | None) -> None:
    """One MAD of every source; of the log ratio on a logarithmic axis, beside the line 1 - p times a constant."""
    for (source, curve), (color, dash), marker in zip(curves.items(), LINES, MARKERS, strict=False):
        measured = "tokens" in curve
        axes.plot(curve["doubt"], curve[key], color=color, linestyle=dash, label=source,
                  marker=marker if measured else "", ms=3.5, mfc="none")  # fmt: skip
        if curve.get("interval"):
            axes.vlines(curve["doubt"], *curve["interval"][key], color=color, linewidth=1)
    if printed:
        axes.plot(printed["doubt"], printed[key], "D", ms=4.5, mfc="none", mec="black", label="printed, MoE")
    axes.set(title=label.split(",")[0], ylabel=label)
    if key == "mad log k":
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
