"""Instances of K5: shares that must be optimal for the age they cause, and buffers small enough to enumerate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import sympy as sp

from testbed.estimators.equilibrium import Equilibria, equilibrium_share
from testbed.exact.output_law import output_law
from testbed.rollout.replay import ReplayBuffer, replayed_ages
from theory.derivation import Derivation, Step
from theory.mixing_cases import MixingSymbols

AGE_CAP = 20.0


@dataclass(frozen=True, kw_only=True)
class AgingCase:
    """V(a) = v_f (1 + g (age - 1)) with age = min(longest, 1/(1-a)); or a falling V, against the hypothesis.

    `roots` names what the closed form must give: lower, upper (zeros of the quadratic), oldest (the share at the largest age).
    """

    name: str
    v_fresh: float
    cost_replay: float
    budget: float
    bias: float
    growth: float
    expected: int
    roots: tuple[str, ...] = ()
    longest: float = AGE_CAP
    cost_fresh: float = 1.0
    falls: bool = False

    def v_replay(self, share: float) -> float:
        """Variance of one replayed sample when this share is in use."""
        if self.falls:
            return self.v_fresh * (1 + self.growth * min(max((0.45 - share) / 0.15, 0.0), 1.0))
        age = self.longest if share >= 1 - 1 / self.longest else 1 / (1 - share)
        return self.v_fresh * (1 + self.growth * (age - 1))

    @property
    def found(self) -> Equilibria:
        """What the library finds."""
        return equilibrium_share(v_replay=self.v_replay, v_fresh=self.v_fresh, cost_fresh=self.cost_fresh,
                                 cost_replay=self.cost_replay, bias=self.bias, budget=self.budget, grid=201)  # fmt: skip

    @property
    def conditions(self) -> tuple[bool, bool]:
        """The two conditions of the theorem: existence, uniqueness."""
        saving, squared = self.cost_fresh - self.cost_replay, self.budget * self.bias**2
        most = max(self.v_replay(0.0), self.v_replay(1.0)) - self.v_fresh
        exists = squared > most * saving
        return exists, exists and squared * self.cost_fresh >= saving**2 * self.v_fresh

    def error(self, share: Any, used: float) -> Any:
        """Error of a share when `used` determines the ages."""
        v = self.v_fresh + share * (self.v_replay(used) - self.v_fresh)
        return (share * self.bias) ** 2 + v * (
            self.cost_fresh - share * (self.cost_fresh - self.cost_replay)
        ) / self.budget

    def farthest_from(self, points: int = 401) -> float:
        """Least distance of a share from its own best response, both on a grid: no formula is used."""
        grid = np.linspace(0.0, 1.0, points)
        return min(abs(float(grid[np.argmin(self.error(grid, a))]) - a) for a in grid)


@dataclass(frozen=True, kw_only=True)
class BufferCase:
    """A replay buffer that runs for some steps; with n (1 - share) = `stored` fresh samples per step."""

    name: str
    eviction: str
    capacity: int
    n: int
    share: float
    steps: int

    @property
    def stored(self) -> int:
        """Fresh samples per step."""
        return round(self.n * (1 - self.share))

    def enumerated(self) -> list[float]:
        """Law of the age of the first replayed sample of the last step, over every draw and every eviction; ages 1, 2, ..."""

        def age(chooser: Any) -> int:
            buffer = ReplayBuffer(self.capacity, self.eviction)
            return int(replayed_ages(self.steps, self.n, self.share, buffer, chooser)[-1][0])

        law = output_law(age)
        return [law.get(k, 0.0) for k in range(1, self.steps)]


def aging_derivation(roots: tuple[str, ...]) -> Derivation:
    """The best response falls as the variance rises; equilibria are zeros of a quadratic, or the share at the largest age."""
    w = MixingSymbols()
    g, spread, cap, a = sp.Symbol("g"), sp.Symbol("D"), sp.Symbol("L"), w.a
    squared = w.C * w.b**2
    response = (w.dc * w.vf - spread * w.cf) / (2 * (squared - spread * w.dc))
    slope = [
        Step("response_slope", sp.diff(response, spread), "the interior best response as a function of D = v_r - v_f"),
        Step("sign", (w.dc**2 * w.vf - squared * w.cf) / (2 * (squared - spread * w.dc) ** 2),
             "<= 0 iff C b^2 c_f >= D_c^2 v_f: then a nondecreasing V gives a nonincreasing response, which meets a once",
             tex=r"\frac{D_c^2 v_f - C b^2 c_f}{2 (C b^2 - D D_c)^2}"),
    ]  # fmt: skip
    drift = w.vf * g
    aged = drift * a / (1 - a)  # v_f g (age - 1) with age = 1/(1-a)
    top, middle, bottom = 2 * (squared + drift * w.dc), 2 * squared + w.dc * w.vf + drift * w.cf, w.dc * w.vf
    cleared = [
        Step("fixed_point", (1 - a) * (w.dc * w.vf - aged * w.cf - 2 * a * (squared - aged * w.dc)),
             "a = best response at age 1/(1-a), times its denominator and 1 - a"),
        Step("quadratic", top * a**2 - middle * a + bottom, "collected", tex=r"A a^2 - B a + D_c v_f"),
    ]  # fmt: skip
    root = sp.sqrt(middle**2 - 4 * top * bottom)
    oldest = response.subs(spread, drift * (cap - 1))
    exprs = {"lower": (middle - root) / (2 * top), "upper": (middle + root) / (2 * top), "oldest": oldest}
    chains = [slope, cleared]
    if roots:
        zeros = [top * exprs[r] ** 2 - middle * exprs[r] + bottom for r in roots if r != "oldest"]
        chains.append(
            [
                Step("zeros", zeros, "the quadratic at its roots"),
                Step("vanish", [0 * w.b] * len(zeros), "it is 0 there"),
            ]
        )
        chains.append([Step("equilibria", [exprs[r] for r in roots], "roots below the largest age, and the response at it",
                            quantity="shares", tex=r"\frac{B \pm \sqrt{B^2 - 4 A D_c v_f}}{2A}")])  # fmt: skip
    else:
        chains.append([Step("discriminant", middle**2 - 4 * top * bottom, "negative: no interior equilibrium",
                            quantity="discriminant", tex=r"B^2 - 4 A D_c v_f")])  # fmt: skip

    def point(rng: Any) -> Any:
        at = dict(w.point(rng))
        at[g] = sp.Rational(rng.randint(1, 9), 10)
        scale = at[w.vf] * (at[w.cf] - at[w.cr]) + at[w.vf] * at[g] * at[w.cf]
        at[w.C] = (2 * scale + rng.randint(1, 5)) / at[w.b] ** 2  # the quadratic then has real roots
        at[spread], at[cap] = sp.Rational(rng.randint(1, 5), 50), sp.Integer(2)
        return at

    def bind(case: AgingCase) -> Any:
        return {w.vf: case.v_fresh, w.cf: case.cost_fresh, w.cr: case.cost_replay, w.b: case.bias, w.C: case.budget,
                g: case.growth, cap: case.longest}  # fmt: skip

    return Derivation(chains, point, bind)


def buffer_derivation(eviction: str, stored: int, ages: int) -> Derivation:
    """Law of the age after the buffer has turned over, from the chance to be still there."""
    capacity = sp.Symbol("M", positive=True)
    if eviction == "fifo":
        there: Callable[[int], sp.Expr] = lambda k: sp.Min(1, k * sp.Integer(stored) / capacity)  # noqa: E731
        law = [
            Step("at_most", [there(k) - there(k - 1) for k in range(1, ages + 1)],
                 "the newest k steps hold k stored items of M, until the buffer ends"),
            Step("uniform", [sp.Max(0, sp.Min(stored, capacity - stored * (k - 1))) / capacity for k in range(1, ages + 1)],
                 "each step holds as many items as it stored", quantity="stationary", tex=r"P(\mathrm{age} = k) = f/M"),
        ]  # fmt: skip
    else:
        stays = (1 - 1 / capacity) ** stored
        law = [
            Step("older", [stays ** (k - 1) - stays**k for k in range(1, ages + 1)],
                 "an item outlives a step if none of the f new ones takes its place: P(age > k) = s^k, s = (1 - 1/M)^f"),
            Step("geometric", [(1 - stays) * stays ** (k - 1) for k in range(1, ages + 1)], "factored",
                 quantity="stationary", tex=r"P(\mathrm{age} = k) = (1-s)s^{k-1}"),
        ]  # fmt: skip
    return Derivation(
        [law], lambda rng: {capacity: sp.Integer(rng.randint(2, 9))}, lambda c: {capacity: float(c.capacity)}
    )
