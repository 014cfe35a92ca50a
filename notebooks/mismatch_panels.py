"""Figures of the notebook on mismatch, which draw the numbers they are given, and those numbers a second way.

The functions `..._by_hand` call nothing of the library: softmax, odds and sums in plain arrays.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from math import e, exp, log, prod, sqrt
from typing import Any

import numpy as np
from checked_panels import Picture, picture
from pyarrow.parquet import read_table

from figures.style import COLORS, drawing
from testbed.sample_data import partial_rollouts_path

BLACK, BLUE, ORANGE, GREEN, GREY = COLORS[0], COLORS[3], COLORS[4], COLORS[5], "#888888"
DOUBT = "1 - p, the trainer's doubt (surer to the right)"
RANGES = ("p < .5", ".5 - .9", ".9 - .99", ".99 - .999", "> .999")
ARMS = {"cis": ("CIS", BLACK, "o", "-"), "tis": ("constant cap", BLUE, "s", "--"), "mis": ("mask", ORANGE, "x", ":")}
SHARES_SHOWN = (1, 99, 10, 90)  # percent, in a legend
Curve = Sequence[float]


def noise(
    here: Mapping[str, Any], doubt: float, doubts: Curve, curve: Sequence[Mapping[str, Any]], title: str
) -> Picture:
    """Draw the distribution of a token's displacement, fixed and drawn; beside it both spreads against 1 - p.

    Parameters
    ----------
    here : what is known of the token at `doubt`: eps, chances when fixed and when drawn, sd drawn, sd log k
    curve : the same at each of the doubts
    """
    order = np.argsort(here["eps"])
    values = here["eps"][order]
    with drawing("page", 2.9, ncols=2) as (figure, (left, right)):
        for name, color, dash in (("fixed", GREY, "-"), ("drawn", BLACK, "--")):
            steps = np.concatenate([[0], np.cumsum(here[name][order])])
            left.step([values[0], *values], steps, where="post", color=color, linestyle=dash, label=f"token {name}")
        left.set(xlabel="displacement, nats", ylabel="probability of at most this", title=title, ylim=(0, 1.02))
        left.legend(loc="upper left")
        for key, color, dash, label in (
            ("sd drawn", BLUE, "-", "displacement"),
            ("sd log k", ORANGE, "--", "$\\log k$"),
        ):
            right.plot(doubts, [c[key] for c in curve], color=color, linestyle=dash, label=label)
            right.plot(doubt, here[key], "o", color=color, markeredgecolor="black", ms=6, zorder=3)
        right.set(xscale="log", yscale="log", xlim=(1, doubts[0]), xlabel=DOUBT, ylabel="standard deviation, nats")
        right.set_title("spread over the noise, token drawn")
        right.legend(loc="lower left")
        right.minorticks_off()
        return picture(figure)


def caps(
    doubts: Curve, bounds: Mapping[str, Curve], thresholds: Sequence[Curve], bands: Sequence[Curve],
    crossing: float | None, title: str,
) -> Picture:  # fmt: skip
    """Draw caps against 1 - p, on an axis of what they leave above 1; beside them the displacements beyond which they act.

    Parameters
    ----------
    bounds : name -> cap at each of the doubts
    thresholds : displacement beyond which the first two of them act, nats
    bands : 1, 10, 90 and 99 % of the displacement at each of the doubts
    crossing : doubt at which the first two caps are equal, or None
    """
    looks = ((BLACK, "-"), (BLUE, "--"), (ORANGE, ":"), (GREEN, "-."))
    with drawing("page", 3.4, ncols=2) as (figure, (left, right)):
        for (name, bound), (color, dash) in zip(bounds.items(), looks, strict=True):
            left.plot(doubts, np.asarray(bound) - 1, color=color, linestyle=dash, label=name)
        if crossing is not None:
            left.axvline(crossing, color=GREY, linewidth=0.8, zorder=0)
        ticks = (1e-4, 1e-3, 1e-2, 0.1, 1, 10)
        left.set(yscale="log", ylim=(3e-5, 40), ylabel="largest ratio kept", title=title)
        left.set_yticks(ticks, [f"{1 + t:g}" for t in ticks])
        left.minorticks_off()
        right.fill_between(doubts, bands[0], bands[3], color="#d9d9d9", lw=0, label="1 to 99 % of drawn tokens")
        right.fill_between(doubts, bands[1], bands[2], color="#ababab", lw=0, label="10 to 90 %")
        for edge, (color, dash) in zip(thresholds, looks, strict=False):
            right.plot(doubts, edge, color=color, linestyle=dash)
        right.set(ylim=(-1.5, 8), ylabel="displacement, nats", title="acts above the line")
        for ax in (left, right):
            ax.set(xscale="log", xlim=(1, doubts[0]), xlabel=DOUBT)
            ax.minorticks_off()
        handles = [pair for ax in (left, right) for pair in zip(*ax.get_legend_handles_labels(), strict=True)]
        figure.legend(*zip(*handles, strict=True), loc="outside lower center", ncols=3)
        return picture(figure)


def costs(
    now: Mapping[str, Mapping[str, Any]], at: Mapping[str, tuple[float, float]], paths: Mapping[str, tuple[Curve, Curve]],
    title: str,
) -> Picture:  # fmt: skip
    """Draw what each rule cuts off by range of confidence; beside it by how much its second moment exceeds the least.

    Parameters
    ----------
    now : rule -> "by range" where it stands now
    at : rule -> its bias over all tokens, and its second moment above that of the constant cap of the same bias
    paths : rule -> the same along its parameter
    """
    with drawing("page", 3.2, ncols=2) as (figure, (left, right)):
        for k, rule in enumerate(now):
            (label, color, marker, dash), cut = ARMS[rule], now[rule]["by range"]
            places = [place + 0.2 * (k - 1) for place in range(len(RANGES)) if cut[place] > 0]
            look = {"color": color, "mfc": "none"}
            left.plot(places, [x for x in cut if x > 0], marker, ms=5, linestyle="none", label=label, **look)
            right.plot(paths[rule][0], [1e4 * x for x in paths[rule][1]], color=color, linestyle=dash)
            right.plot(at[rule][0], 1e4 * at[rule][1], marker, ms=7, mew=1.6, **look)
        left.set(yscale="log", ylabel="bias: mean of (k - w) f", xlabel="trainer's p of the token", title=title)
        left.set_xticks(range(len(RANGES)), RANGES)
        left.grid(axis="x", visible=False)
        right.set(xscale="log", xlabel="bias over all tokens", title="each rule along its own bound")
        right.set_ylabel("second moment above the\nconstant cap's, 1e-4")
        for ax in (left, right):
            ax.minorticks_off()
        figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=3)
        return picture(figure)


def rollouts(
    tokens: Mapping[str, tuple[Curve, Curve]], doubts: Curve, edges: Mapping[str, Curve], titles: Sequence[str]
) -> Picture:
    """Draw recorded displacements against 1 - p, one panel per engine, with the lines above which rules act."""
    with drawing("page", 3.2, ncols=len(tokens), sharey=True) as (figure, panels):
        for ax, (doubt, eps), title in zip(panels, tokens.values(), titles, strict=True):
            ax.plot(doubt, eps, ".", color="#777777", ms=1.6, zorder=1, rasterized=True)
            for (name, edge), (color, dash) in zip(
                edges.items(), ((BLACK, "-"), (BLUE, "--"), (ORANGE, ":")), strict=True
            ):
                ax.plot(doubts, edge, color=color, linestyle=dash, label=name, zorder=2)
            ax.set(xscale="log", xlim=(1, 1e-4), ylim=(-1.2, 3.2), xlabel=DOUBT, title=title)
            ax.minorticks_off()
        panels[0].set_ylabel("displacement, nats")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
        return picture(figure)


# ------------------------------------------------------------------------------------------------ a second way
def ratio_by_hand(p: float, eps: float) -> float:
    """Ratio p/q of a token whose log-odds are eps higher with the trainer: q from the odds, then divide."""
    odds = p / (1 - p) * e**-eps
    return p * (1 + odds) / odds


def noise_by_hand(sigma: float, p: float, share: float) -> dict[str, float]:
    """Moments of the first of three tokens' displacement: p, and the others share : 1 - share of the rest."""
    law = np.array([p, (1 - p) * share, (1 - p) * (1 - share)])
    total: dict[str, float] = {}
    for shifts in product((-sqrt(3) * sigma, 0.0, sqrt(3) * sigma), repeat=3):
        chance = prod(2 / 3 if shift == 0 else 1 / 6 for shift in shifts)
        q = law[0] * exp(shifts[0]) / (law @ np.exp(shifts))
        eps, log_ratio, drawn = log(p / (1 - p)) - log(q / (1 - q)), log(p / q), chance * q
        for name, value in (
            ("fixed", chance * eps), ("square", chance * eps**2), ("chance", drawn), ("drawn", drawn * eps),
            ("log", drawn * log_ratio), ("log square", drawn * log_ratio**2),
        ):  # fmt: skip
            total[name] = total.get(name, 0.0) + value
    variance = total["square"] - total["fixed"] ** 2
    return {
        "sd": sqrt(variance), "first order": sigma * sqrt(1 + share**2 + (1 - share) ** 2), "fixed": total["fixed"],
        "drawn": total["drawn"] / total["chance"], "tilt": -(1 - p) * variance,
        "sd log k": sqrt(total["log square"] / total["chance"] - (total["log"] / total["chance"]) ** 2),
    }  # fmt: skip


def caps_by_hand(doubt: float, lam: float, floor: float) -> tuple[float, float, float]:
    """Caps of the three readings."""
    room = max(doubt, floor)
    return 1 + room * (exp(lam) - 1), 1 + room * lam, exp(room * lam)


def edge_by_hand(doubt: float, cap: float) -> float:
    """Displacement at which the ratio is the cap: log of the odds ratio at q = p / cap."""
    p, q = 1 - doubt, (1 - doubt) / cap
    return log(p / doubt) - log(q / (1 - q))


def caps_control_by_hand(lam: float, floor: float, cap: float) -> list[Any]:
    """Numbers that `caps` and the sentence below it print, in order."""
    meet = (cap - 1) / (exp(lam) - 1)
    said: list[Any] = [[meet] if floor < meet < 1 else [], *SHARES_SHOWN]
    for p in (0.9, 0.999):
        bounds = caps_by_hand(1 - p, lam, floor)
        said += [p, bounds, edge_by_hand(1 - p, bounds[0]), edge_by_hand(1 - p, cap)]
    return said


def weights_by_hand(p: float, q: float) -> list[float]:
    """p, q, the ratio, and what tis(2), icepop, cis and kpop make of it."""
    k = p / q
    kept = (k if k <= 5 else 0.0, min(k, caps_by_hand(1 - p, 2.3, 5e-3)[0]), k if k <= coins_by_hand(p, 2.0) else 0.0)
    return [p, q, k, min(k, 2.0), *kept]


def population(*laws: Any) -> dict[str, np.ndarray]:
    """Tokens in the ranges of confidence of the paper's Table 7 as it prints them, under these laws of the displacement."""
    tokens, eps, log_k = np.array([
        (2824021, 0.156, 1.15e-1), (2337554, 0.175, 3.96e-2), (1951864, 0.186, 6.43e-3), (1549915, 0.203, 6.78e-4),
        (3562738, 0.237, 9.90e-6),
    ]).T  # fmt: skip
    doubt = (log_k / eps)[:, None]
    values, mass = (np.stack([getattr(law, name) for law in laws]) for name in ("values", "mass"))
    return {"doubt": doubt, "ratio": 1 - doubt + doubt * np.exp(values), "mass": mass, "share": tokens / tokens.sum()}


def costs_by_hand(
    of: dict[str, np.ndarray], arm: str, bound: float, score: bool, floor: float = 5e-3
) -> dict[str, Any]:
    """Share acted on, bias over all and by range, second moment of one rule at one bound (lambda, or a cap)."""
    ratio, mass, doubt = of["ratio"], of["mass"], of["doubt"]
    limit = 1 + np.maximum(doubt, floor) * (exp(bound) - 1) if arm == "cis" else np.full_like(doubt, bound)
    weight = np.where(ratio > limit, 0.0 if arm == "mis" else limit, ratio)
    f = doubt if score else np.ones_like(doubt)

    def mean(values: np.ndarray) -> float:
        return float(of["share"] @ (mass * values).sum(1))

    return {
        "acted": mean(ratio > limit), "bias": mean((ratio - weight) * f), "second": mean((weight * f) ** 2),
        "by range": (mass * (ratio - weight) * f).sum(1), "ceiling": mean(ratio * limit), "weights": weight,
    }  # fmt: skip


def change_by_hand(of: dict[str, np.ndarray], floor: float) -> float:
    """Largest relative change of a weight of CIS when this floor is put in."""
    with_floor, without = (costs_by_hand(of, "cis", 2.3, False, x)["weights"] for x in (floor, 0.0))
    return float((with_floor / without).max()) - 1


def floor_row_by_hand(of: dict[str, np.ndarray], floor: float) -> list[float]:
    """Floor of CIS, share of tokens touched, bias, and the largest change of a weight against no floor."""
    found = costs_by_hand(of, "cis", 2.3, False, floor)
    return [floor, found["acted"], found["bias"], change_by_hand(of, floor)]


def at_equal_bias(of: dict[str, np.ndarray], lam: float, score: bool) -> float:
    """Second moment of CIS above that of the constant cap of the same bias."""
    cis, low, high = costs_by_hand(of, "cis", lam, score), 1.0, 200.0
    for _ in range(60):
        middle = (low + high) / 2
        too_much = costs_by_hand(of, "tis", middle, score)["bias"] > cis["bias"]
        low, high = (middle, high) if too_much else (low, middle)
    return cis["second"] - costs_by_hand(of, "tis", high, score)["second"]


def raised_by_hand(of: dict[str, np.ndarray]) -> list[float]:
    """What three rules add to the mean weight: the clamp to [.5, 5], the paper's floor at half the odds, CIS."""
    ratio, doubt = of["ratio"], of["doubt"]
    half = np.maximum(ratio, 1 - doubt + doubt / 2)
    weights = (np.clip(ratio, 0.5, 5.0), half, costs_by_hand(of, "cis", 2.3, False)["weights"])
    return [float(of["share"] @ (of["mass"] * (w - ratio)).sum(1)) for w in weights]


def coins_by_hand(p: float, phi: float) -> float:
    """Largest ratio p / q at which the coins p and q are within phi in both directions: halve an interval of log k."""
    low, high = 0.0, 200.0
    for _ in range(200):
        middle = (low + high) / 2
        q = p * exp(-middle)
        there = p * middle + (1 - p) * log((1 - p) / (1 - q))
        back = -q * middle + (1 - q) * log((1 - q) / (1 - p))
        low, high = (middle, high) if max(there, back) <= phi else (low, middle)
    return exp(low)


def recorded_by_hand(segment: int, sampler: str, twin: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Trainer's probability, displacement and log ratio of the tokens of one segment, from the columns of the file."""
    table = read_table(partial_rollouts_path(), columns=["segment", f"logp_{sampler}", f"logp_{twin}"])
    which, log_q, log_p = (table.column(name).to_numpy() for name in table.column_names)
    log_q, log_p = log_q[which == segment], log_p[which == segment]
    eps = log_p - np.log(-np.expm1(log_p)) - log_q + np.log(-np.expm1(log_q))
    return np.exp(log_p), eps, log_p - log_q


def spread_by_hand(values: np.ndarray) -> float:
    """Median distance from the median."""
    return float(np.median(np.abs(values - np.median(values))))


def bin_by_hand(
    tokens: tuple[np.ndarray, np.ndarray, np.ndarray], low: float, high: float
) -> tuple[np.ndarray, int, list[float]]:
    """Probabilities, number, MADs of displacement and log ratio of the recorded tokens with low <= p < high."""
    inside = (tokens[0] >= low) & (tokens[0] < high)
    return tokens[0][inside], int(inside.sum()), [spread_by_hand(values[inside]) for values in tokens[1:]]


def touched_by_hand(arm: str, engines: Iterable[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> list[int]:
    """How many recorded tokens exceed a cap of 2, of 1.13, that of CIS, or leave KPop's gate."""
    found = []
    for p, _, log_ratio in engines:
        k, q = np.exp(log_ratio), p / np.exp(log_ratio)
        coins = [a * np.log(a / b) + (1 - a) * np.log((1 - a) / (1 - b)) for a, b in ((p, q), (q, p))]
        beyond = {
            "two": k > 2, "tight": k > 1.13, "cis": k > 1 + np.maximum(1 - p, 5e-3) * (exp(2.3) - 1),
            "kpop": np.maximum(*coins) > 2,
        }  # fmt: skip
        found.append(int(beyond[arm].sum()))
    return found
