"""Responses in two parts, what the first segment wrote and what followed: second moments for any number of tokens (S9, S10, S12).

Where `theory.segment_symbols` has a symbol for every probability, these chains sum over arrays: m_0[xi, u] is the probability
that the first behavior writes the history u, m_1[xi, u, v] that v follows; r are the products of ratios, p the target's.
A history of segment 1's start is (xi, u), of segment 0's start xi alone.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
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
from theory.transformer_worlds import TransformerWorld

XI, U, V = sp.symbols("xi u v", integer=True)
NOISE, FIRST, SECOND = sp.symbols("N_xi N_u N_v", integer=True, positive=True)
X, F = array("x_xi"), array("f")  # prior of the noise, signal
M0, P0, R0, M1, P1, R1 = (array(name) for name in ("m_u", "p_u", "r_u", "m_v", "p_v", "r_v"))
TOP, D0, D1 = sp.symbols("F D_0 D_1", positive=True)  # largest f^2; largest d2 of each segment
NAMES = {"m0": M0, "p0": P0, "r0": R0, "m1": M1, "p1": P1, "r1": R1}

prior, signal = X[XI], F[XI, U, V]
drawn0, target0, ratio0 = (a[XI, U] for a in (M0, P0, R0))
drawn1, target1, ratio1 = (a[XI, U, V] for a in (M1, P1, R1))


def over(term: sp.Expr, *indices: sp.Symbol) -> sp.Expr:
    """Sum over the noise, the first part or the second."""
    size = {XI: NOISE, U: FIRST, V: SECOND}
    return sp.Sum(term, *[(i, 0, size[i] - 1) for i in indices])


REST = over(drawn1 * ratio1**2, V)  # d2 of segment 1 after u
START = over(drawn0 * ratio0**2, U)  # d2 of segment 0 given the noise
WEIGHT = prior * drawn0 * ratio0**2  # share of (xi, u) in E W_(0)^2
SECONDS = [
    over(prior * drawn0 * drawn1 * ratio0**2, V, U, XI),
    over(prior * drawn0 * drawn1 * ratio0**2 * ratio1**2, V, U, XI),
]


def recursion_chain() -> list[Step]:
    """S9: one factor per segment, averaged with the weight so far."""
    return [
        Step("definition", SECONDS, "the sampler's law and the square of the stopped product", quantity="second",
             tex=r"E_\mu[W_{(k)}^2] = \sum_{\xi,u,v} P(\xi)\,\mu_\xi(u)\,\mu_\xi(v \mid u) \prod_{t \le \tau_k} \rho_t^2"),
        Step("tower", [over(prior * drawn0 * ratio0**2 * over(drawn1, V), U, XI), over(WEIGHT * REST, U, XI)],
             "responses with the same noise and first part share W_(0), which leaves the inner sum",
             tex=r"\sum_{\xi,u} P(\xi)\,\mu_\xi(u) W_{(0)}(u)^2 \sum_v \mu_\xi(v \mid u) \prod_{t \in k} \rho_t^2"),
        Step("stop", [over(prior * START, XI), over(WEIGHT * REST, U, XI)],
             "tokens after segment k sum to 1 under mu, as its end is decided by the prefix",
             tex=r"\sum_h P(h)\,W_{(k-1)}(h)^2\, d_{2,k}(h)"),
        Step("ratios", [over(prior * over(target0 * ratio0, U), XI), over(WEIGHT * over(target1 * ratio1, V), U, XI)],
             "mu rho = pi in each d2", quantity="recursion", tex=r"E_\mu[W_{(k-1)}^2\, d_{2,k}(H)]"),
    ]  # fmt: skip


def bound_chains() -> list[list[Step]]:
    """S10: the product of sups, what is missing to equality, the product of tilted averages."""
    weighted = over(prior * drawn0 * drawn1 * ratio0**2 * ratio1**2 * signal**2, V, U, XI)
    terms = [
        over(prior * drawn0 * drawn1 * ratio0**2 * ratio1**2 * (TOP - signal**2), V, U, XI),
        TOP * D1 * over(prior * (D0 - START), XI),
        TOP * over(WEIGHT * (D1 - REST), U, XI),
    ]
    bound = [
        Step("definition", weighted, "the sampler's law, squared product, squared signal", quantity="weighted",
             tex=r"E_\mu[W_{(1)}^2 f^2]"),
        Step("signal", TOP * SECONDS[1], "f^2 <= max f^2", "<=", tex=r"\max f^2 \; E_\mu[W_{(1)}^2]"),
        Step("segment_1", TOP * D1 * SECONDS[0], "S9, and d2_1(H) <= its sup", "<=",
             tex=r"\max f^2 \sup d_{2,1}\; E_\mu[W_{(0)}^2]"),
        Step("segment_0", TOP * D1 * D0, "S9, and d2_0(H) <= its sup", "<=", quantity="bound",
             tex=r"\max f^2 \sup d_{2,1} \sup d_{2,0}"),
    ]  # fmt: skip
    slack = [
        Step("slack", TOP * D1 * D0 - weighted, "right side minus left side", quantity="slack",
             tex=r"\max f^2 \prod_k \sup d_{2,k} - E_\mu[W_{(1)}^2 f^2]"),
        Step("term_by_term", sp.Add(*terms), "telescoping S9: no term is negative, so all must vanish for equality",
             quantity="slack_terms",
             tex=r"E[W_{(1)}^2(\max f^2 - f^2)] + \max f^2 \sum_k \prod_{j>k}\sup d_{2,j}\;"
                 r"E[W_{(k-1)}^2(\sup d_{2,k} - d_{2,k}(H))]"),
    ]  # fmt: skip
    tilt = [
        Step("second", SECONDS[1], "as in S9", quantity="second", tex=r"E_\mu[W_{(1)}^2]"),
        Step("tilted", over(prior * START, XI) * over(WEIGHT * REST, U, XI) / over(WEIGHT, U, XI),
             "each factor is E W_(k)^2 / E W_(k-1)^2, by S9", quantity="tilted",
             tex=r"\prod_k E_{\nu_k}[d_{2,k}(H)],\quad \nu_k \propto \mu W_{(k-1)}^2"),
    ]  # fmt: skip
    return [bound, slack, tilt]


def growth_chain() -> list[Step]:
    """S12: second moments only grow."""
    excess = [
        over(prior * (1 + over(drawn0 * (ratio0 - 1) ** 2, U)), XI),
        over(WEIGHT * (1 + over(drawn1 * (ratio1 - 1) ** 2, V)), U, XI),
    ]
    return [
        Step("definition", SECONDS, "the sampler's law", quantity="second", tex=r"E_\mu[W_{(k)}^2]"),
        Step("tower", [over(prior * START, XI), over(WEIGHT * REST, U, XI)], "S9", tex=r"E_\mu[W_{(k-1)}^2 d_{2,k}(H)]"),
        Step("excess", excess, "the segment's ratios have mean 1 given H, so d2 = 1 + chi2",
             tex=r"E_\mu[W_{(k-1)}^2 (1 + \chi^2_k(H))]"),
        Step("drop", [sp.Integer(1), over(WEIGHT, U, XI)], "chi2 >= 0", ">=", quantity="second_before",
             tex=r"E_\mu[W_{(k-1)}^2]"),
    ]  # fmt: skip


def point(rng: random.Random) -> Mapping[sp.Symbol, Any]:
    """Return random rational laws of both parts, a signal, and the largest values that follow from them."""

    def law(size: int) -> list[sp.Rational]:
        parts = [rng.randint(1, 9) for _ in range(size)]
        return [sp.Rational(n, sum(parts)) for n in parts]

    def square(p: list[sp.Rational], m: list[sp.Rational]) -> sp.Rational:
        return sum((a**2 / b for a, b in zip(p, m, strict=True)), sp.Integer(0))

    noise, first, second = rng.randint(1, 2), 2, rng.randint(1, 3)
    p0, m0 = ([law(first) for _ in range(noise)] for _ in range(2))
    p1, m1 = ([[law(second) for _ in range(first)] for _ in range(noise)] for _ in range(2))
    f = [[[sp.Rational(rng.randint(-9, 9), 4) for _ in range(second)] for _ in range(first)] for _ in range(noise)]
    return {
        NOISE: noise, FIRST: first, SECOND: second, X.label: law(noise), F.label: f,
        P0.label: p0, M0.label: m0, P1.label: p1, M1.label: m1,
        R0.label: [[a / b for a, b in zip(*pair, strict=True)] for pair in zip(p0, m0, strict=True)],
        R1.label: [[[a / b for a, b in zip(*rows, strict=True)] for rows in zip(*pair, strict=True)]
                   for pair in zip(p1, m1, strict=True)],
        TOP: max(value**2 for table in f for row in table for value in row),
        D0: max(square(*pair) for pair in zip(p0, m0, strict=True)),
        D1: max(square(*rows) for pair in zip(p1, m1, strict=True) for rows in zip(*pair, strict=True)),
    }  # fmt: skip


def bind(instance: TransformerWorld) -> Mapping[sp.Symbol, Any]:
    """Bind the parts of every response, from the policies; 0 where a history has fewer continuations than others."""
    env, realized = instance.env, instance.schedule.branches()
    tokens, mask = response_table(env)
    nodes, rows = node_index(tokens, env.vocab_size), torch.arange(len(tokens))
    reward = env.reward(tokens, mask, torch.zeros_like(rows))
    target = behavior_table(env, instance.target)[nodes, tokens]
    found: dict[str, list[torch.Tensor]] = {name: [] for name in (*NAMES, "f")}
    for _, schedule in realized:
        label = schedule.segment_table(env.vocab_size, env.horizon)[nodes]
        first, later = mask & (label == 0), mask & (label > 0)
        drawn = behavior_table(env, schedule)[nodes, tokens]
        start = torch.unique(torch.where(first, tokens, -1), dim=0, return_inverse=True)[1]  # number of u
        order = torch.tensor([int((start[:row] == start[row]).sum()) for row in rows])  # number of v after it
        shape = (int(start.max()) + 1, int(order.max()) + 1)
        for name, logs, part in (("m", drawn, first), ("p", target, first), ("m", drawn, later), ("p", target, later)):
            value = torch.where(part, logs, 0.0).sum(1).exp()
            table = torch.zeros(shape, dtype=torch.float64).index_put_((start, order), value)
            found[name + ("0" if part is first else "1")].append(table[:, 0] if part is first else table)
        found["f"].append(torch.zeros(shape, dtype=torch.float64).index_put_((start, order), reward))
    values = {name: _stacked(tables) for name, tables in found.items() if tables}
    for k in "01":
        values["r" + k] = np.divide(
            values["p" + k], values["m" + k], where=values["m" + k] > 0, out=values["p" + k] * 0
        )
    noise, first_size, second_size = values["m1"].shape
    d2 = [(values[f"m{k}"] * values[f"r{k}"] ** 2).sum(-1).max() for k in "01"]
    return {
        NOISE: noise, FIRST: first_size, SECOND: second_size, X.label: [prob for prob, _ in realized], F.label: values["f"],
        **{symbol.label: values[name] for name, symbol in NAMES.items()},
        TOP: float((reward**2).max()), D0: float(d2[0]), D1: float(d2[1]),
    }  # fmt: skip


def _stacked(tables: list[torch.Tensor]) -> np.ndarray:
    """Stack tables of different sizes, zeros beyond them."""
    shape = [max(sizes) for sizes in zip(*[t.shape for t in tables], strict=True)]
    out = np.zeros((len(tables), *shape))
    for row, table in enumerate(tables):
        out[(row, *[slice(n) for n in table.shape])] = table.numpy()
    return out


@lru_cache(maxsize=2)
def two_part_derivation(theorem_id: str) -> Derivation:
    """Derivation of S9 or S10 for responses of two segments, whatever their number."""
    return Derivation([recursion_chain()] if theorem_id == "S9" else bound_chains(), point, bind)
