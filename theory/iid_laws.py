"""Responses of independent, identically distributed tokens: exact medians of the weight at any length.

There is no recursion for a median, so its limit is decided by enumeration of word counts and by |median - mean| <= standard
deviation, which holds for every law with two moments; the derivation gives that mean and that standard deviation.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any

import sympy as sp
import torch
from torch import Tensor

from testbed.exact.iid_weights import iid_weight_law, lower_median
from testbed.stats import kl
from theory.derivation import Derivation, Step
from theory.theorem import Quantities


@dataclass(frozen=True, kw_only=True)
class IidLaw:
    """The same two next-token laws at every prefix, and the response lengths looked at."""

    name: str
    target: tuple[float, ...]
    behavior: tuple[float, ...]
    lengths: tuple[int, ...]

    def laws(self) -> tuple[Tensor, Tensor]:
        """Target's and behavior's law."""
        return torch.tensor(self.target, dtype=torch.float64), torch.tensor(self.behavior, dtype=torch.float64)


def measure_iid(instance: IidLaw, drawn_by: str = "behavior") -> Quantities:
    """Exact medians of log W_T against -KL(mu||pi), with |median - mean| <= standard deviation."""
    pi, mu = instance.laws()
    log_ratio = pi.log() - mu.log()
    divergence = kl(log_ratio, probs=mu, estimator="k1")
    rates, deviations, reach, means, medians = [], [], [], [], []
    for length in instance.lengths:
        log_weight, probs = iid_weight_law(pi, mu, length)
        mean = (probs * log_weight).sum()
        sd = (probs * (log_weight - mean) ** 2).sum().sqrt()
        if drawn_by == "target":
            probs = probs * log_weight.exp()
        medians.append(lower_median(log_weight, probs))
        rates.append(sd**2 / length)
        means.append(mean / length)
        deviations.append(abs(medians[-1] / length + float(divergence)))
        reach.append(float(sd) / length)
    values: dict[str, Any] = {
        "median_off": deviations, "reach": reach, "mean_rate": torch.stack(means), "minus_kl": -divergence,
        "variance_rate": torch.stack(rates), "token_variance": (mu * (log_ratio + divergence) ** 2).sum(),
    }  # fmt: skip
    if instance.name == "halve_or_double":
        first = torch.tensor(medians[:3], dtype=torch.float64).exp()
        values |= {"medians": first, "catalogued": (0.5, 1.0, 0.5)}
    return values


@lru_cache(maxsize=8)
def iid_derivation(size: int) -> Derivation:
    """Derive mean and variance of log W_T for T = 2 tokens of `size` words, per token."""
    p, m = ([sp.Symbol(f"{s}{j}", positive=True) for j in range(size)] for s in "pm")
    log_ratio = [sp.log(a / b) for a, b in zip(p, m, strict=True)]
    pairs = [(m[i] * m[j], log_ratio[i] + log_ratio[j]) for i, j in product(range(size), repeat=2)]
    mean = sp.Add(*[b * x for b, x in zip(m, log_ratio, strict=True)])
    chains = [[
        Step("mean", sp.Add(*[q * x for q, x in pairs]) / 2, "log W_T is a sum over tokens; here T = 2",
             quantity="mean_rate", tex=r"E_\mu[\log W_T]/T"),
        Step("one_token", mean, "tokens are identically distributed", tex=r"\sum_y \mu_y \log(\pi_y/\mu_y)"),
        Step("kl", -sp.Add(*[b * (sp.log(b) - sp.log(a)) for a, b in zip(p, m, strict=True)]), "definition of KL",
             quantity="minus_kl", tex=r"-KL(\mu\|\pi)"),
    ], [
        Step("variance", sp.Add(*[q * (x - 2 * mean) ** 2 for q, x in pairs]) / 2, "definition, T = 2",
             quantity="variance_rate", tex=r"Var(\log W_T)/T"),
        Step("one_token", sp.Add(*[b * (x - mean) ** 2 for b, x in zip(m, log_ratio, strict=True)]),
             "variances of independent tokens add; that a median is within one standard deviation of the mean is general, "
             "the medians themselves are by enumeration of word counts", quantity="token_variance",
             tex=r"Var_\mu(\log\rho)"),
    ]]  # fmt: skip

    def point(rng: random.Random) -> Mapping[sp.Symbol, Any]:
        values: dict[sp.Symbol, Any] = {}
        for symbols in (p, m):
            parts = [rng.randint(1, 9) for _ in symbols]
            values |= {s: sp.Rational(n, sum(parts)) for s, n in zip(symbols, parts, strict=True)}
        return values

    def bind(instance: IidLaw) -> Mapping[sp.Symbol, Any]:
        return dict(zip([*p, *m], [*instance.target, *instance.behavior], strict=True))

    return Derivation(chains, point, bind)
