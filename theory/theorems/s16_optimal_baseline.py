"""S16: the constant baseline of least variance under exact weights, and its bias once they are capped."""

from __future__ import annotations

from typing import Any

import torch
from scipy.optimize import minimize_scalar

from testbed.estimators import optimal_baseline
from testbed.estimators.gradient import gradient_terms
from testbed.estimators.optimal_baseline import OptimalBaseline, optimal_scalar_baseline
from testbed.exact.gradients import exact_gradient
from testbed.exact.moments import moments
from testbed.weighting import granularity
from testbed.weighting.rules import weigh
from theory.baseline_algebra import baseline_derivation
from theory.planting import planted
from theory.small_worlds import small_worlds, uncovered_world
from theory.theorem import Claim, Mutant, Quantities, Theorem
from theory.worlds import World

CAP = 0.8
GIVEN = 0.7  # a baseline that is no optimum of anything: the bias under a cap concerns every constant
STEPS = (-0.3, -0.01, 0.01, 0.3)


def measure(instance: World, rule: str = "sequence_product") -> Quantities:
    """Library's baseline, variance and mean at and around it; means under capped weights with and without a baseline.

    `rule` is what weighs the responses (mutants cap).
    """
    law, batch, pi = instance.law, instance.batch, instance.target
    exact, capped = weigh("sequence_product", batch), weigh("seq_tis", batch, cap=CAP)
    w = exact if rule == "sequence_product" else weigh(rule, batch, cap=CAP)
    found = optimal_scalar_baseline(batch, w, pi, law.probs)

    def at(b: float, weights: Any = w) -> Any:
        return moments(law, gradient_terms(batch, weights, pi, batch.reward - b))

    def variance(b: float) -> float:
        return float(at(b).variance.sum())

    best, gradient = at(found.value), exact_gradient(instance.env, pi)
    others = [0.0, float(law.expect(batch.reward)), *(found.value + step for step in STEPS)]
    excess = exact.value - capped.value
    with_it, without = at(GIVEN, capped).mean, at(0.0, capped).mean
    quantities = {
        "baseline": found.value, "drop": found.variance_drop, "gained": variance(0.0) - variance(found.value),
        "best": best.variance.sum(), "others": torch.tensor([variance(b) for b in others], dtype=torch.float64),
        "mean": best.mean, "gradient": gradient,
        "capped_bias": with_it - gradient,
        "lost": -law.expect(gradient_terms(batch, excess, pi, batch.reward - GIVEN)),
        "shift": with_it - without,
        "cut_off": law.expect(gradient_terms(batch, excess, pi, torch.full_like(batch.reward, GIVEN))),
    }  # fmt: skip
    if found.variance_drop > 0:
        quantities["numeric"] = minimize_scalar(
            variance, bounds=(-1.5, 1.5), method="bounded", options={"xatol": 1e-8}
        ).x
    if instance.name == "two_segments":
        quantities |= {"with_baseline": with_it, "without_baseline": without}
    return quantities


def instances() -> list[World]:
    """Two segments, an end token, a choice of engine; one token, on-policy and deterministic targets."""
    kept = ("two_segments", "end_token", "random_behavior", "one_token", "on_policy", "deterministic_target")
    return [w for w in small_worlds() if w.name in kept]


def capped_reading(instance: World) -> Quantities:
    """Mutated reading: the formula applied to capped weights, as if they were exact."""
    return measure(instance, "seq_tis")


def unsquared(right: Any) -> Any:
    """Bug: E[W |s|^2 R] / E[W |s|^2], the on-policy optimum with importance weights."""

    def wrong(batch: Any, w: Any, pi: Any, probs: Any = None) -> OptimalBaseline:
        value = w if isinstance(w, torch.Tensor) else w.value
        found = right(batch, value.sqrt(), pi, probs)
        return OptimalBaseline(found.value, right(batch, w, pi, probs).variance_drop)

    return wrong


def mean_reward(right: Any) -> Any:
    """Bug: the weighted mean reward, without the length of the score."""

    def wrong(batch: Any, w: Any, pi: Any, probs: Any = None) -> OptimalBaseline:
        mean = float((probs * w.value.max(1).values * batch.reward).sum())
        return OptimalBaseline(mean, right(batch, w, pi, probs).variance_drop)

    return wrong


TOLD_APART = ("two_segments", "random_behavior")
THEOREM = Theorem(
    id="S16",
    kind="optimum",
    title="the constant baseline of least variance under exact weights; under capped ones every constant biases",
    hypotheses=(
        "W is the exact product of ratios, and the behaviors cover the target: E[W s] = 0",
        "s is the score of the whole response; the reward is terminal",
        "the baseline is one constant, not computed from the responses it is used on",
    ),
    statement="b* = E[W^2 |s|^2 R]/E[W^2 |s|^2] minimizes tr Var(W (R - b) s), which drops by E[W^2 |s|^2 R]^2/E[W^2 |s|^2]; "
    "with min(W,c) the bias is -E[(W-c)+ R s] + b E[(W-c)+ s]",
    source="literature (on-policy: Greensmith, Bartlett and Baxter 2004); with weights, and the bias under a cap: ours",
    references=("Greensmith, Bartlett and Baxter, Variance reduction techniques for gradient estimates, JMLR 5 (2004) 1471",),
    claims=(
        Claim("unbiased", "equal", "mean", "gradient", "with b* the mean is still grad J"),
        Claim("minimum", "at_most", "best", "others", "no other constant has less variance: 0, mean reward, neighbors of b*"),
        Claim("numeric", "equal", "baseline", "numeric", "a bounded minimizer finds the same six digits", tolerance=1e-6),
        Claim("drop", "equal", "drop", "gained", "the variance drops by E[W^2|s|^2 R]^2 / E[W^2|s|^2]"),
        Claim("capped", "equal", "capped_bias", "lost", "min(W,c): the bias is -E[(W-c)+ (R - b) s]"),
        Claim("capped_shift", "equal", "shift", "cut_off", "of which the baseline causes b E[(W-c)+ s]"),
        Claim("capped_not_free", "differs", "with_baseline", "without_baseline", "so under a cap it moves the mean", margin=0.02),
    ),
    instances=instances,
    measure=measure,
    derive=lambda instance: baseline_derivation(
        instance.shape, instance.name == "deterministic_target", CAP, GIVEN
    ),
    outcome="Weigh rewards by W^2 |s|^2 for the best constant baseline; with capped or masked weights a baseline is not free.",
    mutants=(
        Mutant(name="weights_capped", kind="hypothesis", measure=capped_reading, on=TOLD_APART,
               breaks=("unbiased", "minimum", "numeric", "drop"),
               why="E[min(W,c) s] is not 0, so the mean moves with b and the parabola has another vertex; needs W above the cap"),
        Mutant(name="support_violated", kind="hypothesis",
               breaks=("unbiased", "minimum", "numeric", "drop", "capped", "capped_shift"),
               instances=lambda: [uncovered_world()], why="E[W s] misses what is never drawn and is not 0"),
        Mutant(name="weight_not_squared", kind="bug", breaks=("minimum", "numeric", "drop"), on=TOLD_APART,
               plant=lambda: planted(optimal_baseline, "optimal_scalar_baseline", unsquared),
               why="W in place of W^2: the on-policy formula reweighted; needs target != behavior"),
        Mutant(name="mean_reward", kind="bug", breaks=("minimum", "numeric", "drop"), on=TOLD_APART,
               plant=lambda: planted(optimal_baseline, "optimal_scalar_baseline", mean_reward),
               why="the habitual baseline forgets |s|^2; needs rewards that go with the length of the score"),
        Mutant(name="ratio_inverted", kind="bug", on=("one_token",),
               breaks=("unbiased", "minimum", "numeric", "drop", "capped", "capped_shift"),
               plant=lambda: planted(granularity, "log_ratios", lambda right: lambda *a, **k: -right(*a, **k)),
               why="behavior over target is no weight with E[W s] = 0; needs target != behavior"),
    ),
)  # fmt: skip
