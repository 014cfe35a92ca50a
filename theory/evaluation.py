"""Evaluate expressions by walking them: exactly at rational points, or in float64 at an instance's numbers.

Compiling an expression that is evaluated a handful of times costs far more than evaluating it, so nothing is compiled here
unless it holds a function this file does not know. Common subexpressions are evaluated once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import sympy as sp
from scipy import special

FUNCTIONS: dict[Any, Any] = {
    sp.exp: np.exp, sp.log: np.log, sp.Abs: np.abs, sp.erf: special.erf, sp.erfc: special.erfc, sp.tanh: np.tanh,
}  # fmt: skip


def exact_values(exprs: Sequence[sp.Expr], point: Mapping[sp.Symbol, Any]) -> list[Any]:
    """Evaluate at a point of rationals: a Fraction wherever the answer is rational, a sympy number elsewhere.

    Examples
    --------
    >>> x = sp.Symbol("x")
    >>> exact_values([x / 3 + sp.Rational(1, 6), sp.sqrt(x)], {x: sp.Rational(1, 2)})
    [Fraction(1, 3), sqrt(2)/2]
    """
    known: dict[sp.Basic, Any] = {s: _fraction(v) for s, v in point.items()}
    return [_exact(e, known) for e in exprs]


def _fraction(value: Any) -> Any:
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
