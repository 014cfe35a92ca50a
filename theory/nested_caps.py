"""Capped means over nested sums: the chains of S12 for trees too large to have a symbol for every probability."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import sympy as sp
from torch import Tensor

from theory import two_part_responses as parts
from theory.collapse_symbols import CAP, capped
from theory.derivation import Derivation, Step
from theory.nested_trees import NestedTree
from theory.transformer_worlds import TransformerWorld

SQUARES = ((9, 16), (16, 9), (25, 144), (144, 25), (64, 225), (49, 576), (1, 1))  # laws with rational square roots


def falling_chain(w: NestedTree) -> list[Step]:
    """Capped means only fall."""

    def mean(t: int, weight: sp.Expr) -> sp.Expr:
        return w.sum(w.prior() * w.through(t, w.mu, w.y) * capped(weight, CAP), w.y[:t], True)

    stated, inside, before = [], [], []
    for t in w.positions:
        so_far = w.through(t - 1, w.ratio, w.y)
        longer = (*w.y[: t - 1], w.rest[t - 1])
        stated.append(mean(t, w.through(t, w.ratio, w.y)))
        inside.append(mean(t - 1, so_far * w.sum(w.mu(t, longer) * w.ratio(t, longer), longer[t - 1 :])))
        before.append(mean(t - 1, so_far))
    return [
        Step("definition", stated, "capped mean one token later", quantity="capped", tex=r"E_\mu[\min(W_{t+1}, c)]"),
        Step("jensen", inside, "min(., c) is concave: average the next ratio inside it", "<=",
             tex=r"E_\mu[\min(W_t \sum_y \mu(y \mid h)\, \rho, c)]"),
        Step("mean_one", before, "mu rho = pi sums to 1; after the end of a response W stays", quantity="capped_before",
             tex=r"E_\mu[\min(W_t, c)]"),
    ]  # fmt: skip


def collapse_chain(w: NestedTree, affinity: Mapping[int, sp.Symbol]) -> list[Step]:
    """The product of largest affinities bounds every capped mean."""

    def root(t: int) -> sp.Expr:
        return w.sum(w.prior() * w.through(t, w.mu, w.y) * sp.sqrt(w.through(t, w.ratio, w.y)), w.y[:t], True)

    law = w.prior() * w.through(w.horizon, w.mu, w.y)
    last = w.sum(law * capped(w.through(w.horizon, w.ratio, w.y), CAP), w.y, True)
    return [
        Step("definition", last, "capped mean at the end", quantity="capped_last", tex=r"E_\mu[\min(W_T, c)]"),
        Step("geometric_mean", sp.sqrt(CAP) * root(w.horizon), "min(W, c) <= sqrt(c W)", "<=",
             tex=r"\sqrt c\, E_\mu[\sqrt{W_T}]"),
        *[
            Step(f"token_{t}", sp.sqrt(CAP) * sp.prod([affinity[u] for u in w.positions if u >= t]) * root(t - 1),
                 "given h_t, sqrt(rho_t) has mean BC(h_t) <= its sup", "<=",
                 quantity="collapse_bound" if t == 1 else None,
                 tex=rf"\sqrt c \prod_{{u \ge {t}}} \sup BC_u\; E_\mu[\sqrt{{W_{{{t - 1}}}}}]")
            for t in reversed(w.positions)
        ],
    ]  # fmt: skip


@lru_cache(maxsize=4)
def nested_collapse(horizon: int, caps: Callable[[Any], Tensor]) -> Derivation:
    """Derive growth, fall and collapse for trees of this many positions; `caps` gives what an instance is measured at."""
    w = NestedTree(horizon)
    affinity = {t: sp.Symbol(f"BC_{t}", positive=True) for t in w.positions}

    def point(rng: random.Random) -> Mapping[sp.Symbol, Any]:
        values = dict(w.point(rng))

        def law(tree: Any, depth: int) -> Any:
            if depth:
                return [law(branch, depth - 1) for branch in tree]
            one, other = rng.choice(SQUARES)
            return [sp.Rational(one, one + other), sp.Rational(other, one + other)]

        for t in w.positions:
            pi = law(values[w.p[t].label], t - 1)
            mu = [law(branch, t - 1) for branch in values[w.m[t].label]]
            values |= {w.p[t].label: pi, w.m[t].label: mu}
            values[w.r[t].label] = [_leafwise(lambda p, m: p / m, pi, branch) for branch in mu]
            roots = [_leafwise(lambda p, m: sp.sqrt(p * m), pi, branch) for branch in mu]
            affinity_at = np.array(roots, dtype=object).sum(-1).reshape(-1)
            values[affinity[t]] = max(affinity_at.tolist())
        return {**parts.point(rng), **values, CAP: sp.Rational(rng.randint(1, 20), 8)}

    def bind(instance: TransformerWorld) -> Mapping[sp.Symbol, Any]:
        values = dict(w.laws(instance))
        for t in w.positions:
            mu, ratio = values[w.m[t].label], values[w.r[t].label]
            values[affinity[t]] = float((mu * np.sqrt(ratio)).sum(-1).max())
        return {**parts.bind(instance), **values, CAP: caps(instance).numpy()}

    return Derivation([parts.growth_chain(), falling_chain(w), collapse_chain(w, affinity)], point, bind)


def _leafwise(function: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
    if isinstance(a, list):
        return [_leafwise(function, x, y) for x, y in zip(a, b, strict=True)]
    return function(a, b)
