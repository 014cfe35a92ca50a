"""Evaluate expressions by walking them: exactly at rational points, or in float64 at an instance's numbers.

Compiling an expression that is evaluated a handful of times costs far more than evaluating it, so nothing is compiled here
unless it holds a function this file does not know. Common subexpressions are evaluated once. Sums over an index with integer
bounds, of arrays such as `array("p")[y]`, are carried out: an array is given under its label.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import sympy as sp
from scipy import special

FUNCTIONS: dict[Any, Any] = {
    sp.exp: np.exp, sp.log: np.log, sp.Abs: np.abs, sp.erf: special.erf, sp.erfc: special.erfc, sp.tanh: np.tanh,
    sp.Min: lambda *values: functools.reduce(np.minimum, values), sp.Heaviside: np.heaviside,
    sp.Max: lambda *values: functools.reduce(np.maximum, values),
}  # fmt: skip


def array(name: str) -> Any:
    """Return a symbol for an array, to be indexed; its `label` is what an array of numbers is given under.

    Examples
    --------
    >>> array("p")[2, sp.Symbol("y")]
    p[2, y]
    """
    return sp.IndexedBase(name)


def exact_values(exprs: Sequence[sp.Expr], point: Mapping[sp.Symbol, Any]) -> list[Any]:
    """Evaluate at a point of rationals: a Fraction wherever the answer is rational, a sympy number elsewhere.

    Examples
    --------
    >>> x = sp.Symbol("x")
    >>> exact_values([x / 3 + sp.Rational(1, 6), sp.sqrt(x)], {x: sp.Rational(1, 2)})
    [Fraction(1, 3), sqrt(2)/2]
    >>> p, y, n = array("p"), sp.Symbol("y"), sp.Symbol("n")
    >>> exact_values([sp.Sum(y * p[y], (y, 0, n - 1))], {n: 3, p.label: [sp.Rational(1, 2), 5, sp.Rational(1, 3)]})
    [Fraction(17, 3)]
    """
    known: dict[sp.Basic, Any] = {s: _fraction(v) for s, v in point.items()}
    return [_exact(e, known) for e in exprs]


def _fraction(value: Any) -> Any:
    if isinstance(value, list):
        return [_fraction(v) for v in value]
    number = sp.sympify(value)
    return Fraction(int(number.p), int(number.q)) if number.is_Rational else number


def _exact(expr: sp.Basic, known: dict[sp.Basic, Any]) -> Any:
    found = known.get(expr)
    if found is not None:
        return found
    if expr.is_Rational:
        result: Any = Fraction(int(expr.p), int(expr.q))  # type: ignore[attr-defined]
    elif not expr.args:
        result = expr
    elif isinstance(expr, sp.Sum):
        limits: Any = expr.limits
        index, low, high = limits[-1]  # the outermost
        term = sp.Sum(expr.function, *limits[:-1]) if len(limits) > 1 else expr.function
        values = range(int(_exact(low, known)), int(_exact(high, known)) + 1)
        result = sum((_exact(term, {**known, index: Fraction(k)}) for k in values), Fraction(0))
    elif isinstance(expr, sp.Indexed):
        result = known[expr.base.label]
        for i in expr.indices:
            result = result[int(_exact(i, known))]
    else:
        parts = [_exact(a, known) for a in expr.args]
        rational = all(isinstance(p, Fraction) for p in parts)
        if rational and expr.is_Add:
            result = sum(parts, Fraction(0))
        elif rational and expr.is_Mul:
            result = math.prod(parts, start=Fraction(1))
        elif rational and expr.is_Pow and parts[1].denominator == 1 and (parts[0] or parts[1] >= 0):
            result = parts[0] ** int(parts[1])
        else:
            result = _fraction(expr.func(*[_symbolic(p) for p in parts]))
    known[expr] = result
    return result


def _symbolic(value: Any) -> sp.Expr:
    return sp.Rational(value.numerator, value.denominator) if isinstance(value, Fraction) else value


def float_values(exprs: Sequence[sp.Expr], numbers: Mapping[sp.Symbol, Any]) -> list[Any]:
    """Evaluate in float64; a symbol may stand for a number or an array.

    Examples
    --------
    >>> x = sp.Symbol("x")
    >>> [float(v) for v in float_values([x**2 + sp.pi, sp.exp(-x)], {x: 0.0})]
    [3.141592653589793, 1.0]
    """
    known: dict[sp.Basic, Any] = {s: v for s, v in numbers.items()}  # noqa: C416 - widens the key's type
    return [_float(e, known) for e in exprs]


def _float(expr: sp.Basic, known: dict[sp.Basic, Any]) -> Any:
    found = known.get(expr)
    if found is not None:
        return found
    if expr.is_number:
        result: Any = float(expr)  # type: ignore[arg-type]
    elif isinstance(expr, sp.Sum):
        result = _float_sum(expr, known)
    elif isinstance(expr, sp.Indexed):
        at = tuple(np.asarray(_float(i, known)).astype(np.int64) for i in expr.indices)
        result = np.asarray(known[expr.base.label])[at]
        result = float(result) if np.ndim(result) == 0 else result
    elif expr.is_Add or expr.is_Mul or expr.is_Pow or type(expr) in FUNCTIONS:
        parts = [_float(a, known) for a in expr.args]
        if expr.is_Add:
            result = sum(parts)
        elif expr.is_Mul:
            result = (
                math.prod(parts)
                if all(isinstance(p, float) for p in parts)
                else np.multiply.reduce(np.broadcast_arrays(*parts))
            )
        elif expr.is_Pow:
            result = np.float_power(*parts)
        else:
            result = FUNCTIONS[type(expr)](*parts)
        result = float(result) if np.ndim(result) == 0 else result
    else:
        symbols = sorted(expr.free_symbols, key=str)
        compiled = sp.lambdify(symbols, expr, modules=["scipy", "numpy"])
        result = compiled(*[known[s] for s in symbols])
    known[expr] = result
    return result


def _float_sum(expr: sp.Sum, known: dict[sp.Basic, Any]) -> Any:
    """Sum with one leading axis per index, the outermost index first, before the axes of arrays that symbols stand for."""
    bases = {i.base.label for i in expr.atoms(sp.Indexed)}
    depth = max(
        (np.ndim(known[s]) for s in expr.free_symbols if isinstance(s, sp.Symbol) and s not in bases), default=0
    )
    inner = dict(known)  # what holds an index must not be found again outside of the sum
    shape: tuple[int, ...] = ()
    limits: Any = expr.limits
    for index, low, high in reversed(limits):
        terms = np.arange(int(_float(low, known)), int(_float(high, known)) + 1, dtype=np.float64)
        inner[index] = terms.reshape(-1, *[1] * depth)
        shape, depth = (len(terms), *shape), depth + 1
    values = np.asarray(_float(expr.function, inner))
    values = np.broadcast_to(values, np.broadcast_shapes(values.shape, (*shape, *[1] * (depth - len(shape)))))
    total = values.sum(axis=tuple(range(len(shape))))
    return float(total) if total.ndim == 0 else total
