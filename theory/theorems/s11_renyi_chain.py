"""S11: the Renyi divergence of a segment is a sum over tokens of logs of tilted averages, and is not additive otherwise."""

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

from testbed.core.prefix_order import node_index
from testbed.exact import ratio_moments
from testbed.exact.ratio_moments import ratio_moment, tilted_mean
from testbed.exact.second_moments import start_d2, start_histories
from testbed.exact.values import behavior_table
from testbed.policies.schedule import cuts, one
from testbed.stats import ess, kl, kl_k1, renyi2_from_log
from testbed.weighting.granularity import log_ratios
from theory.derivation import Derivation, Step
from theory.planting import planted
from theory.real_laws import M, P, R, is_real, real_laws, summand_derivation
from theory.segment_symbols import segment_square, starts
from theory.symbols import Prefix, SymbolicWorld, symbolic_world
from theory.theorem import Claim, Mutant, Quantities, Theorem
from theory.worlds import World, standard_worlds, world

N = 1000  # sample size at which n / d2 is compared


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


def measure(instance: World | NoisyLaw, power: float = 2.0) -> Quantities:
    """Divergences of every segment from every history it starts in, whole and token by token; closed forms."""
    if isinstance(instance, NoisyLaw):
        return measure_noise(instance)
    law, env, target = instance.law, instance.env, instance.target
    log_pi = behavior_table(env, target)
    log_mu = torch.stack([behavior_table(env, s) for _, s in instance.schedule.branches()])
    nodes = node_index(law.batch.tokens, env.vocab_size)
    token_d2 = ratio_moment(log_pi.expand_as(log_mu), log_mu)
    token_kl = (log_mu.exp() * kl_k1(log_pi - log_mu, direction="target_to_behavior")).sum(-1)
    ratio, branch = log_ratios(law.batch).double(), law.branch[:, None]
    rows: dict[str, list[Tensor]] = {}
    for k in range(len(instance.behaviors)):
        inside = (law.batch.segment == k) & law.batch.mask
        steps = torch.where(inside, ratio, 0.0)
        so_far = torch.cat([torch.zeros_like(steps[:, :1]), steps.cumsum(1)[:, :-1]], 1)
        d2 = torch.where(inside, token_d2[branch, nodes], 1.0)
        divergence = torch.where(inside, token_kl[branch, nodes], 0.0)
        by_recursion = start_d2(law, env, target, instance.schedule)[:, k].log()
        index = start_histories(law, k)
        for g in range(int(index.max()) + 1):
            at = index == g
            log_prob, whole, before = law.log_prob[at], steps[at].sum(1), so_far[at]
            given = torch.softmax(log_prob, 0)
            mean = tilted_mean(d2[at], log_prob, before, power)
            spread = tilted_mean((d2[at] - mean) ** 2, log_prob, before, power)
            logs = tilted_mean(d2[at].log(), log_prob, before, power).sum()
            found = {
                "renyi": torch.tensor(float(renyi2_from_log(whole, probs=given))), "chain": mean.log().sum(),
                "table": by_recursion[at][0], "log_inside": logs,
                "log_inside_and_gap": logs + (spread / (2 * d2[at].amax(0) ** 2)).sum(),
                "kl": kl(whole, probs=given, estimator="k1", direction="target_to_behavior"),
                "kl_sum": tilted_mean(divergence[at], log_prob, before, power=1.0).sum(),
            }  # fmt: skip
            if float(spread.max()) < 1e-20:
                found |= {"constant_left": logs, "constant_right": found["renyi"]}
            for name, value in found.items():
                rows.setdefault(name, []).append(value)
    values: dict[str, Any] = {name: torch.stack(column) for name, column in rows.items()}
    pi, mu = log_pi.exp(), log_mu[0].exp()
    values |= {"token_d2": token_d2[0], "categorical": 1 + ((pi - mu) ** 2 / mu).sum(-1)}
    if env.vocab_size == 2:
        values["bernoulli"] = 1 + (pi[:, 0] - mu[:, 0]) ** 2 / (mu[:, 0] * (1 - mu[:, 0]))
    if len(instance.behaviors) == 1:
        values["kish"] = ess(ratio.sum(1).exp(), probs=law.probs, n=N)
        values["n_over_d2"] = N * torch.exp(-values["renyi"][0])
    if is_real(instance):
        values["summand"] = law.probs * (2 * ratio[:, 0]).exp()
    return values


def measure_noise(instance: NoisyLaw, reading: str = "behavior") -> Quantities:
    """E d2 over the noise by Gauss-Hermite quadrature of the library's d2, against the closed form."""
    z, weight = instance.noise()
    log_p = torch.tensor(instance.probs, dtype=torch.float64).log()
    if reading == "correlated":
        z = torch.cat([z[:, :1], 0.5 * z[:, :1] + 0.75**0.5 * z[:, 1:]], 1)
    clean, noisy = log_p.expand_as(z), torch.log_softmax(log_p + instance.sigma * z, -1)
    d2 = ratio_moment(noisy, clean) if reading == "target" else ratio_moment(clean, noisy)
    same = sum(p * p for p in instance.probs)
    return {"pointwise": d2, "noise": (weight * d2).sum(), "closed": same + np.exp(instance.sigma**2) * (1 - same)}


def levels(w: SymbolicWorld, b: int, k: int, h: Prefix) -> list[tuple[sp.Expr, sp.Expr, sp.Expr, sp.Expr, sp.Expr]]:
    """Per token of segment k from h, sums over histories g: mu W^2, times d2, times log d2; mu W, times KL."""
    out, frozen, frozen_pi = [], sp.Integer(0), sp.Integer(0)
    active: dict[Prefix, tuple[sp.Expr, sp.Expr]] = {h: (sp.Integer(1), sp.Integer(1))}
    while True:
        going = {}
        for g, (square, plain) in active.items():
            if len(g) == w.horizon or (w.eos is not None and w.eos in g) or w.branches[b][g] != k:
                frozen, frozen_pi = frozen + square, frozen_pi + plain
            else:
                going[g] = (square, plain)
        if not going:
            return out
        words = range(w.vocab_size)
        d2 = {g: sp.Add(*[w.pi(g, a) ** 2 / w.mu(k, g, a) for a in words]) for g in going}
        divergence = {g: sp.Add(*[w.pi(g, a) * sp.log(w.rho(k, g, a)) for a in words]) for g in going}
        out.append((
            frozen + sp.Add(*[s for s, _ in going.values()]),
            frozen + sp.Add(*[s * d2[g] for g, (s, _) in going.items()]),
            sp.Add(*[s * sp.log(d2[g]) for g, (s, _) in going.items()]),
            frozen_pi + sp.Add(*[q for _, q in going.values()]),
            sp.Add(*[q * divergence[g] for g, (_, q) in going.items()]),
        ))  # fmt: skip
        active = {
            (*g, a): (s * w.mu(k, g, a) * w.rho(k, g, a) ** 2, q * w.pi(g, a))
            for g, (s, q) in going.items() for a in words
        }  # fmt: skip
