"""Second moments of segment products over a symbolic world: histories where segments start, and what each segment adds."""

from __future__ import annotations

import sympy as sp

from theory.symbols import Prefix, SymbolicWorld


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
