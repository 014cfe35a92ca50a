"""Figures of the notebook on second moments, which draw the numbers they are given, and those numbers in plain Python.

The functions `..._by_hand` use no library: counts of ones are exact integers, moments of two tokens a line of arithmetic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations_with_replacement
from math import comb, exp, factorial, log, log10, prod
from typing import Any

from checked_panels import Picture, picture
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
) -> Picture:
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
        return picture(figure)


def collapse(
    lengths: Sequence[int],
    curves: Sequence[Sequence[float]],
    at: tuple[int, Sequence[float]],
    cap: float,
    weights: Tensor,
    laws: tuple[Tensor, Tensor],
    titles: tuple[str, str],
) -> Picture:
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
        return picture(figure)


# ------------------------------------------------------------------------------------------------ in plain Python
def products_by_hand(goes: float, late: float) -> dict[str, float]:
    """Moments of the two tokens, in closed form.

    The first token is a fair coin against `goes`: its ratio has second moment 2 (goes^2 + (1 - goes)^2). After token 1 the
    target draws 1 with probability 0.1 and the sampler with `late`; after token 0 they agree.
    """
    first, after = 2 * (goes**2 + (1 - goes) ** 2), 0.1**2 / late + 0.9**2 / (1 - late)
    tilted = goes**2 / (goes**2 + (1 - goes) ** 2)
    later = tilted * after + 1 - tilted
    return {
        "first": first, "after": after, "tilted": tilted, "later": later, "second": first * later,
        "average": first * (1 + after) / 2, "largest": first * max(1.0, after),
    }  # fmt: skip


def growth_by_hand(goes: float, late: float) -> list[float]:
    """Numbers that `growth` and the sentence below it print, in order."""
    m = products_by_hand(goes, late)
    off = m["average"] / m["second"] - 1
    title = [off] if abs(off) > 1e-12 else []
    legend = [m["largest"], m["second"], m["average"]]
    return [*title, 0.5, goes, m["tilted"], *legend, m["second"], m["first"], m["later"], m["average"], m["largest"]]


def coin_by_hand(p: float, length: int) -> tuple[list[int], list[float]]:
    """Number of responses with 0, 1, ... ones, of 2^length, and the weight of one of each: (2p)^ones (2 - 2p)^rest."""
    ways = [comb(length, ones) for ones in range(length + 1)]
    return ways, [exp(ones * log(2 * p) + (length - ones) * log(2 - 2 * p)) for ones in range(length + 1)]


def collapse_by_hand(p: float, length: int, cap: float) -> list[float]:
    """Numbers that `collapse` and the sentence below it print, in order; p > 1/2, so more ones weigh more."""
    ways, weights = coin_by_hand(p, length)
    total, ones = 2**length, range(length + 1)
    drawn = [count / total for count in ways]
    least = _from_the_top(ways)  # responses with at least so many ones
    second = (2 * (p**2 + (1 - p) ** 2)) ** length
    left = sum(q * min(w, cap) for q, w in zip(drawn, weights, strict=True))
    median = weights[next(k for k in ones if 2 * (total - least[k] + ways[k]) >= total)]
    rare = weights[max(k for k in ones if 1000 * least[k] >= total)]
    under_target = _from_the_top([q * w for q, w in zip(drawn, weights, strict=True)])
    half = least[max(k for k in ones if under_target[k] >= 0.5)] / total
    legend = [second, rare, cap, left, median, cap]
    return [length, median, half, *legend, length, second, left, median, rare, half]


def _from_the_top(values: Sequence[Any]) -> list[Any]:
    """Sum of each entry and all after it."""
    sums, so_far = [], 0
    for value in reversed(values):
        so_far += value
        sums.append(so_far)
    return sums[::-1]


def kish_by_hand(p: float, length: int, cap: float) -> list[float]:
    """Row of the last table: tokens, 4 / d2, average ESS of four weights and of four capped ones, mean of a capped one."""
    ways, weights = coin_by_hand(p, length)
    drawn, capped = [count / 2**length for count in ways], [min(w, cap) for w in weights]
    sums = {"raw": 0.0, "capped": 0.0}
    for four in combinations_with_replacement(range(length + 1), 4):
        orders = factorial(4) // prod(factorial(count) for count in Counter(four).values())
        chance = orders * prod(drawn[k] for k in four)
        for name, values in (("raw", weights), ("capped", capped)):
            w = [values[k] for k in four]
            sums[name] += chance * sum(w) ** 2 / sum(x * x for x in w)
    mean = sum(q * w for q, w in zip(drawn, capped, strict=True))
    return [length, 4 / (2 * (p**2 + (1 - p) ** 2)) ** length, sums["raw"], sums["capped"], mean]
