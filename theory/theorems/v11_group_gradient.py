"""V11: the expected group gradient under the engine's groups is the autoregressive one; a shared first token kills its own."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import sympy as sp
import torch

from testbed.exact.gradients import exact_gradient
from testbed.rollout.speculative.group_specimens import rows_sorted
from theory import speculative_bugs as bugs
from theory.derivation import Derivation, Step
from theory.pair_updates import SIZE, Trained, expected_update
from theory.speculative_worlds import Prefix, Speculation
from theory.symbols import SymbolicWorld, symbolic_world
from theory.theorem import Claim, Mutant, Quantities, Theorem


def measure(case: Speculation, trained: Trained = lambda b: b) -> Quantities:
    """Updates under the engine's groups, under independent ones, and with the first token drawn once per group."""
    one = dict(zip(case.responses(), case.target.probs.tolist(), strict=True))
    independent = expected_update(case, {(y, z): p * q for y, p in one.items() for z, q in one.items()}, trained)
    options: dict[str, Any] = {"drafter": lambda: case.heads(1), "nodes": 1}
    engine = expected_update(case, case.law(n=SIZE, **options), trained)
    shared = expected_update(case, case.law(n=SIZE, specimen="shared_first_token", **options), trained)
    return {
        "engine": engine[0] + engine[1],
        "gradient": exact_gradient(case.env, case.world.target) * (1 - 1 / SIZE),
        "independent": independent[0] + independent[1],
        "first": independent[0],
        "first_shared": shared[0],
        "zero": torch.zeros_like(shared[0]),
        "later": independent[1],
        "later_shared": shared[1],
        "root_shared": (shared[0] + shared[1])[0],
        "behind_root_shared": (shared[0] + shared[1])[1:],
    }


@lru_cache(maxsize=8)
def _derivation(shape: tuple[Any, ...]) -> Derivation:
    w: SymbolicWorld = symbolic_world(shape)

    def scores(y: Prefix, h: Prefix, b: int) -> sp.Expr:
        return sp.Add(*[w.score(y, t, h, b) for t in range(len(y))])

    def over_pairs(h: Prefix, b: int, shared: bool) -> sp.Expr:
        total = sp.Integer(0)
        for y in w.leaves:
            for z in w.leaves:
                p = w.prob_pi(y) * w.prob_pi(z)
                if shared:
                    p = p / w.pi((), z[0]) if y[0] == z[0] else sp.Integer(0)
                baseline = (w.reward(y) + w.reward(z)) / SIZE
                inner = (w.reward(y) - baseline) * scores(y, h, b) + (w.reward(z) - baseline) * scores(z, h, b)
                total += p * inner / SIZE
        return total

    def alone(h: Prefix, b: int) -> sp.Expr:
        terms = [w.prob_pi(y) * w.reward(y) * scores(y, h, b) for y in w.leaves]
        return sp.Add(*terms) * (1 - sp.Rational(1, SIZE))

    root = [(h, b) for h, b in w.parameters if not h]
    deep = [(h, b) for h, b in w.parameters if h]
    engine = [
        Step("definition", [over_pairs(h, b, False) for h, b in w.parameters],
             "engine groups are independent (V3): all pairs, advantages less the group's mean",
             tex=r"\sum_{y,z} \pi(y)\pi(z) \tfrac12 [A_y \sum s(y) + A_z \sum s(z)]"),
        Step("alone", [alone(h, b) for h, b in w.parameters], "the other's reward is independent of a score whose mean is 0",
             tex=r"(1-\tfrac1G)\, E[R \sum_t s_t]"),
        Step("log_derivative", [g * (1 - sp.Rational(1, SIZE)) for g in w.gradient()], "grad J, by differentiating J",
             quantity="engine", tex=r"(1-\tfrac1G) \nabla J"),
    ]  # fmt: skip
    first = [
        Step("definition", [over_pairs(h, b, True) for h, b in root],
             "pairs with one first token, drawn once: both have the score of that token",
             tex=r"\sum_a \pi(a) \sum_{y,z|a} \tfrac12 (A_y + A_z)\, s(a)"),
        Step("zero", [sp.Integer(0)] * len(root), "the advantages of a group sum to 0", quantity="root_shared",
             tex="0"),
    ]  # fmt: skip
    later = [
        Step("definition", [over_pairs(h, b, True) for h, b in deep],
             "logits behind the first token, pairs with one first token",
             tex=r"\sum_a \pi(a) \sum_{y,z|a} \tfrac12 [A_y \sum_{t>1} s_t(y) + \dots]"),
        Step("unchanged", [g * (1 - sp.Rational(1, SIZE)) for (h, b), g in zip(w.parameters, w.gradient(), strict=True) if h],
             "given the first token the rest are independent, and later scores have mean 0", quantity="behind_root_shared",
             tex=r"(1-\tfrac1G)\,\partial J / \partial l(h, b)"),
    ]  # fmt: skip
    return Derivation([engine, first, later], w.point, lambda case: w.bind(case.world))


def instances() -> list[Speculation]:
    """Groups of two, of one length and with an end token."""
    return [
        Speculation(name="two_tokens", horizon=2, rows=SIZE, sharpness=1.0, layers=1),
        Speculation(name="ends_early", horizon=3, rows=SIZE, eos=1, sharpness=1.0, layers=1),
    ]


def stopped_together() -> list[Speculation]:
    """Responses of three tokens, so that drafts let one reach the cap before the other."""
    return [Speculation(name="stopped_together", horizon=3, rows=SIZE, sharpness=1.0, layers=1)]


THEOREM = Theorem(
    id="V11",
    kind="identity",
    title="the expected group gradient under speculation, and what a shared first token does to it",
    hypotheses=(
        "groups of G responses from the engine of V3; advantages are rewards less the group's mean",
        "one normalizer for all tokens, the same for all groups",
        "for the shared first token: it is drawn once per group, everything after it independently",
    ),
    statement="E[update] = (1 - 1/G) grad J, as with autoregressive groups. With a first token shared by the group, the part of "
    "the first token is 0, since sum_i A_i = 0, and the parts of all later tokens are what they were",
    source="ours",
    claims=(
        Claim("gradient", "equal", "engine", "gradient", "engine groups: the mean update is (1 - 1/G) grad J"),
        Claim("same", "equal", "engine", "independent", "which is that of independent groups"),
        Claim("first_lives", "differs", "first", "zero", "independent groups do move the first token", margin=1e-2),
        Claim("first_dies", "equal", "first_shared", "zero", "a shared first token has no gradient"),
        Claim("later_stays", "equal", "later_shared", "later", "the gradient of all later tokens does not notice"),
    ),
    instances=instances,
    measure=measure,
    derive=lambda case: _derivation(case.world.shape),
    outcome="A first token drawn once per prompt is never trained under a common normalizer; draw it once per response.",
    mutants=(
        Mutant(name="first_token_shared", kind="bug", breaks=("gradient", "same"), plant=bugs.shared_first_token,
               why="the engine itself draws the first token once per prompt"),
        Mutant(name="whole_batch_stopped", kind="hypothesis", breaks=("gradient", "same"),
               instances=stopped_together, plant=bugs.whole_batch_stop,
               why="responses are cut when the fastest one reaches the cap: rewards of cut responses enter"),
        Mutant(name="rows_sorted_without_advantages", kind="bug", breaks=("gradient", "first_lives", "later_stays"),
               on=("ends_early",), measure=lambda case: measure(case, rows_sorted),
               why="a response gets another's advantage; needs lengths that differ"),
    ),
)  # fmt: skip
