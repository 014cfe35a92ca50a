"""Expected number of accepted tokens by formula: recursions over laws, in whatever numbers the laws are made of.

Laws are functions of a prefix, `law(prefix) -> V numbers`, where a prefix is a tuple of tokens; with fractions the answers are
exact. `branching[d]` is the number of children of each node at depth d.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Law = Sequence[Any]  # V numbers: floats, fractions
Laws = Callable[[tuple[int, ...]], Law]


def path_probabilities(target: Laws, tokens: Sequence[int], parent: Sequence[int]) -> Any:
    """Expected acceptance of `membership` and `point_mass` on a tree that was not drawn: its nodes' path probabilities added up.

        E tau = sum_v prod of p over the path to v

    Examples
    --------
    >>> path_probabilities(lambda prefix: (0.5, 0.5), [0, 1, 1], [-1, -1, 0])
    1.25
    """
    paths: list[tuple[int, ...]] = []
    reach: list[Any] = []
    for token, up in zip(tokens, parent, strict=True):
        before = paths[up] if up >= 0 else ()
        paths.append((*before, token))
        reach.append((reach[up] if up >= 0 else 1) * target(before)[token])
    return sum(reach)


def token_chain(target: Laws, drafter: Laws, length: int, prefix: tuple[int, ...] = ()) -> Any:
    """Expected acceptance of `token_rejection`: sum over drafts of the products of min(p, q).

    Examples
    --------
    >>> from fractions import Fraction as F
    >>> p, q = (F(1, 3), F(2, 3)), (F(2, 3), F(1, 3))
    >>> token_chain(lambda prefix: p, lambda prefix: q, 2)
    Fraction(10, 9)
    """
    if length == 0:
        return 0
    shared = zip(target(prefix), drafter(prefix), strict=True)
    after = (token_chain(target, drafter, length - 1, (*prefix, x)) for x in range(len(target(prefix))))
    return sum(min(p, q) * (1 + rest) for (p, q), rest in zip(shared, after, strict=True))


def block_chain(
    target: Laws, drafter: Laws, length: int, prefix: tuple[int, ...] = (), mass: Any = 1, drawn: Any = 1
) -> Any:
    """Expected acceptance of `block`: sum over drafts of m_i = min(m_{i-1} p_i, q_1 ... q_i), the mass of x_1..x_i accepted.

    Examples
    --------
    >>> from fractions import Fraction as F
    >>> p, q = (F(1, 3), F(2, 3)), (F(2, 3), F(1, 3))
    >>> block_chain(lambda prefix: p, lambda prefix: q, 2)
    Fraction(11, 9)
    """
    if length == 0:
        return 0
    total = 0
    for x, (p, q) in enumerate(zip(target(prefix), drafter(prefix), strict=True)):
        kept = min(mass * p, drawn * q)
        total += kept + block_chain(target, drafter, length - 1, (*prefix, x), kept, drawn * q)
    return total


def independent_children(target: Laws, drafter: Laws, branching: Sequence[int], prefix: tuple[int, ...] = ()) -> Any:
    """Expected acceptance of `specinfer`; see `child_by_child`."""
    return child_by_child(target, drafter, branching, prefix, distinct=False)


def distinct_children(target: Laws, drafter: Laws, branching: Sequence[int], prefix: tuple[int, ...] = ()) -> Any:
    """Expected acceptance of `sequoia`; see `child_by_child`."""
    return child_by_child(target, drafter, branching, prefix, distinct=True)


def child_by_child(
    target: Laws, drafter: Laws, branching: Sequence[int], prefix: tuple[int, ...], distinct: bool
) -> Any:
    """Expected acceptance of multi-round rejection.

        E(p, q, k) = sum_x min(p, q)(x) (1 + E below x) + sum_x (q(x) - min(p, q)(x)) E(residual, q or q without x, k - 1)

    Examples
    --------
    >>> from fractions import Fraction as F
    >>> p, q = (F(4, 10), F(3, 10), F(2, 10), F(1, 10)), (F(1, 10), F(2, 10), F(3, 10), F(4, 10))
    >>> independent_children(lambda prefix: p, lambda prefix: q, (2,))
    Fraction(18, 25)
    """
    if not branching:
        return 0
    below = [
        1 + child_by_child(target, drafter, branching[1:], (*prefix, x), distinct) for x in range(len(target(prefix)))
    ]

    def rounds(p: Law, q: Law, children: int) -> Any:
        if children == 0 or not any(q):
            return 0
        kept = [min(a, b) for a, b in zip(p, q, strict=True)]
        total = sum(k * b for k, b in zip(kept, below, strict=True))
        rest = excess(p, q)
        for x, (drawn, k) in enumerate(zip(q, kept, strict=True)):
            if drawn > k:
                total += (drawn - k) * rounds(rest, excluding(q, x) if distinct else q, children - 1)
        return total

    return rounds(target(prefix), drafter(prefix), branching[0])


def leaf_to_root(
    target: Laws,
    drafter: Laws,
    branching: Sequence[int],
    distinct: bool = False,
    prefix: tuple[int, ...] = (),
    accept: Any = 1,
) -> Any:
    """Expected acceptance of `traversal` below a node that is entered with acceptance probability `accept`.

        E(a, p, q, k) = sum_x q(x) [a_x + E(a_x below x)] + sum_x q(x) (1 - a_x) E(a', p', q', k - 1)
        a_x = min(1, a p(x) / q(x));  a', p', q' as `traversal` updates them

    Examples
    --------
    >>> from fractions import Fraction as F
    >>> p, q = (F(1, 3), F(2, 3)), (F(2, 3), F(1, 3))
    >>> leaf_to_root(lambda prefix: p, lambda prefix: q, (1, 1))
    Fraction(11, 9)
    """
    if not branching:
        return 0

    def rounds(a: Any, p: Law, q: Law, children: int) -> Any:
        if children == 0 or not any(q):
            return 0
        scaled = [a * at for at in p]
        mass = sum(max(s - b, 0) for s, b in zip(scaled, q, strict=True))
        left = mass / (mass + 1 - a) if mass + 1 - a else 0
        rest = excess(scaled, q) if mass else p
        total = 0
        for x, (s, drawn) in enumerate(zip(scaled, q, strict=True)):
            if not drawn:
                continue
            into = min(1, s / drawn)
            below = leaf_to_root(target, drafter, branching[1:], distinct, (*prefix, x), into)
            total += drawn * (into + below)
            if into < 1:
                total += drawn * (1 - into) * rounds(left, rest, excluding(q, x) if distinct else q, children - 1)
        return total

    return rounds(accept, target(prefix), drafter(prefix), branching[0])


def excess(p: Law, q: Law) -> Law:
    """(p - q)+, normalized."""
    over = [max(a - b, 0) for a, b in zip(p, q, strict=True)]
    total = sum(over)
    return [x / total for x in over] if total else list(p)


def excluding(q: Law, token: int) -> Law:
    """Law of q conditioned on another token; all zeros where q knows no other."""
    rest = [0 if x == token else chance for x, chance in enumerate(q)]
    total = sum(rest)
    return [chance / total for chance in rest] if total else rest
