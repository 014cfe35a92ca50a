"""C3: how far logit noise spreads the displacement of a token, and what that makes of the log ratio."""

from __future__ import annotations

import math
import random
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np
import sympy as sp
import torch
from torch import Tensor

from testbed.policies.noise.reported import CONFIDENCE_NAMES, reported
from testbed.weighting import confidence
from testbed.weighting.confidence import displacement
from theory.derivation import Derivation, Step
from theory.noise_cases import NoiseCase, noise_case, signs
from theory.planting import planted
from theory.theorem import Claim, Mutant, Quantities, Theorem

SIGMA = 0.1
HALVED = 12.0  # an error of fourth order falls by 16 when the noise is halved
CORRELATION = 0.36  # (6/10)^2, (8/10)^2: common and own part of the noise without square roots
EDGES = (0.0, 0.5, 0.9, 0.99, 0.999, 1.0)  # of p, in CIS Table 7
CATALOGED = (0.737, 0.226, 0.0346, 0.00334, 4.2e-5)  # MAD(log k)/MAD(eps) of its bins
DIGITS = (2, 2, 2, 2, 1)  # after the first


def displacements(log_p: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Displacement and log ratio of every token under noise [..., V] on the logits."""
    log_q = torch.log_softmax(log_p + noise, -1)
    log_p = log_p.expand_as(log_q)
    return displacement(log_p, log_q), log_p - log_q


def noise_point(case: NoiseCase) -> Tensor:
    """Noise at which derivatives are taken: none in symbols would hide that they are those of the sampler's law."""
    return torch.linspace(0.3, -0.2, case.vocab_size, dtype=torch.float64)


def spread(case: NoiseCase) -> np.ndarray:
    """Variance of each token's displacement over the noise, the token chosen beforehand."""
    eps = displacements(case.log_p, case.shifts)[0].numpy()
    return case.mean(eps**2) - case.mean(eps) ** 2


def mad(values: np.ndarray) -> np.ndarray:
    """Median absolute deviation over the outcomes of a uniform noise."""
    return np.median(np.abs(values - np.median(values, 0)), 0)


def correlated(case: NoiseCase, everywhere: bool = True) -> NoiseCase:
    """The same noise with correlation CORRELATION between logits: a common sign of the same law is mixed in.

    Mutants mix it into all logits but the last.
    """
    common = CORRELATION**0.5 * torch.full_like(case.shifts[0], float(case.shifts.abs().max()))
    if not everywhere:
        common[-1] = 0.0
    rows = [(1 - CORRELATION) ** 0.5 * shift + common * sign for shift in case.shifts for sign in (1.0, -1.0)]
    chances = [chance / 2 for chance in case.chances for _ in range(2)]
    return NoiseCase(name=case.name, log_p=case.log_p, shifts=torch.stack(rows), chances=tuple(chances))


def pooled(case: NoiseCase, about: str) -> dict[str, Any]:
    """All tokens' displacements in one bin: ratio of typical sizes of log k and eps, between which slopes it has to lie.

    About "zero" a size is a median absolute value, about "medians" it is the median absolute deviation.
    """
    eps, logs = (part.numpy().ravel() for part in displacements(case.log_p, case.shifts))
    doubts = -np.expm1(np.concatenate([case.log_p.numpy(), np.tile(case.log_p.numpy(), len(case.shifts)) - logs]))
    size = mad if about == "medians" else lambda values: np.median(np.abs(values))
    return {"pooled": size(logs) / size(eps), "pooled_least": doubts.min(), "pooled_largest": doubts.max()}


def measure(case: NoiseCase, noise: Any = signs, everywhere: bool = True, about: str = "zero") -> Quantities:
    """Spread at full and half noise, gradients, medians. Mutants use other noise, or pool tokens about their medians."""
    p = case.log_p.exp().numpy()
    others = 1 + _squares(p)
    whole, half = noise(case.name, p.tolist(), SIGMA), noise(case.name, p.tolist(), SIGMA / 2)
    errors = [np.abs(spread(c) - s**2 * others) for c, s in ((whole, SIGMA), (half, SIGMA / 2))]
    at = noise_point(case)
    gradient, log_gradient = (
        torch.autograd.functional.jacobian(lambda d, part=part: displacements(case.log_p, d)[part], at).numpy()
        for part in (0, 1)
    )
    sampled = torch.softmax(case.log_p + at, 0).numpy()
    covariance = (1 - CORRELATION) * np.eye(len(p)) + CORRELATION
    found: dict[str, Any] = {
        "whole": errors[0], "half": HALVED * errors[1], "gradient": gradient,
        "linear": np.einsum("yi,ij,yj->y", gradient, covariance, gradient),
        "expected": (1 - CORRELATION) * (1 + _squares(sampled)),
        "correlated": spread(correlated(whole, everywhere)), "shrunk": spread(whole.scaled((1 - CORRELATION) ** 0.5)),
        "slope": np.diag(log_gradient) / np.diag(gradient), "doubt": 1 - sampled,
    }  # fmt: skip
    if len(case.chances) % 2 and len(set(case.chances)) == 1:
        eps, logs = (part.numpy() for part in displacements(case.log_p, case.shifts))
        q = p / np.exp(logs)
        found |= {"ratio": mad(logs) / mad(eps), "least": 1 - q.max(0), "largest": 1 - q.min(0)}
        found |= {"narrow_bin": found["ratio"], "its_doubt": 1 - p, **pooled(case, about)}
    if case.name == "three_tokens":
        found |= _printed()
    return found


def _squares(p: np.ndarray) -> np.ndarray:
    """Sum over the other tokens of pt_j^2, per token."""
    return np.array([np.sum((np.delete(p, y) / np.delete(p, y).sum()) ** 2) for y in range(len(p))])


def _printed() -> dict[str, Any]:
    """What the paper's tables say of it."""
    logs, eps = (
        [reported(7, name, f"MAD({what})").value for name in CONFIDENCE_NAMES] for what in ("log k", "epsilon")
    )
    share = {
        model: (reported(6, "sd(epsilon)", model).value / reported(3, "sd(delta)", model).value) ** 2
        for model in ("Dense", "MoE")
    }
    ratio = np.array(logs) / np.array(eps)
    return {
        "printed_ratio": ratio, "bin_least": [1 - high for high in EDGES[1:]], "bin_largest": [1 - low for low in EDGES[:-1]],
        "digits": [float(f"{x:.{d}e}") for x, d in zip(ratio, DIGITS, strict=True)], "cataloged_digits": CATALOGED,
        "needed": np.round([1 - share["MoE"] / 1, 1 - share["MoE"] / 2], 2), "cataloged": [0.23, 0.62],
        "dense_uncorrelated": share["Dense"], "one": 1.0, "two": 2.0, "moe_spread": share["MoE"],
    }  # fmt: skip


@lru_cache(maxsize=2)
def _derivation(size: int) -> Derivation:
    p, d = sp.symbols(f"p1:{size + 1}", positive=True), sp.symbols(f"d1:{size + 1}", real=True)
    r, e, P = sp.Symbol("r", real=True), sp.Symbol("e", real=True), sp.Symbol("p", positive=True)
    moved = [x * sp.exp(y) for x, y in zip(p, d, strict=True)]

    def rest(terms: Any, y: int) -> sp.Expr:
        return sp.Add(*[terms[j] for j in range(size) if j != y])

    derivative = [[sp.diff(-d[y] + sp.log(rest(moved, y) / rest(p, y)), x) for x in d] for y in range(size)]
    weights = [[sp.Integer(-1) if j == y else moved[j] / rest(moved, y) for j in range(size)] for y in range(size)]
    covariance = [[1 if i == j else r for j in range(size)] for i in range(size)]
    others = [sp.Add(*[(moved[j] / rest(moved, y)) ** 2 for j in range(size) if j != y]) for y in range(size)]
    linear = [
        sp.Add(*[weights[y][i] * covariance[i][j] * weights[y][j] for i in range(size) for j in range(size)])
        for y in range(size)
    ]
    chains = [
        [
            Step("derivative", derivative, "differentiate eps = -delta_y + log sum pt_j e^delta_j (C2)",
                 tex=r"\partial\varepsilon_y/\partial\delta_j"),
            Step("gradient", weights, "the sampler's proportions of the others, and -1 for the token itself: they sum to 0; at "
                 "no noise they are pt_j", quantity="gradient", tex=r"\tilde q_j \;(j \ne y),\quad -1 \;(j = y)"),
        ],
        [
            Step("form", linear, "variance of that linear function, per unit of sigma^2, for correlation r between logits",
                 tex=r"\sum_{ij} g_i\,(r + (1-r)1\{i=j\})\,g_j"),
            Step("expected", [(1 - r) * (1 + squares) for squares in others],
                 "the gradient sums to 0, so what all logits share cancels", quantity="linear",
                 tex=r"(1-r)\big(1 + \sum_{j\ne y}\tilde q_j^2\big)"),
        ],
        [
            Step("slope", sp.diff(sp.log(P + (1 - P) * sp.exp(e)), e), "differentiate log k = log(p + (1-p) e^eps) (C1)",
                 tex=r"\frac{d\log k}{d\varepsilon}"),
            Step("sampler", 1 - P / (P + (1 - P) * sp.exp(e)), "it is 1 - q at every displacement: between two displacements the "
                 "log ratio moves by 1 - q times as much, for a q of somewhere between",
                 tex=r"1 - \frac{p}{p + (1-p)e^{\varepsilon}} = 1 "
                 r"- q"),
        ],
    ]  # fmt: skip

    def point(rng: random.Random) -> dict[sp.Symbol, Any]:
        raw = [rng.randint(1, 20) for _ in p]
        numbers = {x: sp.Rational(n, sum(raw) + 1) for x, n in zip(p, raw, strict=True)}
        numbers |= {x: sp.log(sp.Rational(rng.randint(2, 9), 4)) for x in d}
        return numbers | {
            r: sp.Rational(rng.randint(0, 9), 10),
            e: rng.choice([-1, 0, 2]),
            P: sp.Rational(rng.randint(1, 6), 7),
        }

    def bind(case: NoiseCase) -> dict[sp.Symbol, Any]:
        return {**dict(zip(p, case.log_p.exp().tolist(), strict=True)), r: CORRELATION,
                **dict(zip(d, noise_point(case).tolist(), strict=True))}  # fmt: skip

    return Derivation(chains, point, bind)


def instances() -> list[NoiseCase]:
    """Three and two tokens under signs; five equally likely outcomes of lopsided noise, whose medians are outcomes."""
    lopsided = [[0.0, 0.0, 0.0], [1.2, 0.0, -0.3], [-0.4, 0.2, 0.1], [2.0, -0.5, 0.3], [0.9, 0.1, -1.0]]
    return [
        signs("three_tokens", [0.5, 0.3, 0.2], SIGMA),
        signs("confident", [0.98, 0.015, 0.005], SIGMA),
        signs("two_tokens", [0.7, 0.3], SIGMA),
        noise_case("lopsided", [0.5, 0.3, 0.2], lopsided, [0.2] * 5),
        noise_case("lopsided_confident", [0.97, 0.02, 0.01], lopsided, [0.2] * 5),
    ]


def gap_of_logs(right: Any) -> Any:
    """Bug: the log ratio taken for the log-odds shift."""
    return lambda logp_target, logp_behavior: logp_target - logp_behavior


def unequal(name: str, p: list[float], sigma: float) -> NoiseCase:
    """Signs whose size grows with the token: logits do not share one variance."""
    case = signs(name, p, sigma)
    scale = torch.tensor([1.0 + j for j in range(len(p))], dtype=torch.float64)
    return NoiseCase(name=name, log_p=case.log_p, shifts=case.shifts * scale, chances=case.chances)


def displaced_bin() -> list[NoiseCase]:
    """Noise on the first logit alone: two of three tokens are displaced alike, and no median is 0."""
    shifts = [[-1.0 - 0.01 * j, 0.0, 0.0] for j in range(3)]
    return [noise_case("displaced_bin", [0.2, 0.5, 0.3], shifts, [1 / 3] * 3)]


def skewed(name: str, p: list[float], sigma: float) -> NoiseCase:
    """Independent noise of 2 sigma with chance 1/5, else -sigma/2: the variance is sigma^2, and the law is not symmetric."""
    draws = list(product(((2.0, 0.2), (-0.5, 0.8)), repeat=len(p)))
    return noise_case(
        name, p, [[sigma * x for x, _ in row] for row in draws], [math.prod(c for _, c in row) for row in draws]
    )


THEOREM = Theorem(
    id="C3",
    kind="identity",
    title="logit noise of variance sigma^2 spreads a fixed token's displacement by sigma^2 (1-r)(1 + sum pt_j^2)",
    hypotheses=(
        "the token is chosen independently of the noise; pt = the trainer's law renormalized without it",
        "every logit's noise has one symmetric law about 0 of variance sigma^2; they are independent (r = 0), or correlated by r "
        "through a part that all logits share",
    ),
    statement="Var(eps) = sigma^2 (1-r)(1 + sum pt_j^2) + O(sigma^4): correlation r is independent noise of variance (1-r) "
    "sigma^2, exactly. d log k/d eps = 1 - q, so a token's MAD(log k)/MAD(eps) lies between the least and the largest 1 - q; for "
    "a bin of tokens, median |log k|/median |eps| lies between the least and the largest of their 1 - p and 1 - q, and the MADs "
    "do so where the medians are 0. CIS Table 7's ratios lie between the bins' least and largest 1 - p, which a narrow bin need "
    "not do. Its MoE's sd(eps) < sd(delta) needs r in [.23, .62] if both were measured on the same positions",
    source="paper (CIS): Tables 3, 6 and 7 as printed; expansion ours",
    claims=(
        Claim("fourth_order", "at_most", "half", "whole",
              f"the error of sigma^2 (1 + sum pt_j^2) falls by more than {HALVED:g} when the noise is halved"),
        Claim("linear_part", "equal", "linear", "expected", "variance of the linear part: (1-r)(1 + the sum of squares of the "
              "others' proportions)"),
        Claim("correlation", "equal", "correlated", "shrunk", "correlation r is noise scaled by (1-r)^(1/2), to all orders"),
        Claim("slope", "equal", "slope", "doubt", "the log ratio moves by 1-q per unit of displacement"),
        Claim("mad_above", "at_most", "least", "ratio", "MAD(log k)/MAD(eps) is at least the least 1-q"),
        Claim("mad_below", "at_most", "ratio", "largest", "and at most the largest"),
        Claim("bin_above", "at_most", "pooled_least", "pooled", "a bin's median |log k|/median |eps|: at least its least 1-p, "
              "1-q"),
        Claim("bin_below", "at_most", "pooled", "pooled_largest", "and at most its largest"),
        Claim("table_7_digits", "equal", "digits", "cataloged_digits", "Table 7, printed: .737, .226, .0346, .00334, 4.2e-5"),
        Claim("narrow_bin", "differs", "narrow_bin", "its_doubt", "it is not 1-p: a bin may be too narrow for it", margin=0.02),
        Claim("table_7_above", "at_most", "bin_least", "printed_ratio", "Table 7, printed: at least the bin's least 1-p"),
        Claim("table_7_below", "at_most", "printed_ratio", "bin_largest", "and at most its largest"),
        Claim("moe_needs_correlation", "equal", "needed", "cataloged",
              "printed MoE spreads: r in [.23, .62], rounded to two digits, if measured on the same positions"),
        Claim("moe_below_one", "at_most", "moe_spread", "one", "sd(eps) < sd(delta) there, which independent noise cannot do"),
        Claim("dense_independent", "at_most", "one", "dense_uncorrelated", "the dense model's spreads need no correlation"),
        Claim("dense_possible", "at_most", "dense_uncorrelated", "two", "and lie within what independent noise allows"),
    ),
    instances=instances,
    measure=measure,
    derive=lambda case: _derivation(case.vocab_size),
    outcome="The spread of displacements is that of the logits up to a factor of at most the square root of 2, at any "
    "confidence; the ratio's shrinks with 1-p. A spread below the logits' at the same positions means that logits share part of "
    "their noise.",
    mutants=(
        Mutant(name="unequal_variances", kind="hypothesis", breaks=("fourth_order",), on=("three_tokens", "confident"),
               measure=lambda case: measure(case, unequal),
               why="noise that grows along the vocabulary: not sigma^2 (1 + sum pt_j^2)"),
        Mutant(name="skewed_noise", kind="hypothesis", breaks=("fourth_order",), on=("three_tokens", "confident"),
               measure=lambda case: measure(case, skewed),
               why="symmetry dropped, the variance kept: an error of third order falls by 8 only"),
        Mutant(name="correlated_with_some_logits", kind="hypothesis", breaks=("correlation",), on=("three_tokens",),
               measure=lambda case: measure(case, everywhere=False),
               why="one logit has no share of the common noise: it no longer cancels"),
        Mutant(name="bin_about_its_medians", kind="hypothesis", breaks=("bin_above",), instances=displaced_bin,
               measure=lambda case: measure(case, about="medians"),
               why="medians that are not 0: deviations of log k and of eps are taken about different tokens"),
        Mutant(name="log_ratio_for_displacement", kind="bug", on=("three_tokens", "lopsided"),
               breaks=("fourth_order", "linear_part", "slope", "mad_below", "bin_below"),
               plant=lambda: planted(confidence, "displacement", gap_of_logs),
               why="the shift in log-probability spreads with 1-p"),
    ),
)  # fmt: skip
