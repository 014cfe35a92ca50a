"""Standard deviations of groups over symbols: rewards 0 or 1, groups of any size, and three values of the reward."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from random import Random
from typing import Any

import numpy as np
import sympy as sp

from theory.derivation import Derivation, Step
from theory.evaluation import array
from theory.group_symbols import SymbolicGroup
from theory.length_objectives import symbolic_gradient
from theory.symbols import Prefix, symbolic_world

M, K = sp.symbols("M k", integer=True, nonnegative=True)
P, Q, LAW = (array(name) for name in ("p", "q", "b"))  # rates x, 1 - rates, probability of k successes at rate x
CLOSED: dict[int, Callable[[Any, Any], Any]] = {
    2: lambda p, q: sp.Integer(1),
    3: lambda p, q: sp.sqrt(2),
    4: lambda p, q: sp.sqrt(3) * (p**2 + q**2) + 3 * p * q,
}
TEX = {2: "1", 3: r"\sqrt2", 4: r"\sqrt3 (p^2 + q^2) + 3 p q"}


def _deviation(values: list[Any]) -> Any:
    mean = sp.Add(*values) / len(values)
    return sp.sqrt(sp.Add(*[(v - mean) ** 2 for v in values]) / len(values))


def _scaled(values: list[Any], own: Any) -> Any:
    """(R - mean)/sigma_M of one of the values; 0 in a group without spread."""
    spread = _deviation(values)
    return (own - sp.Add(*values) / len(values)) / spread if spread != 0 else sp.Integer(0)


def _terms(p: Any, q: Any, size: Any) -> sp.Expr:
    """C(M,k) p^(k-1) q^(M-k-1) sqrt(k (M-k))/M: a term of E[sigma_M]/(p q)."""
    return sp.binomial(size, K) * p ** (K - 1) * q ** (size - K - 1) * sp.sqrt(K * (size - K)) / size


@lru_cache(maxsize=32)
def binary_derivation(shape: tuple[Any, ...], size: int, correct: tuple[bool, ...]) -> Derivation:
    """Scaled update of groups of `size` where `correct` says which responses are rewarded."""
    w = symbolic_world(shape)
    g = SymbolicGroup(w, size, on_policy=True)
    right = {y: sp.Integer(int(r)) for y, r in zip(w.leaves, correct, strict=True)}
    p, q = g.mean(lambda d: right[d[1]]), g.mean(lambda d: 1 - right[d[1]])
    counted = [sp.binomial(size, k) * sp.sqrt(k * (size - k)) / size for k in range(1, size)]
    factor = sp.Add(*[c * p**k * q ** (size - 2 - k) for k, c in enumerate(counted)])
    won, lost = g.single(lambda d: right[d[1]]), g.single(lambda d: 1 - right[d[1]])
    gradient = [e.xreplace({w.reward(y): r for y, r in right.items()}) for e in w.gradient()]
    update = g.update(lambda rows, i: _scaled([right[y] for _, y in rows], right[rows[i][1]]) / size)
    scaled = [
        Step("definition", update, "all groups; those without spread contribute nothing", quantity="scaled",
             tex=r"E\big[\tfrac1M \sum_i \tfrac{R_i - \bar R}{\sigma_M} s_i\big]"),
        Step("successes", [factor * (q * a - p * b) for a, b in zip(won, lost, strict=True)],
             "given k successes the scores are independent, of means E[s|R=1] and E[s|R=0]; k(M-k)/M^2 = sigma^2",
             tex=r"E[\sigma_M]\,(E[s \mid R=1] - E[s \mid R=0]) = \tfrac{E[\sigma_M]}{pq}\,(q\, E[R s] - p\, E[(1-R) s])"),
        Step("no_drift", [factor * a for a in won], "E[s] = 0: what failures add, successes lack; p + q = 1",
             tex=r"\tfrac{E[\sigma_M]}{pq}\, E[R s]"),
        Step("gradient", [factor * a for a in gradient], "E[R s] = G_x by differentiating J", quantity="expected",
             tex=r"\frac{E[\sigma_M]}{p(1-p)}\, G_x"),
    ]  # fmt: skip
    spread = [
        Step("definition", g.groups(lambda rows: _deviation([right[y] for _, y in rows])), "all groups", quantity="mean_spread",
             tex=r"E[\sigma_M]"),
        Step("successes", sp.Add(*[c * p ** (k + 1) * q ** (size - 1 - k) for k, c in enumerate(counted)]),
             "groups of k successes together: a binomial law",
             tex=r"\sum_k \tbinom{M}{k} p^k q^{M-k} \tfrac{\sqrt{k(M-k)}}{M}"),
        Step("factor", p * q * factor, "k = 0 and k = M have no spread: p q can be taken out", quantity="spread_of_factor",
             tex=r"p q \sum_{0<k<M} \tbinom{M}{k} p^{k-1} q^{M-k-1} \tfrac{\sqrt{k(M-k)}}{M}"),
    ]  # fmt: skip
    return Derivation([scaled, spread], w.point, lambda group: w.bind(group.world))


@lru_cache(maxsize=8)
def graded_derivation(shape: tuple[Any, ...], size: int, rewards: tuple[float, ...]) -> Derivation:
    """One token with rewards of more than two values: the update is the gradient of another objective, and its angle with G."""
    w = symbolic_world(shape)
    g = SymbolicGroup(w, size, on_policy=True)
    value = {y: sp.Rational(str(r)) for y, r in zip(w.leaves, rewards, strict=True)}

    def others(r: Any) -> sp.Expr:
        return g.companions(lambda rows: _scaled([r, *(value[y] for _, y in rows)], r))

    by_reward = {r: others(r) for r in set(value.values())}
    height: dict[Prefix, sp.Expr] = {y: by_reward[r] for y, r in value.items()}
    turned, gradient = symbolic_gradient(w, height.__getitem__), symbolic_gradient(w, value.__getitem__)
    scaled = [
        Step("definition", g.update(lambda rows, i: _scaled([value[y] for _, y in rows], value[rows[i][1]]) / size),
             "all groups; those without spread contribute nothing", quantity="scaled",
             tex=r"E\big[\tfrac1M \sum_i \tfrac{R_i - \bar R}{\sigma_M} s_i\big]"),
        Step("others", g.single(lambda d: height[d[1]]), "the other rewards are independent of s_i and enter through h",
             tex=r"E[h(R)\, s], \quad h(r) = E\big[\tfrac{R_i - \bar R}{\sigma_M} \mid R_i = r\big]"),
        Step("objective", turned, "a gradient by differentiation, with h held fixed", quantity="scaled", tex=r"\nabla E[h(R)]"),
    ]  # fmt: skip

    def cosine(a: list[sp.Expr], b: list[sp.Expr]) -> sp.Expr:
        inner = sp.Add(*[x * y for x, y in zip(a, b, strict=True)])
        return inner / sp.sqrt(sp.Add(*[x**2 for x in a])) / sp.sqrt(sp.Add(*[y**2 for y in b]))

    def centered(values: Mapping[Prefix, Any]) -> list[sp.Expr]:
        mean = sp.Add(*[w.prob_pi(y) * v for y, v in values.items()])
        return [w.prob_pi(y) * (v - mean) for y, v in values.items()]

    angle = [
        Step("definition", cosine(turned, gradient), "angle between the update and the gradient", quantity="cosine",
             tex=r"\cos(\nabla E[h(R)], G)"),
        Step("centered", cosine(centered(height), centered(value)),
             "one token: components p (h - E h) and p (R - E R); parallel for every p iff h is a line in R", quantity="cosine",
             tex=r"\frac{\sum_y p^2 (h - E h)(R - E R)}{|p (h - E h)|\, |p (R - E R)|}"),
    ]  # fmt: skip
    return Derivation([scaled, angle], w.point, lambda group: w.bind(group.world))


def _binomial(size: int, rate: float) -> np.ndarray:
    """Probabilities of 0..size successes, from their ratios and with their sum made 1 (no factorial is formed)."""
    k = np.arange(size)
    log_law = np.concatenate([[0.0], np.cumsum(np.log(size - k) - np.log(k + 1) + np.log(rate) - np.log1p(-rate))])
    law = np.exp(log_law - log_law.max())
    return law / law.sum()


@lru_cache(maxsize=8)
def factor_derivation(rates: tuple[float, ...], size: int) -> Derivation:
    """Factor E[sigma_M]/(p q) at several rates: closed forms of small groups, limits, and bounds for groups of any size."""
    closed = CLOSED.get(size)
    xs = range(len(rates))
    variance = [P[x] * Q[x] for x in xs]

    def mean(x: int, summand: Any) -> sp.Expr:
        return sp.Sum(LAW[x, K] * summand, (K, 0, M))

    square = K * (M - K) / M**2
    factor = [mean(x, sp.sqrt(square)) / variance[x] for x in xs]
    bent = [mean(x, square / v * (3 - square / v)) / (2 * sp.sqrt(v)) for x, v in zip(xs, variance, strict=True)]

    def lower(v: Any) -> sp.Expr:
        """(3 E[sigma^2]/v - E[sigma^4]/v^2)/(2 sqrt v), of the moments of a binomial law."""
        second, fourth = (M - 1) * v / M, (M - 1) * v * (M * (M - 5) * v + M + 6 * v - 1) / M**3
        return (3 * second / v - fourth / v**2) / (2 * sp.sqrt(v))

    values = [
        Step("definition", factor, "mean standard deviation over variance; b_k is the probability of k successes",
             quantity="factor", tex=r"E[\sigma_M]/(p(1-p)), \quad \sigma_M = \sqrt{k(M-k)}/M"),
        Step("powers", [sp.Sum(_terms(P[x], Q[x], M), (K, 1, M - 1)) for x in xs], "binomial law; no spread at k = 0 and k = M",
             tex=r"\sum_{0<k<M} \tbinom{M}{k} p^{k-1} q^{M-k-1} \tfrac{\sqrt{k(M-k)}}{M}"),
    ]  # fmt: skip
    if closed:
        values.append(Step("closed_form", [closed(P[x], Q[x]) for x in xs], f"written out for M = {size}, q = 1 - p",
                           quantity="factor", tex=TEX[size]))  # fmt: skip
    hard = [
        Step("p_zero", sp.Sum(_terms(sp.Integer(0), sp.Integer(1), M), (K, 1, M - 1)), "the sum over k at p = 0, q = 1",
             tex=r"\lim_{p \to 0} \tfrac{E[\sigma_M]}{p(1-p)}"),
        Step("root", sp.sqrt(M - 1), "one success among M: M sqrt(M-1)/M, all that 0^(k-1) leaves", quantity="limit",
             tex=r"\sqrt{M-1}"),
    ]  # fmt: skip
    bounds = [
        Step("moments", [lower(v) for v in variance], "second and fourth moment of sigma in closed form, v = p q",
             tex=r"\frac{1}{2\sqrt v}\Big(\frac{3 E\sigma^2}{v} - \frac{E\sigma^4}{v^2}\Big)"),
        Step("sums", bent, "the moments as sums over k",
             tex=r"\frac{1}{2\sqrt v} E\big[\tfrac{\sigma^2}{v}(3 - \tfrac{\sigma^2}{v})\big]"),
        Step("below", factor, "sqrt(u) >= u (3 - u)/2 for u = sigma^2/v: they touch at u = 1", relation="<=", quantity="factor",
             tex=r"\le E[\sigma_M]/v"),
        Step("jensen", [sp.sqrt(mean(x, square)) / v for x, v in zip(xs, variance, strict=True)], "root of a mean", relation="<=",
             tex=r"\le \sqrt{E \sigma^2}/v"),
        Step("variance", [sp.sqrt((M - 1) / M) / sp.sqrt(v) for v in variance], "E sigma^2 = v (M-1)/M",
             tex=r"\sqrt{\tfrac{M-1}{M}} \frac{1}{\sqrt v}"),
        Step("whitened", [1 / sp.sqrt(v) for v in variance], "and as M grows, so does the first line", relation="<=",
             quantity="whitened", tex=r"\le 1/\sqrt{p(1-p)}"),
    ]  # fmt: skip
    v = sp.Symbol("v", positive=True)
    limit = [
        Step("first_line", sp.limit(lower(v), M, sp.oo), "limit of the first line above as M grows",
             tex=r"\lim_{M \to \infty} \frac{1}{2\sqrt v}\Big(\frac{3 E\sigma^2}{v} - \frac{E\sigma^4}{v^2}\Big)"),
        Step("same", 1 / sp.sqrt(v), "that of the last: the factor lies between", tex=r"1/\sqrt v"),
    ]  # fmt: skip

    def point(rng: Random) -> Mapping[sp.Symbol, Any]:
        drawn = [sp.Rational(rng.randint(1, 11), 12) for _ in xs]
        m = size if closed else rng.randint(2, 6)
        law = [[sp.binomial(m, k) * p**k * (1 - p) ** (m - k) for k in range(m + 1)] for p in drawn]
        return {M: sp.Integer(m), P.label: drawn, Q.label: [1 - p for p in drawn], LAW.label: law, v: drawn[0]}

    def bind(instance: Any) -> Mapping[sp.Symbol, Any]:
        p = np.array(rates)
        return {M: float(size), P.label: p, Q.label: 1 - p, LAW.label: np.array([_binomial(size, r) for r in rates])}

    return Derivation([values, hard, bounds, limit], point, bind)
