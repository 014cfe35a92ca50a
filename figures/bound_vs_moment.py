"""The bound on the second moment (S10) beside the exact one, and the product of averages, which is no bound."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from figures.style import drawing, save

RECORDS = ("bound_vs_moment.json",)
TITLES = {
    "worse_where_the_target_goes": "two tokens, behavior worse where the target goes",
    "random_logit_noise": "three tokens, noise on the logits",
}
LINES: dict[str, tuple[str, dict[str, Any]]] = {
    "product_of_largest": ("product of the largest $d_2$: a bound", {"color": "#e0ab24", "linewidth": 3.5}),
    "second_moment": ("exact $E\\,W^2$", {"color": "#000000", "linewidth": 1.2}),
    "product_of_averages": ("product of averages: not a bound", {"color": "#d6561f", "linestyle": "--"}),
}


def draw(records: list[Any], out: Path) -> list[Path]:
    """Draw one panel per world; where the averages fall below the truth the gap is filled."""
    drawn = records[0]["result"]
    with drawing("column", 4.2, nrows=len(drawn)) as (figure, panels):
        for axes, (name, rows) in zip(panels, drawn.items(), strict=True):
            for key, (label, line) in LINES.items():
                axes.plot(rows["response_kl"], rows[key], label=label, **line)
            low, high = rows["product_of_averages"], rows["second_moment"]
            falls_short = [a < b for a, b in zip(low, high, strict=True)]
            axes.fill_between(rows["response_kl"], low, high, where=falls_short, color="#d6561f", alpha=0.25, lw=0)
            axes.set(yscale="log", ylabel="second moment", title=TITLES.get(name, name))
            ticks = [t for t in (1, 2, 5, 10, 20) if t <= 1.3 * max(rows["product_of_largest"])]
            axes.set_yticks(ticks, list(map(str, ticks)))
            axes.minorticks_off()
        panels[-1].set_xlabel("KL(behavior || target) of a response, nats")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center")
        return save(figure, "bound_vs_moment", drawn, out)
