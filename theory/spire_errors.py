"""Exact error of SPIRE's estimators by how its caps are chosen, in enumerated worlds from nearly on-policy to far from it.

A batch is n independent responses; its estimate is the mean of their terms. With caps fixed in advance the error is exact:

    |E term - truth|^2 + Var(term) / n     (summed over the parameters for the gradient)

O1's caps are those of the true law, segment by segment; a batch would estimate them from its own weights. O1 promises the
least error for the constant signal alone. The gradient keeps a bias that no cap removes where later segments are
off-policy and the reward comes at the end (S4).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from math import sqrt
from statistics import median
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from testbed.estimators.gradient import gradient_terms
from testbed.exact.gradients import exact_gradient
from testbed.exact.law import ExactLaw
from testbed.policies.families import mixture
from testbed.policies.schedule import ExogenousSchedule, PrefixSchedule, Schedule
from testbed.weighting.optimal_cap import optimal_cap
from testbed.weighting.rules import weigh
from testbed.weighting.segment_ends import segment_end_log_ratios
from theory.worlds import World, standard_worlds

DRAWS = (4, 16, 64, 256, 1024)
SHOWN_DRAWS = (4, 64, 1024)  # in the table
LEVELS = {"near": (1.0, 0.25), "stale": (1.0, 1.0), "far": (2.5, 1.0)}  # spread of the logits, weight of the behavior
SIGNALS = ("constant", "value", "gradient")
CHOICES = ("auto", "none", "two", "sqrt_n")
TIE = 1e-9  # relative; errors closer than this are equal
EVEN = 0.01  # relative differences of errors below this are said not to matter
NOTHING = 1e-15  # an error below this is rounding


def with_behavior_weight(world: World, weight: float) -> World:
    """Replace each behavior by a mixture with the target, token by token."""

    def mixed(schedule: PrefixSchedule) -> PrefixSchedule:
        return PrefixSchedule([mixture(world.target, mu, weight) for mu in schedule.policies], schedule.segment_of)

    branches = [(probability, mixed(schedule)) for probability, schedule in world.schedule.branches()]
    schedule: Schedule = branches[0][1] if len(branches) == 1 else ExogenousSchedule(branches)
    return replace(world, schedule=schedule)


def leveled_worlds() -> Iterator[tuple[str, World]]:
    """Return the standard worlds at every level of staleness."""
    for level, (scale, weight) in LEVELS.items():
        for world in standard_worlds(scale=scale):
            yield level, with_behavior_weight(world, weight) if weight < 1 else world


def true_caps(law: ExactLaw, n: int) -> list[float]:
    """O1's cap of W_(k) under the true law, for every segment."""
    products = segment_end_log_ratios(law.batch).exp()
    return [float(optimal_cap(w, law.probs, n)) for w in products.unbind(1)]


def truths(world: World) -> dict[str, Tensor]:
    """What each signal's estimate is an estimate of: 1, E_pi[R], and the policy gradient."""
    return {
        "constant": torch.ones((), dtype=torch.float64),
        "value": world.target_law.expect(world.target_law.batch.reward),
        "gradient": exact_gradient(world.env, world.target),
    }


def signal_errors(
    world: World, truth: dict[str, Tensor], caps: list[float] | float | str
) -> dict[str, tuple[float, float]]:
    """Squared bias and variance of one term, for each signal, when segment k is capped at caps[k].

    constant: min(W_(K), c_K);  value: min(W_(K), c_K) R;  gradient: sum_t min(W_(k), c_k) R s_t, k the segment of t
    """
    law = world.law
    weights = weigh("spire", law.batch, cap=caps)
    last = caps[-1] if isinstance(caps, list) else float("inf") if isinstance(caps, str) else caps
    whole = segment_end_log_ratios(law.batch)[:, -1].exp().clamp(max=last)
    terms: dict[str, Float[Tensor, "N ..."]] = {
        "constant": whole,
        "value": whole * law.batch.reward,
        "gradient": gradient_terms(law.batch, weights, world.target),
    }
    found = {}
    for signal, term in terms.items():
        mean = law.expect(term)
        variance = law.expect((term - mean) ** 2)
        found[signal] = (float(((mean - truth[signal]) ** 2).sum()), float(variance.sum()))
    return found


@cache
def spire_rows() -> tuple[dict[str, Any], ...]:
    """Exact errors of every choice of caps, one row per level, world, n and signal.

    Returns
    -------
    tuple of dict   level, world, n, signal, caps (O1's, one per segment), mse: choice -> error, regret: choice -> error
                    over that of "auto", minus 1 (None where both are 0), o1_applies (constant signal), matters (some
                    choice errs more than 1 % more or less than "auto")
    """
    rows = []
    for level, world in leveled_worlds():
        truth = truths(world)
        fixed = {"none": signal_errors(world, truth, "none"), "two": signal_errors(world, truth, 2.0)}
        for n in DRAWS:
            caps = true_caps(world.law, n)
            parts = {"auto": signal_errors(world, truth, caps), **fixed, "sqrt_n": signal_errors(world, truth, sqrt(n))}
            for signal in SIGNALS:
                mse = {choice: parts[choice][signal][0] + parts[choice][signal][1] / n for choice in CHOICES}
                regret = {choice: _regret(mse[choice], mse["auto"]) for choice in CHOICES[1:]}
                rows.append({
                    "level": level, "world": world.name, "n": n, "signal": signal, "caps": caps, "mse": mse,
                    "regret": regret, "o1_applies": signal == "constant",
                    "matters": any(r is None or abs(r) > EVEN for r in regret.values()) and max(mse.values()) > NOTHING,
                })  # fmt: skip
    return tuple(rows)


def _regret(error: float, least: float) -> float | None:
    if least > NOTHING:
        return error / least - 1
    return 0.0 if error <= NOTHING else None


def spire_table() -> list[dict[str, Any]]:
    """Rows for a reader: per signal, level and n, over all worlds.

    Returns
    -------
    list of dict   signal, level, n, worlds, matters (worlds where the choice changes the error by more than 1 %), auto_least
                   (worlds where no other choice errs less than "auto"), then per other choice its median and its largest
                   regret against "auto"
    """
    table = []
    for signal in SIGNALS:
        for level in LEVELS:
            for n in SHOWN_DRAWS:
                rows = [r for r in spire_rows() if (r["signal"], r["level"], r["n"]) == (signal, level, n)]
                least = sum(all(r["mse"]["auto"] <= e * (1 + TIE) + NOTHING for e in r["mse"].values()) for r in rows)
                line: dict[str, Any] = {"signal": signal, "level": level, "n": n, "worlds": len(rows)}
                line |= {"matters": sum(r["matters"] for r in rows), "auto_least": least}
                for choice in CHOICES[1:]:
                    regrets = [r["regret"][choice] for r in rows if r["regret"][choice] is not None]
                    line |= {f"{choice}_median": float(median(regrets)), f"{choice}_largest": max(regrets)}
                table.append(line)
    return table
