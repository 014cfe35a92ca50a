"""V3: every choice of the speculative engine walked, its output law is the target's, for one response and for a group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import sympy as sp
import torch

from theory import speculative_bugs as bugs
from theory.derivation import Derivation, Step
from theory.speculative_worlds import Prefix, Speculation, drafters
from theory.theorem import Claim, Mutant, Quantities, Theorem

WAYS = ("heads", "lookup")


def vector(law: Mapping[tuple[Prefix, ...], float], outcomes: Sequence[tuple[Prefix, ...]]) -> torch.Tensor:
    """Probabilities in the order of the outcomes, and last that of anything else."""
    values = [law.get(y, 0.0) for y in outcomes]
    return torch.tensor([*values, sum(law.values()) - sum(values)], dtype=torch.float64)


def measure(case: Speculation) -> Quantities:
    """Law of the engine by enumeration, beside the exact law from the policy's own passes."""
    single, ways = case.target.probs, drafters(case)
    one = [(y,) for y in case.responses()]
    nothing_else = torch.zeros(1, dtype=torch.float64)
    if case.rows == 1:
        laws = torch.stack([vector(case.law(**ways[way]), one) for way in WAYS])
        return {"engine": laws, "target": torch.cat([single, nothing_else]).expand_as(laws), "law": laws[0, :-1]}
    pairs = [a + b for a in one for b in one]
    product = torch.cat([(single[:, None] * single).flatten(), nothing_else])
    law = vector(case.law(n=2, drafter=lambda: case.heads(1), nodes=1), pairs)
    size = len(one)
    lengths = torch.tensor([len(y[0]) for y in one])
    ended = torch.nn.functional.one_hot(lengths, case.horizon + 1).double()
    joint = law[:-1].reshape(size, size)
    return {
        "pairs": law,
        "product": product,
        "each": torch.stack([joint.sum(1), joint.sum(0)]),
        "alone": single.expand(2, -1),
        "lengths": torch.stack([joint.sum(1) @ ended, joint.sum(0) @ ended]),
        "lengths_alone": (single @ ended).expand(2, -1),
        "pair_law": law[:-1],
    }


@lru_cache(maxsize=8)
def _derivation(responses: tuple[Prefix, ...], rows: int) -> Derivation:
    def symbol(letter: str, h: Prefix, row: int = 0) -> sp.Symbol:
        return sp.Symbol(f"{letter}{row or ''}_" + "".join(map(str, h)))

    def chance(y: Prefix, t: int) -> sp.Expr:
        a = symbol("a", y[:t])
        return a if y[t] else 1 - a

    def by_rounds(y: Prefix, row: int = 0) -> sp.Expr:
        """Sum over the ways in which passes settle the positions of y; d = the tree of the pass holds the next token."""
        total = sp.Integer(0)
        inner = range(1, len(y))
        for cuts in range(2 ** len(inner)):
            term = chance(y, 0)
            for t in inner:
                d = symbol("d", y[:t], row)
                term *= chance(y, t) * (1 - d if cuts >> (t - 1) & 1 else d)
            total += term
        return total

    def product(y: Prefix) -> sp.Expr:
        return sp.Mul(*[chance(y, t) for t in range(len(y))])

    if rows == 1:
        chain = [
            Step("rounds", [by_rounds(y) for y in responses],
                 "a pass settles positions until a drawn token is no child (1 - d), and emits it, too: each position has one "
                 "draw, from the law at its own prefix, whichever pass holds it",
                 tex=r"P(y) = \sum_{ways} \prod_t p(y_t|h_t)\,[d_t \text{ or } 1-d_t]"),
            Step("factored", [sp.Mul(product(y), *[symbol("d", y[:t]) + 1 - symbol("d", y[:t]) for t in range(1, len(y))])
                              for y in responses],
                 "the ways are independent of the draws that they wait for", tex=r"\prod_t p(y_t|h_t) \prod_t (d_t + 1 - d_t)"),
            Step("target", [product(y) for y in responses], "d + 1 - d = 1", quantity="law", tex=r"\prod_t p(y_t|h_t)"),
        ]  # fmt: skip
    else:
        chain = [
            Step("rounds", [by_rounds(y, 1) * by_rounds(z, 2) for y in responses for z in responses],
                 "each response has its own draws; d may depend on both pasts", tex=r"\sum_{ways} P_1 P_2"),
            Step("independent", [product(y) * product(z) for y in responses for z in responses], "as for one response",
                 quantity="pair_law", tex=r"P(y) P(z)"),
        ]  # fmt: skip

    def point(rng: Any) -> dict[sp.Symbol, Any]:
        names = sorted({s for step in chain for e in step.flat() for s in e.free_symbols}, key=str)
        return {s: sp.Rational(rng.randint(1, 8), 9) for s in names}

    def bind(case: Speculation) -> dict[sp.Symbol, float]:
        return {symbol("a", h): float(law[1].exp()) for h, law in case.laws.items()}

    return Derivation([chain], point, bind)


def instances() -> list[Speculation]:
    """One response with and without an end token; groups of two, with an end token and without."""
    return [
        Speculation(name="one_response", horizon=4),
        Speculation(name="end_token", horizon=4, eos=1, sharpness=1.0),
        Speculation(name="group", horizon=3, rows=2, eos=1, sharpness=1.0, layers=1),
        Speculation(name="group_without_end", horizon=2, rows=2, sharpness=1.0, layers=1),
    ]


THEOREM = Theorem(
    id="V3",
    kind="identity",
    title="the engine's output law, every choice enumerated, is the target's",
    hypotheses=(
        "each position is drawn once, from the target's law at its own prefix (after temperature, top-k and top-p)",
        "every response has its own draws, and ends at its own end token or cap",
        "what is drafted depends on the past only",
    ),
    statement="P(engine writes y) = prod_t p(y_t | h_t) for every drafter and budget; the responses of a group are independent, "
    "and the law of their lengths is the target's",
    source="ours",
    claims=(
        Claim("law", "equal", "engine", "target", "the law of one response, under every drafter", tolerance=1e-12),
        Claim("pairs", "equal", "pairs", "product", "two responses of a batch are independent", tolerance=1e-12),
        Claim("each", "equal", "each", "alone", "each response of a batch alone has the target's law", tolerance=1e-12),
        Claim("lengths", "equal", "lengths", "lengths_alone", "each has the target's law of lengths", tolerance=1e-12),
    ),
    instances=instances,
    measure=measure,
    derive=lambda case: _derivation(tuple(case.responses()), case.rows),
    outcome="Lossless per sequence is not enough for a group: test the joint law and the law of lengths as well.",
    mutants=(
        Mutant(name="first_token_shared", kind="hypothesis", breaks=("pairs",), on=("group",), plant=bugs.shared_first_token,
               why="one draw for the whole batch: each response is right, the group is not independent"),
        Mutant(name="whole_batch_stopped", kind="hypothesis", breaks=("pairs", "each", "lengths"), on=("group_cut",),
               instances=lambda: [Speculation(name="group_cut", horizon=3, rows=2, sharpness=1.0, layers=1)],
               plant=bugs.whole_batch_stop,
               why="the fastest response to reach the cap ends the others; needs responses that were accepted different numbers "
               "of drafts"),
        Mutant(name="bonus_from_the_drafter", kind="bug", breaks=("law",), on=("one_response",), plant=bugs.bonus_from_drafter,
               why="the token behind a leaf has the drafter's law"),
        Mutant(name="redraw_after_a_miss", kind="bug", breaks=("law",), on=("one_response",), plant=bugs.redraw_after_miss,
               why="p 1_S + (1 - p(S)) p instead of p; needs trees that leave a token out"),
        Mutant(name="sibling_visible", kind="bug", breaks=("law",), on=("one_response",), plant=bugs.sibling_visible,
               why="laws at nodes depend on their rivals"),
        Mutant(name="depth_off_by_one", kind="bug", breaks=("law",), on=("one_response",), plant=bugs.depth_off_by_one,
               why="candidates are read at another position"),
        Mutant(name="cache_not_compacted", kind="bug", breaks=("law",), on=("one_response",), plant=bugs.cache_not_compacted,
               why="later passes read rejected rivals; needs two rounds after a path that is not the first one"),
    ),
)  # fmt: skip
