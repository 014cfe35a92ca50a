"""Figures of the notebook on second moments: they draw the numbers they are given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log10
from typing import Any

from classroom import png
from torch import Tensor, cat

from figures.style import COLORS, drawing

BLACK, BLUE, ORANGE, GREEN, RED, GREY = COLORS[0], COLORS[3], COLORS[4], COLORS[5], COLORS[2], "#888888"
PRODUCTS: dict[str, tuple[str, dict[str, Any]]] = {
    "largest": ("product of the largest $d_2$: a bound", {"color": GREEN, "linewidth": 4.0, "alpha": 0.6}),
    "second": ("exact $E\\,W^2$", {"color": BLACK}),
    "average": ("product of averages: no bound", {"color": ORANGE, "linestyle": ":"}),
}
FLOOR, CEILING = 1e-6, 1e6  # weights drawn
SEEN = 1e-4  # of a law's highest density: what the axis leaves room for


def growth(
    late: Sequence[float],
    curves: Mapping[str, Sequence[float]],
    at: tuple[float, Mapping[str, float]],
    shares: Sequence[float],
) -> bytes:
    """Draw the three products against how wrong the sampler is, and where sampler, target and tilted law put the history.

    Parameters
    ----------
    late : the sampler's probabilities of token 1 after token 1
    curves : "second", "average" and "largest" at each
    at : the probability that is marked, and the three values there
    shares : of histories with token 1 under the sampler, the target, the tilted law
    """
    marked, now = at
    with drawing("page", 3.1, ncols=2, width_ratios=(3, 2)) as (figure, (ax, bars)):
        for name, (label, look) in PRODUCTS.items():
            ax.plot(late, curves[name], label=f"{label}: {now[name]:.2f}", **look)
            ax.plot([marked], [now[name]], "o", color=look["color"], markersize=5, clip_on=False, zorder=3)
        ax.axvline(marked, color=GREY, linewidth=0.8, zorder=0)
        ax.set(xlabel="probability of drawing 1 after token 1 (target: 0.1)", ylabel="second moment")
        ax.set(xlim=(late[0], late[-1]), ylim=(0, 1.05 * max(ax.get_ylim()[1], 2)))
        off = now["average"] / now["second"] - 1
        ax.set_title(f"the averages are {off:+.0%} off" if abs(off) > 1e-12 else "the averages happen to be right")
        for place, (share, color) in enumerate(zip(shares, (BLACK, BLUE, ORANGE), strict=True)):
            wide = share > 0.85
            bars.barh(place, share, 0.6, color=color)
            bars.text(share + (-0.02 if wide else 0.02), place, f"{share:.2f}", va="center", fontsize=7,
                      ha="right" if wide else "left", color="white" if wide else "black")  # fmt: skip
        bars.set_yticks(range(3), ("sampler", "target", "tilted by $W^2$"))
        bars.grid(axis="y", visible=False)
        bars.set_axisbelow(True)
        bars.invert_yaxis()
        bars.set(xlim=(0, 1), xlabel="share of histories with token 1", title="whose histories count")
        figure.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=3)
        return png(figure)


def collapse(
    lengths: Sequence[int],
    curves: Sequence[Sequence[float]],
    at: tuple[int, Sequence[float]],
    cap: float,
    weights: Tensor,
    laws: tuple[Tensor, Tensor],
    titles: tuple[str, str],
) -> bytes:
    """Draw growth and collapse against the length; at the marked length, what is drawn and what the mean is made of.

    Parameters
    ----------
    lengths : tokens per response
    curves : E W^2, weight that one response in a thousand reaches, mean after the cap, median, each at every length
    at : the length that is marked, and the four values there
    weights : log10 of the weights at that length, evenly spaced and falling
    laws : their probabilities under the sampler and under the target
    """
    length, now = at
    looks = (
        ("$E\\,W^2$", ORANGE, "--"),
        ("reached by one response in a thousand", RED, ":"),
        (f"mean of min(W, {cap:g})", BLUE, "-"),
        ("median of W", BLACK, "-."),
    )
    with drawing("page", 3.4, ncols=2) as (figure, (ax, hump)):
        for curve, value, (label, color, dash) in zip(curves, now, looks, strict=True):
            ax.plot(lengths, curve, color=color, linestyle=dash, label=f"{label}: {value:.3g}")
            if FLOOR <= value <= CEILING:
                ax.plot([length], [value], "o", color=color, markersize=4, zorder=3)
        ax.axhline(1, color=GREY, linewidth=0.8, zorder=0)
        ax.axvline(length, color=GREY, linewidth=0.8, zorder=0)
        ax.set(xscale="log", yscale="log", xlim=(1, lengths[-1]), ylim=(FLOOR, CEILING), xlabel="tokens per response")
        ax.set_xticks([1, 8, 64, 512, 2048], ["1", "8", "64", "512", "2048"])
        ax.minorticks_off()
        ax.set(ylabel="weight (its mean is one throughout)", title=titles[0])
        place = weights.flip(0)
        width = float(place[1] - place[0])
        edges = cat([place[:1] - width / 2, place + width / 2]).numpy()
        low, high = -1.0, max(1.0, log10(cap) + 0.2)
        for law, label, color in zip(laws, ("what is drawn", "what the mean is made of"), (BLACK, ORANGE), strict=True):
            hump.stairs(law.flip(0).numpy() / width, edges, fill=True, color=color, alpha=0.6, label=label)
            seen = weights[law > SEEN * law.max()]
            low, high = min(low, float(seen.min())), max(high, float(seen.max()))
        hump.axvline(log10(cap), color=BLUE, linewidth=1.2, label=f"the cap, {cap:g}")
        hump.set(
            xlim=(low - width, high + width), xlabel="weight, as a power of ten", ylabel="density", title=titles[1]
        )
        figure.legend(*ax.get_legend_handles_labels(), loc="outside lower left", ncols=1)
        figure.legend(*hump.get_legend_handles_labels(), loc="outside lower right", ncols=1)
        return png(figure)
