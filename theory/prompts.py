"""Several prompts: one world per prompt, each with its own block of parameters, and the share each has among the draws."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import Any

import sympy as sp
import torch
from torch import Tensor

from testbed.estimators.gradient import gradient_terms
from testbed.exact.gradients import exact_gradient
from testbed.exact.law import ExactLaw
from testbed.weighting.rules import weigh
from theory.symbols import SymbolicWorld, symbolic_world
from theory.worlds import World


@dataclass(frozen=True, kw_only=True)
class Prompts:
    """Prompts x with shares d_x; J = sum_x d_x J_x, and parameters are one block per prompt."""

    name: str
    worlds: tuple[World, ...]
    shares: tuple[float, ...]

    @cached_property
    def laws(self) -> list[ExactLaw]:
        """Law of each prompt's sampler."""
        return [w.law for w in self.worlds]

    @property
    def gradient(self) -> Tensor:
        """Exact gradient of J in all blocks, [X, N, V]."""
        return torch.stack([d * exact_gradient(w.env, w.target) for d, w in zip(self.shares, self.worlds, strict=True)])

    @property
    def shape(self) -> tuple[Any, ...]:
        """What symbolic prompts of the same form need."""
        return tuple(w.shape for w in self.worlds)


def full_product_update(
    prompts: Prompts, law: ExactLaw, factor: Tensor | None = None, advantage: Tensor | None = None
) -> Tensor:
    """Expected full-product update in all blocks, [X, N, V], under a law whose `group` is the prompt.

    `factor` multiplies the weight of each prompt's responses, `advantage` stands in for the reward.
    """
    batch, update = law.batch, []
    weight = weigh("sequence_product", batch).value
    for x, w in enumerate(prompts.worlds):
        mine = (batch.group == x).double() * (1.0 if factor is None else factor[x])
        update.append(law.expect(gradient_terms(batch, weight * mine[:, None], w.target, advantage)))
    return torch.stack(update)


class SymbolicPrompts:
    """Symbolic worlds with symbols of their own, and shares d_x as symbols."""

    def __init__(self, shape: tuple[Any, ...]) -> None:
        self.worlds: list[SymbolicWorld] = [symbolic_world(s) for s in shape]
        self.shares = [sp.Symbol(f"d_{x}", positive=True) for x in range(len(shape))]

    def own(self, x: int, exprs: Sequence[sp.Expr]) -> list[sp.Expr]:
        """Return expressions of prompt x's world in symbols of prompt x."""
        symbols = {s for e in exprs for s in e.free_symbols}
        return [e.xreplace({s: self._named(x, s) for s in symbols}) for e in exprs]

    def bind(self, prompts: Prompts) -> dict[Any, float]:
        """Return the numbers of an instance of this shape."""
        found: dict[Any, float] = dict(zip(self.shares, prompts.shares, strict=True))
        for x, (w, instance) in enumerate(zip(self.worlds, prompts.worlds, strict=True)):
            found |= {self._named(x, s): value for s, value in w.bind(instance).items()}
        return found

    def point(self, change: Callable[[SymbolicWorld, Random], Mapping[Any, Any]]) -> Callable[[Random], dict[Any, Any]]:
        """Return a sampler of rational points; `change` overrides what each world draws."""

        def draw(rng: Random) -> dict[Any, Any]:
            parts = [rng.randint(1, 9) for _ in self.worlds]
            values: dict[Any, Any] = {d: sp.Rational(n, sum(parts)) for d, n in zip(self.shares, parts, strict=True)}
            for x, w in enumerate(self.worlds):
                values |= {self._named(x, s): v for s, v in {**w.point(rng), **change(w, rng)}.items()}
            return values

        return draw

    @staticmethod
    def _named(x: int, symbol: Any) -> sp.Symbol:
        return sp.Symbol(f"prompt{x}_{symbol.name}", **symbol.assumptions0)
