"""G1: a group mean that includes the response itself shrinks the gradient by (M-1)/M; leaving it out does not."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import sympy as sp
import torch
from torch import Tensor

from testbed.core.batch import SegmentedBatch
from testbed.estimators import advantage
from testbed.exact.gradients import exact_gradient
from testbed.exact.group_updates import GroupCompositions, group_compositions
from testbed.exact.law import ExactLaw
from testbed.policies.schedule import one
from theory.derivation import Derivation, Step
from theory.group_symbols import SymbolicGroup
from theory.group_worlds import Group, groups_of, update_of
from theory.indexed_groups import on_policy_derivation
from theory.planting import planted
from theory.symbols import symbolic_world
from theory.theorem import Claim, Mutant, Quantities, Theorem
from theory.transformer_worlds import TransformerWorld, dense_world, expert_world, short_world
from theory.worlds import World, one_hot_policy, world


def measure(group: Group, law: ExactLaw | None = None) -> Quantities:
    """Expected updates with each baseline against the library's gradient; `law` is who draws (default: the target)."""
    w, size = group.world, group.size
    compositions = group_compositions([(law or w.target_law, size)])
    return _measured(group, compositions)


def _measured(group: Group, compositions: GroupCompositions) -> Quantities:
    w, size = group.world, group.size
    gradient = exact_gradient(w.env, w.target)
    none, mean, other = (update_of(compositions, w.target, b) for b in ("none", "group_mean", "leave_one_out"))
    found: dict[str, Any] = {
        "gradient": gradient,
        "none": none,
        "with_self": mean,
        "shrunk": (size - 1) / size * gradient,
    }
    if size == 1:
        return found | {"alone": torch.stack([mean, other]), "zero": 0.0}
    return found | {"leave_one_out": other}


@lru_cache(maxsize=32)
def _derivation(shape: tuple[Any, ...], size: int) -> Derivation:
    w = symbolic_world(shape)
    g = SymbolicGroup(w, size, on_policy=True)
    gradient = w.gradient()
    first, drift, value = g.single(g.reward), g.single(lambda draw: sp.Integer(1)), g.mean(g.reward)

    def with_self(rows: Any, i: int) -> sp.Expr:
        return (g.reward(rows[i]) - sp.Add(*map(g.reward, rows)) / size) / size

    def without(rows: Any, i: int) -> sp.Expr:
        others = [g.reward(rows[j]) for j in range(size) if j != i]
        return (g.reward(rows[i]) - sp.Add(*others) / max(size - 1, 1)) / size

    shrink, left_out = sp.Rational(size - 1, size), g.update(without)
    chain = [
        Step("definition", g.update(with_self), "all groups of M on-policy responses, mean including the response itself",
             quantity="with_self", tex=r"E\big[\tfrac1M \sum_i (R_i - \bar R) s_i\big]"),
        Step("own_part", [shrink * a for a in left_out], "take R_i out: R_i - mean(R) = (M-1)/M (R_i - mean of the others)",
             tex=r"\tfrac{M-1}{M} E\big[\tfrac1M\sum_i (R_i - \bar R_{-i}) s_i\big]"),
        Step("independence", [shrink * (a - value * d) for a, d in zip(first, drift, strict=True)],
             "others' rewards are independent of s_i", tex=r"\tfrac{M-1}{M} (E[R s] - E[R]\, E[s])"),
        Step("no_drift", [shrink * a for a in first], "E_pi[s] = 0: the probabilities sum to 1", tex=r"\tfrac{M-1}{M} E[R s]"),
        Step("gradient", [shrink * a for a in gradient], "log-derivative, by differentiating J", quantity="shrunk",
             tex=r"\tfrac{M-1}{M} G"),
    ]  # fmt: skip
    if size == 1:
        return Derivation([chain], w.point, lambda group: w.bind(group.world))
    apart = [
        Step("definition", left_out, "mean of the other responses", quantity="leave_one_out",
             tex=r"E\big[\tfrac1M \sum_i (R_i - \bar R_{-i}) s_i\big]"),
        Step("independence", [a - value * d for a, d in zip(first, drift, strict=True)], "the others' mean is independent of s_i",
             tex=r"E[R s] - E[R]\, E[s]"),
        Step("gradient", gradient, "E_pi[s] = 0, and the log-derivative by differentiating J", quantity="gradient", tex="G"),
    ]  # fmt: skip
    return Derivation([chain, apart], w.point, lambda group: w.bind(group.world))


def worlds() -> list[World]:
    """One and several tokens, an end token, binary rewards, a deterministic target."""
    fixed = one_hot_policy(2, 3, "group deterministic")
    return [
        world("group_end_token", 2, 2, one(), eos=1, behaviors=1),
        world("group_two_tokens", 2, 2, one(), behaviors=1),
        world("group_one_token", 3, 1, one(), behaviors=1),
        world("group_binary", 2, 2, one(), behaviors=1, binary=True),
        world("group_deterministic", 2, 3, one(), behaviors=1, target=fixed),
    ]


def instances() -> list[Group]:
    """Groups of one, two, three; larger ones of single tokens; ends in three positions; transformers."""
    some = worlds()
    long = world("group_long_end_token", 3, 3, one(), eos=2, behaviors=1)
    late = world("group_late_end_token", 2, 3, one(), eos=1, behaviors=1)
    return (
        groups_of(some, (2, 1, 3))
        + groups_of([some[2]], (6,))
        + [Group("long_end_token_2", long, 2), *groups_of([late], (3,))]
        + groups_of([short_world()], (1, 3))
        + groups_of([dense_world()], (2, 3))
        + groups_of([expert_world()], (2,))
    )


def derive(group: Group) -> Derivation:
    """All groups in symbols, or sums over arrays for a transformer."""
    if isinstance(group.world, TransformerWorld):
        return on_policy_derivation(group.size)
    return _derivation(group.world.shape, group.size)


def copied(group: Group) -> Quantities:
    """Mutated reading: one response is drawn and counted M times."""
    law = group.world.target_law
    rows = torch.arange(law.log_prob.shape[0])
    index = rows[:, None].expand(-1, group.size)
    number = rows.repeat_interleave(group.size)
    batch = law.batch.select(index.reshape(-1)).replaced(group=number)
    return _measured(group, GroupCompositions(batch=batch, responses=law.batch, index=index, probs=law.probs))


def chained(group: Group) -> Quantities:
    """Mutated reading: responses are drawn until one is correct, so that a group of two ends with a success."""
    law = group.world.target_law
    n = law.log_prob.shape[0]
    right = law.batch.reward > 0
    first, second = (x.reshape(-1) for x in torch.meshgrid(torch.arange(n), torch.arange(n), indexing="ij"))
    tilt = torch.where(right[first], law.probs[second], law.probs[second] * right[second] / law.probs[right].sum())
    probs = law.probs[first] * tilt
    index = torch.stack([first, second], 1)
    batch = law.batch.select(index.reshape(-1)).replaced(group=torch.arange(n * n).repeat_interleave(2))
    return _measured(group, GroupCompositions(batch=batch, responses=law.batch, index=index, probs=probs))


def self_included(right: Any) -> Any:
    """Bug: the mean of the whole group where the mean of the others is asked for."""

    def wrong(batch: SegmentedBatch, baseline: Any = "group_mean", *rest: Any, **kw: Any) -> Tensor:
        return right(batch, "group_mean" if baseline == "leave_one_out" else baseline, *rest, **kw)

    return wrong


def groups_ignored(right: Any) -> Any:
    """Bug: one mean over all groups of the batch."""

    def wrong(batch: SegmentedBatch, *rest: Any, **kw: Any) -> Tensor:
        return right(replace(batch, group=torch.zeros_like(batch.group)), *rest, **kw)

    return wrong


def always_scaled(right: Any) -> Any:
    """Bug: the division by the standard deviation cannot be switched off."""

    def wrong(
        batch: SegmentedBatch, baseline: Any = "group_mean", scale: Any = "none", *rest: Any, **kw: Any
    ) -> Tensor:
        return right(batch, baseline, "none" if baseline == "none" else "std", *rest, **kw)

    return wrong


BOTH = ("with_self", "leave_one_out")
TOLD_APART = ("group_two_tokens_2", "group_two_tokens_3", "transformer_dense_2", "transformer_experts_2")
THEOREM = Theorem(
    id="G1",
    kind="identity",
    title="the group mean including the response itself scales the gradient by (M-1)/M; leave-one-out is unbiased",
    hypotheses=(
        "the M responses to a prompt are independent draws from the target (on-policy, unweighted)",
        "the update is divided by M, whatever the responses are",
        "M >= 2 for leave-one-out; a group of one gets advantage 0",
    ),
    statement="E[(1/M) sum_i (R_i - mean(R)) s_i] = ((M-1)/M) G; E[(1/M) sum_i (R_i - mean(R_j, j != i)) s_i] = G",
    source="literature (leave-one-out: Kool, van Hoof and Welling 2019); the factor is folklore",
    references=("Kool, van Hoof and Welling, Buy 4 REINFORCE samples, get a baseline for free, ICLR workshop 2019",),
    claims=(
        Claim("with_self", "equal", "with_self", "shrunk", "mean including the response: (M-1)/M of the gradient"),
        Claim("leave_one_out", "equal", "leave_one_out", "gradient", "mean of the others: the gradient"),
        Claim("no_baseline", "equal", "none", "gradient", "no baseline: the gradient, for any M"),
        Claim("group_of_one", "equal", "alone", "zero", "a group of one teaches nothing under either baseline"),
    ),
    instances=instances,
    measure=measure,
    derive=derive,
    outcome="The usual group mean costs a factor (M-1)/M of step size and no direction; leave-one-out costs nothing.",
    mutants=(
        Mutant(name="off_policy", kind="hypothesis", breaks=(*BOTH, "no_baseline"), on=TOLD_APART,
               measure=lambda group: measure(group, group.world.law),
               why="stale responses without weights: neither the mean of R s nor that of s is the target's; needs mu != pi"),
        Mutant(name="responses_copied", kind="hypothesis", breaks=BOTH, measure=copied, on=TOLD_APART,
               why="M copies of one response: every advantage is 0, and there is no mean of *other* responses"),
        Mutant(name="drawn_until_correct", kind="hypothesis", breaks=(*BOTH, "no_baseline"), measure=chained,
               on=("group_two_tokens_2",),
               why="the second response is retried after a failure, so the baseline knows the first; needs both signs"),
        Mutant(name="self_in_leave_one_out", kind="bug", breaks=("leave_one_out",), on=TOLD_APART,
               plant=lambda: planted(advantage, "group_advantage", self_included),
               why="the mean includes the response although it was to be left out; needs M small: the two differ by G/M"),
        Mutant(name="groups_ignored", kind="bug", breaks=BOTH, on=TOLD_APART,
               plant=lambda: planted(advantage, "group_advantage", groups_ignored),
               why="one mean over all groups hardly contains the response itself: a smaller share is lost than 1/M"),
        Mutant(name="always_scaled", kind="bug", breaks=BOTH, on=TOLD_APART,
               plant=lambda: planted(advantage, "group_advantage", always_scaled),
               why="groups are divided by their own spread, so they count unequally; needs rewards whose spread differs"),
    ),
)  # fmt: skip
