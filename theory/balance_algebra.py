"""Weights p/q_mix and their variance over symbols: any number of behaviors and outcomes, in one derivation.

Sums run over arrays (see `theory.evaluation`): two or three behaviors and outcomes at a random point, thousands of words
at a recorded law. A behavior that cannot draw an outcome has q_j = 0 there, and i_j = 0 in the place of 1/q_j.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from random import Random
from typing import Any

import sympy as sp
import torch

from theory.behavior_mixtures import Mixture
from theory.derivation import Derivation, Step
from theory.evaluation import array

Y, Z, J, L = sp.symbols("y z j l", integer=True)  # outcomes, behaviors
OUTCOMES, BEHAVIORS = sp.symbols("Y J", integer=True, positive=True)  # how many
LEAST = sp.Symbol("n_min", positive=True)
P, F, N, Q, INVERSE, OMEGA = (array(name) for name in ("p", "f", "n", "q", "i", "omega"))
# one outcome and one behavior that can draw it; what the others add to n q_mix
P_HERE, Q_HERE, N_HERE, N_ALL = sp.symbols("p_here q_here n_here n_all", positive=True)
REST = sp.Symbol("rest", nonnegative=True)
Share = Callable[[Any, Any], sp.Expr]


def _over_outcomes(summand: sp.Expr, index: sp.Symbol = Y) -> sp.Sum:
    return sp.Sum(summand, (index, 0, OUTCOMES - 1))


def _over_behaviors(summand: sp.Expr, index: sp.Symbol = J) -> sp.Sum:
    return sp.Sum(summand, (index, 0, BEHAVIORS - 1))


def _mixed(y: Any) -> sp.Expr:
    """Probability under the mixture, times n: sum_l n_l q_l."""
    return _over_behaviors(N[L] * Q[L, y], L)


def _balance(j: Any, y: Any) -> sp.Expr:
    return N[j] * Q[j, y] / _mixed(y)


def _any_share(j: Any, y: Any) -> sp.Expr:
    return OMEGA[j, y]


def _part(share: Share, j: Any) -> sp.Expr:
    """mu_j = sum_y omega_j f p."""
    return _over_outcomes(share(j, Z) * F[Z] * P[Z], Z)


def _squares(share: Share) -> sp.Expr:
    """sum_j mu_j^2/n_j."""
    return _over_behaviors(_part(share, J) ** 2 / N[J])


def _second(share: Share) -> sp.Expr:
    """sum_y f^2 p^2 sum_j omega_j^2/(n_j q_j)."""
    return _over_outcomes(_over_behaviors((share(J, Y) * F[Y] * P[Y]) ** 2 * INVERSE[J, Y] / N[J]))


def _weights() -> list[list[Step]]:
    mixed = N_HERE * Q_HERE + REST
    bound = [
        Step("own_ratio", N_ALL / N_HERE * P_HERE / Q_HERE, "ratio to behavior j alone, times n/n_j", quantity="single_weight",
             tex=r"\tfrac{n}{n_j} \tfrac{p}{q_j}"),
        Step("mixture", N_ALL * P_HERE / mixed, "n_j q_j is one term of a sum of nonnegative ones", relation=">=",
             quantity="mixture_weight", tex=r"\ge \frac{p}{\sum_l (n_l/n) q_l} = \frac{p}{q_{mix}}"),
    ]  # fmt: skip
    pooled = [
        Step("shared", (N_HERE * Q_HERE / mixed) * (P_HERE / Q_HERE) / N_HERE,
             "the share of behavior j, its own ratio, and the mean over its n_j responses", quantity="shared",
             tex=r"\omega_j\, \tfrac{p}{q_j}\, \tfrac1{n_j}, \quad \omega_j = n_j q_j / \textstyle\sum_l n_l q_l"),
        Step("pooled", N_ALL * P_HERE / mixed / N_ALL, "n_j and q_j cancel: the same for whichever behavior drew it",
             quantity="pooled", tex=r"\tfrac1n \tfrac{p}{q_{mix}}"),
    ]  # fmt: skip
    return [bound, pooled]


@lru_cache(maxsize=2)
def balance_derivation(nonnegative: bool) -> Derivation:
    """Weights, means and variances of partitions of unity; with `nonnegative` also what f >= 0 adds."""
    mean = _over_outcomes(F[Y] * P[Y])
    term = OMEGA[J, Y] * F[Y] * P[Y] * INVERSE[J, Y]
    unbiased = [
        Step("definition", _over_behaviors(_over_outcomes(Q[J, Y] * term)), "every behavior's mean of what its responses add",
             quantity="first_mean", tex=r"\sum_j E_{q_j}[\omega_j f \tfrac{p}{q_j}]"),
        Step("shares", _over_outcomes(F[Y] * P[Y] * _over_behaviors(OMEGA[J, Y])), "omega_j = 0 where q_j = 0; else q_j cancels",
             tex=r"\sum_y f p \sum_j \omega_j"),
        Step("mean", mean, "the shares add up to 1", quantity="exact", tex=r"E_p f"),
    ]  # fmt: skip
    variance = [
        Step("definition", _over_behaviors(_over_outcomes(Q[J, Y] * (term - _part(_any_share, J)) ** 2) / N[J]),
             "behaviors are independent: the variances of their means add up", quantity="first_variance",
             tex=r"\sum_j \tfrac1{n_j} E_{q_j}(\omega_j f \tfrac{p}{q_j} - \mu_j)^2"),
        Step("parts", _second(_any_share) - _squares(_any_share), "expand the square; the probabilities of q_j add up to 1",
             tex=r"\sum_y f^2 p^2 \sum_j \omega_j^2/(n_j q_j) - \sum_j \mu_j^2/n_j"),
    ]  # fmt: skip
    general = [
        Step("definition", _second(_any_share), "variance plus sum mu_j^2/n_j, for any partition", quantity="first_second",
             tex=r"Var(\omega) + \sum_j \mu_j(\omega)^2/n_j = \sum_y f^2 p^2 \sum_j \omega_j^2/(n_j q_j)"),
        Step("cauchy_schwarz", _over_outcomes((F[Y] * P[Y]) ** 2 / _mixed(Y)),
             "1 = (sum_j omega_j)^2 <= sum_j omega_j^2/(n_j q_j) sum_j n_j q_j at every y", relation=">=",
             tex=r"\ge \sum_y f^2 p^2 \big/ \textstyle\sum_j n_j q_j"),
        Step("balance", _second(_balance), "equality for omega_j in proportion to n_j q_j", quantity="balance_second",
             tex=r"Var(bal) + \sum_j \mu_j(bal)^2/n_j"),
    ]  # fmt: skip
    below = [
        Step("parts", _squares(_balance), "what the balance heuristic subtracts", quantity="balance_parts",
             tex=r"\sum_j \mu_j(bal)^2/n_j"),
        Step("cauchy_schwarz", mean**2 / _over_behaviors(N[J]), "sum_j mu_j = mu, whatever the signs", relation=">=",
             tex=r"\ge \mu^2/n"),
    ]  # fmt: skip
    above = [
        Step("parts", _squares(_any_share), "what the other partition subtracts", quantity="first_parts",
             tex=r"\sum_j \mu_j(\omega)^2/n_j"),
        Step("least", _over_behaviors(_part(_any_share, J)) ** 2 / LEAST,
             "mu_j >= 0, since f >= 0 and omega >= 0: a sum of squares is at most the square of the sum", relation="<=",
             tex=r"\le \mu^2/\min_j n_j"),
        Step("mean", mean**2 / LEAST, "the shares add up to 1", tex=r"\mu^2/\min_j n_j"),
    ]  # fmt: skip
    chains = [*_weights(), unbiased, variance, general, below, *([above] if nonnegative else [])]
    return Derivation(chains, lambda rng: _point(rng, nonnegative), _bind)


def _point(rng: Random, nonnegative: bool) -> Mapping[sp.Symbol, Any]:
    """Two or three outcomes and behaviors, of which the first may be unable to draw the first outcome."""
    ys, js, blind = range(rng.randint(2, 3)), range(rng.randint(2, 3)), rng.random() < 0.5

    def law(parts: list[int]) -> list[sp.Rational]:
        return [sp.Rational(x, sum(parts)) for x in parts]

    q = [law([0 if blind and j == y == 0 else rng.randint(1, 9) for y in ys]) for j in js]
    omega = [law([0 if q[j][y] == 0 else rng.randint(0, 5) + int(j == 1) for j in js]) for y in ys]
    counts = [sp.Integer(rng.randint(1, 9)) for _ in js]
    here = {s: sp.Rational(rng.randint(1, 9), 9) for s in (P_HERE, Q_HERE, N_HERE, N_ALL)}
    return here | {
        OUTCOMES: sp.Integer(len(ys)), BEHAVIORS: sp.Integer(len(js)), LEAST: min(counts),
        P.label: law([rng.randint(1, 9) for _ in ys]), N.label: counts, Q.label: q, REST: sp.Rational(rng.randint(0, 9), 5),
        F.label: [sp.Rational(rng.randint(0 if nonnegative else -9, 9), 4) for _ in ys],
        INVERSE.label: [[1 / x if x else x for x in row] for row in q],
        OMEGA.label: [list(row) for row in zip(*omega, strict=True)],
    }  # fmt: skip


def _bind(m: Mixture) -> Mapping[sp.Symbol, Any]:
    """Arrays over outcomes and behaviors; and one array over all pairs of an outcome and a behavior that can draw it."""
    p, q, n, drawn = m.target.exp(), m.behaviors.exp(), m.counts[:, None], m.drawn
    others = torch.stack([torch.cat([(n * q)[:j], (n * q)[j + 1 :]]).sum(0) for j in range(len(q))])
    arrays = {
        P.label: p, F.label: m.values, N.label: m.counts, Q.label: q, OMEGA.label: m.partitions[0],
        INVERSE.label: torch.where(drawn, 1 / torch.where(drawn, q, 1.0), 0.0),
        P_HERE: p.expand_as(q)[drawn], Q_HERE: q[drawn], N_HERE: n.expand_as(q)[drawn], REST: others[drawn],
    }  # fmt: skip
    sizes = {OUTCOMES: len(p), BEHAVIORS: len(q), LEAST: float(m.counts.min()), N_ALL: float(m.counts.sum())}
    return {symbol: value.numpy() for symbol, value in arrays.items()} | sizes
