"""Next-token laws with Gaussian noise on their logits: exact averages over the noise, and the derivation of their d2.

Averages are Gauss-Hermite quadratures; the integrands here are sums of exponentials, for which 16 nodes per dimension are
exact to rounding up to sigma = 2 or so.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import sympy as sp
import torch
from torch import Tensor

from testbed.exact.ratio_moments import ratio_moment
from theory.derivation import Derivation, Step
from theory.theorem import Quantities


@dataclass(frozen=True, kw_only=True)
class NoisyLaw:
    """One next-token law and the scale of the Gaussian noise on its logits; `points` per dimension of the quadrature."""

    name: str
    probs: tuple[float, ...]
    sigma: float
    points: int = 16

    def noise(self) -> tuple[Tensor, Tensor]:
        """Gauss-Hermite nodes [n^V, V] of independent standard normals, with their weights."""
        x, weight = np.polynomial.hermite_e.hermegauss(self.points)
        grid = np.stack(np.meshgrid(*[x] * len(self.probs), indexing="ij"), -1).reshape(-1, len(self.probs))
        mass = np.prod(np.stack(np.meshgrid(*[weight] * len(self.probs), indexing="ij"), -1), -1).reshape(-1)
        return torch.from_numpy(grid), torch.from_numpy(mass / mass.sum())


def noisy(log_p: Tensor, sigma: float, z: Tensor) -> Tensor:
    """Log law softmax(log p + sigma z), as `testbed.policies.logit_noise` makes it from its own draws."""
    return torch.log_softmax(log_p + sigma * z, -1)


def measure_noise(instance: NoisyLaw, reading: str = "behavior") -> Quantities:
    """E d2 over the noise by Gauss-Hermite quadrature of the library's d2, against the closed form."""
    z, weight = instance.noise()
    log_p = torch.tensor(instance.probs, dtype=torch.float64).log()
    if reading == "correlated":
        z = torch.cat([z[:, :1], 0.5 * z[:, :1] + 0.75**0.5 * z[:, 1:]], 1)
    clean, moved = log_p.expand_as(z), noisy(log_p, instance.sigma, z)
    d2 = ratio_moment(moved, clean) if reading == "target" else ratio_moment(clean, moved)
    same = sum(p * p for p in instance.probs)
    return {"pointwise": d2, "noise": (weight * d2).sum(), "closed": same + np.exp(instance.sigma**2) * (1 - same)}


@lru_cache(maxsize=8)
def noise_derivation(size: int) -> Derivation:
    """Derive E_delta d2 = sum p^2 + exp(sigma^2) (1 - sum p^2) for laws of `size` words."""
    p, a = ([sp.Symbol(f"{s}{j}", positive=True) for j in range(size)] for s in "pa")  # a_j = exp(delta_j)
    s, x = sp.Symbol("sigma", positive=True), sp.Symbol("x", real=True)
    others = [(y, j) for y in range(size) for j in range(size) if y != j]
    same = sp.Add(*[q**2 for q in p])
    total = sp.Add(*[q * e for q, e in zip(p, a, strict=True)])
    pair = sp.exp(s**2 / 2) * sp.exp(s**2 / 2)  # E[exp(delta_j)] E[exp(-delta_y)], the last chain
    chains = [[
        Step("definition", sp.Add(*[q**2 / (q * e / total) for q, e in zip(p, a, strict=True)]),
             "d2 of p from softmax(log p + delta), for one draw of the noise", quantity="pointwise",
             tex=r"\sum_y p_y^2 \big/ \frac{p_y e^{\delta_y}}{\sum_j p_j e^{\delta_j}}"),
        Step("pairs", same + sp.Add(*[p[y] * p[j] * a[j] / a[y] for y, j in others]), "multiplied out",
             quantity="pointwise", tex=r"\sum_y p_y^2 + \sum_{j \ne y} p_y p_j e^{\delta_j - \delta_y}"),
    ], [
        Step("independence", same + sp.Add(*[p[y] * p[j] * pair for y, j in others]),
             "delta_j and delta_y are independent normals, E exp(+-delta) = exp(sigma^2/2) each; the library's side of "
             "this line is a Gauss-Hermite quadrature", quantity="noise",
             tex=r"\sum_y p_y^2 + \sum_{j \ne y} p_y p_j E[e^{\delta_j}] E[e^{-\delta_y}]"),
        Step("closed", same + sp.exp(s**2) * (1 - same), "sum over j != y of p_y p_j = 1 - sum p^2", quantity="closed",
             tex=r"\sum p^2 + e^{\sigma^2} (1 - \sum p^2)"),
    ], [
        Step("tilted_density", [sp.exp(sign * x - x**2 / (2 * s**2)) for sign in (1, -1)], "integrand of E exp(+-delta)",
             tex=r"e^{\pm x}\, e^{-x^2/2\sigma^2}"),
        Step("square", [sp.exp(s**2 / 2) * sp.exp(-((x - sign * s**2) ** 2) / (2 * s**2)) for sign in (1, -1)],
             "completing the square leaves a normal density, shifted, whose integral is that of the unshifted one",
             tex=r"e^{\sigma^2/2}\, e^{-(x \mp \sigma^2)^2/2\sigma^2}"),
    ]]  # fmt: skip

    def point(rng: random.Random) -> Mapping[sp.Symbol, Any]:
        parts = [rng.randint(1, 9) for _ in p]
        drawn = {q: sp.Rational(n, sum(parts)) for q, n in zip(p, parts, strict=True)}
        return drawn | {e: sp.Rational(rng.randint(1, 9), 4) for e in a} | {s: sp.Rational(rng.randint(1, 8), 4), x: 1}

    def bind(instance: NoisyLaw) -> Mapping[sp.Symbol, Any]:
        drawn = (instance.sigma * instance.noise()[0]).exp().T.numpy()
        return dict(zip(p, instance.probs, strict=True)) | dict(zip(a, drawn, strict=True)) | {s: instance.sigma}

    return Derivation(chains, point, bind)
