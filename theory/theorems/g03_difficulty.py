"""G3: dividing by the group's standard deviation keeps the direction for rewards 0 and 1, and weighs prompts by difficulty."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any

import torch
from torch import Tensor

from testbed.core.batch import SegmentedBatch
from testbed.estimators import advantage, difficulty
from testbed.estimators.difficulty import difficulty_factor
from testbed.exact.gradients import exact_gradient
from testbed.exact.group_updates import group_compositions
from testbed.exact.moments import batch_statistic
from testbed.policies.schedule import one
from theory.derivation import Derivation
from theory.difficulty_symbols import binary_derivation, factor_derivation, graded_derivation
from theory.group_worlds import Group, cosine, groups_of, update_of
from theory.planting import planted
from theory.theorem import Claim, Mutant, Quantities, Theorem
from theory.worlds import World, world

RATES = torch.tensor([0.5, 0.25, 0.1, 0.01], dtype=torch.float64)
MANY = 20_000


@dataclass(frozen=True)
class Difficulty:
    """The factor alone, for groups of `size`, at several success rates."""

    name: str
    size: int


def measure(instance: Group | Difficulty, refill: bool = False) -> Quantities:
    """Scaled update and the library's factor times its gradient; `refill` replaces groups without spread by others."""
    if isinstance(instance, Difficulty):
        return _factors(instance)
    w, size = instance.world, instance.size
    law, gradient = w.target_law, exact_gradient(w.env, w.target)
    compositions = group_compositions([(law, size)])
    rewards = law.batch.reward[compositions.index]
    kept = float(compositions.expect((rewards.amax(1) > rewards.amin(1)).double())) if refill else 1.0
    scaled, sample = (
        update_of(compositions, w.target, "group_mean", "std", ddof=d) / (kept if kept > 0 else 1.0) for d in (0, 1)
    )
    if instance.name.startswith("three_values"):
        return {"scaled": scaled, "cosine": cosine(scaled, gradient), "one": 1.0}
    p = law.expect(law.batch.reward)
    found: dict[str, Any] = {"scaled": scaled, "expected": difficulty_factor(p, size) * gradient}
    if size > 1:
        found |= {"sample": sample, "expected_sample": difficulty_factor(p, size, 1) * gradient}
    spread = batch_statistic(law, size, lambda index: law.batch.reward[index].std(1, correction=0))
    found |= {"mean_spread": spread.mean, "spread_of_factor": difficulty_factor(p, size) * p * (1 - p)}
    if instance.name.startswith("always") or size == 1:
        found |= {"silent": scaled, "zero": 0.0}
    return found


def _factors(instance: Difficulty) -> Quantities:
    size, factor = instance.size, difficulty_factor(RATES, instance.size)
    found: dict[str, Any] = {"factor": factor}
    if size == 2:
        found["factor_two"], found["unit"] = factor, 1.0
    elif size == 3:
        found["factor_three"], found["root_two"] = factor, sqrt(2)
    elif size == 4:
        found |= {"middling": factor[0], "hard": factor[2]}
    if size == MANY:
        return found | {"factor_many": factor, "whitened": 1 / (RATES * (1 - RATES)).sqrt()}
    ends = torch.tensor([0.0, 1e-10, 1 - 1e-10, 1.0], dtype=torch.float64)
    return found | {"ends": difficulty_factor(ends, size), "limit": sqrt(size - 1)}


def derive(instance: Group | Difficulty) -> Derivation:
    """The factor alone; the update of groups with two or, in the graded world, three values of the reward."""
    if isinstance(instance, Difficulty):
        return factor_derivation(tuple(RATES.tolist()), instance.size)
    shape, rewards = instance.world.shape, tuple(instance.world.target_law.batch.reward.tolist())
    if instance.name.startswith("three_values"):
        return graded_derivation(shape, instance.size, rewards)
    return binary_derivation(shape, instance.size, tuple(map(bool, rewards)))


def worlds() -> list[World]:
    """One token and several, an end token; rewards 0 and 1."""
    return [
        world("right_or_wrong", 3, 1, one(), behaviors=1, rewards=[1.0, 0.0, 0.0]),
        world("right_at_the_end", 2, 2, one(), behaviors=1, eos=1, rewards=[0.0, 1.0, 0.0, 1.0]),
        world("right_in_two", 2, 2, one(), behaviors=1, rewards=[0.0, 1.0, 1.0, 0.0]),
        world("always_right", 2, 2, one(), behaviors=1, rewards=[1.0] * 4),
    ]


def graded() -> World:
    """Partial credit: rewards 0, 1/2 and 1."""
    return world("three_values", 3, 1, one(), behaviors=1, rewards=[1.0, 0.5, 0.0])


def instances() -> list[Group | Difficulty]:
    """Groups of one to five, graded rewards, and the factor alone for groups of 2 to 20,000."""
    found: list[Group | Difficulty] = [*groups_of(worlds(), (2, 1, 3, 5)), *groups_of([graded()], (2, 4))]
    return found + [Difficulty(f"groups_of_{m}", m) for m in (2, 3, 4, 16, MANY)]


def graded_as_binary() -> list[Group]:
    """The graded world under a name for which the binary formula is measured."""
    return [Group("graded_4", graded(), 4)]


def ddof_swapped(right: Any) -> Any:
    """Bug: the other denominator of the variance."""

    def wrong(batch: SegmentedBatch, baseline: Any, scale: Any, ddof: int = 0, *rest: Any) -> Tensor:
        return right(batch, baseline, scale, 1 - ddof, *rest)

    return wrong


def epsilon_added(right: Any) -> Any:
    """Bug: 1e-4 added to the standard deviation, as many trainers do against groups without spread."""

    def wrong(batch: SegmentedBatch, baseline: Any, scale: Any, ddof: int = 0, *rest: Any) -> Tensor:
        scaled, plain = right(batch, baseline, scale, ddof, *rest), right(batch, baseline, "none")
        spread = torch.where(scaled != 0, plain / torch.where(scaled != 0, scaled, 1.0), 1.0)
        return plain / (spread + 1e-4)

    return wrong


def batch_spread(right: Any) -> Any:
    """Bug: centered within the group, divided by the standard deviation of the whole batch."""

    def wrong(batch: SegmentedBatch, baseline: Any, scale: Any, ddof: int = 0, *rest: Any) -> Tensor:
        return right(batch, baseline, "none") / batch.reward.std(correction=ddof)

    return wrong


def spread_without_ends(right: Any) -> Any:
    """Bug: the factor of groups that are known to hold a success and a failure."""
    return lambda p, size, ddof=0: right(p, size, ddof) / (1 - p**size - (1 - p) ** size).clamp(min=1e-12)


BOTH = ("scaled", "sample_std")
TOLD_APART = ("right_or_wrong_5", "right_in_two_3")
THEOREM = Theorem(
    id="G3",
    kind="identity",
    title="std-scaled group advantages with binary rewards: the gradient times a factor that depends on difficulty",
    hypotheses=(
        "R is 0 or 1, p = P(R = 1) under the target, the M responses are independent and on-policy",
        "mean and standard deviation are the group's own, the population's unless said otherwise",
        "groups without spread contribute 0 and still count in the mean over groups",
    ),
    statement="E[(1/M) sum_i (R_i - mean)/sigma_M s_i] = G_x E[sigma_M]/(p(1-p)), "
    "E[sigma_M] = sum_k C(M,k) p^k (1-p)^(M-k) sqrt(k(M-k))/M; the factor is 1 at M=2, sqrt 2 at M=3, "
    "sqrt 3 (p^2+q^2) + 3pq at M=4; sqrt(M-1) as p -> 0, 1/sqrt(p(1-p)) as M -> infinity",
    source="ours; that scaling weighs prompts by difficulty: literature (Liu et al. 2025, Understanding R1-Zero-like training)",
    references=("Liu et al., Understanding R1-Zero-like training: a critical perspective, arXiv 2503.20783",),
    claims=(
        Claim("scaled", "equal", "scaled", "expected", "the update is E[sigma_M]/(p(1-p)) times the gradient"),
        Claim("sample_std", "equal", "sample", "expected_sample", "with ddof = 1: sqrt((M-1)/M) of that"),
        Claim("mean_spread", "equal", "mean_spread", "spread_of_factor", "E[sigma_M] is the sum over k"),
        Claim("pairs", "equal", "factor_two", "unit", "M = 2: the factor is 1 whatever p is"),
        Claim("threes", "equal", "factor_three", "root_two", "M = 3: sqrt 2 whatever p is"),
        Claim("fours", "differs", "middling", "hard", "from M = 4 hard prompts count more: p = 1/2 against 1/10", margin=0.03),
        Claim("hard_limit", "equal", "ends", "limit", "p -> 0 or 1: sqrt(M-1), seven digits at 1e-10", tolerance=1e-7),
        Claim("large_groups", "equal", "factor_many", "whitened", "M = 20000: 1/sqrt(p(1-p)) to two digits", tolerance=5e-3),
        Claim("silent", "equal", "silent", "zero", "certain success, or a group of one: no update"),
        Claim("graded", "differs", "cosine", "one", "three reward values: cosine with G_x (left) is not 1", margin=1e-4),
    ),
    instances=instances,
    measure=measure,
    derive=derive,
    outcome="Scaling by the standard deviation moves weight to prompts near 0 and 1; with partial credit it turns the gradient.",
    mutants=(
        Mutant(name="three_values", kind="hypothesis", breaks=(*BOTH, "mean_spread"), instances=graded_as_binary,
               why="partial credit: the spread is no function of the number of successes; needs M of at least 3"),
        Mutant(name="refilled", kind="hypothesis", breaks=BOTH, on=TOLD_APART,
               measure=lambda instance: measure(instance, refill=True),
               why="groups without spread are drawn again, so all groups count: the factor grows by 1/(1 - p^M - q^M)"),
        Mutant(name="ddof_swapped", kind="bug", breaks=BOTH, on=TOLD_APART,
               plant=lambda: planted(advantage, "group_advantage", ddof_swapped),
               why="population and sample standard deviation exchanged; needs M small"),
        Mutant(name="epsilon_added", kind="bug", breaks=BOTH, on=TOLD_APART,
               plant=lambda: planted(advantage, "group_advantage", epsilon_added),
               why="1e-4 in the denominator shrinks groups of small spread most"),
        Mutant(name="spread_of_the_batch", kind="bug", breaks=BOTH, on=TOLD_APART,
               plant=lambda: planted(advantage, "group_advantage", batch_spread),
               why="one divisor for all groups weighs a prompt by p(1-p), without the factor"),
        Mutant(name="ends_divided_out", kind="bug", breaks=(*BOTH, "mean_spread"), on=TOLD_APART,
               plant=lambda: planted(difficulty, "difficulty_factor", spread_without_ends),
               why="the factor of mixed groups for that of all groups; needs p away from 0 and 1"),
    ),
)  # fmt: skip
