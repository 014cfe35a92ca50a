"""Symbolic worlds: the same enumeration over sympy symbols, so that identities are proved for all policies of a shape at once.

Policies are symbols p_h_a (target) and m_k_h_a (behavior k), rewards are symbols R_y, and the token ratios r_k_h_a are symbols
of their own, bound to p/m: a derivation states E_mu[W f] with the ratios and then substitutes them. Gradients come from
*differentiating J* through the softmax, dp_a/dl_b = p_a (1{a=b} - p_b), never from an estimator's formula.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import cached_property, lru_cache
from typing import Any

import sympy as sp

from testbed.core.prefix_order import prefixes
from theory.worlds import World

Prefix = tuple[int, ...]


def _name(*parts: Any) -> str:
    return "_".join("".join(map(str, p)) if isinstance(p, tuple) else str(p) for p in parts)


class SymbolicWorld:
    """A world of given shape (see `World.shape`) over symbols.

    Examples
    --------
    >>> w = SymbolicWorld((2, 1, None, 1, ((0,),), False))
    >>> w.objective()
    R_0*p__0 + R_1*p__1
    """

    def __init__(self, shape: tuple[Any, ...]) -> None:
        self.vocab_size, self.horizon, self.eos, self.n_behaviors, tables, self.has_steps = shape
        self.prefixes = prefixes(self.vocab_size, self.horizon)
        self.branches = [dict(zip(self.prefixes, table, strict=True)) for table in tables]

    @cached_property
    def leaves(self) -> list[Prefix]:
        """Responses in the order of the exact law."""
        full = [(*p, a) for p in self.prefixes if len(p) == self.horizon - 1 for a in range(self.vocab_size)]
        if self.eos is None:
            return full
        kept: list[Prefix] = []
        for y in full:
            end = y.index(self.eos) + 1 if self.eos in y else self.horizon
            if all(a == self.eos for a in y[end:]):
                kept.append(y[:end])
        return kept

    @property
    def parameters(self) -> list[tuple[Prefix, int]]:
        """Logits (h, a) in node order."""
        return [(h, a) for h in self.prefixes for a in range(self.vocab_size)]

    def pi(self, h: Prefix, a: int) -> sp.Symbol:
        """Target's probability of a after h."""
        return sp.Symbol(_name("p", h, a), positive=True)

    def mu(self, k: int, h: Prefix, a: int) -> sp.Symbol:
        """Behavior k's probability of a after h."""
        return sp.Symbol(_name("m", k, h, a), positive=True)

    def rho(self, k: int, h: Prefix, a: int) -> sp.Symbol:
        """Token ratio target over behavior k, as a symbol."""
        return sp.Symbol(_name("r", k, h, a), positive=True)

    def reward(self, y: Prefix) -> sp.Symbol:
        """Terminal reward of a response."""
        return sp.Symbol(_name("R", y), real=True)

    def step_reward(self, h: Prefix, a: int) -> sp.Symbol:
        """Per-step reward of taking a after h."""
        return sp.Symbol(_name("g", h, a), real=True)

    def prior(self, branch: int) -> sp.Expr:
        """Probability of a realization of the schedule's noise (1 if there is only one)."""
        return sp.Integer(1) if len(self.branches) == 1 else sp.Symbol(_name("x", branch), positive=True)

    def path(self, y: Prefix, branch: int = 0) -> list[tuple[Prefix, int, int]]:
        """Return (prefix, token, segment) along a response."""
        table = self.branches[branch]
        return [(y[:t], y[t], table[y[:t]]) for t in range(len(y))]

    def prob_pi(self, y: Prefix) -> sp.Expr:
        """Target's probability of a response."""
        return sp.prod([self.pi(y[:t], y[t]) for t in range(len(y))])

    def prob_mu(self, y: Prefix, branch: int = 0) -> sp.Expr:
        """Sampler's probability of a response, given the noise."""
        return sp.prod([self.mu(k, h, a) for h, a, k in self.path(y, branch)])

    def weight(self, y: Prefix, branch: int = 0, upto: int | None = None) -> sp.Expr:
        """Product of token ratios through position `upto` - 1 (all if None), in the ratio symbols."""
        return sp.prod([self.rho(k, h, a) for h, a, k in self.path(y, branch)[:upto]])

    def draws(self) -> list[tuple[int, Prefix, sp.Expr]]:
        """All (branch, response, probability under the sampler)."""
        return [(b, y, self.prior(b) * self.prob_mu(y, b)) for b in range(len(self.branches)) for y in self.leaves]

    def rho_definition(self) -> dict[sp.Symbol, sp.Expr]:
        """Substitution r = p/m for every ratio symbol."""
        return {
            self.rho(k, h, a): self.pi(h, a) / self.mu(k, h, a)
            for k in range(self.n_behaviors)
            for h, a in self.parameters
        }

    def total_return(self, y: Prefix) -> sp.Expr:
        """Terminal reward, or the sum of per-step rewards if the world has them."""
        if self.has_steps:
            return sp.Add(*[self.step_reward(y[:t], y[t]) for t in range(len(y))])
        return self.reward(y)

    def objective(self) -> sp.Expr:
        """J = E_pi[R]."""
        return sp.Add(*[self.prob_pi(y) * self.total_return(y) for y in self.leaves])

    def logit_derivative(self, expr: sp.Expr, h: Prefix, b: int) -> sp.Expr:
        """Derivative in the logit l(h, b), by the chain rule through the softmax of h's block."""
        inner = [sp.diff(expr, self.pi(h, a)) * self.pi(h, a) for a in range(self.vocab_size)]
        return inner[b] - self.pi(h, b) * sp.Add(*inner)

    def gradient(self) -> list[sp.Expr]:
        """Gradient of J in every logit, by differentiation."""
        objective = self.objective()
        return [self.logit_derivative(objective, h, b) for h, b in self.parameters]

    def score(self, y: Prefix, t: int, h: Prefix, b: int) -> sp.Expr:
        """D log pi(y_t | y_<t) / d l(h, b) = 1{y_<t = h} (1{y_t = b} - p(h, b))."""
        return sp.Integer(int(y[t] == b)) - self.pi(h, b) if y[:t] == h else sp.Integer(0)

    def value(self, h: Prefix, branch: int | None = None) -> sp.Expr:
        """Expected return from prefix h under the target (branch None) or under the sampler of a branch."""
        if len(h) == self.horizon or (self.eos is not None and self.eos in h):
            return self.total_return(h)
        return sp.Add(*[self._law(h, a, branch) * self.value((*h, a), branch) for a in range(self.vocab_size)])

    def action_value(self, h: Prefix, a: int, branch: int | None = None) -> sp.Expr:
        """Q(h, a) under the target (branch None) or the sampler of a branch."""
        return self.value((*h, a), branch)

    def _law(self, h: Prefix, a: int, branch: int | None) -> sp.Expr:
        return self.pi(h, a) if branch is None else self.mu(self.branches[branch][h], h, a)

    def bind(self, instance: World) -> dict[sp.Symbol, float]:
        """Numbers of an instance of this shape. A ratio whose behavior probability is 0 is bound to 0 (never drawn)."""
        values: dict[sp.Symbol, float] = {}
        target = instance.target.table.exp().tolist()
        laws = [b.table.exp().tolist() for b in instance.behaviors]
        for i, h in enumerate(self.prefixes):
            for a in range(self.vocab_size):
                p = values[self.pi(h, a)] = target[i][a]
                for k, law in enumerate(laws):
                    m = values[self.mu(k, h, a)] = law[i][a]
                    values[self.rho(k, h, a)] = p / m if m > 0 else 0.0
                if self.has_steps:
                    values[self.step_reward(h, a)] = float(instance.env.token_rewards[i, a])  # type: ignore[index]
        rewards = instance.env.rewards.tolist()
        for y in self.leaves:
            padded = y if self.eos is None else (*y, *([self.eos] * (self.horizon - len(y))))
            code = 0
            for a in padded:
                code = code * self.vocab_size + a
            values[self.reward(y)] = rewards[code]
        for b, (prior, _) in enumerate(instance.schedule.branches()):
            if len(self.branches) > 1:
                values[self.prior(b)] = prior  # type: ignore[index]
        return values

    def point(self, rng: random.Random) -> Mapping[sp.Symbol, sp.Rational]:
        """Return a random rational point: normalized laws, consistent ratios, rewards of both signs."""
        values: dict[Any, sp.Rational] = {}

        def law(symbols: list[Any]) -> None:
            parts = [rng.randint(1, 12) for _ in symbols]
            values.update({s: sp.Rational(n, sum(parts)) for s, n in zip(symbols, parts, strict=True)})

        for h in self.prefixes:
            tokens = range(self.vocab_size)
            law([self.pi(h, a) for a in tokens])
            for k in range(self.n_behaviors):
                law([self.mu(k, h, a) for a in tokens])
                values.update({self.rho(k, h, a): values[self.pi(h, a)] / values[self.mu(k, h, a)] for a in tokens})
            values.update({self.step_reward(h, a): sp.Rational(rng.randint(-9, 9), 4) for a in tokens})
        values.update({self.reward(y): sp.Rational(rng.randint(-9, 9), 4) for y in self.leaves})
        if len(self.branches) > 1:
            law([self.prior(b) for b in range(len(self.branches))])
        return values


@lru_cache(maxsize=128)
def symbolic_world(shape: tuple[Any, ...]) -> SymbolicWorld:
    """Return the symbolic world of a shape, shared between theorems."""
    return SymbolicWorld(shape)
