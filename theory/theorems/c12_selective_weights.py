"""C12: accepting a token as the trainer's own and keeping the rejected ones does not add up; the completion does."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import sympy as sp
import torch

from testbed.core.choices import Chooser, ReplayChooser
from testbed.weighting import selective
from testbed.weighting.rules import weigh
from theory.derivation import Derivation, Step
from theory.mismatch_worlds import F, K, P, Q, bind, point, synthetic_mismatches
from theory.planting import planted
from theory.theorem import Claim, Mutant, Quantities, Theorem
from theory.worlds import World

M = sp.Symbol("M", positive=True)


@dataclass(frozen=True, kw_only=True)
class Selective:
    """A world of one token, and the bound M as a multiple of the largest ratio."""

    name: str
    world: World
    room: float

    @property
    def bound(self) -> float:
        """M."""
        batch = self.world.batch
        return self.room * float((batch.logp_target - batch.logp_behavior).exp().max())


def outcomes(instance: Selective, completion: bool) -> list[tuple[torch.Tensor, torch.Tensor, float]]:
    """Every draw of acceptance for the batch of all tokens: weights, accepted, probability."""
    batch = instance.world.batch

    def once(chooser: Chooser) -> tuple[torch.Tensor, torch.Tensor]:
        w = weigh("sis", batch, bound=instance.bound, completion=completion, chooser=chooser)
        return w.value[:, 0], w.value[:, 0] == 1.0

    return [(value, kept, chance) for (value, kept), chance in ReplayChooser.walk(once)]


def measure(instance: Selective, least_room: float = 1.01) -> Quantities:
    """Moments over tokens and acceptance, by enumeration of both. Mutants complete without room above the largest ratio."""
    law, bound = instance.world.law, instance.bound
    f = law.batch.reward
    ratio = weigh("exact", law.batch).value[:, 0]
    accept = ratio / bound
    plain, completed = outcomes(instance, False), outcomes(instance, True)

    def mean(draws: Any, of: Any) -> Any:
        return sum(chance * law.expect(of(value)) for value, _, chance in draws)

    truth = instance.world.target_law.expect(instance.world.target_law.batch.reward)
    expected = weigh("sis", law.batch, bound=bound).value[:, 0]
    found: dict[str, Any] = {
        "mean": mean(plain, lambda w: w), "less_chi2": 1 - (law.expect(ratio**2) - 1) / bound,
        "bias": mean(plain, lambda w: w * f) - truth, "bias_formula": (truth - law.expect(ratio**2 * f)) / bound,
        "second": mean(plain, lambda w: w**2), "second_formula": law.expect(accept + (1 - accept) * ratio**2),
        "averaged": expected, "by_hand": accept + (1 - accept) * ratio,
        "summand": law.probs * (expected - ratio) * f,
        "below": mean(plain, lambda w: w), "one": 1.0,
    }  # fmt: skip
    kept = sum(chance * law.expect(taken.double()) for _, taken, chance in plain)
    if not bool((ratio == 1).any()):
        share = sum(chance * law.probs * taken.double() for _, taken, chance in plain) / kept
        found |= {"accepted_law": share, "trainers_law": law.probs * ratio, "rate": kept, "inverse": 1 / bound}
    if instance.room >= least_room:
        surplus = torch.where(
            accept < 1 - 1e-12, accept * (ratio - 1) ** 2 / (1 - accept).clamp(min=1e-12), torch.zeros(())
        )
        excess = law.expect(surplus)
        found |= {"completed": mean(completed, lambda w: w * f), "truth": truth}
        found |= {"completed_second": mean(completed, lambda w: w**2), "with_excess": law.expect(ratio**2) + excess}
    if instance.name == "doubtful_trainer_tight":
        found |= {"claimed": truth, "got": mean(plain, lambda w: w * f)}
    return found


@lru_cache(maxsize=1)
def _derivation() -> Derivation:
    a = K / M
    completed = (K - a) / (1 - a)
    chains = [
        [
            Step("weight", Q * (a * 1 + (1 - a) * K) * F - P * F, "accepted 1, rejected k: one token's share of the bias",
                 tex=r"q\,(a + (1-a)k)\,f - p\,f"),
            Step("minus_k", Q * (a + (1 - a) * K - K) * F, "p = q k", quantity="summand", tex=r"q\,a\,(1 - k)\,f"),
            Step("over_m", (P - Q * K**2) * F / M, "a = k/M: summed over tokens (E_p f - E_q[k^2 f])/M, with f = 1 minus chi2/M",
                 tex=r"\frac{(p - q k^2)\,f}{M}"),
        ],
        [
            Step("accepted", Q * a, "chance of being drawn and accepted", tex=r"q\,a"),
            Step("trainer", P / M, "p-distributed, at rate 1/M", tex=r"p/M"),
        ],
        [
            Step("completion", Q * (a + (1 - a) * completed) * F, "rejected weight (k-a)/(1-a)", tex=r"q\,\big(a + "
                 r"(1-a)\tfrac{k-a}{1-a}\big) f"),
            Step("unbiased", P * F, "adds up to k", tex=r"p\,f"),
        ],
        [
            Step("second", a + (1 - a) * completed**2 - K**2, "second moment of the completion over that of k",
                 tex=r"a + \frac{(k-a)^2}{1-a} - k^2"),
            Step("excess", a * (K - 1) ** 2 / (1 - a), "never negative: it costs variance", tex=r"\frac{a\,(k-1)^2}{1-a}"),
        ],
    ]  # fmt: skip

    def draw(rng: Any) -> dict[sp.Symbol, Any]:
        numbers = dict(point(rng))
        return {**numbers, M: numbers[K] + sp.Rational(rng.randint(1, 9), 4)}

    def numbers(i: Selective) -> dict[sp.Symbol, Any]:
        return {**bind(i.world), F: i.world.batch.reward.numpy(), M: i.bound}

    return Derivation(chains, draw, numbers)


def instances() -> list[Selective]:
    """Synthetic mismatches with the bound at the largest ratio and with room above it."""
    return [
        Selective(name=f"{world.name}_{name}", world=world, room=room)
        for world in synthetic_mismatches()
        for name, room in {"tight": 1.0, "room": 1.5}.items()
        if world.name not in ("very_confident", "agreement")
    ]


def bound_too_small() -> list[Selective]:
    """A bound below the largest ratio, as a bound over a few likely tokens may be."""
    world = next(w for w in synthetic_mismatches() if w.name == "doubtful_trainer")
    return [Selective(name="bound_too_small", world=world, room=0.4)]


def accepted_by_ratio(right: Any) -> Any:
    """Bug: acceptance min(1, k), as one summary of the paper has it."""
    return lambda log_ratio, log_bound: right(log_ratio, torch.zeros_like(log_bound))


def rejected_instead(right: Any) -> Any:
    """Bug: the two outcomes exchanged."""
    return lambda chooser, accept, reject, tested: right(chooser, reject, accept, tested)


THEOREM = Theorem(
    id="C12",
    kind="counterexample",
    refutes="selective importance sampling is unbiased, since accepted tokens are the trainer's own",
    title="its mean weight is 1 - chi2/M; the completion is unbiased and costs variance",
    hypotheses=("tokens are drawn from q, and q > 0 wherever p > 0; M >= max k (completion: M > max k)", "accepted with "
    "probability a = k/M: weight 1; else k"),
    statement="E_q[w] = 1 - chi2/M, bias (E_p f - E_q[k^2 f])/M; accepted tokens alone are p-distributed, at rate 1/M; "
    "rejected weight (k-a)/(1-a) instead of k is unbiased and adds E_q[a (k-1)^2/(1-a)] to the second moment of k",
    source="ours; SIS, arXiv 2607.04728, its algorithm from a third party's account",
    reading=True,
    claims=(
        Claim("mean", "equal", "mean", "less_chi2", "mean weight 1 - chi2/M"),
        Claim("bias", "equal", "bias", "bias_formula", "bias (E_p f - E_q[k^2 f])/M"),
        Claim("biased", "differs", "got", "claimed", "which is not 0", margin=0.05),
        Claim("shrinks", "at_most", "below", "one", "a hidden cut of the step size"),
        Claim("second", "equal", "second", "second_formula", "second moment E_q[a + (1-a) k^2]"),
        Claim("accepted", "equal", "accepted_law", "trainers_law", "accepted tokens are p-distributed"),
        Claim("rate", "equal", "rate", "inverse", "and 1/M of all"),
        Claim("expectation", "equal", "averaged", "by_hand", "without a chooser the rule gives a + (1-a) k"),
        Claim("completion", "equal", "completed", "truth", "the completion is unbiased"),
        Claim("completion_cost", "equal", "completed_second", "with_excess", "its second moment is that of k plus E_q[a "
              "(k-1)^2/(1-a)]"),
    ),
    instances=instances,
    measure=measure,
    derive=lambda instance: _derivation(),
    outcome="Use the accepted tokens alone, or complete the rejected weight, or accept a bias of order chi2/M: not both halves "
    "as they are.",
    mutants=(
        Mutant(name="bound_below_the_ratio", kind="hypothesis", instances=bound_too_small,
               breaks=("mean", "bias", "second", "accepted", "rate", "expectation"),
               why="M from the likeliest tokens only may be below the largest ratio: a is cut at 1"),
        Mutant(name="accept_with_min_1_k", kind="bug", on=("doubtful_trainer_tight", "strong_tight"),
               breaks=("mean", "bias", "second", "accepted", "rate", "expectation"),
               plant=lambda: planted(selective, "acceptance", accepted_by_ratio),
               why="another acceptance: more accepted, more bias"),
        Mutant(name="accepted_for_rejected", kind="bug", on=("doubtful_trainer_tight", "strong_tight"),
               breaks=("mean", "bias", "shrinks", "second", "accepted", "rate"),
               plant=lambda: planted(selective, "accepted", rejected_instead),
               why="accepted with probability 1 - a: the mean weight is 1 + chi2/M"),
        Mutant(name="completed_without_room", kind="hypothesis", breaks=("completion", "completion_cost"),
               on=("doubtful_trainer_tight", "strong_tight"), measure=partial(measure, least_room=1.0),
               why="M = max k: the likeliest to be accepted is never rejected, and nothing completes its weight 1 to k"),
    ),
)  # fmt: skip
