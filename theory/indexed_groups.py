"""Groups of responses as sums over arrays: the chains of G1 and G2 for any number of responses and of parameters.

A draw d is a response with the realized noise of the schedule: q[d] is its probability under the sampler, t[d] = q[d] w[d]
that under the target, s[d, i] the score of the whole response in parameter i. The draws of a group are exchangeable, so the
mean of (1/M) sum_i c_i s_i is that of the first response's term; its score leaves the sum over the other draws.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import sympy as sp
import torch

from testbed.core.prefix_order import node_index
from testbed.exact.law import response_table
from testbed.exact.values import behavior_table
from theory.derivation import Derivation, Step
from theory.evaluation import array
from theory.group_worlds import Group

PARAM, D = sp.symbols("i d", integer=True)
COUNT = sp.Symbol("N", integer=True, positive=True)
EPS = sp.Symbol("epsilon", real=True)
Q, T, W, R, S, CAPPED, MASKED = (array(name) for name in ("q", "t", "w", "R", "s", "k", "j"))
Factor = Callable[[sp.Symbol], sp.Expr]


def mean(of: Factor, law: Any = Q) -> sp.Expr:
    """E[X] of one draw."""
    return sp.Sum(law[D] * of(D), (D, 0, COUNT - 1))


def scored(of: Factor, law: Any = Q) -> sp.Expr:
    """E[X s_i] of one draw."""
    return mean(lambda d: of(d) * S[d, PARAM], law)


def update(size: int, coefficient: Callable[[sp.Symbol, Sequence[sp.Symbol]], sp.Expr], law: Any = Q) -> sp.Expr:
    """E[c_1 s_1], c a function of the first draw and of the others."""
    others = sp.symbols(f"d2:{size + 1}", integer=True)
    limits = [(d, 0, COUNT - 1) for d in others]
    chance = sp.prod([law[d] for d in others])

    def summed(d: sp.Symbol) -> sp.Expr:
        term = chance * coefficient(d, others)
        return sp.Sum(term, *limits) if limits else term

    return scored(summed, law)


def gradient() -> sp.Expr:
    """J = E_pi[R] differentiated in parameter i: every probability moves by epsilon t s."""
    moved = sp.diff(T[D] * (1 + EPS * S[D, PARAM]), EPS)
    return sp.Sum(moved * R[D], (D, 0, COUNT - 1))


def reward(d: sp.Symbol) -> sp.Expr:
    """Reward of a draw."""
    return R[d]


def weighted(d: sp.Symbol) -> sp.Expr:
    """W R of a draw."""
    return W[d] * R[d]


def _average(of: Factor, draws: Sequence[sp.Symbol]) -> sp.Expr:
    return sp.Add(*map(of, draws)) / len(draws)


def _normalized(draws: Sequence[sp.Symbol]) -> sp.Expr:
    return sp.Add(*map(weighted, draws)) / sp.Add(*[W[d] for d in draws])


def _chance() -> sp.Expr:
    return sp.Integer(1)


@lru_cache(maxsize=8)
def on_policy_derivation(size: int) -> Derivation:
    """Derivation of G1 for groups of `size`."""
    shrink = sp.Rational(size - 1, size)
    with_self = update(size, lambda d, others: R[d] - _average(reward, (d, *others)), T)
    signal, drift, value = scored(reward, T), scored(lambda d: _chance(), T), mean(reward, T)
    chains = []
    if size == 1:
        chains.append([
            Step("definition", with_self, "the mean of one response is its own reward", quantity="with_self",
                 tex=r"E_\pi[(R - R) s]"),
            Step("gradient", shrink * gradient(), "(M-1)/M = 0", quantity="shrunk", tex="0"),
        ])  # fmt: skip
    else:
        left_out = update(size, lambda d, others: R[d] - _average(reward, others), T)
        chains.append([
            Step("definition", with_self, "groups of M on-policy responses, mean including the response itself",
                 quantity="with_self", tex=r"E\big[(R_1 - \bar R) s_1\big]"),
            Step("own_part", shrink * left_out, "take R_1 out: R_1 - mean(R) = (M-1)/M (R_1 - mean of the others)",
                 tex=r"\tfrac{M-1}{M} E\big[(R_1 - \bar R_{-1}) s_1\big]"),
            Step("independence", shrink * (signal - value * drift), "others' rewards are independent of s_1",
                 tex=r"\tfrac{M-1}{M} (E[R s] - E[R]\, E[s])"),
            Step("no_drift", shrink * signal, "E_pi[s] = 0: the probabilities sum to 1", tex=r"\tfrac{M-1}{M} E[R s]"),
            Step("gradient", shrink * gradient(), "d pi = pi s; J differentiated", quantity="shrunk",
                 tex=r"\tfrac{M-1}{M} \frac{dJ}{d\theta_i}"),
        ])  # fmt: skip
        chains.append([
            Step("definition", left_out, "mean of the other responses", quantity="leave_one_out",
                 tex=r"E\big[(R_1 - \bar R_{-1}) s_1\big]"),
            Step("independence", signal - value * drift, "the others' mean is independent of s_1",
                 tex=r"E[R s] - E[R]\, E[s]"),
            Step("gradient", gradient(), "E_pi[s] = 0, and J differentiated", quantity="gradient",
                 tex=r"\frac{dJ}{d\theta_i}"),
        ])  # fmt: skip
    return Derivation(chains, _point, lambda group: _bind(group, on_policy=True))


@lru_cache(maxsize=8)
def stale_derivation(size: int, capped: Callable[[Any], Any], masked: Callable[[Any], Any]) -> Derivation:
    """Derivation of G2 for groups of `size` >= 2; `capped` and `masked` give the weight [N] of each draw of a batch."""
    shrink = sp.Rational(size - 1, size)
    drift, signal = scored(lambda d: W[d]), scored(weighted)
    square = scored(lambda d: W[d] ** 2 * R[d]) / size
    slope = gradient()

    def pairs(d: sp.Symbol, others: Sequence[sp.Symbol]) -> sp.Expr:
        gaps = [W[e] * (R[d] - R[e]) for e in others]
        return W[d] * sp.Add(*gaps) / sp.Add(W[d], *[W[e] for e in others])

    baselines = [lambda o: _average(reward, o), lambda o: _average(weighted, o), _normalized]
    others_only = [update(size, lambda d, o, b=b: W[d] * (R[d] - b(o))) for b in baselines]
    others = sp.symbols(f"d2:{size + 1}", integer=True)
    normalized_mean = sp.Sum(
        sp.prod([Q[d] for d in others]) * _normalized(others), *[(d, 0, COUNT - 1) for d in others]
    )
    means = [mean(reward), mean(weighted), normalized_mean]
    chains = [
        [
            Step("definition", update(size, lambda d, o: W[d] * (R[d] - _average(reward, (d, *o)))),
                 "groups of stale responses, unweighted mean including the response", quantity="with_self",
                 tex=r"E_\mu\big[W_1 (R_1 - \bar R) s_1\big]"),
            Step("independence", shrink * (signal - mean(reward) * drift), "the other rewards are independent of W_1 s_1",
                 tex=r"\tfrac{M-1}{M}(E[W R s] - E[R]\, E[W s])"),
            Step("gradient", shrink * slope, "mu W = pi: E[W s] = 0 and E[W R s] is J differentiated", quantity="shrunk",
                 tex=r"\tfrac{M-1}{M} \frac{dJ}{d\theta_i}"),
        ],
        [
            Step("definition", update(size, lambda d, o: W[d] * (R[d] - _average(weighted, (d, *o)))),
                 "weighted mean including the response", quantity="weighted_self",
                 tex=r"E_\mu\big[W_1 (R_1 - \tfrac1M \sum_j W_j R_j) s_1\big]"),
            Step("own_part", signal - square, "the term j = 1 holds W_1 twice; the others vanish with E[W s]",
                 tex=r"E[W R s] - \tfrac1M E[W^2 R s]"),
            Step("gradient", slope - square, "J differentiated", quantity="less_square",
                 tex=r"\frac{dJ}{d\theta_i} - \tfrac1M E_\mu[W^2 R s]"),
        ],
        [
            Step("definition", update(size, lambda d, o: W[d] * (R[d] - _normalized((d, *o)))),
                 "self-normalized mean including the response, by enumeration", quantity="self_normalized",
                 tex=r"E_\mu\big[W_1 (R_1 - \tfrac{\sum_j W_j R_j}{\sum_j W_j}) s_1\big]"),
            Step("pairs", update(size, pairs), "only differences of rewards enter; the random sum of weights stays below",
                 quantity="self_normalized",
                 tex=r"E_\mu\big[\sum_j \tfrac{W_1 W_j (R_1 - R_j)}{\sum_l W_l} s_1\big]"),
        ],
        [
            Step("definition", others_only, "plain, weighted and self-normalized mean of the M - 1 others",
                 quantity="others_only", tex=r"E_\mu\big[W_1 (R_1 - b_{-1}) s_1\big]"),
            Step("independence", [signal - b * drift for b in means],
                 "b_1 is independent of W_1 s_1, whatever function of the others it is", tex=r"E[W R s] - E[b]\, E[W s]"),
            Step("gradient", [slope] * 3, "E[W s] = 0", quantity="gradients", tex=r"\frac{dJ}{d\theta_i}"),
        ],
    ]  # fmt: skip
    for name, kept, says in (("capped", CAPPED, "k = min(W, c)"), ("masked", MASKED, "k = W where W <= c, else 0")):
        chains.append([
            Step("definition", update(size, lambda d, o, kept=kept: kept[d] * (R[d] - _average(reward, o))),
                 f"{says}, mean of the others' rewards", quantity=name, tex=r"E_\mu\big[k_1 (R_1 - \bar R_{-1}) s_1\big]"),
            Step("independence", scored(lambda d, kept=kept: kept[d] * R[d]) - mean(reward) * scored(kept.__getitem__),
                 "as before, but E[k s] is not 0", quantity=f"{name}_parts", tex=r"E[k R s] - E_\mu[R]\, E[k s]"),
        ])  # fmt: skip

    def bind(group: Group) -> Mapping[sp.Symbol, Any]:
        batch = group.world.batch
        return {**_bind(group), CAPPED.label: capped(batch).numpy(), MASKED.label: masked(batch).numpy()}

    return Derivation(chains, _point, bind)


def _point(rng: random.Random) -> Mapping[sp.Symbol, Any]:
    """Return two or three draws, the laws of sampler and target, a score whose mean under the target is 0."""
    size = rng.randint(2, 3)

    def law() -> list[sp.Rational]:
        parts = [rng.randint(1, 9) for _ in range(size)]
        return [sp.Rational(n, sum(parts)) for n in parts]

    q, t = law(), law()
    free = [sp.Rational(rng.randint(-9, 9), 4) for _ in range(size - 1)]
    moved = [*free, -sum(free)]
    return {
        COUNT: size, PARAM: 0, Q.label: q, T.label: t, W.label: [b / a for a, b in zip(q, t, strict=True)],
        S.label: [[d / b] for d, b in zip(moved, t, strict=True)],
        R.label: [sp.Rational(rng.randint(-9, 9), 4) for _ in range(size)],
        **{a.label: [sp.Rational(rng.randint(0, 8), 5) for _ in range(size)] for a in (CAPPED, MASKED)},
    }  # fmt: skip


def _bind(group: Group, on_policy: bool = False) -> Mapping[sp.Symbol, Any]:
    """Bind laws from the policies, scores from the target, rewards from the environment; draws in the order of the law."""
    env, pi = group.world.env, group.world.target
    tokens, mask = response_table(env)
    nodes = node_index(tokens, env.vocab_size)

    def probability(source: Any) -> torch.Tensor:
        return torch.where(mask, behavior_table(env, source)[nodes, tokens], 0.0).sum(1).exp()

    target, realized = probability(pi), [] if on_policy else group.world.schedule.branches()
    t = torch.cat([p * target for p, _ in realized]) if realized else target
    q = torch.cat([p * probability(s) for p, s in realized]) if realized else target
    times = max(len(realized), 1)
    score = pi.score_terms(tokens, mask.double()).repeat(times, 1)
    value = env.reward(tokens, mask, torch.zeros(len(tokens), dtype=torch.int64)).repeat(times)
    return {
        COUNT: len(t), PARAM: np.arange(score.shape[1]), Q.label: q.numpy(), T.label: t.numpy(), W.label: (t / q).numpy(),
        S.label: score.numpy(), R.label: value.numpy(),
    }  # fmt: skip
