"""V13: keeping the responses that a speculative engine finishes first biases the data, even among responses of one length."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any

import sympy as sp
import torch
from torch import Tensor

from testbed.core.choices import Chooser, ReplayChooser
from testbed.exact import inclusion
from testbed.rollout import clock
from theory.derivation import Derivation, Step
from theory.planting import planted
from theory.speculative_worlds import Prefix, Speculation, written
from theory.symbols import SymbolicWorld, symbolic_world
from theory.theorem import Claim, Mutant, Quantities, Theorem

N, KEPT = 2, 1


@dataclass(frozen=True, slots=True)
class Done:
    """A response, the passes it took, its probability, and its recorded ratio."""

    response: Prefix
    passes: int
    probability: float
    ratio: float


def finished(case: Speculation, nodes: int) -> list[Done]:
    """Every way in which the engine writes one response."""

    def run(chooser: Chooser) -> tuple[Prefix, int, float]:
        seen: list[Any] = []  # rounds; the pass over the prompt comes before them
        drafter = (lambda: case.heads(1)) if nodes else None
        batch = case.speculated(1, chooser, drafter, nodes=nodes, watch=seen.append, target=case.policy)
        return written(batch)[0], 1 + len(seen), float((batch.logp_target - batch.logp_behavior).sum().exp())

    return [Done(y, passes, probability, ratio) for (y, passes, ratio), probability in ReplayChooser.walk(run)]


def law_of_kept(case: Speculation, done: list[Done], kept: int = KEPT) -> Tensor:
    """Law of the response that is done after the fewest passes, of two that are independent (V3); ties at random."""
    index = {y: place for place, y in enumerate(case.responses())}
    law = torch.zeros(len(index), dtype=torch.float64)
    for pair in product(done, repeat=N):
        passes = torch.tensor([one.passes for one in pair])
        for rows, chance in ReplayChooser.walk(lambda c: clock.first_to_end(passes, kept, c).tolist()):  # noqa: B023
            for row in rows:
                law[index[pair[row].response]] += pair[0].probability * pair[1].probability * chance / kept
    return law


def measure(case: Speculation, kept: int = KEPT, nodes: int = 1) -> Quantities:
    """Kept law with drafts and without, beside the target's."""
    target, done = case.target.probs, finished(case, 1)
    law = law_of_kept(case, done if nodes else finished(case, 0), kept)
    ratios = torch.tensor([one.ratio for one in done], dtype=torch.float64)
    taken = {one.response: one.passes for one in done}
    passes = torch.tensor([taken[y] for y in case.responses()])
    by_passes = torch.zeros(int(passes.max()) + 1, dtype=torch.float64).index_add_(0, passes, target)
    weight = KEPT / N / inclusion.inclusion_probabilities(by_passes, N, KEPT)[passes]
    found = {
        "kept": law,
        "target": target,
        "ratios": ratios,
        "one": torch.ones_like(ratios),
        "kept_formula": target / weight,
        "repaired": law * weight,
    }
    if case.eos is None:
        found |= {"kept_without_drafts": law_of_kept(case, finished(case, 0), kept)}
    return found


@lru_cache(maxsize=8)
def _derivation(shape: tuple[Any, ...], passes: tuple[int, ...]) -> Derivation:
    w: SymbolicWorld = symbolic_world(shape)
    prob = [w.prob_pi(y) for y in w.leaves]
    share = {k: sp.Add(*[p for p, one in zip(prob, passes, strict=True) if one == k]) for k in set(passes)}
    listed = [sp.Integer(0)] * len(prob)
    for i, p in enumerate(prob):
        for j, q in enumerate(prob):
            chance = sp.Rational(1, 2) if passes[i] == passes[j] else sp.Integer(int(passes[i] < passes[j]))
            listed[i] += p * q * chance
            listed[j] += p * q * (1 - chance)
    later = {k: sp.Add(*[share[j] for j in share if j > k]) for k in share}
    chain = [
        Step("all_pairs", listed, "two independent responses (V3); the one with fewer passes is kept, ties by a fair coin",
             tex=r"\sum_{y_1,y_2} \pi(y_1)\pi(y_2)\,[1_{\tau_1<\tau_2} + \tfrac12 1_{\tau_1=\tau_2}]"),
        Step("inclusion", [2 * p * (later[k] + share[k] / 2) for p, k in zip(prob, passes, strict=True)],
             "only how many passes the other takes matters", quantity="kept",
             tex=r"P_{kept}(y) = \pi(y)\,\tfrac nm\,Incl(\tau(y))"),
    ]  # fmt: skip
    return Derivation([chain], w.point, lambda case: w.bind(case.world))


def derive(case: Speculation) -> Derivation:
    """Derivation for the passes that the responses take."""
    taken = {one.response: one.passes for one in finished(case, 1)}
    return _derivation(case.world.shape, tuple(taken[y] for y in case.responses()))


def instances() -> list[Speculation]:
    """Responses of one length, and with an end token."""
    return [
        Speculation(name="one_length", horizon=3, sharpness=1.0, layers=1),
        Speculation(name="finished_early", horizon=3, eos=1, sharpness=1.0, layers=1),
    ]


def one_tick(right: Any) -> Any:
    """Bug: all responses end at one tick."""
    return lambda ticks, m, chooser: right(torch.ones_like(ticks), m, chooser)


THEOREM = Theorem(
    id="V13",
    kind="counterexample",
    refutes="if every response has the target's law, so has what comes back first",
    title="the first responses that a speculative engine finishes are those its drafter guessed",
    hypotheses=(
        "the engine of V3: each response has the target's law, all recorded ratios are 1",
        "n responses start together; the first m < n in passes are kept, ties at random",
        "the drafter guesses some responses better than others",
    ),
    statement="the kept law is pi(y) (n/m) Incl(tau(y)), tau(y) the passes that y took: biased toward what the drafter expects, "
    "even if all responses have one length (where keeping the first of an autoregressive engine is harmless); (m/n)/Incl(tau) "
    "repairs it (S8)",
    source="ours",
    claims=(
        Claim("biased", "differs", "kept", "target", "kept responses do not have the target's law", margin=1e-2),
        Claim("silent", "equal", "ratios", "one", "every recorded ratio is 1"),
        Claim("harmless", "equal", "kept_without_drafts", "target", "one length and no drafts: keeping the first is harmless"),
        Claim("formula", "equal", "kept", "kept_formula", "a kept response has law pi (n/m) Incl(tau)"),
        Claim("repaired", "equal", "repaired", "target", "weights (m/n)/Incl(tau) restore the target's law"),
    ),
    instances=instances,
    measure=measure,
    derive=derive,
    outcome="Wait for all responses of a speculative engine, or weigh by how long each took; their ratios do not show it.",
    mutants=(
        Mutant(name="all_kept", kind="hypothesis", breaks=("biased", "formula", "repaired"),
               measure=lambda case: measure(case, kept=N), why="m = n: nothing is selected"),
        Mutant(name="no_drafts", kind="hypothesis", breaks=("biased", "formula", "repaired"), on=("one_length",),
               measure=lambda case: measure(case, nodes=0), why="all responses of one length take the same passes"),
        Mutant(name="passes_not_counted", kind="bug", breaks=("biased", "formula", "repaired"), on=("one_length",),
               plant=lambda: planted(clock, "first_to_end", one_tick),
               why="a clock at which all end together selects nobody"),
    ),
)  # fmt: skip
