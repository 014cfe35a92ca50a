"""V13: what a speculative engine has finished first, or in time, is biased, even among responses of one length."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import sympy as sp
import torch

from testbed.exact import inclusion
from testbed.rollout import cut_batches
from testbed.rollout.speculative.responses import Responses
from theory import speculative_bugs as bugs
from theory.derivation import Derivation, Step
from theory.planting import planted
from theory.round_cuts import (
    finished,
    law_of_beginnings,
    law_of_finished,
    law_of_first,
    law_of_resumed,
    vector,
)
from theory.speculative_worlds import Prefix, Speculation
from theory.symbols import SymbolicWorld, symbolic_world
from theory.theorem import Claim, Mutant, Quantities, Theorem

N, KEPT = 2, 1  # responses that start, and that are kept
PASSES = 2  # after which the engine is stopped; the first is over the prompt
CAP = 2  # tokens of the control


def measure(case: Speculation, kept: int = KEPT, nodes: int = 1, passes: int = PASSES, dropped: int = 0) -> Quantities:
    """What is kept with drafts and without, beside the target's law."""
    target, done, alone = case.target.probs, finished(case, 1), finished(case, 0)
    used = done if nodes else alone
    ratios = torch.tensor([one.ratio for one in done], dtype=torch.float64)
    taken = {one.response: one.passes for one in done}
    number = torch.tensor([taken[y] for y in case.responses()])
    by_passes = torch.zeros(int(number.max()) + 1, dtype=torch.float64).index_add_(0, number, target)
    weight = KEPT / N / inclusion.inclusion_probabilities(by_passes, N, KEPT)[number]
    law = law_of_first(case, used, N, kept)
    heads = dict(zip(case.responses(), target.tolist(), strict=True))
    short = sorted({y[:CAP] for y in heads})
    capped = case.law(drafter=lambda: case.heads(1), nodes=1, max_tokens=torch.tensor([CAP]))
    found: dict[str, Any] = {
        "kept": law,
        "target": target,
        "ratios": ratios,
        "one": torch.ones_like(ratios),
        "kept_formula": target / weight,
        "repaired": law * weight,
        "handed_in": law_of_beginnings(case, used, passes),
        "handed_in_without_drafts": law_of_beginnings(case, alone, passes),
        "resumed": law_of_resumed(case, used, passes, dropped),
        "capped": vector({y: p for (y,), p in capped.items()}, short),
        "beginnings": vector({h: sum(p for y, p in heads.items() if y[:CAP] == h) for h in short}, short),
    }
    in_time = law_of_finished(case, used, passes)
    if in_time is not None:
        late = number > passes
        found |= {
            "in_time": in_time,
            "in_time_formula": torch.where(late, 0.0, target) / target[~late].sum(),
            "distance": (in_time - target).abs().sum() / 2,
            "lost": target[late].sum(),
        }
    if case.eos is None:
        found |= {"kept_without_drafts": law_of_first(case, alone, N, kept)}
    return found


@lru_cache(maxsize=8)
def _derivation(shape: tuple[Any, ...], passes: tuple[int, ...], cuts: tuple[Prefix, ...]) -> Derivation:
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
    first = [
        Step("all_pairs", listed, "two independent responses (V3); the one with fewer passes is kept, ties by a fair coin",
             tex=r"\sum_{y_1,y_2} \pi(y_1)\pi(y_2)\,[1_{\tau_1<\tau_2} + \tfrac12 1_{\tau_1=\tau_2}]"),
        Step("inclusion", [2 * p * (later[k] + share[k] / 2) for p, k in zip(prob, passes, strict=True)],
             "only how many passes the other takes matters", quantity="kept",
             tex=r"P_{kept}(y) = \pi(y)\,\tfrac nm\,Incl(\tau(y))"),
    ]  # fmt: skip
    done = sp.Add(*[share[k] for k in share if k <= PASSES])
    given = [p / done if k <= PASSES else sp.Integer(0) for p, k in zip(prob, passes, strict=True)]
    in_time = [
        Step("given", given, "a response is kept iff it is done after r passes, whatever the others do", quantity="in_time",
             tex=r"P(y \mid \tau \le r) = \pi(y)\, 1_{\tau(y) \le r} / P(\tau \le r)"),
    ]  # fmt: skip
    distance = [
        Step("distance", sp.Add(*[sp.Abs(g - p) for g, p in zip(given, prob, strict=True)]) / 2,
             "from the target", quantity="distance", tex=r"\tfrac12 \sum_y |P(y \mid \tau \le r) - \pi(y)|"),
        Step("split", (1 - done + sp.Add(*[share[k] for k in share if k > PASSES])) / 2,
             "what is kept gains 1/P - 1 each, what is late loses all", tex=r"\tfrac12 [1 - P(\tau \le r) + P(\tau > r)]"),
        Step("lost", sp.Add(*[share[k] for k in share if k > PASSES]), "the same mass", quantity="lost",
             tex=r"P(\tau > r)"),
    ]  # fmt: skip

    def rest(y: Prefix, h: Prefix) -> sp.Expr:
        return sp.Mul(*[w.pi(y[:t], y[t]) for t in range(len(h), len(y))])

    pieces = sorted(set(cuts), key=len)
    reached = {h: sp.Add(*[p for p, one in zip(prob, cuts, strict=True) if one == h]) for h in pieces}
    resumed = [
        Step("cut_and_gone_on",
             [sp.Add(*[reached[h] * rest(y, h) for h in pieces if y[: len(h)] == h]) for y in w.leaves],
             "the response is at h when the engine is stopped, and the target goes on",
             tex=r"\sum_{h \le y} P(T_r = |h|, h)\, \pi(y \mid h)"),
        Step("stopping_time", [w.prob_pi(h) * rest(y, h) for y, h in zip(w.leaves, cuts, strict=True)],
             "whether the engine stops at h is decided by h: the walk ends with the token that it draws last",
             tex=r"\pi(h)\, \pi(y \mid h)"),
        Step("target", prob, "which is the target's", quantity="resumed", tex=r"\pi(y)"),
    ]  # fmt: skip
    short = sorted({y[:CAP] for y in w.leaves})
    capped = [
        Step("beginnings", [sp.Add(*[p for y, p in zip(w.leaves, prob, strict=True) if y[:CAP] == h]) for h in short],
             "responses that begin alike", quantity="beginnings", tex=r"\sum_{y \ge h} \pi(y)"),
        Step("summed", [w.prob_pi(h) for h in short], "later tokens sum to 1", quantity="capped", tex=r"\pi(h)"),
    ]  # fmt: skip
    return Derivation([first, in_time, distance, resumed, capped], w.point, lambda case: w.bind(case.world))


def derive(case: Speculation) -> Derivation:
    """Derivation for the passes that the responses take, and for where they stand when the engine is stopped."""
    taken = {one.response: one for one in finished(case, 1)}
    done = [taken[y] for y in case.responses()]
    return _derivation(case.world.shape, tuple(d.passes for d in done), tuple(d.after(PASSES) for d in done))


def instances() -> list[Speculation]:
    """Responses of one length, and with an end token."""
    return [
        Speculation(name="one_length", horizon=3, sharpness=1.0, layers=1),
        Speculation(name="finished_early", horizon=4, eos=1, sharpness=1.0, layers=1),
    ]


def cap_forgotten(right: Any) -> Any:
    """Bug: what a round accepted is kept beyond the cap, too."""
    return lambda self: replace(right(self), remaining=self.most - self.position + 9)


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
        "n responses start together; the first m < n in passes are kept, ties at random; or those that are done after r passes",
        "the drafter guesses some responses better than others; some are not done after r passes",
        "for what is resumed: everything that was drawn is kept, the token behind the last accepted draft included",
    ),
    statement="tau(y) the passes that y took. First m of n: the kept law is pi(y) (n/m) Incl(tau(y)), biased toward what the "
    "drafter expects, even if all responses have one length (where keeping the first of an autoregressive engine is harmless); "
    "(m/n)/Incl(tau) repairs it (S8). Stopped after r passes, unfinished ones dropped: pi(y) 1{tau(y) <= r} / P(tau <= r), at "
    "total variation P(tau > r), which no weight repairs; handed in as they are: lengths tell what the drafter guessed. Paused "
    "and resumed by the target: pi(y), since the tokens there are after r passes are a stopping time of the token process; a "
    "cap in tokens gives the target's law of beginnings, whatever the drafter",
    source="ours",
    claims=(
        Claim("biased", "differs", "kept", "target", "kept responses do not have the target's law", margin=1e-2),
        Claim("silent", "equal", "ratios", "one", "every recorded ratio is 1"),
        Claim("harmless", "equal", "kept_without_drafts", "target", "one length and no drafts: keeping the first is harmless"),
        Claim("formula", "equal", "kept", "kept_formula", "a kept response has law pi (n/m) Incl(tau)"),
        Claim("repaired", "equal", "repaired", "target", "weights (m/n)/Incl(tau) restore the target's law"),
        Claim("in_time", "differs", "in_time", "target", "those done after r passes do not have it, either", margin=1e-2),
        Claim("in_time_formula", "equal", "in_time", "in_time_formula", "they have law pi 1{tau <= r} / P(tau <= r)"),
        Claim("lost", "equal", "distance", "lost", "at total variation P(tau > r), the mass that no weight brings back"),
        Claim("handed_in", "differs", "handed_in", "handed_in_without_drafts",
              "what there is after r passes is not what an engine without drafts has then", margin=1e-2),
        Claim("resumed", "equal", "resumed", "target", "paused after r passes and resumed by the target: the target's law"),
        Claim("capped", "equal", "capped", "beginnings", "stopped after k tokens: the target's law of beginnings"),
    ),
    instances=instances,
    measure=measure,
    derive=derive,
    outcome="Wait for all responses of a speculative engine, resume those that were cut, or weigh by how long each took; their "
    "ratios do not show it.",
    mutants=(
        Mutant(name="all_kept", kind="hypothesis", breaks=("biased", "formula", "repaired"),
               measure=lambda case: measure(case, kept=N), why="m = n: nothing is selected"),
        Mutant(name="no_drafts", kind="hypothesis", breaks=("biased", "formula", "repaired", "handed_in"), on=("one_length",),
               measure=lambda case: measure(case, nodes=0), why="all responses of one length take the same passes"),
        Mutant(name="passes_for_all", kind="hypothesis", breaks=("in_time", "handed_in"),
               measure=lambda case: measure(case, passes=case.horizon),
               why="as many passes as there are tokens: everything is done"),
        Mutant(name="last_token_drawn_again", kind="hypothesis", breaks=("resumed",),
               measure=lambda case: measure(case, dropped=1),
               why="cut before the token behind the last accepted draft, which is known to be a miss only once it is drawn: no "
               "stopping time, and drawing it again favors the candidates"),
        Mutant(name="passes_not_counted", kind="bug", breaks=("biased", "formula", "repaired"), on=("one_length",),
               plant=lambda: planted(cut_batches, "first_to_end", one_tick),
               why="a clock at which all end together selects nobody"),
        Mutant(name="cap_forgotten", kind="bug", breaks=("capped",), on=("one_length",),
               plant=lambda: planted(Responses, "draws", cap_forgotten),
               why="the whole last round is kept: who was accepted has one token more"),
        Mutant(name="redraw_after_a_miss", kind="bug", breaks=("formula", "repaired", "in_time_formula", "lost", "resumed"),
               on=("finished_early",), plant=bugs.redraw_after_miss,
               why="an engine that favors candidates keeps more of them still; needs responses with two rounds"),
    ),
)  # fmt: skip
