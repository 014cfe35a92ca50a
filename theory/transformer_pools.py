"""Batches of fresh and replayed responses of a transformer: variances and bias measured, errors of whole pools counted out.

A sample is the gradient term of one response, the truth is the gradient, and the error of a pool is the squared length of
the difference, so that v is a trace and b a length.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import sympy as sp
import torch
from torch import Tensor

from testbed.core.batch import SegmentedBatch
from testbed.estimators.gradient import gradient_terms
from testbed.estimators.mixing import optimal_replay_share
from testbed.exact.gradients import exact_gradient
from testbed.exact.group_updates import group_compositions
from testbed.exact.law import ExactLaw
from testbed.exact.moments import moments
from testbed.weighting.rules import weigh
from theory.derivation import Derivation, Step
from theory.evaluation import array
from theory.mixing_cases import MixingCase, MixingSymbols
from theory.share_steps import BEST, share_chains
from theory.transformer_worlds import TransformerWorld, dense_world, short_world


@dataclass(frozen=True, kw_only=True)
class TransformerPool(MixingCase):
    """A mixing problem whose numbers were measured on a transformer.

    `off_fresh` [F, P] and `off_replay` [Q, P] are the responses' gradient terms minus the gradient.
    """

    world: TransformerWorld
    off_fresh: Tensor
    off_replay: Tensor

    @property
    def pools(self) -> list[tuple[int, int]]:
        """Fresh and replayed responses that the budget buys: no replay, some, nothing else."""
        budget, per_fresh = int(self.budget or 0), round(self.cost_fresh / self.cost_replay)
        return [(budget, 0), (budget - 1, per_fresh), (0, budget * per_fresh)]

    def error(self, fresh: int, replayed: int, times: Sequence[int] = ()) -> float:
        """E |mean - G|^2 over every composition of the pool; `times`: how often each drawn response counts (default: once)."""
        return self._counted([(self.world.target_law, fresh), (self.world.law, replayed)], times)

    def copied_error(self, fresh: int, replayed: int) -> float:
        """The same if all replayed samples are one response."""
        return self.error(fresh, 1, [1] * fresh + [replayed]) if replayed else self.error(fresh, 0)

    def coin_error(self, fresh: int, replayed: int) -> float:
        """The same if every sample is replayed with probability replayed / (fresh + replayed)."""
        share = replayed / (fresh + replayed)
        parts = [(law, p) for law, p in ((self.world.target_law, 1 - share), (self.world.law, share)) if p > 0]
        mixed = ExactLaw(
            batch=SegmentedBatch.concatenated([law.batch for law, _ in parts]),
            log_prob=torch.cat([law.log_prob + np.log(p) for law, p in parts]),
            branch=torch.cat([law.branch for law, _ in parts]),
        )
        first = 0 if share < 1 else len(self.off_fresh)
        return self._counted([(mixed, fresh + replayed)], (), first)

    def _counted(self, parts: Sequence[tuple[ExactLaw, int]], times: Sequence[int], first: int = 0) -> float:
        groups = group_compositions(parts)
        off = torch.cat([self.off_fresh, self.off_replay])
        inner, index = off @ off.T, groups.index + first
        count = torch.tensor(times or [1] * index.shape[1], dtype=torch.float64) / (sum(times) or index.shape[1])
        square = torch.einsum("cij,i,j->c", inner[index[:, :, None], index[:, None, :]], count, count)
        return float(groups.expect(square))


def transformer_pool(
    name: str, world: TransformerWorld, rule: str, budget: float, cost_replay: float, **params: Any
) -> TransformerPool:
    """Measure variances and bias of fresh responses and of replayed ones weighted by a rule.

    Examples
    --------
    >>> case = transformer_pool("example", dense_world(), "sequence_product", 2, 0.5)
    >>> case.bias < 1e-12 < case.v_fresh < case.v_replay
    True
    """
    gradient = exact_gradient(world.env, world.target)
    fresh, replay = world.target_law, world.law
    fresh_terms = gradient_terms(fresh.batch, fresh.batch.mask.double(), world.target)
    replay_terms = gradient_terms(replay.batch, weigh(rule, replay.batch, **params), world.target)
    of_fresh, of_replay = moments(fresh, fresh_terms), moments(replay, replay_terms)
    return TransformerPool(
        name=name, world=world, off_fresh=fresh_terms - gradient, off_replay=replay_terms - gradient,
        v_fresh=float(of_fresh.variance.sum()), v_replay=float(of_replay.variance.sum()),
        bias=float((of_replay.mean - gradient).norm()), cost_fresh=1.0, cost_replay=cost_replay, budget=budget,
    )  # fmt: skip


def transformer_pools() -> list[TransformerPool]:
    """Some, no and nothing but replay; and capped weights, whose variance is below that of fresh responses."""
    short = short_world()
    return [
        transformer_pool("transformer_interior", short, "none", 2, 0.25),
        transformer_pool("transformer_none_convex", dense_world(), "none", 2, 0.5),
        transformer_pool("transformer_all_concave", short, "sequence_product", 2, 0.5),
        transformer_pool("transformer_capped", short, "tis", 2, 0.5, cap=1.0),
    ]


Y, Z, J = sp.symbols("y z j", integer=True)
FRESH, REPLAY, PARTS = sp.symbols("N_y N_z N_j", integer=True, positive=True)
P, Q, OFF_P, OFF_Q = array("p"), array("q"), array("d"), array("e")  # laws; samples minus the truth, part by part


@lru_cache(maxsize=8)
def pool_derivation(fresh: int, replayed: int, bends: int) -> Derivation:
    """Derive the error of a pool of any samples with any laws, and the share."""
    w, n = MixingSymbols(), fresh + replayed
    ys, zs = sp.symbols(f"y1:{fresh + 1}", integer=True), sp.symbols(f"z1:{replayed + 1}", integer=True)
    outcomes = [*[(y, 0, FRESH - 1) for y in ys], *[(z, 0, REPLAY - 1) for z in zs]]
    joint = sp.prod([*[P[y] for y in ys], *[Q[z] for z in zs]])
    off = sp.Add(*[OFF_P[y, J] for y in ys], *[OFF_Q[z, J] for z in zs]) / n

    def over_parts(term: sp.Expr) -> sp.Expr:
        return sp.Sum(term, (J, 0, PARTS - 1))

    shift = sp.Sum(Q[Z] * OFF_Q[Z, J], (Z, 0, REPLAY - 1))
    square = over_parts(shift**2)
    v_fresh = over_parts(sp.Sum(P[Y] * OFF_P[Y, J] ** 2, (Y, 0, FRESH - 1)))
    v_replay = over_parts(sp.Sum(Q[Z] * OFF_Q[Z, J] ** 2, (Z, 0, REPLAY - 1))) - square
    share = sp.Rational(replayed, n)
    error = [
        Step("definition", sp.Sum(joint * over_parts(off**2), *outcomes), "every joint outcome of the pool",
             quantity="middle_counted", tex=r"E\big\|\tfrac1N\sum_i X_i - \theta\big\|^2"),
        Step("bias_and_variance", share**2 * square + (replayed * v_replay + fresh * v_fresh) / n**2,
             "independent samples, aN of them replayed: fresh ones are off by 0 on average, so no cross term is left",
             tex=r"a^2\|E X_r - \theta\|^2 + (aN\,\mathrm{tr}\,\mathrm{Cov} X_r + (1-a)N\,\mathrm{tr}\,\mathrm{Cov} X_f)/N^2"),
        Step("budget", w.at_budget(share), "1/N = (a c_r + (1-a) c_f)/C", quantity="middle_mse",
             tex=r"a^2b^2 + (a v_r + (1-a) v_f)(a c_r + (1-a) c_f)/C"),
    ]  # fmt: skip

    def point(rng: random.Random) -> Mapping[sp.Symbol, Any]:
        def vectors(mean: tuple[int, int], probs: list[sp.Rational]) -> list[list[sp.Rational]]:
            free = [[sp.Rational(rng.randint(-9, 9), 4) for _ in range(2)] for _ in probs]
            now = [sum(p * row[j] for p, row in zip(probs, free, strict=True)) for j in range(2)]
            return [[x - m + goal for x, m, goal in zip(row, now, mean, strict=True)] for row in free]

        def spread(rows: list[list[sp.Rational]], probs: list[sp.Rational]) -> sp.Rational:
            return sum(p * (row[0] ** 2 + row[1] ** 2) for p, row in zip(probs, rows, strict=True))

        at, scale = dict(w.point(rng)), rng.randint(-2, 2)
        one, two = sp.Rational(rng.randint(1, 6), 7), sp.Rational(rng.randint(1, 4), 5)
        p, q = [one, 1 - one], [two, 1 - two]
        d, e = vectors((0, 0), p), vectors((3 * scale, 4 * scale), q)  # a shift of length 5 |scale|
        return at | {
            FRESH: 2, REPLAY: 2, PARTS: 2, P.label: p, Q.label: q, OFF_P.label: d, OFF_Q.label: e,
            w.b: 5 * scale, w.vf: spread(d, p), w.vr: spread(e, q) - 25 * scale**2,
            w.C: fresh * at[w.cf] + replayed * at[w.cr], BEST: sp.Rational(rng.randint(0, 9), 9),
        }  # fmt: skip

    def bind(case: TransformerPool) -> Mapping[sp.Symbol, Any]:
        everything = torch.cat([case.off_fresh, case.off_replay])
        left, size, _ = torch.linalg.svd(everything, full_matrices=False)
        turned = (left * size).numpy()[:, : len(everything)]  # the same lengths and angles in as many parts as samples
        split = len(case.off_fresh)
        return w.bind(case) | {
            FRESH: split, REPLAY: len(turned) - split, PARTS: turned.shape[1], P.label: case.world.target_law.probs.numpy(),
            Q.label: case.world.law.probs.numpy(), OFF_P.label: turned[:split], OFF_Q.label: turned[split:],
            BEST: optimal_replay_share(**case.given).share,
        }  # fmt: skip

    return Derivation([error, *share_chains(w, bends)], point, bind)
