"""How the error of a capped mean moves with the cap, for any law: sums over what lies above and below it.

    A, F, Q = E[W f], E[f], E|f|^2 over W > c          M, S = E[W f], E[W^2 |f|^2] over W <= c

A cap that rises by dc takes the outcomes of weight c, of probability g dc and mean signal phi (mean square phi^2 for a
signal that is a function of W), from above to below. Between the atoms of a discrete law g is 0; at an atom the sums
jump. Signals have two components here; scalar ones have 0 for the second.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import sympy as sp

C, N = sp.Symbol("c", positive=True), sp.Symbol("n", positive=True)
A, F, M, PHI = (sp.symbols(f"{name}1:3", real=True) for name in ("A", "F", "M", "phi"))
Q, S, G = (sp.Symbol(name, nonnegative=True) for name in ("Q", "S", "g"))
T = sp.Symbol("T", positive=True)  # P(W > c), which is F and Q where f = 1

Symbols = Mapping[sp.Symbol, Any]
ONE = {A[1]: 0, F[1]: 0, M[1]: 0, PHI[1]: 0, PHI[0]: 1, F[0]: T, Q: T, M[0]: 1 - A[0]}  # the constant signal, E W = 1


def dot(a: Any, b: Any) -> sp.Expr:
    """Inner product."""
    return sp.Add(*[x * y for x, y in zip(a, b, strict=True)])


LOST = [a - C * f for a, f in zip(A, F, strict=True)]  # E[(W - c)+ f]
KEPT = [m + C * f for m, f in zip(M, F, strict=True)]  # E[min(W, c) f]
ERROR = dot(LOST, LOST) + (S + C**2 * Q - dot(KEPT, KEPT)) / N
SLOPE = 2 * (-dot(LOST, F) + (C * Q - dot(KEPT, F)) / N)
SECOND_MOMENT_ERROR = dot(LOST, LOST) + (S + C**2 * Q) / N


def moved(expr: sp.Expr) -> sp.Expr:
    """Total derivative in the cap: its own, and through the outcomes that change sides."""
    moves = {S: C**2 * dot(PHI, PHI) * G, Q: -dot(PHI, PHI) * G}
    for a, f, m, phi in zip(A, F, M, PHI, strict=True):
        moves |= {a: -C * phi * G, f: -phi * G, m: C * phi * G}
    return sp.Add(sp.diff(expr, C), *[sp.diff(expr, x) * speed for x, speed in moves.items()])


def sums(values: Any, probs: Any, signal: Any, caps: Any, left: bool = False) -> dict[sp.Symbol, np.ndarray]:
    """A, F, Q, M, S of a discrete law at each cap, outcome by outcome; `left` counts W = c as above."""
    w, p = (np.asarray(x, dtype=np.float64)[:, None] for x in (values, probs))
    f = np.ones_like(w) if signal is None else np.asarray(signal, dtype=np.float64).reshape(len(w), -1)
    f = np.concatenate([f, np.zeros((len(w), 2 - f.shape[1]))], 1)
    c = np.asarray(caps, dtype=np.float64)
    over = ((w >= c) if left else (w > c)).astype(np.float64)
    square = (f**2).sum(1, keepdims=True)
    found = {Q: (p * square * over).sum(0), S: (p * w**2 * square * (1 - over)).sum(0)}
    for k in range(2):
        one = f[:, k : k + 1]
        found |= {
            A[k]: (p * w * one * over).sum(0),
            F[k]: (p * one * over).sum(0),
            M[k]: (p * w * one * (1 - over)).sum(0),
        }
    return found


def random_sums(rng: random.Random) -> dict[sp.Symbol, sp.Rational]:
    """Random rational sums, cap, density and number of draws; nothing links them."""

    def signed() -> sp.Rational:
        return sp.Rational(rng.randint(-9, 9), 6)

    values = {x: signed() for pair in (A, F, M, PHI) for x in pair}
    values |= {x: sp.Rational(rng.randint(1, 12), 5) for x in (Q, S, G, C)}
    return values | {T: sp.Rational(rng.randint(1, 9), 10), N: sp.Integer(rng.randint(2, 40))}
