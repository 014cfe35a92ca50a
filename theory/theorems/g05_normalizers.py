"""G5: what each normalizer optimizes on average, and when micro-batches change the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Any

import sympy as sp
import torch
from torch import Tensor

from testbed.core.batch import SegmentedBatch
from testbed.estimators import loss
from testbed.estimators.loss import policy_loss
from testbed.exact.gradients import exact_gradient
from testbed.exact.group_updates import GroupCompositions, group_compositions
from testbed.exact.moments import batch_statistic
from testbed.policies.schedule import one
from theory.derivation import Derivation, Step
from theory.group_symbols import SymbolicGroup
from theory.group_worlds import Group, cosine, group_update, groups_of, update_of
from theory.length_objectives import objective_gradient, symbolic_gradient
from theory.planting import planted
from theory.symbols import symbolic_world
from theory.theorem import Claim, Mutant, Quantities, Theorem
from theory.worlds import World, world

CONSTANT = 7.0


@dataclass(frozen=True)
class MicroBatches:
    """A batch cut into parts, given by the lengths of their responses."""

    name: str
    lengths: tuple[tuple[int, ...], ...]


def measure(instance: Group | MicroBatches, drawn: GroupCompositions | None = None) -> Quantities:
    """Expected updates under each normalizer against gradients of expectations; `drawn` replaces the independent groups."""
    if isinstance(instance, MicroBatches):
        return _coefficients(instance)
    w, size, law, pi = instance.world, instance.size, instance.world.target_law, instance.world.target
    groups = drawn or group_compositions([(law, size)])

    def update(baseline: str = "none", **how: Any) -> Tensor:
        return update_of(groups, pi, baseline, **how)

    gradient, token = exact_gradient(w.env, pi), update(normalizer="token_mean")
    by_response = update(normalizer="sequence_mean")
    found: dict[str, Any] = {
        "constant": update(normalizer="constant", constant=CONSTANT), "constant_stated": size / CONSTANT * gradient,
        "padded": update(normalizer="constant"), "padded_stated": gradient / w.env.horizon,
        "by_response": by_response, "by_response_stated": objective_gradient(w, lambda reward, length: reward / length),
        "by_token": token,
        "by_token_stated": objective_gradient(w, lambda reward, length: size * reward * _inverse(instance, length)),
    }  # fmt: skip
    if size > 1:
        found["apart"] = update("leave_one_out", normalizer="token_mean")
        found["apart_stated"] = objective_gradient(
            w, lambda reward, length: size * (reward * _inverse(instance, length) - _inverse(instance, length, True))
        )
    if w.env.eos is None:
        found |= {
            "same_length": torch.stack([token, by_response]),
            "scaled_down": torch.stack([gradient / w.env.horizon] * 2),
        }
    if size == 2:
        micro = group_update(law, pi, 1, "none", normalizer="token_mean")  # a batch of two as the mean of two parts
        found |= {"micro_of_one": micro, "by_response_again": by_response}
        if w.env.eos is not None:
            found |= {"micro_expected": micro, "whole_expected": token}
    if instance.name == "ended_late_2":
        found |= {"cosine_token": cosine(token, gradient), "cosine_response": cosine(by_response, gradient), "one": 1.0}
    return found


def _inverse(group: Group, length: Tensor, rewarded: bool = False) -> Tensor:
    """E[1/(l + L')] over the sum L' of the other M-1 lengths; `rewarded`: E[mean reward of the others/(l + L')]."""
    law, others = group.world.target_law, group.size - 1
    if others == 0:
        return 1 / length
    lengths, reward = law.batch.lengths.double(), law.batch.reward

    def statistic(index: Tensor) -> Tensor:
        inverse = 1 / (length + lengths[index].sum(1, keepdim=True))
        return inverse * reward[index].mean(1, keepdim=True) if rewarded else inverse

    return batch_statistic(law, others, statistic).mean


def _coefficients(instance: MicroBatches) -> Quantities:
    """Coefficient of every token in the whole batch's loss and in the mean of its parts' losses."""
    rows = [length for part in instance.lengths for length in part]
    mask = torch.arange(max(rows)) < torch.tensor(rows)[:, None]
    blank = torch.zeros(mask.shape, dtype=torch.int64)
    logp = torch.full(mask.shape, -0.7, dtype=torch.float64)
    reward = torch.linspace(-1.0, 2.0, len(rows), dtype=torch.float64)
    batch = SegmentedBatch(
        tokens=blank, mask=mask, segment=blank, logp_target=logp, logp_behavior=logp, reward=reward, group=blank[:, 0]
    )

    def slope(part: Sequence[int], **how: Any) -> Tensor:
        chosen = logp[list(part)].clone().requires_grad_(True)
        policy_loss(chosen, batch.select(list(part)), "none", **how).backward()
        return -chosen.grad  # type: ignore[operator]

    parts, start = [], 0
    for part in instance.lengths:
        parts.append(range(start, start + len(part)))
        start += len(part)
    whole = slope(range(len(rows)))[mask]
    mean = (torch.cat([slope(p) for p in parts]) / len(parts))[mask]
    counts = torch.tensor([sum(part) for part in instance.lengths for _ in part], dtype=torch.float64)[:, None]
    stated = reward[:, None] * (1 / (len(parts) * counts) - 1 / float(mask.sum()))
    total = float(mask.sum())
    summed = torch.cat([slope(p, normalizer="constant", constant=total) for p in parts])[mask]
    found: dict[str, Any] = {
        "gap": mean - whole,
        "gap_stated": stated.expand(mask.shape)[mask],
        "summed": summed,
        "whole": whole,
    }
    if len({sum(part) for part in instance.lengths}) == 1:
        return found | {"mean_same": mean, "whole_same": whole}
    return found | {"mean_other": mean, "whole_other": whole}


@lru_cache(maxsize=16)
def _derivation(shape: tuple[Any, ...], size: int) -> Derivation:
    w = symbolic_world(shape)
    g = SymbolicGroup(w, size, on_policy=True)

    def length(rows: Any) -> int:
        return sum(len(y) for _, y in rows)

    by_length = {  # h(l) = E[1/(l + L')] over the other responses
        n: g.companions(lambda rows, n=n: sp.Rational(1, n + length(rows))) for n in {len(y) for y in w.leaves}
    }
    token = [
        Step("definition", g.update(lambda rows, i: g.reward(rows[i]) / length(rows)), "all groups; one divisor for the group",
             quantity="by_token", tex=r"E\Big[\frac{\sum_i R_i s_i}{\sum_j L_j}\Big]"),
        Step("others", g.single(lambda d: size * g.reward(d) * by_length[len(d[1])]),
             "the other lengths are independent of R_i s_i and enter through h(L_i)",
             tex=r"M\,E[R\, h(L)\, s], \quad h(l) = E\big[1/(l + \textstyle\sum_{j \ne i} L_j)\big]"),
        Step("objective", symbolic_gradient(w, lambda y: size * w.reward(y) * by_length[len(y)]),
             "a gradient by differentiation, with h held fixed", quantity="by_token_stated", tex=r"M\, \nabla E[R\, h(L)]"),
    ]  # fmt: skip
    response = [
        Step("definition", g.update(lambda rows, i: g.reward(rows[i]) / len(rows[i][1]) / size), "each by its own length",
             quantity="by_response", tex=r"E\big[\tfrac1M \sum_i \tfrac{R_i}{L_i} s_i\big]"),
        Step("objective", symbolic_gradient(w, lambda y: w.reward(y) / len(y)), "L is a function of the response",
             quantity="by_response_stated", tex=r"\nabla E[R/L]"),
    ]  # fmt: skip
    if size == 1:
        return Derivation([token, response], w.point, lambda group: w.bind(group.world))

    def rewarded(rows: Any) -> sp.Expr:
        return sp.Add(*map(g.reward, rows)) / (size - 1)

    baseline = {n: g.companions(lambda rows, n=n: rewarded(rows) / (n + length(rows))) for n in by_length}  # k(l)

    def others(rows: Any, i: int) -> sp.Expr:
        return (g.reward(rows[i]) - rewarded([*rows[:i], *rows[i + 1 :]])) / length(rows)

    apart = [
        Step("definition", g.update(others), "the same with the mean of the others as baseline", quantity="apart",
             tex=r"E\Big[\frac{\sum_i (R_i - \bar R_{-i}) s_i}{\sum_j L_j}\Big]"),
        Step("others", g.single(lambda d: size * (g.reward(d) * by_length[len(d[1])] - baseline[len(d[1])])),
             "rewards and lengths of the others are independent of s_i", tex=r"M\,E[(R\, h(L) - k(L))\, s]"),
        Step("objective", symbolic_gradient(w, lambda y: size * (w.reward(y) * by_length[len(y)] - baseline[len(y)])),
             "a gradient with h and k held fixed: k depends on L, so the baseline is not free", quantity="apart_stated",
             tex=r"M\, \nabla E[R\, h(L) - k(L)]"),
    ]  # fmt: skip
    return Derivation([token, response, apart], w.point, lambda group: w.bind(group.world))


@lru_cache(maxsize=4)
def _micro_derivation(parts: int) -> Derivation:
    a, own, rest = sp.Symbol("a", real=True), sp.Symbol("n_k", positive=True), sp.Symbol("m", nonnegative=True)
    total = own + rest
    chain = [
        Step("definition", [a / (parts * own) - a / total],
             f"a token of a part: mean of {parts} parts' means, minus the global mean; m tokens are in other parts",
             quantity="gap", tex=r"\frac{a}{K n_k} - \frac{a}{n_k + m}"),
        Step("common", [a * (rest - (parts - 1) * own) / (parts * own * total)],
             "one fraction: 0 for every a iff the part is of average size", quantity="gap_stated",
             tex=r"\frac{a\,(m - (K-1)\, n_k)}{K n_k (n_k + m)}"),
    ]  # fmt: skip
    repaired = [
        Step("own_mean", [own / total * (a / own)], "a part's own mean, which counts as the share of its tokens",
             quantity="summed", tex=r"\frac{n_k}{n_k + m} \cdot \frac{a}{n_k}"),
        Step("global", [a / total], "its own count cancels", quantity="whole", tex=r"\frac{a}{n_k + m}"),
    ]  # fmt: skip

    def point(rng: Random) -> Mapping[sp.Symbol, Any]:
        return {
            a: sp.Rational(rng.randint(-9, 9), 4),
            own: sp.Integer(rng.randint(1, 9)),
            rest: sp.Integer(rng.randint(0, 9)),
        }

    def bind(instance: MicroBatches) -> Mapping[sp.Symbol, Any]:
        counts = torch.tensor([sum(part) for part in instance.lengths for length in part for _ in range(length)])
        rows = torch.tensor([length for part in instance.lengths for length in part])
        level = torch.linspace(-1.0, 2.0, len(rows), dtype=torch.float64).repeat_interleave(rows)
        return {a: level.numpy(), own: counts.double().numpy(), rest: (rows.sum() - counts).double().numpy()}

    return Derivation([chain, repaired], point, bind)


def derive(instance: Group | MicroBatches) -> Derivation:
    """Groups of a shape over its symbols; the parts of a batch in three symbols."""
    if isinstance(instance, Group):
        return _derivation(instance.world.shape, instance.size)
    return _micro_derivation(len(instance.lengths))


def worlds() -> list[World]:
    """Responses that end early, in two and in three positions; responses of one length."""
    return [
        world("ended", 2, 2, one(), behaviors=1, eos=1),
        world("ended_late", 3, 3, one(), behaviors=1, eos=2),
        world("of_one_length", 2, 2, one(), behaviors=1),
        world("of_one_token", 3, 1, one(), behaviors=1),
    ]


def instances() -> list[Group | MicroBatches]:
    """Groups of one to three; batches in two and three parts, of the same and of other numbers of tokens."""
    found: list[Group | MicroBatches] = [*groups_of(worlds(), (2, 1)), Group("ended_3", worlds()[0], 3)]
    found += [
        MicroBatches("parts_of_five", ((1, 4), (2, 3))), MicroBatches("parts_of_other_size", ((4,), (1, 1, 2))),
        MicroBatches("parts_of_two_and_six", ((1, 1), (4, 2))), MicroBatches("three_parts", ((1, 2), (3,), (2, 4))),
        MicroBatches("one_part", ((1, 2, 4),)),
    ]  # fmt: skip
    return found


def bucketed(instance: Any) -> Quantities:
    """Mutated reading: a batch holds responses of one length only, as when batches are sorted to save padding."""
    law = instance.world.target_law
    n, lengths = law.log_prob.shape[0], law.batch.lengths
    first, second = (x.reshape(-1) for x in torch.meshgrid(torch.arange(n), torch.arange(n), indexing="ij"))
    same = lengths[first] == lengths[second]
    share = ((lengths[:, None] == lengths) * law.probs).sum(1)
    index = torch.stack([first, second], 1)
    batch = law.batch.select(index.reshape(-1)).replaced(group=torch.arange(n * n).repeat_interleave(2))
    probs = law.probs[first] * law.probs[second] * same / share[first]
    return measure(instance, GroupCompositions(batch=batch, responses=law.batch, index=index, probs=probs))


def padding_counted(right: Any) -> Any:
    """Bug: means divide by the number of positions, padding included."""
    return lambda objective, mask, counted, *rest: right(objective, mask, torch.ones_like(mask), *rest)


def swapped(right: Any) -> Any:
    """Bug: the token mean where the mean over responses was asked for, and the other way around."""
    other = {"token_mean": "sequence_mean", "sequence_mean": "token_mean", "constant": "constant"}
    return lambda objective, mask, counted, normalizer, constant: right(
        objective, mask, counted, other[normalizer], constant
    )


TOLD_APART = ("ended_2", "parts_of_two_and_six")
THEOREM = Theorem(
    id="G5",
    kind="identity",
    title="token mean, mean over responses and constant optimize different things, and micro-batches make another of the first",
    hypotheses=(
        "the M responses are independent and on-policy; no baseline unless said otherwise; L is a response's number of tokens",
        "h(l) = E[1/(l + sum of the other M-1 lengths)], held fixed while differentiating",
        "micro-batches: K parts of n_k tokens, n = sum n_k, gradients of the parts' token means averaged",
    ),
    statement="constant C: (M/C) grad E[R]; mean over responses: grad E[R/L]; token mean: M grad E[R h(L)], with leave-one-out "
    "M grad E[R h(L) - k(L)], k(l) = E[mean of the other rewards/(l + their lengths)]. Mean of micro-batch means minus global "
    "token mean: w A (1/(K n_k) - 1/n) per token, 0 for all rewards iff all n_k are equal",
    source="ours; biases of length normalizers: literature (Liu et al. 2025)",
    references=("Liu et al., Understanding R1-Zero-like training: a critical perspective, arXiv 2503.20783",),
    claims=(
        Claim("constant", "equal", "constant", "constant_stated", "constant: a multiple of the gradient"),
        Claim("padded", "equal", "padded", "padded_stated", "constant left out: divided by the positions M T"),
        Claim("by_response", "equal", "by_response", "by_response_stated", "mean over responses: gradient of E[R/L]"),
        Claim("by_token", "equal", "by_token", "by_token_stated", "token mean: M times the gradient of E[R h(L)]"),
        Claim("by_token_apart", "equal", "apart", "apart_stated", "with leave-one-out: the baseline has a gradient, too"),
        Claim("same_length", "equal", "same_length", "scaled_down", "one length: all normalizers give G/T"),
        Claim("token_turns", "differs", "cosine_token", "one", "token mean: cosine with G (left) is not 1", margin=0.002),
        Claim("response_turns", "differs", "cosine_response", "one", "mean over responses: cosine with G (left)", margin=0.005),
        Claim("micro_of_one", "equal", "micro_of_one", "by_response_again", "parts of one response: the mean over responses"),
        Claim("micro_expected", "differs", "micro_expected", "whole_expected", "parts change the expected update", margin=0.01),
        Claim("micro_gap", "equal", "gap", "gap_stated", "per token: w A (1/(K n_k) - 1/n)"),
        Claim("micro_same", "equal", "mean_same", "whole_same", "parts of equal token counts: no difference"),
        Claim("micro_other", "differs", "mean_other", "whole_other", "other token counts: a difference", margin=0.01),
        Claim("micro_repaired", "equal", "summed", "whole", "summed with the global count as constant: no difference"),
    ),
    instances=instances,
    measure=measure,
    derive=derive,
    outcome="Only a constant divisor leaves the objective alone; accumulate token means with the global count, not by averaging.",
    mutants=(
        Mutant(name="bucketed_by_length", kind="hypothesis", on=("ended_2",),
               breaks=("by_token", "by_token_apart", "micro_expected"), measure=bucketed,
               why="batches sorted by length: the others' lengths are no longer independent of the response's"),
        Mutant(name="padding_counted", kind="bug", on=TOLD_APART,
               breaks=("by_response", "by_token", "by_token_apart", "micro_expected", "micro_gap", "micro_other",
                       "micro_repaired"),
               plant=lambda: planted(loss, "reduce_objective", padding_counted),
               why="padding enters the divisor, which makes it a constant; needs responses of different lengths"),
        Mutant(name="normalizers_swapped", kind="bug", on=("ended_2",),
               breaks=("by_response", "by_token", "by_token_apart", "micro_of_one", "micro_expected"),
               plant=lambda: planted(loss, "reduce_objective", swapped),
               why="token mean and mean over responses exchanged; needs responses of different lengths"),
    ),
)  # fmt: skip
