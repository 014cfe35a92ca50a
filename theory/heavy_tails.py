"""Exponential moments of the noise on one logit: closed forms where there are any, and proofs that there are none.

The exact ratio's mean second moment needs E e^delta (C5). It is infinite for Laplace noise of scale 1 or more and for
every Student t: the integral of e^x over their densities up to N grows at least linearly in N.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import sympy as sp
import torch
from scipy import stats
from scipy.integrate import quad

from testbed.policies.noise.gaussian import Gaussian
from testbed.policies.noise.laplace import Laplace
from testbed.policies.noise.law import MarginalLaw
from testbed.policies.noise.student import StudentT
from theory.derivation import Derivation, Step

X, B, NU, N, CONST = sp.symbols("x b nu N a", positive=True)
LINE = sp.Symbol("y", real=True)
FAR = (4.0, 8.0, 16.0)  # where integrals of e^x over a tail stop


@dataclass(frozen=True, kw_only=True)
class Tail:
    """A law of the noise of one logit."""

    name: str
    law: MarginalLaw


def exponential_moments(law: MarginalLaw) -> dict[str, Any]:
    """E e^delta from the library; where it is infinite, what its integral up to some point is at least."""
    found: dict[str, Any] = {"mgf": law.mgf(1.0)}
    laws = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    found |= {"library_second": law.expected_second_moment(laws), "by_mgf": 0.38 + 0.62 * law.mgf(1.0) * law.mgf(-1.0)}
    if isinstance(law, Gaussian):
        found["expected_mgf"] = quad(lambda x: np.exp(x - x * x / (2 * law.sigma**2)), -40, 40)[0] / (
            law.sigma * np.sqrt(2 * np.pi)
        )
    elif isinstance(law, Laplace):
        found["expected_mgf"] = 1 / (1 - law.scale**2) if law.scale < 1 else np.inf
        if law.scale >= 1:
            found |= {"at_least": np.array(FAR) / (2 * law.scale)}
            found |= {
                "integral": [quad(lambda x: np.exp(x - x / law.scale) / (2 * law.scale), 0, far)[0] for far in FAR]
            }
    elif isinstance(law, StudentT):
        density = lambda x: stats.t.pdf(x / law.scale, law.df) / law.scale  # noqa: E731
        order = int(law.df) + 1
        edge = float(density(1.0))  # x^(nu+1) times the density rises in x: on [1, inf) it is at least its value at 1
        found |= {"expected_mgf": np.inf, "at_least": edge * (np.array(FAR) - 1) / float(sp.factorial(order))}
        found |= {"integral": [quad(lambda x: np.exp(x) * density(x), 1, far)[0] for far in FAR]}
    return found


@lru_cache(maxsize=8)
def tail_derivation(law: MarginalLaw) -> Derivation:
    """E e^delta of a law in closed form, or why it is infinite."""
    laplace = sp.exp(-sp.Abs(X) / B) / (2 * B)
    if isinstance(law, Gaussian):
        density = sp.exp(-(X**2) / (2 * B**2)) / (B * sp.sqrt(2 * sp.pi))
        chain = [
            Step("integral", sp.integrate(sp.exp(LINE) * density.xreplace({X: LINE}), (LINE, -sp.oo, sp.oo)),
                 "M(1) of Gaussian noise",
                 tex=r"\int e^x\,\frac{e^{-x^2/2\sigma^2}}{\sigma\sqrt{2\pi}}\,dx"),
            Step("closed", sp.exp(B**2 / 2), "complete the square", quantity="mgf", tex=r"e^{\sigma^2/2}"),
        ]  # fmt: skip
    elif isinstance(law, Laplace) and law.scale < 1:
        sides = [sp.integrate(sp.exp(sign * X - X / B) / (2 * B), (X, 0, sp.oo), conds="none") for sign in (1, -1)]
        chain = [
            Step("sides", sp.Add(*sides), "M(1) of Laplace noise, right and left of 0, for b < 1",
                 tex=r"\int_0^\infty \frac{e^{x-x/b} + e^{-x-x/b}}{2b}\,dx"),
            Step("closed", 1 / (1 - B**2), "add the two", quantity="mgf", tex=r"\frac{1}{1-b^2}"),
        ]  # fmt: skip
    elif isinstance(law, Laplace):
        finite = sp.integrate(sp.exp(X) * laplace.subs(sp.Abs(X), X), (X, 0, N), conds="none")
        chain = [
            Step("integral", finite, "Laplace noise of scale b: E[e^delta; 0 < delta < N]", tex=r"\int_0^N \frac{e^{x - "
                 r"x/b}}{2b}\,dx"),
            Step("closed", (sp.exp(N * (1 - 1 / B)) - 1) / (2 * (B - 1)), "grows without bound in N iff b > 1",
                 tex=r"\frac{e^{N(1-1/b)} - 1}{2(b-1)}"),
            Step("linear", N / (2 * B), "e^x >= 1 + x: at least N/(2b), also in the limit b = 1", ">=", quantity="at_least",
                 tex=r"\frac{N}{2b}"),
        ]  # fmt: skip
    else:
        chain = [
            Step("integrand", sp.exp(X) * CONST * ((1 + 1 / (NU * B**2)) / (1 + X**2 / (NU * B**2))) ** ((NU + 1) / 2),
                 "Student t of scale b; a is its density at 1", tex=r"e^x\,a\,\Big(\frac{1 + 1/\nu b^2}{1 + "
                 r"x^2/\nu b^2}\Big)^{(\nu+1)/2}"),
            Step("power", CONST * sp.exp(X) * X ** (-NU - 1), "for x >= 1 it is 1 + x^2/(nu b^2) <= x^2 (1 + 1/(nu b^2))", ">=",
                 tex=r"e^x\,a\,x^{-(\nu+1)}"),
            Step("one_term", CONST * X ** (NU + 1) / sp.factorial(NU + 1) * X ** (-NU - 1), "one term of the series of e^x", ">=",
                 tex=r"a\,\frac{x^{\nu+1}}{(\nu+1)!}\,x^{-(\nu+1)}"),
            Step("constant", CONST / sp.factorial(NU + 1), "a constant", tex=r"\frac{a}{(\nu+1)!}"),
        ]  # fmt: skip
        height = CONST / sp.factorial(NU + 1)
        whole = [
            Step("integrated", sp.integrate(height, (X, 1, N)), "integrate it from 1 to N", tex=r"\int_1^N "
                 r"\frac{a}{(\nu+1)!}\,dx"),
            Step("linear", height * (N - 1), "infinite as N grows, for every nu", quantity="at_least",
                 tex=r"\frac{a\,(N-1)}{(\nu+1)!}"),
        ]  # fmt: skip
        return Derivation([chain, whole], _tail_point, lambda i: _tail_numbers(i.law))
    return Derivation([chain], _tail_point, lambda i: _tail_numbers(i.law))


def _tail_point(rng: random.Random) -> dict[sp.Symbol, Any]:
    numbers = {B: 1 + sp.Rational(rng.randint(1, 9), 4), N: rng.randint(1, 5), NU: sp.Integer(rng.randint(1, 6))}
    return numbers | {X: sp.Integer(rng.randint(1, 9)), CONST: sp.Rational(1, 7)}


def _tail_numbers(law: MarginalLaw) -> dict[sp.Symbol, Any]:
    if isinstance(law, StudentT):
        edge = float(stats.t.pdf(1 / law.scale, law.df) / law.scale)
        return {NU: float(law.df), CONST: edge, N: np.array(FAR)}
    scale = law.sigma if isinstance(law, Gaussian) else law.scale if isinstance(law, Laplace) else 1.0
    return {B: scale, N: np.array(FAR)}


def tails() -> list[Tail]:
    """Laws of noise with and without exponential moments.

    Examples
    --------
    >>> [t.name for t in tails() if t.law.mgf(1.0) == float("inf")]
    ['laplace_1', 'laplace_1p5', 'student_1', 'student_2', 'student_5']
    """
    laws = {"gaussian": Gaussian(0.5), "laplace": Laplace(0.5), "laplace_1": Laplace(1.0), "laplace_1p5": Laplace(1.5),
            "student_1": StudentT(0.2, 1.0), "student_2": StudentT(0.1, 2.0), "student_5": StudentT(1.0, 5.0)}  # fmt: skip
    return [Tail(name=name, law=law) for name, law in laws.items()]
