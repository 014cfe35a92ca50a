"""Bugs of the mixing library that several theorems plant; each takes the right function and returns the wrong one."""

from __future__ import annotations

from typing import Any

from testbed.estimators.replay_mse import Quadratic


def always_stationary(right: Any) -> Any:
    """Take the stationary point, clipped, whatever the error bends like."""

    def wrong(f: Quadratic, low: float, high: float) -> tuple[float, float | None]:
        return (min(max(-f.linear / (2 * f.square), low), high), None) if f.square else right(f, low, high)

    return wrong


def no_cross_term(right: Any) -> Any:
    """Forget that cheaper samples are more samples: D_v D_c is missing from the square coefficient."""

    def wrong(given: Any, budget: float) -> Quadratic:
        return right(given, budget)._replace(square=given.bias**2)

    return wrong
