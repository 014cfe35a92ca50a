"""C2: the displacement knows p through the other tokens only, until the token is drawn by the sampler itself."""

from __future__ import annotations

import random
from functools import lru_cache
from typing import Any

import numpy as np
import sympy as sp

from testbed.policies import schedule
from testbed.policies.noise.reported import CONFIDENCE_NAMES, reported
from testbed.weighting import confidence
from testbed.weighting.confidence import displacement
from testbed.weighting.rules import weigh
from theory import bugs
from theory.derivation import Derivation, Step
from theory.noise_cases import OUTCOMES, NoiseCase, noise_case, noise_cases
from theory.planting import planted
from theory.theorem import Claim, Mutant, Quantities, Theorem

HALVED = 7.0  # an error of third order falls by 8 when the noise is halved
P, PC, M, S = sp.symbols(
    "p pbar m S", positive=True
)  # drawn token: p, 1-p, e^delta_y, sum over the others of p_j e^delta_j
A, K, G = (
    sp.symbols(f"{letter}1:{OUTCOMES + 1}", positive=True) for letter in "akg"
)  # chance, ratio, g by outcome of noise


def tables(case: NoiseCase) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Displacement, ratio and noise [D, V] by outcome of the noise and token."""
    log_q = [mu.table[0] for mu in case.samplers]
    eps = np.array([displacement(case.target.table, q[None])[0].numpy() for q in log_q])
    ratio = np.zeros(eps.shape)
    ratio[case.law.branch.numpy(), case.law.batch.tokens[:, 0].numpy()] = (
        weigh("exact", case.law.batch).value[:, 0].numpy()
    )
    return eps, ratio, case.shifts.numpy()


def drawn_mean(case: NoiseCase, values: np.ndarray, by_sampler: bool = True) -> np.ndarray:
    """Mean of a table [D, V] given the token, as the sampler draws noise and token. Mutants let the trainer draw it."""
    law, tokens = case.law, case.law.batch.tokens[:, 0].numpy()
    mass = np.outer(case.chances, case.log_p.exp())
    if by_sampler:
        mass[law.branch.numpy(), tokens] = law.probs.numpy()
    return (mass * values).sum(0) / mass.sum(0)


def shift_error(case: NoiseCase, by_sampler: bool) -> np.ndarray:
    """How far the shift of the mean is from -(1-p) Var(eps), per token."""
    eps, _, _ = tables(case)
    mean = case.mean(eps)
    predicted = np.expm1(case.target.table[0].numpy()) * case.mean((eps - mean) ** 2)
    return np.abs(drawn_mean(case, eps, by_sampler) - mean - predicted)


def chances_below(case: NoiseCase, eps: np.ndarray, by_sampler: bool) -> tuple[np.ndarray, np.ndarray]:
    """Chance that a token's displacement is at most each of its values: drawn, and fixed beforehand, [D, V]."""
    below = [(eps <= level + 1e-12).astype(float) for level in eps]
    return np.array([drawn_mean(case, b, by_sampler) for b in below]), np.array([case.mean(b) for b in below])


def measure(case: NoiseCase, by_sampler: bool = True) -> Quantities:
    """Displacements against their closed form, and their means with and without the draw."""
    eps, ratio, shifts = tables(case)
    drawn_below, fixed_below = chances_below(case, eps, by_sampler)
    pbar, rest = -np.expm1(case.log_p.numpy()), _others(np.exp(case.log_p.numpy() + shifts))
    inverse = 1 / ratio
    found: dict[str, Any] = {
        "eps": eps, "from_noise": -shifts + np.log(rest / pbar), "odds_ratio": np.exp(eps),
        "drawn": drawn_mean(case, eps, by_sampler), "tilted": case.mean(eps * inverse) / case.mean(inverse),
        "drawn_square": drawn_mean(case, eps**2, by_sampler), "tilted_square": case.mean(eps**2 * inverse) / case.mean(inverse),
        "half": HALVED * shift_error(case.scaled(0.005), by_sampler), "whole": shift_error(case.scaled(0.01), by_sampler),
        "drawn_below": drawn_below, "fixed_below": fixed_below,
    }  # fmt: skip
    if case.vocab_size <= 3:
        found |= {"elsewhere": tables(case.moved(0.9))[0][:, 0], "here": eps[:, 0]}
    if case.name == "common":
        found |= {"common_shift": eps, "none": np.zeros(eps.shape)}
    if case.name == "one_sided":
        found |= {"drawn_mean": drawn_mean(case, eps, by_sampler), "fixed_mean": case.mean(eps)}
        tails = [
            [reported(7, name, what).value for what in ("q05(epsilon)", "q95(epsilon)")] for name in CONFIDENCE_NAMES
        ]
        found |= {"printed_lean": np.sum(tails, 1), "zero": 0.0}
    return found


def _others(moved: np.ndarray) -> np.ndarray:
    """Sum over the other tokens, without the cancellation of a total minus a large part."""
    size = moved.shape[1]
    if size > 16:
        return moved.sum(1, keepdims=True) - moved
    return np.stack([np.delete(moved, y, 1).sum(1) for y in range(size)], 1)


@lru_cache(maxsize=1)
def _derivation() -> Derivation:
    q, qbar = P * M / (P * M + S), S / (P * M + S)
    shift = [
        Step("odds", (P / PC) / (q / qbar), "softmax of the perturbed logits: q = p m / Z, 1 - q = S / Z, Z = p m + S, m = "
             "e^delta_y",
             tex=r"e^{\varepsilon} = \frac{p/(1-p)}{q/(1-q)},\quad q = \frac{p\,e^{\delta_y}}{Z}"),
        Step("cancelled", S / (PC * M), "Z and p cancel: nothing of p is left but the others' proportions", quantity="odds_ratio",
             tex=r"e^{-\delta_y}\sum_{j\ne y}\frac{p_j}{1-p}\,e^{\delta_j}"),
    ]  # fmt: skip
    mass = sp.Add(*[a * P / k for a, k in zip(A, K, strict=True)])
    tilt = [
        Step("bayes", sp.Add(*[g * a * P / k for a, k, g in zip(A, K, G, strict=True)]) / mass,
             "given the token, an outcome of the noise has probability proportional to its chance times q = p/k",
             tex=r"E[g \mid y \text{ drawn}] = \frac{\sum_d a_d\,q_d\,g_d}{\sum_d a_d\,q_d}"),
        Step("tilted", sp.Add(*[g * a / k for a, k, g in zip(A, K, G, strict=True)])
             / sp.Add(*[a / k for a, k in zip(A, K, strict=True)]),
             "p cancels", quantity="drawn_square", tex=r"\frac{E[g/k]}{E[1/k]}"),
    ]  # fmt: skip
    s, u, v, a = sp.symbols("s u v a", real=True)
    inverse = [1 / (1 + PC * (sp.exp(s * x) - 1)) for x in (u, v)]
    weights, values = (a, 1 - a), (s * u, s * v)
    mean = sp.Add(*[w * x for w, x in zip(weights, values, strict=True)])
    joint = sp.Add(*[w * x * i for w, x, i in zip(weights, values, inverse, strict=True)])
    level = sp.Add(*[w * i for w, i in zip(weights, inverse, strict=True)])
    covariance = (joint - mean * level) / level
    second = (sp.diff(joint / level - mean, s, 2) / 2).subs(s, 0)
    small = [
        Step("second_order", second, "1/k = 1/(1 + (1-p)(e^eps - 1)) by C1; a displacement of two values and size s: the "
             "coefficient of s^2 in the shift of the mean",
             tex=r"\tfrac12\,\frac{d^2}{ds^2}\Big(\frac{E[\varepsilon/k]}{E[1/k]} - E\,\varepsilon\Big)\Big|_{s=0}"),
        Step("covariance", (sp.diff(covariance, s, 2) / 2).subs(s, 0), "the shift is a covariance",
             tex=r"\tfrac12\,\frac{d^2}{ds^2}\,\frac{\mathrm{Cov}(\varepsilon, 1/k)}{E[1/k]}\Big|_{s=0}"),
        Step("variance", -PC * a * (1 - a) * (u - v) ** 2, "to first order 1/k is 1 - (1-p) eps; two values u, v have variance "
             "a(1-a)(u-v)^2", tex=r"\mathrm{Cov}(\varepsilon, -(1-p)\,\varepsilon) = -(1-p)\,\mathrm{Var}(\varepsilon)"),
    ]  # fmt: skip

    def point(rng: random.Random) -> dict[sp.Symbol, Any]:
        draw = lambda: sp.Rational(rng.randint(1, 30), rng.randint(3, 11))  # noqa: E731
        p = sp.Rational(rng.randint(1, 12), 13)
        numbers = {
            P: p,
            PC: 1 - p,
            M: draw(),
            S: draw(),
            s: 0,
            u: draw(),
            v: -draw(),
            a: sp.Rational(rng.randint(1, 6), 7),
        }
        return numbers | {x: draw() for x in (*A, *K, *G)}

    return Derivation([shift, tilt, small], point, _bind)


def _bind(case: NoiseCase) -> dict[sp.Symbol, Any]:
    eps, ratio, shifts = tables(case)
    p = np.exp(case.log_p.numpy())
    moved = p * np.exp(shifts)
    numbers: dict[sp.Symbol, Any] = {
        P: np.broadcast_to(p, shifts.shape).reshape(-1), M: np.exp(shifts).reshape(-1), S: _others(moved).reshape(-1),
        PC: np.broadcast_to(-np.expm1(case.log_p.numpy()), shifts.shape).reshape(-1),
    }  # fmt: skip
    for d in range(OUTCOMES):
        there = d < len(case.chances)
        numbers[A[d]] = case.chances[d] if there else 0.0
        numbers[K[d]], numbers[G[d]] = (ratio[d], eps[d] ** 2) if there else (1.0, 0.0)
    return numbers


def gap_of_logs(right: Any) -> Any:
    """Bug: the log ratio taken for the log-odds shift."""
    return lambda logp_target, logp_behavior: logp_target - logp_behavior


def other_noise_recorded(right: Any) -> Any:
    """Bug: the branches of an exogenous schedule in reverse order, with the chances in the right one."""

    def wrong(self: Any) -> Any:
        found = right(self)
        return [(chance, other) for (chance, _), (_, other) in zip(found, reversed(found), strict=True)]

    return wrong


def nearly_common() -> list[NoiseCase]:
    """Noise that all logits but one share."""
    return [noise_case("common", [0.4, 0.35, 0.25], [[1, 1, 0], [-0.5, -0.5, 0]], [0.4, 0.6])]


THEOREM = Theorem(
    id="C2",
    kind="identity",
    title="the displacement depends on p through the other tokens only; drawing the token tilts it",
    hypotheses=(
        "sampler = softmax(trainer's logits + delta); pt = the trainer's law renormalized without the token y",
        "fixed token: y is chosen independently of delta; drawn token: y is drawn from the sampler's law under delta",
    ),
    statement="eps = -delta_y + log sum_{j != y} pt_j e^{delta_j}, and pt does not involve p; E[g(eps) | y drawn] = "
    "E[g/k]/E[1/k]: 1/k falls in eps, so drawing moves every quantile of eps down, and its mean by -(1-p) Var(eps) + O(size^3)",
    source="paper (CIS): the characterization; the tilt is ours and has the sign of the skew in its Table 7",
    claims=(
        Claim("closed_form", "equal", "eps", "from_noise", "eps = -delta_y + log sum pt_j e^delta_j, for every noise and token"),
        Claim("p_drops_out", "equal", "here", "elsewhere",
              "another p with the others in proportion gives the same displacements"),
        Claim("common_noise", "equal", "common_shift", "none", "noise that all logits share displaces nothing"),
        Claim("tilt", "equal", "drawn", "tilted", "E[eps | drawn] = E[eps/k]/E[1/k]"),
        Claim("tilt_of_squares", "equal", "drawn_square", "tilted_square", "and the same for eps^2"),
        Claim("quantiles_fall", "at_most", "fixed_below", "drawn_below",
              "a drawn token's displacement is at most any level with no smaller chance than a fixed token's"),
        Claim("table_7_leans", "at_most", "printed_lean", "zero",
              "Table 7, printed: in every bin the 5 % quantile lies further from 0 than the 95 % quantile"),
        Claim("drawing_matters", "differs", "drawn_mean", "fixed_mean",
              "a drawn token's mean displacement is another", margin=0.05),
        Claim("third_order", "at_most", "half", "whole",
              f"the error of -(1-p) Var(eps) falls by more than {HALVED:g} when the noise is halved"),
    ),
    instances=noise_cases,
    measure=measure,
    derive=lambda case: _derivation(),
    outcome="Measured on drawn tokens the displacement is skewed toward the sampler's favor, more so for doubtful tokens: part "
    "of the skew in a table by confidence is selection, not engine.",
    mutants=(
        Mutant(name="token_independent_of_noise", kind="hypothesis", on=("three_tokens", "two_tokens", "one_sided"),
               breaks=("tilt", "tilt_of_squares", "drawing_matters", "third_order"),
               measure=lambda case: measure(case, by_sampler=False),
               why="the trainer draws the token, whatever the noise: nothing is tilted; needs 1-p not tiny"),
        Mutant(name="noise_not_quite_common", kind="hypothesis", breaks=("common_noise",), instances=nearly_common,
               why="one logit has no share of the noise"),
        Mutant(name="ratio_inverted", kind="bug", on=("one_sided", "three_tokens"), breaks=("tilt", "tilt_of_squares"),
               plant=bugs.ratio_inverted, why="tilted by k instead of 1/k"),
        Mutant(name="log_ratio_for_displacement", kind="bug", on=("one_sided", "three_tokens"),
               breaks=("closed_form", "p_drops_out", "third_order"),
               plant=lambda: planted(confidence, "displacement", gap_of_logs),
               why="the shift in log-probability depends on p itself"),
        Mutant(name="noise_of_another_branch", kind="bug", on=("one_sided",), breaks=("quantiles_fall", "third_order"),
               plant=lambda: planted(schedule.ExogenousSchedule, "branches", other_noise_recorded),
               why="tokens drawn under one noise and recorded with the chance of another; needs unequal chances"),
    ),
)  # fmt: skip
