"""Six curves of training under each correction: reward, gradient, entropy, length, tokens acted on, largest ratio."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from figures.style import drawing, rule_line, save

RECORDS = ()
REPRODUCED, SCALES = "cis_fig10", ("tiny",)
PANELS = {
    "reward": "(a) reward of the batch", "grad_norm": "(b) gradient norm", "entropy": "(c) entropy, nats",
    "length": "(d) length, tokens", "acted": "(e) share of tokens acted on", "max_log_k": "(f) largest $|\\log k|$ of the batch",
}  # fmt: skip
BANDS = ("none", "cis")  # bands of all arms would cover each other
ARMS = {  # arms named like rules -> markers, which tell their lines apart in grey
    "none": "o", "exact": "s", "kpop": "D", "icepop": "^", "tis": "v", "seq_tis": "P", "seq_mis": "X", "cis": "*",
}  # fmt: skip
EVERY = 4  # points from one marker of a line to its next; those of other lines lie between


def draw(records: list[Any], out: Path, name: str = "training_dynamics") -> list[Path]:
    """Draw a figure per model and size of the mismatch: means over seeds, and the band that all seeds of two arms span."""
    drawn, written = records[0]["result"], []
    for words, setting in drawn["curves"].items():
        written += _draw_one(drawn, words, setting, out, f"{name}_{setting['name']}")
    return written


def _draw_one(drawn: dict[str, Any], words: str, setting: dict[str, Any], out: Path, name: str) -> list[Path]:
    from matplotlib.ticker import LogLocator

    with drawing("page", 4.4, nrows=2, ncols=3, sharex=True) as (figure, panels):
        for axes, (key, title) in zip(panels.flat, PANELS.items(), strict=True):
            for place, (arm, marker) in enumerate(ARMS.items()):
                curve, line = setting["arms"][arm][key], rule_line(arm)
                count = len(curve["mean"])
                width = setting["stretch"]
                middle = [width * (k + 0.5) for k in range(count)]
                if arm in BANDS:
                    axes.fill_between(middle, curve["low"], curve["high"], color=line.color, alpha=0.13, lw=0)
                    for end in ("low", "high"):
                        axes.plot(middle, curve[end], label="_edge", lw=0.5, alpha=0.6, **line.keywords())
                size = 5.2 if marker == "*" else 3.8
                mark = {"marker": marker, "ms": size, "mew": 0, "markevery": (place % EVERY, EVERY), "lw": 1.1}
                axes.plot(middle, curve["mean"], label=setting["arms"][arm]["name"], **mark, **line.keywords())
            axes.set_title(title, loc="left")
            if key == "grad_norm":
                axes.set_yscale("log")
                axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
                axes.yaxis.set_major_formatter("{x:g}")
                axes.yaxis.set_minor_formatter("")
            elif key != "length":
                axes.set_ylim(0, None)
        for axes in panels[1]:
            axes.set_xlabel("update")
        handles, labels = panels[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4, handlelength=3.2)
        figure.suptitle(f"{words}; means over seeds, bands: all seeds of no correction and of CIS", fontsize=8)
        return save(figure, name, {"place": words, **setting, "sources": drawn["sources"]}, out)
