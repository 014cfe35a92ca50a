"""K5: a replay share that is optimal for the age it causes: there may be none, one or several."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch

from testbed.estimators import equilibrium
from testbed.rollout import replay_ages
from testbed.rollout.replay import ReplayBuffer
from testbed.rollout.replay_ages import age_law, mean_growth, survival
from theory.derivation import Derivation
from theory.mixing_cases import numeric_least
from theory.planting import planted
from theory.replay_equilibria import AgingCase, BufferCase, aging_derivation, buffer_derivation
from theory.theorem import Claim, Mutant, Quantities, Theorem

GROWTHS = (1.1, 2.0, 3.0)
TERMS = (10, 100, 1000)
CLEARANCE = 0.02  # no share on a grid is nearer to its own best response where there is no equilibrium


def measure(case: AgingCase | BufferCase) -> Quantities:
    """Equilibria with what search says about each, or the ages a buffer hands out with their stationary law."""
    return measure_buffer(case) if isinstance(case, BufferCase) else measure_aging(case)


def measure_aging(case: AgingCase) -> Quantities:
    """Equilibria of the library, each against bounded search with the variance held at its own."""
    found = case.found
    count = float(len(found.shares))
    exists, unique = case.conditions
    values: dict[str, Any] = {
        "count": count, "expected": case.expected, "one": 1.0, "zero": 0.0,
        "reported": [found.existence_guaranteed, found.uniqueness_guaranteed],
        "conditions": [exists, unique and found.nondecreasing],
        "settled": [case.error(a, a) for a in found.shares],
        "searched": [numeric_least(lambda x, a=a: case.error(x, a)) for a in found.shares],
    }  # fmt: skip
    if exists:
        values["guaranteed"] = count
    if unique and not case.falls:
        values["guaranteed_once"] = count
    if case.roots:
        values["shares"] = list(found.shares)
    if case.expected == 0:
        saving, drift = case.cost_fresh - case.cost_replay, case.v_fresh * case.growth
        squared = case.budget * case.bias**2
        middle = 2 * squared + saving * case.v_fresh + drift * case.cost_fresh
        values |= {
            "discriminant": middle**2 - 8 * (squared + drift * saving) * saving * case.v_fresh,
            "nearest": case.farthest_from(), "clearance": CLEARANCE,
        }  # fmt: skip
    return values


def measure_buffer(case: BufferCase) -> Quantities:
    """Ages of the simulated buffer, choice by choice; and the mean of a variance that grows with age."""
    law = age_law(case.eviction, case.capacity, case.stored, case.steps - 1)
    values: dict[str, Any] = {"stationary": law, "enumerated": case.enumerated(), "simulated": law.clone()}
    if (
        case.eviction == "random"
    ):  # what was stored at the first step is as old as the run: it holds the rest of the mass
        values["simulated"][-1] = 1 - law[:-1].sum()
    ages = torch.arange(1, 4001, dtype=torch.float64)
    stays = survival(case.capacity, case.stored)
    infinite = [g for g in GROWTHS if case.eviction == "random" and g * stays >= 1]
    finite = [g for g in GROWTHS if g not in infinite and (case.eviction == "fifo" or g * stays < 0.9)]
    long = age_law(case.eviction, case.capacity, case.stored, 4000)
    log_law = long.log()  # growth^age overflows long before the product with the law does
    values |= {"mean_growth": [mean_growth(case.eviction, case.capacity, case.stored, g) for g in finite],
               "summed": [(log_law + ages * math.log(g)).exp().sum() for g in finite]}  # fmt: skip
    if infinite:
        g = infinite[0]
        terms = (log_law + ages * math.log(g)).exp()
        values |= {"partial": [terms[:k].sum() for k in TERMS], "linear": [k * (1 - stays) * g for k in TERMS],
                   "reported_mean": mean_growth(case.eviction, case.capacity, case.stored, g),
                   "infinity": float("inf")}  # fmt: skip
    return values


@lru_cache(maxsize=16)
def _aging(roots: tuple[str, ...]) -> Derivation:
    return aging_derivation(roots)


@lru_cache(maxsize=16)
def _buffer(eviction: str, stored: int, ages: int) -> Derivation:
    return buffer_derivation(eviction, stored, ages)


def derive(case: AgingCase | BufferCase) -> Derivation:
    """Steps of an equilibrium or of an age law."""
    if isinstance(case, BufferCase):
        return _buffer(case.eviction, case.stored, case.steps - 1)
    return _aging(case.roots)


def none() -> list[AgingCase]:
    """The catalogued instance without an equilibrium."""
    return [AgingCase(name="none", v_fresh=2.95, cost_replay=0.19, budget=7.4, bias=0.51, growth=0.49, expected=0)]


def several() -> list[AgingCase]:
    """Three equilibria where the error bends up everywhere, but C b^2 c_f < D_c^2 v_f."""
    return [AgingCase(name="three", v_fresh=2.89, cost_replay=0.08, budget=8.7, bias=0.51, growth=0.18, longest=5.0,
                      expected=3, roots=("lower", "upper", "oldest"))]  # fmt: skip


def falling() -> list[AgingCase]:
    """A variance that falls with the share; both conditions on the numbers hold."""
    return [AgingCase(name="falling", v_fresh=1.0, cost_replay=0.2, budget=8.0, bias=0.1**0.5, growth=0.7, expected=3,
                      falls=True)]  # fmt: skip


def equilibria() -> list[AgingCase]:
    """Catalogued: none and two; one, with and without a guarantee; three; all replay."""
    return [
        *none(), *several(),
        AgingCase(name="two", v_fresh=1.51, cost_replay=0.2, budget=7.4, bias=0.36, growth=0.25, expected=2,
                  roots=("lower", "upper")),
        AgingCase(name="guaranteed", v_fresh=1.0, cost_replay=0.25, budget=64.0, bias=0.5, growth=0.05, expected=1,
                  roots=("lower",)),
        AgingCase(name="no_growth", v_fresh=1.0, cost_replay=0.25, budget=16.0, bias=0.25, growth=0.0, expected=1,
                  roots=("lower",)),
        AgingCase(name="oldest", v_fresh=2.0, cost_replay=0.25, budget=4.0, bias=0.51, growth=0.02, expected=1, longest=3.0,
                  roots=("oldest",)),
    ]  # fmt: skip


def buffers() -> list[BufferCase]:
    """Both evictions; one and several items stored per step; a capacity that is no multiple of what is stored."""
    return [
        BufferCase(name="fifo", eviction="fifo", capacity=3, n=2, share=0.5, steps=5),
        BufferCase(name="fifo_remainder", eviction="fifo", capacity=5, n=3, share=1 / 3, steps=4),
        BufferCase(name="random", eviction="random", capacity=2, n=2, share=0.5, steps=5),
        BufferCase(name="random_two_stored", eviction="random", capacity=2, n=3, share=1 / 3, steps=4),
        BufferCase(name="one_place", eviction="random", capacity=1, n=2, share=0.5, steps=4),
    ]


def instances() -> list[AgingCase | BufferCase]:
    """Equilibria and buffers."""
    return [*equilibria(), *buffers()]


def claimed_to_exist(case: AgingCase) -> Quantities:
    """Mutated reading: existence without the condition that the error bends up."""
    return {"one": 1.0, "guaranteed": float(len(case.found.shares))}


def claimed_unique(case: AgingCase) -> Quantities:
    """Mutated reading: uniqueness without its condition."""
    return {"one": 1.0, "guaranteed_once": float(len(case.found.shares))}


@contextmanager
def newest_leaves() -> Iterator[None]:
    """Bug: a full first-in-first-out buffer pops the wrong end."""
    with planted(ReplayBuffer, "_leaving", lambda right: lambda self, chooser: len(self.stored) - 1):
        yield


THEOREM = Theorem(
    id="K5",
    kind="optimum",
    title="a replay share that is optimal for the age it causes exists and is unique under conditions, not always",
    hypotheses=(
        "as K1, with v_r = V(a), V continuous and nondecreasing; an equilibrium is a = a*(V(a))",
        "existence: C b^2 > (V(a) - v_f) D_c on [0, 1]",
        "uniqueness: moreover C b^2 c_f >= D_c^2 v_f",
        "buffer: each step draws uniformly, then stores f items; when full, an item takes the oldest's or a random one's place",
    ),
    statement="under the first condition an equilibrium exists, under both it is unique; without them there are instances with "
    "none, with two and with three; ages are uniform (f/M each) under first-in-first-out eviction and geometric with "
    "s = (1 - 1/M)^f under random eviction, where E g^age is infinite for g >= 1/s",
    source="ours (intermediate value theorem); a reading of SPIRE's replay ratio",
    reading=True,
    claims=(
        Claim("count", "equal", "count", "expected", "as many equilibria as catalogued"),
        Claim("settled", "equal", "settled", "searched", "each is best for the variance that it causes"),
        Claim("exists", "at_most", "one", "guaranteed", "at least one where the error bends up everywhere"),
        Claim("unique", "equal", "guaranteed_once", "one", "exactly one under both conditions"),
        Claim("conditions", "equal", "reported", "conditions", "the library reports which conditions hold"),
        Claim("no_real_root", "at_most", "discriminant", "zero", "no equilibrium: the quadratic has no real root"),
        Claim("kept_apart", "at_most", "clearance", "nearest", "and no share on a grid comes near its best response"),
        Claim("ages", "equal", "enumerated", "simulated", "ages of the simulated buffer, over all of its choices"),
        Claim("growth", "equal", "mean_growth", "summed", "mean of g^age, summed term by term"),
        Claim("infinite", "equal", "reported_mean", "infinity", "reported as infinite for g >= 1/s"),
        Claim("no_limit", "at_most", "linear", "partial", "its partial sums grow at least linearly"),
    ),
    instances=instances,
    measure=measure,
    derive=derive,
    outcome="Check both conditions before tuning a replay ratio by iteration, and evict the oldest: random eviction has a tail.",
    mutants=(
        Mutant(name="existence_without_convexity", kind="hypothesis", breaks=("exists",), instances=none,
               measure=claimed_to_exist,
               why="where the error starts to bend down the best response leaps over the share"),
        Mutant(name="uniqueness_without_dominant_bias", kind="hypothesis", breaks=("unique",), instances=several,
               measure=claimed_unique, why="with C b^2 c_f < D_c^2 v_f more variance asks for more replay"),
        Mutant(name="variance_falls", kind="hypothesis", breaks=("unique",), instances=falling, measure=claimed_unique,
               why="a falling V makes the best response rise: it meets the share three times"),
        Mutant(name="leap_taken_for_equilibrium", kind="bug", breaks=("count", "settled"), on=("none", "two"),
               plant=lambda: planted(equilibrium, "meets", lambda right: lambda ahead, share: True),
               why="a sign change is no zero of a function that leaps; needs a best response with a leap"),
        Mutant(name="newest_leaves", kind="bug", breaks=("ages",), on=("fifo", "fifo_remainder"), plant=newest_leaves,
               why="popping the wrong end keeps the first items for ever; needs a full buffer"),
        Mutant(name="survival_linear", kind="bug", breaks=("ages",), on=("random_two_stored",),
               plant=lambda: planted(replay_ages, "survival", lambda right: lambda m, f: 1 - f / m),
               measure=lambda case: {k: v for k, v in measure(case).items() if k in ("enumerated", "simulated")},
               why="new items can take each other's place: (1 - 1/M)^f, not 1 - f/M; needs two stored per step"),
    ),
)  # fmt: skip
