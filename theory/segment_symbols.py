"""Second moments of segment products over a symbolic world: histories where segments start, and what each segment adds."""

from __future__ import annotations

import sympy as sp

from testbed.policies.schedule import cuts
from testbed.policies.tabular import TabularPolicy
from theory.symbols import Prefix, SymbolicWorld
from theory.worlds import STREAM, World, one_hot_policy, standard_worlds, world


def ends(w: SymbolicWorld, y: Prefix, branch: int, k: int) -> int:
    """Number of tokens of segments up to k: the product through the end of segment k has so many factors."""
    return sum(label <= k for _, _, label in w.path(y, branch))


def starts(w: SymbolicWorld, k: int) -> list[tuple[int, Prefix]]:
    """(Branch, history) pairs at which segment k starts, if only to end at once."""
    return list(dict.fromkeys((b, y[: ends(w, y, b, k - 1)]) for b, y, _ in w.draws()))


def squared_so_far(w: SymbolicWorld, branch: int, h: Prefix) -> sp.Expr:
    """P(xi) mu(h) W(h)^2: the share of a history in the second moment of the product up to it."""
    return w.prior(branch) * w.prob_mu(h, branch) * w.weight(h, branch) ** 2


def segment_square(w: SymbolicWorld, branch: int, k: int, h: Prefix) -> sp.Expr:
    """d2_k(h) in ratio symbols: mu-average of the squared ratios of segment k, the walk stopped where the segment ends."""
    if len(h) == w.horizon or (w.eos is not None and w.eos in h) or w.branches[branch][h] > k:
        return sp.Integer(1)
    return sp.Add(
        *[w.mu(k, h, a) * w.rho(k, h, a) ** 2 * segment_square(w, branch, k, (*h, a)) for a in range(w.vocab_size)]
    )


def second_moment(w: SymbolicWorld, k: int) -> sp.Expr:
    """E_mu[W_(k)^2] as stated: over whole responses (k = -1: the total mass)."""
    return sp.Add(*[prob * w.weight(y, b, ends(w, y, b, k)) ** 2 for b, y, prob in w.draws()])


def walked(w: SymbolicWorld, b: int, k: int, h: Prefix) -> list[list[tuple[Prefix, int]]]:
    """All ways through segment k from h: the (history, token) pairs of each."""
    if len(h) == w.horizon or (w.eos is not None and w.eos in h) or w.branches[b][h] != k:
        return [[]]
    return [[(h, a), *rest] for a in range(w.vocab_size) for rest in walked(w, b, k, (*h, a))]


def levels(w: SymbolicWorld, b: int, k: int, h: Prefix) -> list[tuple[sp.Expr, sp.Expr, sp.Expr, sp.Expr]]:
    """Per token of segment k from h, sums over histories g of mu W^2, mu W^2 d2, mu W^2 log d2 and pi KL."""
    out, frozen = [], sp.Integer(0)
    active: dict[Prefix, tuple[sp.Expr, sp.Expr]] = {h: (sp.Integer(1), sp.Integer(1))}
    while True:
        going = {}
        for g, (square, plain) in active.items():
            if len(g) == w.horizon or (w.eos is not None and w.eos in g) or w.branches[b][g] != k:
                frozen += square
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
            sp.Add(*[q * divergence[g] for g, (_, q) in going.items()]),
        ))  # fmt: skip
        active = {
            (*g, a): (s * w.mu(k, g, a) * w.rho(k, g, a) ** 2, q * w.pi(g, a))
            for g, (s, q) in going.items() for a in words
        }  # fmt: skip


def small_worlds() -> list[World]:
    """Shared worlds with the larger shapes replaced by smaller ones of the same kind, for chains over all histories."""
    kept = ("two_segments", "stopping_time", "three_tokens", "one_token", "one_segment")
    mu = TabularPolicy.random(2, 2, STREAM["short_on_policy"]["target"])
    return [
        *[w for w in standard_worlds() if w.name in kept],
        world("short_end_token", 2, 3, cuts((1,)), eos=1),
        world("short_exogenous", 2, 2, hazard=0.3),
        world("short_on_policy", 2, 2, cuts((1,)), target=mu, policies=(mu, mu)),
        world("short_deterministic", 2, 2, cuts((1,)), target=one_hot_policy(2, 2, "short_deterministic")),
        world("short_empty_segment", 2, 2, lambda prefix: 2 * (len(prefix) >= 1), behaviors=3),
    ]
