"""C8: raising small ratios adds weight that no one has, and adds it where the trainer has turned away."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import sympy as sp
import torch

from testbed.estimators.gradient import gradient_terms
from testbed.policies.schedule import PrefixSchedule, one
from testbed.policies.tabular import TabularPolicy
from testbed.weighting import confidence
from testbed.weighting import truncate as truncation
from testbed.weighting.confidence import displacement
from testbed.weighting.rules import weigh
from theory.derivation import Derivation, Step
from theory.mismatch_worlds import PC, F, K, P, Q, bind, mismatch, mismatches, noisy, point, probabilities
from theory.planting import planted
from theory.theorem import Claim, Mutant, Quantities, Theorem
from theory.worlds import World

LOW, HIGH = sp.Symbol("a", nonnegative=True), sp.Symbol("b", positive=True)
BANDS = {"floor": (0.5, float("inf")), "band": (0.5, 5.0), "narrow": (0.9, 1.2), "cap": (0.0, 1.2)}
SMALL = 16  # tokens for which whole gradients are compared


@dataclass(frozen=True, kw_only=True)
class Band:
    """A world of one token under a clamp of the ratio to [low, high]."""

    name: str
    world: World
    low: float
    high: float


def measure(instance: Band) -> Quantities:
    """Mean weight against the two excesses, and the push on unlikely tokens of negative advantage."""
    law, batch = instance.world.law, instance.world.batch
    weight = weigh("band", batch, low=instance.low, high=instance.high).value[:, 0]
    values = {k: torch.from_numpy(v[batch.tokens[:, 0].numpy()]) for k, v in probabilities(instance.world).items()}
    ratio = values["p"] / values["q"]
    raised, cut = law.expect((instance.low - ratio).clamp(min=0)), law.expect((ratio - instance.high).clamp(min=0))
    off = float(law.expect(weight) - 1)
    found: dict[str, Any] = {
        "off": off, "excesses": raised - cut,
        "above_one": float(off > 1e-12), "floor_is_larger": float(raised - cut > 1e-12),
    }  # fmt: skip
    if instance.high < float("inf"):
        found["summand"] = law.probs * (weight - ratio)
    elif bool((ratio < instance.low * (1 - 1e-9)).any()):
        found |= {"rises": float(off > 1e-12), "yes": 1.0}
    unlikely = (ratio < instance.low) & (ratio > 0)
    if bool(unlikely.any()) and instance.world.env.vocab_size <= SMALL:
        found |= _pushes(instance, unlikely, float(raised) > 1e-3)
    p = values["p"][values["p"] > 0]
    halved = p * 2 / (1 + p)  # the sampler's probability at which k is (1+p)/2
    found |= {"shift_at_paper_floor": displacement(p.log(), halved.log()), "minus_log_2": -np.log(2.0)}
    found |= {"half_odds": (1 + p) / 2}
    return found


def _pushes(instance: Band, unlikely: torch.Tensor, plainly: bool) -> dict[str, Any]:
    """What tokens below the floor do to their own log-probability when their advantage is -1, clamped and exact."""
    law, batch, pi = instance.world.law, instance.world.batch, instance.world.target
    rows, blame = unlikely.nonzero()[:, 0], -torch.ones(batch.batch_size, dtype=torch.float64)
    clamped, exact = (
        gradient_terms(batch, weigh(rule, batch, **params), pi, blame)[rows, 0]
        for rule, params in (("band", {"low": instance.low, "high": instance.high}), ("exact", {}))
    )
    score = gradient_terms(batch, weigh("none", batch), pi, -blame)[rows, 0]
    pushes = [(law.probs[rows] * (terms * score).sum(1)).sum() for terms in (clamped, exact)]
    ratio = (batch.logp_target - batch.logp_behavior)[rows].exp()
    found: dict[str, Any] = {"clamped_terms": clamped, "multiplied": exact * instance.low / ratio}
    found |= {"push": pushes[0], "due": pushes[1]}
    return found | ({"pushed_down": pushes[0], "deserved": pushes[1]} if plainly else {})


@lru_cache(maxsize=1)
def _derivation() -> Derivation:
    largest = lambda x, y: (x + y + sp.Abs(x - y)) / 2  # noqa: E731
    clamped = -largest(-largest(K, LOW), -HIGH)
    over, under = (K - HIGH + sp.Abs(K - HIGH)) / 2, (LOW - K + sp.Abs(LOW - K)) / 2
    chains = [
        [
            Step("summand", Q * clamped - P, "one token's share of E_q[clamp(k,a,b)] - 1", quantity="summand",
                 tex=r"q\,\mathrm{clamp}(k,a,b) - p"),
            Step("over_k", Q * (clamped - K), "p = q k", tex=r"q\,(\mathrm{clamp}(k,a,b) - k)"),
            Step("excesses", Q * (under - over), "below a it adds a - k, above b it takes k - b, and never both",
                 tex=r"q\,\big((a-k)_+ - (k-b)_+\big)"),
        ],
        [
            Step("half_odds", P + PC * sp.Rational(1, 2), "the ratio p + (1-p) e^eps of C1 at e^eps = 1/2",
                 tex=r"p + \tfrac12(1-p)"),
            Step("papers_floor", (1 + P) / 2, "the floor of the paper's two-sided arm", quantity="half_odds",
                 tex=r"\tfrac12(1+p)"),
        ],
        [
            Step("own_push", -Q * LOW * F, "a token with k < a and advantage -1, clamped: what it does to its own log-prob, F "
                 "the squared length of its score", tex=r"-q\,a\,\|s\|^2"),
            Step("amplified", -Q * K * F * (LOW / K), "k > 0: the exact push -q k |s|^2 times a/k > 1",
                 tex=r"-q\,k\,\|s\|^2 \cdot \frac{a}{k}"),
        ],
    ]  # fmt: skip

    def draw(rng: Any) -> dict[sp.Symbol, Any]:
        low = sp.Rational(rng.randint(0, 9), 8)
        return {**point(rng), LOW: low, HIGH: low + sp.Rational(rng.randint(1, 20), 8)}

    def numbers(i: Band) -> dict[sp.Symbol, Any]:
        drawn = i.world.batch.tokens[:, 0].numpy()
        values = {symbol: value[drawn] for symbol, value in bind(i.world).items()}
        return {**values, LOW: i.low, HIGH: min(i.high, float(values[K].max()) + 1)}

    return Derivation(chains, draw, numbers)


def instances() -> list[Band]:
    """Every mismatch under a pure floor, the usual band, a narrow one and a pure cap."""
    return [
        Band(name=f"{world.name}_{name}", world=world, low=low, high=high)
        for world in mismatches()
        for name, (low, high) in BANDS.items()
    ]


def without_support() -> list[Band]:
    """A sampler that never draws one of the trainer's tokens."""
    world = noisy("cut_tail", 4, 0.5)
    logits = world.behaviors[0].table.clone()
    logits[0, 0] = -torch.inf
    cut = replace(world, schedule=PrefixSchedule((TabularPolicy(logits),), one()))
    return [Band(name="cut_tail_band", world=cut, low=0.5, high=5.0)]


def impossible_tokens() -> list[Band]:
    """A token that the sampler draws and the trainer rules out."""
    return [
        Band(name="impossible_band", world=mismatch("impossible", [0.6, 0.4, 0.0], [0.4, 0.3, 0.3]), low=0.5, high=5.0)
    ]


def cap_only(right: Any) -> Any:
    """Bug: the lower side of the clamp is forgotten."""
    return lambda log_ratio, low, high: right(log_ratio, 0.0, high)


def zero_below(right: Any) -> Any:
    """Bug: ratios below the band get weight 0."""

    def wrong(log_ratio: Any, low: float, high: float) -> Any:
        return torch.where(log_ratio < np.log(low), torch.zeros_like(log_ratio), right(log_ratio, low, high))

    return wrong


def gap_of_logs(right: Any) -> Any:
    """Bug: the log ratio taken for the log-odds shift."""
    return lambda logp_target, logp_behavior: logp_target - logp_behavior


THEOREM = Theorem(
    id="C8",
    kind="counterexample",
    refutes="clamping the ratio on both sides is truncated importance sampling, and as safe",
    title="a floor raises the mean weight above 1 and pushes tokens that the trainer finds unlikely",
    hypotheses=("tokens are drawn from q, which gives every token of the trainer's law a chance", "0 <= a <= b; k > 0"),
    statement="E_q[clamp(k,a,b)] - 1 = E_q(a-k)+ - E_q(k-b)+: above 1 for a pure floor that acts, for a band iff the floor's "
    "excess is the larger; on tokens with k < a an update of either sign is multiplied by a/k > 1: with a negative advantage it "
    "pushes down what the trainer already finds unlikely. The paper's floor (1+p)/2 is k at e^eps = 1/2",
    source="ours; the arm that collapses in CIS Table 2, and what two frameworks call truncated importance sampling",
    claims=(
        Claim("mean_weight", "equal", "off", "excesses", "mean weight - 1 = excess below a - excess above b"),
        Claim("floor_raises", "equal", "rises", "yes", "a floor that acts raises it above 1"),
        Claim("band_iff", "equal", "above_one", "floor_is_larger", "a band does iff the floor's excess is larger"),
        Claim("amplifies", "differs", "pushed_down", "deserved",
              "a negative advantage pushes the log-probs of tokens below the floor by more than the exact ratio does",
              margin=5e-3),
        Claim("further_down", "at_most", "push", "due", "and it pushes them further down"),
        Claim("by_how_much", "equal", "clamped_terms", "multiplied", "the gradient of a token below the floor is multiplied by "
              "a/k"),
        Claim("papers_floor", "equal", "shift_at_paper_floor", "minus_log_2", "k = (1+p)/2 is a displacement of -log 2 at any p"),
    ),
    instances=instances,
    measure=measure,
    derive=lambda instance: _derivation(),
    outcome="Never raise a small ratio: cap from above only. A clamp with a lower bound is another operator, whatever its name.",
    mutants=(
        Mutant(name="lost_support", kind="hypothesis", breaks=("mean_weight",), instances=without_support,
               why="tokens that the sampler never draws: the mean of k itself is below 1"),
        Mutant(name="impossible_tokens", kind="hypothesis", breaks=("mean_weight", "band_iff"), instances=impossible_tokens,
               why="k > 0 dropped: a token that the trainer rules out keeps weight 0, no floor raises it"),
        Mutant(name="lower_side_forgotten", kind="bug",
               breaks=("mean_weight", "floor_raises", "band_iff", "amplifies", "by_how_much"),
               on=("strong_floor", "doubtful_trainer_floor"), plant=lambda: planted(truncation, "clamp", cap_only),
               why="min(k, b): never above 1; needs ratios below a"),
        Mutant(name="masked_below", kind="bug", breaks=("mean_weight", "band_iff", "further_down", "by_how_much"),
               on=("doubtful_trainer_band",), plant=lambda: planted(truncation, "clamp", zero_below),
               why="what is below a is dropped, as a mask would: pushes vanish instead of growing"),
        Mutant(name="log_ratio_for_displacement", kind="bug", breaks=("papers_floor",), on=("mild_band", "strong_band"),
               plant=lambda: planted(confidence, "displacement", gap_of_logs),
               why="the shift in log-probability at (1+p)/2 depends on p"),
    ),
)  # fmt: skip
