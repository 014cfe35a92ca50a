"""G6: under a mean over tokens of each response, a baseline changes the objective: it is paid per 1/L."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from random import Random
from typing import Any

import sympy as sp
from torch import Tensor

from testbed.estimators import advantage, loss
from testbed.exact.law import ExactLaw
from testbed.policies.schedule import one
from theory.derivation import Derivation, Step
from theory.group_symbols import SymbolicGroup
from theory.group_worlds import Group, group_update, groups_of
from theory.length_objectives import objective_gradient, symbolic_gradient
from theory.planting import planted
from theory.symbols import symbolic_world
from theory.theorem import Claim, Mutant, Quantities, Theorem
from theory.worlds import World, one_hot_policy, world

GIVEN = 0.7  # the constant baseline


def shifted(law: ExactLaw, by: float) -> ExactLaw:
    """Return the law with `by` subtracted from every reward."""
    batch = law.batch.replaced(reward=law.batch.reward - by)
    return ExactLaw(batch=batch, log_prob=law.log_prob, branch=law.branch)


def measure(
    group: Group, normalizer: str = "sequence_mean", baseline: str = "none", drawn: ExactLaw | None = None
) -> Quantities:
    """Expected updates with a constant and with group baselines against gradients of E[R/L] and E[1/L].

    Mutants change the normalizer, take a group's baseline for the constant, or let another law draw.
    """
    w, size, pi = group.world, group.size, group.world.target
    law = drawn or w.target_law
    by_length = objective_gradient(w, lambda reward, length: reward / length)
    inverse = objective_gradient(w, lambda reward, length: 1 / length)
    mean_length = objective_gradient(w, lambda reward, length: length)
    level = law.expect(law.batch.reward)

    def update(by: float, kind: str = "none", how: str = normalizer) -> Tensor:
        return group_update(shifted(law, by), pi, size, kind, normalizer=how)

    with_it = update(GIVEN) if baseline == "none" else update(0.0, baseline)
    part = with_it - update(0.0)
    found: dict[str, Any] = {
        "update": with_it, "stated": by_length - GIVEN * inverse,
        "slope_inverse": (part * inverse).sum(), "slope_stated": -GIVEN * (inverse * inverse).sum(), "zero": 0.0,
        "constant": update(GIVEN, how="constant"), "plain": update(0.0, how="constant"),
    }  # fmt: skip
    if size > 1:
        found |= {"apart": update(0.0, "leave_one_out"), "apart_stated": by_length - level * inverse}
        found |= {"with_self": update(0.0, "group_mean"), "shrunk": (size - 1) / size * (by_length - level * inverse)}
    if w.env.vocab_size == 2:
        found["slope_length"] = (part * mean_length).sum()
    if w.env.eos is None:
        found |= {"part": part, "nothing": 0.0}
    if group.name == "long_or_short_2":
        found |= {"apart_here": found["apart"], "by_length_here": by_length, "slope_here": found["slope_inverse"]}
    return found


@lru_cache(maxsize=16)
def _derivation(shape: tuple[Any, ...], size: int) -> Derivation:
    w = symbolic_world(shape)
    g = SymbolicGroup(w, size, on_policy=True)
    b = sp.Symbol("b", real=True)

    def length(draw: Any) -> int:
        return len(draw[1])

    by_length = symbolic_gradient(w, lambda y: w.reward(y) / len(y))
    inverse = symbolic_gradient(w, lambda y: sp.Rational(1, len(y)))
    level = g.mean(g.reward)
    constant = [
        Step("definition", g.update(lambda rows, i: (g.reward(rows[i]) - b) / length(rows[i]) / size),
             "mean over responses of (R - b)/L times the score", quantity="update",
             tex=r"E\big[\tfrac{R - b}{L} \sum_t s_t\big]"),
        Step("apart", [x - b * y for x, y in zip(g.single(lambda d: g.reward(d) / length(d)),
                                                 g.single(lambda d: sp.Rational(1, length(d))), strict=True)],
             "two terms, of which the second is no E[s] = 0: L is a function of the response",
             tex=r"E[\tfrac{R}{L} s] - b\, E[\tfrac1L s]"),
        Step("gradients", [x - b * y for x, y in zip(by_length, inverse, strict=True)],
             "log-derivative, by differentiating E[R/L] and E[1/L]", quantity="stated", tex=r"\nabla E[R/L] - b\, \nabla E[1/L]"),
    ]  # fmt: skip
    slope = [
        Step("slope", sp.Add(*[(x - y) * z for x, y, z in zip(constant[0].exprs, [e.xreplace({b: 0}) for e in constant[0].exprs],
                                                             inverse, strict=True)]),
             "how E[1/L] moves along what the baseline adds", quantity="slope_inverse",
             tex=r"\langle -b \nabla E[1/L], \nabla E[1/L]\rangle"),
        Step("square", -b * sp.Add(*[y**2 for y in inverse]), "minus b times a square: b > 0 lowers E[1/L]",
             quantity="slope_stated", tex=r"-b\, |\nabla E[1/L]|^2"),
    ]  # fmt: skip
    chains = [constant, slope]
    if size > 1:

        def others(rows: Any, i: int) -> sp.Expr:
            mean = sp.Add(*[g.reward(rows[j]) for j in range(size) if j != i]) / (size - 1)
            return (g.reward(rows[i]) - mean) / length(rows[i]) / size

        chains.append([
            Step("definition", g.update(others), "leave-one-out in place of b", quantity="apart",
                 tex=r"E\big[\tfrac1M \sum_i \tfrac{R_i - \bar R_{-i}}{L_i} s_i\big]"),
            Step("gradients", [x - level * y for x, y in zip(by_length, inverse, strict=True)],
                 "the others' mean is independent of s_i/L_i: b = E[R]", quantity="apart_stated",
                 tex=r"\nabla E[R/L] - E[R]\, \nabla E[1/L]"),
        ])  # fmt: skip

    def point(rng: Random) -> Mapping[sp.Symbol, Any]:
        return {**w.point(rng), b: sp.Rational(rng.randint(-9, 9), 4)}

    return Derivation(chains, point, lambda group: {**w.bind(group.world), b: GIVEN})


def worlds() -> list[World]:
    """Two tokens of which one ends the response, three of which one does; one length; a deterministic target."""
    fixed = one_hot_policy(3, 3, "length deterministic")
    return [
        world("long_or_short", 2, 2, one(), behaviors=1, eos=1, binary=True, rewards=[1.0, 0.0, 1.0, 1.0]),
        world("three_lengths", 2, 3, one(), behaviors=1, eos=1),
        world("three_words_ended", 3, 3, one(), behaviors=1, eos=2),
        world("two_words_fixed", 2, 2, one(), behaviors=1),
        world("deterministic_ended", 3, 3, one(), behaviors=1, eos=2, target=fixed),
    ]


def shorter_worlds() -> list[World]:
    """Those of three words in two positions, so that groups of three have few compositions."""
    fixed = one_hot_policy(3, 2, "shorter deterministic")
    return [
        world("three_words_sooner", 3, 2, one(), behaviors=1, eos=2),
        world("deterministic_sooner", 3, 2, one(), behaviors=1, eos=2, target=fixed),
    ]


def instances() -> list[Group]:
    """Groups of one to three."""
    some = worlds()
    return groups_of(some, (2, 1)) + groups_of([w for w in some if w.env.vocab_size == 2] + shorter_worlds(), (3,))


def stale(group: Group) -> Quantities:
    """Mutated reading: the sampler draws, and nothing corrects for it."""
    return measure(group, drawn=group.world.law)


def padding_counted(right: Any) -> Any:
    """Bug: the mean over a response's tokens divides by the horizon."""
    return lambda objective, mask, counted, *rest: right(objective, mask, mask.new_ones(mask.shape), *rest)


def swapped(right: Any) -> Any:
    """Bug: one mean over all tokens where the mean over responses was asked for."""

    def wrong(objective: Any, mask: Any, counted: Any, normalizer: str, constant: Any) -> Tensor:
        return right(objective, mask, counted, "token_mean" if normalizer == "sequence_mean" else normalizer, constant)

    return wrong


def absolute(right: Any) -> Any:
    """Bug: the baseline is added."""

    def wrong(batch: Any, baseline: Any, *rest: Any, **kw: Any) -> Tensor:
        found = right(batch, baseline, *rest, **kw)
        return found if baseline == "none" else 2 * batch.reward - found

    return wrong


GROUPS = ("leave_one_out", "group_mean")
TOLD_APART = ("three_lengths_2", "three_words_ended_2", "three_words_sooner_3")
THEOREM = Theorem(
    id="G6",
    kind="identity",
    title="under a mean over each response's tokens every baseline changes the objective, and a positive one rewards length",
    hypotheses=(
        "on-policy; the loss averages over the tokens of each response, then over responses",
        "b is a constant, or leave-one-out (then b = E[R])",
        "longer: E[1/L] falls along what the baseline adds; where one of two tokens ends the response, E[L] also rises",
    ),
    statement="E_pi[((R-b)/L) sum_t s_t] = grad E[R/L] - b grad E[1/L]; "
    "along what b adds E[1/L] has slope -b |grad E[1/L]|^2",
    source="ours; literature (length bias of the mean over responses: Liu et al. 2025)",
    references=("Liu et al., Understanding R1-Zero-like training: a critical perspective, arXiv 2503.20783",),
    claims=(
        Claim("identity", "equal", "update", "stated", "the update is grad E[R/L] - b grad E[1/L]"),
        Claim("leave_one_out", "equal", "apart", "apart_stated", "leave-one-out: b = E[R]"),
        Claim("group_mean", "equal", "with_self", "shrunk", "group mean: (M-1)/M of that"),
        Claim("slope", "equal", "slope_inverse", "slope_stated", "what b adds moves E[1/L] by -b |grad E[1/L]|^2"),
        Claim("longer", "at_most", "slope_inverse", "zero", "b > 0 lowers E[1/L]"),
        Claim("mean_length", "at_most", "zero", "slope_length", "one of two tokens ends the response: b > 0 raises E[L]"),
        Claim("not_free", "differs", "apart_here", "by_length_here", "leave-one-out is not the update without one", margin=0.05),
        Claim("strictly_longer", "differs", "slope_here", "zero", "slope of E[1/L] (left) is not 0", margin=0.02),
        Claim("one_length", "equal", "part", "nothing", "responses of one length: the baseline is free"),
        Claim("constant_divisor", "equal", "constant", "plain", "under a constant divisor the baseline is free"),
    ),
    instances=instances,
    measure=measure,
    derive=lambda group: _derivation(group.world.shape, group.size),
    outcome="With a mean over each response, a baseline pays for length where success is likely; a constant divisor does not.",
    mutants=(
        Mutant(name="constant_divisor", kind="hypothesis", breaks=("identity", *GROUPS, "slope"), on=TOLD_APART,
               measure=lambda group: measure(group, normalizer="constant"),
               why="divided by M T instead of each L, the baseline is free and E[R] is the objective; needs several lengths"),
        Mutant(name="baseline_of_the_group", kind="hypothesis", breaks=("identity", "slope"), on=("three_lengths_3",),
               measure=lambda group: measure(group, baseline="group_mean"),
               why="a group mean is no constant: its level is E[R], and it holds the response's own reward"),
        Mutant(name="off_policy", kind="hypothesis", breaks=("identity", *GROUPS, "slope", "constant_divisor"), on=TOLD_APART,
               measure=stale, why="drawn by the sampler without weights: no mean of scores is a gradient; needs mu != pi"),
        Mutant(name="padding_counted", kind="bug", breaks=("identity", *GROUPS, "slope"), on=TOLD_APART,
               plant=lambda: planted(loss, "reduce_objective", padding_counted),
               why="the mean of a response divides by the horizon: the constant divisor in disguise"),
        Mutant(name="normalizer_swapped", kind="bug", breaks=("identity", *GROUPS, "slope"), on=TOLD_APART,
               plant=lambda: planted(loss, "reduce_objective", swapped),
               why="the token mean: 1/L becomes 1/(sum of lengths); needs groups of different lengths"),
        Mutant(name="baseline_added", kind="bug", breaks=GROUPS, on=TOLD_APART,
               plant=lambda: planted(advantage, "group_advantage", absolute),
               why="R + b in place of R - b: harmless where baselines are free, here it pays for short answers"),
    ),
)  # fmt: skip
