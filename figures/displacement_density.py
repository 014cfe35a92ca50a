"""Densities of the perturbation of one logit and of the displacement, dense models beside mixtures of experts."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from figures.style import COLORS, DASHES, drawing, save

RECORDS: tuple[str, ...] = ()
REPRODUCED = "cis_fig2"  # records of the reproduction that hold such curves
LINES = [(COLORS[3], "-"), (COLORS[0], "--"), (COLORS[4], ":"), (COLORS[1], DASHES[3]), (COLORS[5], DASHES[4])]
READ = [COLORS[0], COLORS[4], COLORS[3], COLORS[5]]  # a source whose perturbation was read off in several ways
ROWS = {"delta": "perturbation of one logit, $\\delta$", "epsilon": "displacement of the log-odds, $\\varepsilon$"}
COLUMNS = {"Dense": "dense", "MoE": "mixture of experts"}
LEAST = 1e-3  # densities below this are not drawn
FEWEST = 5  # values in a cell whose density is drawn
Look = tuple[str, Any]  # color, dash


def draw(records: list[Any], out: Path, name: str = "displacement_density") -> list[Path]:
    """Draw both on logarithmic axes, a column per kind of model; bands are 95 % intervals, whole responses drawn anew."""
    drawn = records[0]["result"]
    curves, looks = drawn["curves"], _looks(drawn["curves"])
    models = [model for model in COLUMNS if any(curve["model"] == model for curve in curves.values())]
    wide = len(models) > 1
    layout = {"nrows": 2, "ncols": len(models), "squeeze": False, "sharex": "col", "sharey": True}
    with drawing("page" if wide else "column", 5.4, **layout) as (figure, grid):
        for model, column in zip(models, grid.T, strict=True):
            farthest = 0.0
            for axes, (of, title) in zip(column, ROWS.items(), strict=True):
                axes.set(yscale="log", ylim=(LEAST, 20), title=f"{title}, {COLUMNS[model]}")
                for source, curve in curves.items():
                    for density in _densities(source, curve, of) if curve["model"] == model else ():
                        farthest = max(farthest, _draw(axes, curve["edges"], density, looks[density["name"]]))
            column[-1].set(xlim=(-1.05 * farthest, 1.05 * farthest), xlabel="trainer minus sampler, nats")
        for axes in grid[:, 0]:
            axes.set_ylabel("density, 1/nat")
        handles = {
            text: handle for ax in grid.flat for handle, text in zip(*ax.get_legend_handles_labels(), strict=True)
        }
        shown = [label for label in looks if label in handles]
        figure.legend([handles[label] for label in shown], shown, loc="outside lower center", ncols=2 if wide else 1)
        return save(figure, name, drawn, out)


def _looks(curves: dict[str, Any]) -> dict[str, Look]:
    """A line per label; a source read off in several ways keeps its color and has a dash for each."""
    looks: dict[str, Look] = {}
    for k, (source, curve) in enumerate(curves.items()):
        names = [reading["name"] for reading in curve["delta"]]
        if names == [source]:
            looks[source] = LINES[k % len(LINES)]
        else:
            looks |= {label: (READ[k % len(READ)], dash) for label, dash in zip([*names, source], DASHES, strict=False)}
    return looks


def _densities(source: str, curve: dict[str, Any], of: str) -> list[dict[str, Any]]:
    """The one density of the displacement, or one of the perturbation per way in which it was read off."""
    if of == "delta":
        return curve["delta"]
    displacement = {"density": curve["epsilon"], "interval": curve["epsilon interval"], "count": curve["count"]}
    return [{"name": source, **displacement}]


def _draw(axes: Any, edges: list[float], of: dict[str, Any], look: Look) -> float:
    """Draw a line with its band, broken where few values lie, and return how far from 0 it reaches."""
    cells = list(itertools.pairwise(edges))
    seen = [
        height * (high - low) * of["count"] > FEWEST - 0.5
        for (low, high), height in zip(cells, of["density"], strict=True)
    ]
    x = [(low + high) / 2 for low, high in cells]
    heights = [height if shown else float("nan") for height, shown in zip(of["density"], seen, strict=True)]
    axes.plot(x, heights, color=look[0], linestyle=look[1], linewidth=1.1, label=of["name"])
    low, high = ([max(end, LEAST / 2) for end in ends] for ends in of["interval"])
    axes.fill_between(x, low, high, where=seen, color=look[0], alpha=0.2, lw=0)
    return max((abs(at) for at, shown in zip(x, seen, strict=True) if shown), default=0.0)
