"""S13: what Kish's effective sample size estimates, and why that of capped weights must not be reported as the data's."""

from __future__ import annotations

from functools import lru_cache
from math import comb, sqrt
from typing import Any

import sympy as sp
import torch
from torch import Tensor

from testbed.exact.moments import batch_statistic, multisets
from testbed.policies.schedule import one
from testbed.policies.tabular import TabularPolicy
from testbed.stats import weight_sample
from testbed.stats.weight_statistics import chi2, ess, mean_weight, second_moment
from theory.derivation import Derivation, Step
from theory.kish_algebra import sample_chains
from theory.planting import planted
from theory.real_laws import M, P, R, is_real, real_laws, summand_derivation
from theory.response_weights import response_weight
from theory.small_worlds import small_worlds, uncovered_world
from theory.symbols import symbolic_world
from theory.theorem import Claim, Mutant, Quantities, Theorem
from theory.worlds import World, world

CAPS = (0.2, 0.6, 1.0, 1.6, 4.0)
ASKED = 1000  # sample size the population value is asked about
MOST = 25  # samples enumerated per world
MASKED = [0, 1, 1, 1, 1, 1, 1, 2]  # a sample of the three-weight world on which masking goes both ways


def kish(rows: Tensor, which: str = "raw") -> Tensor:
    """Library's effective sample size of every row of weights."""
    return torch.tensor([float(ess(row, which=which)) for row in rows], dtype=torch.float64)


def sample_size(atoms: int) -> int:
    """Largest batch of which at most `MOST` multisets exist; at least 1."""
    return max(n for n in range(1, MOST) if n == 1 or comb(atoms + n - 1, n) <= MOST)


def measure(instance: World, operator: str = "seq_tis") -> Quantities:
    """Kish's statistic of the exact law and of every batch of n responses, raw and under a rising cap.

    `operator` is the rule that bounds the weights (mutants mask instead).
    """
    law, batch = instance.law, instance.batch
    w = response_weight(batch)
    bounded = torch.stack([response_weight(batch, operator, cap=c) for c in CAPS])
    d2, divergence = float(second_moment(w, probs=law.probs)), float(chi2(w, probs=law.probs))
    population = torch.tensor(
        [float(ess(v, probs=law.probs, n=ASKED, which="applied")) for v in bounded], dtype=torch.float64
    )
    found: dict[str, Any] = {
        "population": ess(w, probs=law.probs, n=ASKED),
        "n_over_d2": ASKED / d2,
        "lower_cap": population[:-1],
        "higher_cap": population[1:],
        "raw": ess(w, probs=law.probs, n=ASKED),
        "applied": population,
    }
    if is_real(instance):
        return found | {"square": law.probs * w**2}
    found["share"] = found["population"] / ASKED
    n = sample_size(len(w))
    index, _ = multisets(law, n)
    rows = w[index]
    raw = kish(rows)
    curve = torch.stack([kish(v[index], "applied") for v in bounded])
    first = torch.tensor([float(mean_weight(row)) for row in rows], dtype=torch.float64)
    second = torch.tensor([float(second_moment(row)) for row in rows], dtype=torch.float64)
    spread = float(law.expect((w**2 - d2) ** 2))
    found |= {
        "kish": raw, "n": n, "one": (rows > 0).any(1), "kish_rescaled": kish(2.5e3 * rows),
        "alone": kish(w[w > 0][:, None]), "unit": 1.0,
        "lower_cap": curve[:-1], "higher_cap": curve[1:], "raw": raw.expand_as(curve), "applied": curve,
        "distance": (raw / n - 1 / d2).abs(), "distance_bound": ((second - d2).abs() + (first**2 - 1).abs()) / d2,
        "rate": batch_statistic(law, n, lambda rows: (kish(w[rows]) / n - 1 / d2).abs()).mean,
        "rate_bound": (sqrt(spread) + sqrt(divergence * (4 + divergence / n))) / (d2 * sqrt(n)),
    }  # fmt: skip
    if instance.name == "on_policy":
        found["constant"] = raw
    if instance.name == "three_weights":
        caps = [0.5, 1.5, 3.0]
        curve = torch.cat([kish(response_weight(batch, "seq_mis", cap=c)[MASKED][None], "applied") for c in caps])
        found |= {"masked": curve, "masked_falling": curve.cummin(0).values, "masked_rising": curve.cummax(0).values}
        found |= {
            "masked_or_raw": curve.clamp(min=float(curve[-1])),
            "masked_and_raw": curve.clamp(max=float(curve[-1])),
        }
    return found


def three_weights() -> World:
    """One token of three, with weights .4, 1 and 2.5."""
    pi, mu = (
        TabularPolicy.from_probs(torch.tensor([p], dtype=torch.float64)) for p in ([0.2, 0.3, 0.5], [0.5, 0.3, 0.2])
    )
    return world("three_weights", 3, 1, one(), target=pi, policies=(mu,))


def instances() -> list[World]:
    """Shared small worlds, a coin with batches of 24, the masking counterexample, and a language model's laws."""
    return [*small_worlds(), world("coin", 2, 1, one(), behaviors=1), three_weights(), *real_laws()]


@lru_cache(maxsize=32)
def _derivation(shape: tuple[Any, ...], in_full: bool) -> Derivation:
    w = symbolic_world(shape)
    draws = [(p, w.weight(y, b)) for b, y, p in w.draws()]
    first, second = sp.Add(*[p * v for p, v in draws]), sp.Add(*[p * v**2 for p, v in draws])
    population = [
        Step(
            "definition",
            first**2 / second,
            "Kish's share (mean)^2 / mean of squares where outcome y has frequency mu(y)",
            quantity="share",
            tex=r"\Big(\sum_y \mu W\Big)^2 \Big/ \sum_y \mu W^2",
        ),
        Step("mean", 1 / second, "W has mean 1: sum_y mu pi/mu = 1", tex=r"1 / E_\mu[W^2] = 1/d_2"),
    ]
    if not in_full:  # the other chains are about any sample, whatever the world
        return Derivation([population], w.point, w.bind)
    chains, free = sample_chains()
    return Derivation([population, *chains], lambda rng: {**w.point(rng), **free(rng)}, w.bind)


@lru_cache(maxsize=1)
def _summand() -> Derivation:
    return summand_derivation([
        Step("definition", M * R**2, "one word's share of d2, hence of n/Kish", quantity="square", tex=r"\mu(y)\,\rho(y)^2"),
        Step("ratio", P**2 / M, "rho = pi/mu; the sum over words is d2", tex=r"\pi(y)^2/\mu(y)"),
    ])  # fmt: skip


def masked_instead(instance: World) -> Quantities:
    """Mutated reading: weights above the threshold are dropped, not capped."""
    return measure(instance, "seq_mis")


def not_normalized(right: Any) -> Any:
    """Bug: the sample's mean weight is taken to be its expectation, 1."""
    return lambda sample: 1.0 / sample.mean(sample.values.square()) if bool((sample.values > 0).any()) else 0.0


def perplexity(right: Any) -> Any:
    """Bug: exp(entropy) of the normalized weights, another effective size."""

    def wrong(sample: Any) -> float:
        share = sample.values / sample.mean(sample.values) if bool((sample.values > 0).any()) else sample.values
        return float(torch.tensor(-sample.mean(torch.special.xlogy(share, share))).exp())

    return wrong


THEOREM = Theorem(
    id="S13",
    kind="identity",
    title="Kish's effective sample size estimates n/d2, and capping the weights can only raise it",
    hypotheses=(
        "weights are not negative and not all 0",
        "for the limit: responses are independent, the behaviors cover the target (E W = 1), and d2 is finite",
        "the operator is a cap min(w, c), the same for every response; a mask has no such order",
    ),
    statement="Kish = (sum w)^2/sum w^2: Kish/n -> 1/d2, Kish(a w) = Kish(w), 1 <= Kish <= n, Kish(min(w,c)) nonincreasing in c",
    source="literature (Kish 1965 and its limit); monotonicity in the cap: ours",
    references=("Kish, Survey Sampling, 1965, section 11.7", "Kong, A note on importance sampling, 1992"),
    claims=(
        Claim("population", "equal", "population", "n_over_d2", "on the exact law Kish's statistic is n/d2"),
        Claim("distance", "at_most", "distance", "distance_bound",
              "a sample's Kish/n is as near 1/d2 as its two moments are to theirs"),
        Claim("rate", "at_most", "rate", "rate_bound", "E|Kish/n - 1/d2| <= (sd(W^2) + sqrt(chi2(4 + chi2/n)))/(d2 sqrt n)"),
        Claim("scale_invariant", "equal", "kish_rescaled", "kish", "a common factor of the weights cancels"),
        Claim("at_least_one", "at_most", "one", "kish", "1 <= Kish unless all weights are 0"),
        Claim("at_most_n", "at_most", "kish", "n", "Kish <= n"),
        Claim("constant_weights", "equal", "constant", "n", "on-policy it is n: the upper bound is attained"),
        Claim("group_of_one", "equal", "alone", "unit", "a single weight counts as one sample, whatever it is"),
        Claim("nonincreasing", "at_most", "higher_cap", "lower_cap", "a higher cap never raises it, in any sample or law"),
        Claim("overstates", "at_most", "raw", "applied", "so that of capped weights is never below the raw one"),
        Claim("mask_not_nonincreasing", "differs", "masked", "masked_falling", "a mask's threshold can raise it", margin=0.03),
        Claim("mask_not_nondecreasing", "differs", "masked", "masked_rising", "and lower it, in one sample", margin=0.03),
        Claim("mask_can_understate", "differs", "masked_or_raw", "masked", "masked can be below raw", margin=0.03),
        Claim("mask_can_overstate", "differs", "masked_and_raw", "masked", "masked can be above raw", margin=0.03),
    ),
    instances=instances,
    measure=measure,
    derive=lambda instance: _summand() if is_real(instance) else _derivation(instance.shape, instance.name == "coin"),
    outcome="Report the effective sample size of raw weights: a cap always flatters it, a mask may do either.",
    mutants=(
        Mutant(name="support_violated", kind="hypothesis", breaks=("population",), instances=lambda: [uncovered_world()],
               why="what the behavior never draws is missing from E W < 1, so Kish tends to n (E W)^2/d2"),
        Mutant(name="mask_in_place_of_cap", kind="hypothesis", breaks=("nonincreasing", "overstates"),
               measure=masked_instead, on=("two_segments", "three_weights"),
               why="dropping large weights loses samples; needs weights on both sides of a cap"),
        Mutant(name="mean_not_divided_out", kind="bug", on=("two_segments",),
               breaks=("distance", "scale_invariant", "at_least_one", "at_most_n", "group_of_one"),
               plant=lambda: planted(weight_sample, "kish_fraction", not_normalized),
               why="n / mean(w^2) is right for the exact law, and wrong for samples, whose mean is not 1"),
        Mutant(name="perplexity_for_kish", kind="bug", breaks=("population", "distance"), on=("two_segments", "three_tokens"),
               plant=lambda: planted(weight_sample, "kish_fraction", perplexity),
               why="exp(entropy) has the same bounds, but another limit; needs target != behavior"),
    ),
)  # fmt: skip
