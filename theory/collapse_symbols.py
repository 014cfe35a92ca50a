"""Capped means and growth of second moments over a symbolic world: the chains of S12."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import sympy as sp
from torch import Tensor

from theory.derivation import Derivation, Step
from theory.segment_symbols import second_moment, segment_square, squared_so_far, starts, walked
from theory.symbols import Prefix, SymbolicWorld, symbolic_world
from theory.worlds import World

CAP = sp.Symbol("c", positive=True)


def capped(x: sp.Expr, c: sp.Expr) -> sp.Expr:
    """min(x, c), written so that it also evaluates for many caps at once."""
    return (x + c - sp.Abs(x - c)) / 2


def _alive(w: SymbolicWorld, t: int) -> list[tuple[int, Prefix, sp.Expr]]:
    """(branch, history before token t or whole response that ended, its probability under the sampler)."""
    seen = dict.fromkeys((b, y[:t]) for b, y, _ in w.draws())
    return [(b, h, w.prior(b) * w.prob_mu(h, b)) for b, h in seen]


def _ended(w: SymbolicWorld, h: Prefix) -> bool:
    return len(h) == w.horizon or (w.eos is not None and w.eos in h)


def _token_sum(w: SymbolicWorld, b: int, h: Prefix, f: Callable[[sp.Expr, sp.Expr], sp.Expr]) -> sp.Expr:
    """Sum over the next token of f(mu, rho); f(1, 1) if there is none."""
    if _ended(w, h):
        return f(sp.Integer(1), sp.Integer(1))
    k = w.branches[b][h]
    return sp.Add(*[f(w.mu(k, h, a), w.rho(k, h, a)) for a in range(w.vocab_size)])


def _growth(w: SymbolicWorld) -> list[Step]:
    stated, tower, excess, before = [], [], [], []
    for k in range(w.n_behaviors):
        at = starts(w, k)
        chi2 = {}
        for b, h in at:
            ways = [
                (sp.prod([w.mu(k, g, a) for g, a in way]), sp.prod([w.rho(k, g, a) for g, a in way]))
                for way in walked(w, b, k, h)
            ]
            chi2[b, h] = sp.Add(*[m * (r - 1) ** 2 for m, r in ways])
        stated.append(second_moment(w, k))
        tower.append(sp.Add(*[squared_so_far(w, b, h) * segment_square(w, b, k, h) for b, h in at]))
        excess.append(sp.Add(*[squared_so_far(w, b, h) * (1 + chi2[b, h]) for b, h in at]))
        before.append(second_moment(w, k - 1))
    return [
        Step("definition", stated, "the sampler's law", quantity="second", tex=r"E_\mu[W_{(k)}^2]"),
        Step("tower", tower, "S9", tex=r"E_\mu[W_{(k-1)}^2 d_{2,k}(H)]"),
        Step("excess", excess, "the segment's ratios have mean 1 given H, so d2 = 1 + chi2",
             tex=r"E_\mu[W_{(k-1)}^2 (1 + \chi^2_k(H))]"),
        Step("drop", before, "chi2 >= 0", ">=", quantity="second_before", tex=r"E_\mu[W_{(k-1)}^2]"),
    ]  # fmt: skip


def _floor(w: SymbolicWorld) -> list[Step]:
    chi2 = [_token_sum(w, b, h, lambda m, r: m * (r - 1) ** 2) for b in range(len(w.branches)) for h in w.prefixes]
    least = sp.Min(*dict.fromkeys(chi2), evaluate=False)

    def second(t: int) -> sp.Expr:
        return sp.Add(*[p * w.weight(h, b) ** 2 for b, h, p in _alive(w, t)])

    return [
        Step("definition", second(w.horizon), "the sampler's law", quantity="second_last", tex=r"E_\mu[W_T^2]"),
        *[
            Step(f"token_{t}", (1 + least) ** (w.horizon - t) * second(t), "given H_t the factor is 1 + chi2 >= 1 + c", ">=",
                 quantity="growth_floor" if t == 0 else None, tex=rf"(1+c)^{{{w.horizon - t}}} E_\mu[W_{{{t}}}^2]")
            for t in range(w.horizon - 1, -1, -1)
        ],
    ]  # fmt: skip


def _capped_falls(w: SymbolicWorld) -> list[Step]:
    stated, inside, before = [], [], []
    for t in range(w.horizon):
        now = _alive(w, t)
        stated.append(sp.Add(*[p * capped(w.weight(h, b), CAP) for b, h, p in _alive(w, t + 1)]))
        inside.append(sp.Add(*[
            p * capped(w.weight(h, b) * _token_sum(w, b, h, lambda m, r: m * r), CAP) for b, h, p in now
        ]))  # fmt: skip
        before.append(sp.Add(*[p * capped(w.weight(h, b), CAP) for b, h, p in now]))
    return [
        Step("definition", stated, "capped mean one token later", quantity="capped", tex=r"E_\mu[\min(W_{t+1}, c)]"),
        Step("jensen", inside, "min(., c) is concave: average the next ratio inside it", "<=",
             tex=r"E_\mu[\min(W_t E[\rho_{t+1} | H_{t+1}], c)]"),
        Step("mean_one", before, "mu rho = pi sums to 1", quantity="capped_before", tex=r"E_\mu[\min(W_t, c)]"),
    ]  # fmt: skip


def _collapse(w: SymbolicWorld) -> list[Step]:
    full = [(b, h, p, w.weight(h, b)) for b, h, p in _alive(w, w.horizon)]
    affinity = [
        [_token_sum(w, b, h, lambda m, r: m * sp.sqrt(r)) for b, h, _ in _alive(w, t)] for t in range(w.horizon)
    ]
    largest = sp.prod([sp.Max(*dict.fromkeys(row), evaluate=False) for row in affinity])
    return [
        Step("definition", sp.Add(*[p * capped(x, CAP) for _, _, p, x in full]), "capped mean at the end",
             quantity="capped_last", tex=r"E_\mu[\min(W_T, c)]"),
        Step("geometric_mean", sp.sqrt(CAP) * sp.Add(*[p * sp.sqrt(x) for _, _, p, x in full]), "min(W, c) <= sqrt(c W)",
             "<=", tex=r"\sqrt c\, E_\mu[\sqrt{W_T}]"),
        Step("one_by_one", sp.sqrt(CAP) * largest, "given H_t, sqrt(rho_t) has mean BC(H_t) <= its sup", "<=",
             quantity="collapse_bound", tex=r"\sqrt c \prod_t \sup_h BC_t(h)"),
    ]  # fmt: skip


@lru_cache(maxsize=32)
def collapse_derivation(shape: tuple[Any, ...], caps: Callable[[World], Tensor]) -> Derivation:
    """Derive the four bounds of S12 for worlds of one shape; `caps` gives the caps an instance is measured at."""
    w = symbolic_world(shape)
    chains = [_growth(w), _capped_falls(w), _collapse(w)]
    if w.eos is None:
        chains.append(_floor(w))

    def point(rng: random.Random) -> Mapping[sp.Symbol, Any]:
        return {**w.point(rng), CAP: sp.Rational(rng.randint(1, 20), 8)}

    def bind(instance: World) -> Mapping[sp.Symbol, Any]:
        return {**w.bind(instance), CAP: caps(instance).numpy()}

    return Derivation(chains, point, bind)
