"""A tree of responses as nested sums over its tokens: derivations for any vocabulary, any laws and any parameters.

`theory.symbols` has a symbol for every probability, which 64 responses and a thousand parameters are too many for. Here
laws, ratios, scores and rewards are arrays indexed by the tokens, and the sums over the tokens stay sums: a chain is checked
at random trees of two tokens, and evaluated at any tree of the same number of positions. A score is d log p / d theta_i of
one parameter i, which stands for all of them at once where an instance is bound.

After the end of a response the end token is sure, its ratio is 1 and its score 0, so that every response has T tokens.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import sympy as sp
import torch

from testbed.core.prefix_order import node_count, prefixes
from testbed.exact.values import behavior_table
from theory.evaluation import array
from theory.transformer_worlds import TransformerWorld

XI, PARAM = sp.symbols("xi i", integer=True)  # realization of the noise, parameter
V, NOISE = sp.symbols("V B", integer=True, positive=True)  # numbers of tokens and of realizations
EPS = sp.Symbol("epsilon", real=True)
Index = Sequence[Any]
Bound = Mapping[sp.Symbol, Any]


class NestedTree:
    """Responses of `horizon` tokens; positions are counted from 1.

    Examples
    --------
    >>> w = NestedTree(1)
    >>> w.gradient()
    Sum(R[y1]*p1[y1]*s1[y1, i], (y1, 0, V - 1))
    """

    def __init__(self, horizon: int, has_steps: bool = False) -> None:
        self.horizon, self.has_steps = horizon, has_steps
        self.y = sp.symbols(f"y1:{horizon + 1}", integer=True)
        self.rest = sp.symbols(f"z1:{horizon + 1}", integer=True)  # tokens of a continuation
        self.positions = range(1, horizon + 1)
        self.x, self.R = array("x"), array("R")
        self.p, self.m, self.r, self.s, self.g, self.b = (
            {t: array(f"{name}{t}") for t in self.positions} for name in "pmrsgb"
        )
        self.together = {(t, u): array(f"G{t}{u}") for t in self.positions for u in self.positions if t < u}

    # ------------------------------------------------------------------------------------------- one response
    def pi(self, t: int, y: Index) -> sp.Expr:
        """Target's probability of token t."""
        return self.p[t][tuple(y[:t])]

    def mu(self, t: int, y: Index) -> sp.Expr:
        """Probability of token t under the behavior that writes it."""
        return self.m[t][(XI, *y[:t])]

    def ratio(self, t: int, y: Index) -> sp.Expr:
        """Token ratio, as a symbol of its own."""
        return self.r[t][(XI, *y[:t])]

    def score(self, t: int, y: Index) -> sp.Expr:
        """Derivative of log p(y_t | h_t) in parameter i."""
        return self.s[t][(*y[:t], PARAM)]

    def prior(self) -> sp.Expr:
        """Probability of the realized noise."""
        return self.x[XI]

    def step_reward(self, t: int, y: Index) -> sp.Expr:
        """Reward of token t."""
        return self.g[t][tuple(y[:t])]

    def baseline(self, t: int, y: Index) -> sp.Expr:
        """An arbitrary function of the prefix of token t."""
        return self.b[t][tuple(y[: t - 1])] if t > 1 else self.b[1][0]

    def same_segment(self, t: int, u: int, y: Index) -> sp.Expr:
        """1 if token u > t belongs to the segment of token t, else 0."""
        return self.together[t, u][(XI, *y[: u - 1])]

    def total_return(self, y: Index) -> sp.Expr:
        """Reward of a response."""
        return sp.Add(*[self.step_reward(t, y) for t in self.positions]) if self.has_steps else self.R[tuple(y)]

    def through(self, t: int, factor: Callable[[int, Index], sp.Expr], y: Index, first: int = 1) -> sp.Expr:
        """Product of a factor over the positions first .. t."""
        return sp.prod([factor(u, y) for u in range(first, t + 1)])

    # ------------------------------------------------------------------------------------------- sums
    def sum(self, term: sp.Expr, over: Index, noise: bool = False) -> sp.Expr:
        """Sum over tokens, and over the noise if asked."""
        limits = [(a, 0, V - 1) for a in over] + ([(XI, 0, NOISE - 1)] if noise else [])
        return sp.Sum(term, *limits) if limits else term

    def continued(self, t: int, factor: Callable[[int, Index], sp.Expr]) -> sp.Expr:
        """Expected return once tokens 1 .. t are there, later ones drawn with these factors."""
        whole = (*self.y[:t], *self.rest[t:])
        term = self.through(self.horizon, factor, whole, t + 1) * self.total_return(whole)
        return self.sum(term, self.rest[t:])

    def action_value(self, t: int) -> sp.Expr:
        """Q of the target at token t."""
        return self.continued(t, self.pi)

    def advantage(self, t: int) -> sp.Expr:
        """Q(h_t, y_t) - V(h_t) of the target."""
        return self.continued(t, self.pi) - self.continued(t - 1, self.pi)

    def gradient(self) -> sp.Expr:
        """J = E_pi[R] differentiated in parameter i: every probability moves by epsilon p s."""
        moved = self.through(self.horizon, lambda t, y: self.pi(t, y) * (1 + EPS * self.score(t, y)), self.y)
        slope = sp.diff(moved, EPS).subs(EPS, 0)
        return self.sum(slope * self.total_return(self.y), self.y)

    # ------------------------------------------------------------------------------------------- numbers
    def point(self, rng: random.Random) -> Bound:
        """Return a random rational tree of two tokens, one parameter, and one or two realizations of the noise."""
        size, branches = 2, rng.randint(1, 2)
        values: dict[Any, Any] = {V: size, NOISE: branches, PARAM: 0, self.x.label: _law(rng, branches)}
        for t in self.positions:
            pi = _tree(t - 1, size, lambda: _law(rng, size))
            mu = [_tree(t - 1, size, lambda: _law(rng, size)) for _ in range(branches)]
            values |= {self.p[t].label: pi, self.m[t].label: mu}
            values[self.r[t].label] = [_pairwise(lambda p, m: p / m, pi, law) for law in mu]
            moved = _tree(t - 1, size, lambda: _zero_sum(rng, size))
            values[self.s[t].label] = _pairwise(lambda d, p: [d / p], moved, pi)
            values[self.g[t].label] = _tree(t, size, lambda: _rational(rng))
            base = _tree(t - 1, size, lambda: _rational(rng))
            values[self.b[t].label] = base if t > 1 else [base]
        for (_, u), symbol in self.together.items():
            values[symbol.label] = [_tree(u - 1, size, lambda: sp.Integer(rng.randint(0, 1))) for _ in range(branches)]
        return values | {self.R.label: _tree(self.horizon, size, lambda: _rational(rng))}

    def bind(self, instance: TransformerWorld) -> Bound:
        """Bind an instance's laws, rewards and segments, and the scores of its target."""
        score = scores(instance)
        size = instance.env.vocab_size
        values = dict(self.laws(instance)) | {PARAM: np.arange(score.shape[-1])}
        for t in self.positions:
            rows = score[node_count(size, t - 1) : node_count(size, t)]
            values[self.s[t].label] = rows.reshape(*[size] * t, -1).numpy()
        return values

    def laws(self, instance: TransformerWorld) -> Bound:
        """Bind all that does not depend on parameters: laws and segments from the policies, rewards from the environment."""
        env, size, horizon = instance.env, instance.env.vocab_size, instance.env.horizon
        realized = instance.schedule.branches()
        alive = _alive(instance)
        sure = torch.zeros(size, dtype=torch.float64)
        sure[env.eos or 0] = 1.0
        pi, *mus = (
            torch.where(alive[:, None], behavior_table(env, source).exp(), sure)
            for source in (instance.target, *[s for _, s in realized])
        )
        mu = torch.stack(mus)
        ratio = torch.where(mu > 0, pi / mu, 0.0)
        labels = torch.stack([s.segment_table(size, horizon) for _, s in realized])
        values: dict[Any, Any] = {V: size, NOISE: len(realized)}
        values |= {self.x.label: [prob for prob, _ in realized], self.R.label: _shaped(env.rewards, size, horizon)}
        rows = {t: slice(node_count(size, t - 1), node_count(size, t)) for t in self.positions}
        for t in self.positions:
            values[self.p[t].label] = _shaped(pi[rows[t]], size, t)
            values[self.m[t].label] = _shaped(mu[:, rows[t]], size, t, len(realized))
            values[self.r[t].label] = _shaped(ratio[:, rows[t]], size, t, len(realized))
            if env.token_rewards is not None:
                values[self.g[t].label] = _shaped((env.token_rewards * alive[:, None])[rows[t]], size, t)
        for (t, u), symbol in self.together.items():
            early = labels[:, rows[t]].repeat_interleave(size ** (u - t), 1)  # the label of token t, told at position u
            values[symbol.label] = _shaped((labels[:, rows[u]] == early).double(), size, u - 1, len(realized))
        return values


def _alive(instance: TransformerWorld) -> torch.Tensor:
    """Prefixes [N] that have not ended."""
    env = instance.env
    return torch.tensor([env.eos is None or env.eos not in h for h in prefixes(env.vocab_size, env.horizon)])


def scores(instance: TransformerWorld) -> torch.Tensor:
    """Score [N, V, P] of every token after every prefix, from the target's own `score_terms`; 0 after the end."""
    size, horizon = instance.env.vocab_size, instance.env.horizon
    known, alive = prefixes(size, horizon), _alive(instance)
    rows = [(*h, a) for h, lives in zip(known, alive.tolist(), strict=True) if lives for a in range(size)]
    tokens = torch.tensor([(*row, *[0] * (horizon - len(row))) for row in rows])
    last = torch.nn.functional.one_hot(torch.tensor([len(row) - 1 for row in rows]), horizon).double()
    found = instance.target.score_terms(tokens, last)
    out = torch.zeros(len(known), size, found.shape[-1], dtype=torch.float64)
    out[alive] = found.reshape(-1, size, found.shape[-1])
    return out


def _shaped(values: torch.Tensor, size: int, depth: int, *leading: int) -> np.ndarray:
    return values.reshape(*leading, *[size] * depth).numpy()


def _rational(rng: random.Random) -> sp.Rational:
    return sp.Rational(rng.randint(-9, 9), 4)


def _law(rng: random.Random, size: int) -> list[sp.Rational]:
    parts = [rng.randint(1, 9) for _ in range(size)]
    return [sp.Rational(n, sum(parts)) for n in parts]


def _zero_sum(rng: random.Random, size: int) -> list[sp.Rational]:
    parts = [_rational(rng) for _ in range(size - 1)]
    return [*parts, -sum(parts)]


def _tree(depth: int, size: int, leaf: Callable[[], Any]) -> Any:
    """Nested lists of this depth with what `leaf` gives at the ends."""
    return leaf() if depth == 0 else [_tree(depth - 1, size, leaf) for _ in range(size)]


def _pairwise(function: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
    if isinstance(a, list):
        return [_pairwise(function, x, y) for x, y in zip(a, b, strict=True)]
    return function(a, b)
