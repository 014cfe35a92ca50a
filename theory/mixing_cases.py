"""Mixing problems as instances, over numbers and over symbols, and numeric minimizers that know nothing of the closed forms."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import sympy as sp
from scipy.optimize import minimize_scalar

GRID = np.linspace(0.0, 1.0, 201)


@dataclass(frozen=True, kw_only=True)
class MixingCase:
    """One mixing problem: a budget or a number of samples, and perhaps a ceiling on the cost of one or a pool."""

    name: str
    v_fresh: float
    v_replay: float
    cost_fresh: float
    cost_replay: float
    bias: float
    budget: float | None = None
    n: float | None = None
    cost_cap: float | None = None
    pool: float | None = None

    @property
    def sources(self) -> dict[str, float]:
        """The five numbers every function of the library takes."""
        names = ("v_fresh", "v_replay", "cost_fresh", "cost_replay", "bias")
        return {name: getattr(self, name) for name in names}

    @property
    def given(self) -> dict[str, float]:
        """Those and whatever else is set."""
        more = {name: getattr(self, name) for name in ("budget", "n", "cost_cap", "pool")}
        return self.sources | {name: value for name, value in more.items() if value is not None}

    def cost(self, share: Any) -> Any:
        """Cost of one sample on average."""
        return share * self.cost_replay + (1 - share) * self.cost_fresh

    def mse(self, share: Any) -> Any:
        """Squared bias plus variance over the number of samples, from the definition."""
        variance = share * self.v_replay + (1 - share) * self.v_fresh
        size = self.n if self.budget is None else self.budget / self.cost(share)
        return (share * self.bias) ** 2 + variance / size

    @property
    def bend(self) -> float:
        """C b^2 - D_v D_c at a budget, N b^2 at a size: what multiplies a^2, times C or N."""
        if self.budget is None:
            return float(self.n or 0) * self.bias**2
        worse, saving = self.v_replay - self.v_fresh, self.cost_fresh - self.cost_replay
        return self.budget * self.bias**2 - worse * saving


def numeric_least(f: Callable[[float], float], low: float = 0.0, high: float = 1.0) -> float:
    """Least value on [low, high] by bounded Brent search, both ends and a grid; no derivative is used."""
    found = minimize_scalar(f, bounds=(low, high), method="bounded", options={"xatol": 1e-10})
    grid = low + (high - low) * GRID
    return min(float(found.fun), f(low), f(high), float(np.min([f(a) for a in grid])))


class MixingSymbols:
    """The same problem over symbols: positive reals, v_r >= v_f and c_r <= c_f at every random point."""

    def __init__(self) -> None:
        names = "v_f v_r c_f c_r b C N tau a x"
        self.vf, self.vr, self.cf, self.cr, self.b, self.C, self.N, self.tau, self.a, self.x = sp.symbols(
            names, real=True
        )
        self.dv, self.dc = self.vr - self.vf, self.cf - self.cr

    def cost(self, a: sp.Expr) -> sp.Expr:
        """Cost of one sample."""
        return a * self.cr + (1 - a) * self.cf

    def variance(self, a: sp.Expr) -> sp.Expr:
        """Variance of one sample."""
        return a * self.vr + (1 - a) * self.vf

    def at_budget(self, a: sp.Expr) -> sp.Expr:
        """Error of N = C / cost(a) samples."""
        return a**2 * self.b**2 + self.variance(a) * self.cost(a) / self.C

    def at_size(self, a: sp.Expr) -> sp.Expr:
        """Error of N samples."""
        return a**2 * self.b**2 + self.variance(a) / self.N

    @property
    def bend(self) -> sp.Expr:
        """C b^2 - D_v D_c."""
        return self.C * self.b**2 - self.dv * self.dc

    @property
    def stationary(self) -> sp.Expr:
        """(D_c v_f - D_v c_f) / (2 (C b^2 - D_v D_c))."""
        return (self.dc * self.vf - self.dv * self.cf) / (2 * self.bend)

    def point(self, rng: random.Random) -> Mapping[sp.Symbol, sp.Rational]:
        """Random rationals; the shares lie in (0, 1), the ceiling between the two costs."""

        def draw() -> sp.Rational:
            return sp.Rational(rng.randint(1, 30), rng.randint(2, 9))

        vf, cr = draw(), draw()
        cf = cr + draw()
        share = sp.Rational(rng.randint(1, 9), 10)
        return {
            self.vf: vf, self.vr: vf + draw(), self.cf: cf, self.cr: cr, self.b: draw(), self.C: draw() + 5,
            self.N: draw() + 1, self.a: share, self.x: sp.Rational(rng.randint(1, 12), 13),
            self.tau: cr + share * (cf - cr),
        }  # fmt: skip

    def bind(self, case: MixingCase) -> dict[sp.Symbol, Any]:
        """Numbers of a case; what it does not set is bound to 1."""
        one = np.float64(1.0)
        values = {
            self.vf: case.v_fresh, self.vr: case.v_replay, self.cf: case.cost_fresh, self.cr: case.cost_replay,
            self.b: case.bias, self.C: case.budget, self.N: case.n, self.tau: case.cost_cap,
        }  # fmt: skip
        return {symbol: one if value is None else np.float64(value) for symbol, value in values.items()}
