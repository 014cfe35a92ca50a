"""V3: every choice of the speculative engine walked, its output law is the target's, for one response and for a group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import sympy as sp
import torch

from testbed.rollout.speculative import sampled_trees
from testbed.rollout.speculative.verify import laws as verifier_laws
from testbed.rollout.speculative.verify.registry import VERIFIERS
from theory import speculative_bugs as bugs
from theory.derivation import Derivation, Step
from theory.planting import planted
from theory.speculative_worlds import Outcomes, Prefix, Speculation, drafters, drawing, summed
from theory.theorem import Claim, Mutant, Quantities, Theorem

WAYS = ("heads", "lookup")
OTHERS = tuple(name for name in VERIFIERS if name != "membership")


def vector(law: Mapping[tuple[Prefix, ...], float], outcomes: Sequence[tuple[Prefix, ...]]) -> torch.Tensor:
    """Probabilities in the order of the outcomes, and last that of anything else."""
    values = [law.get(y, 0.0) for y in outcomes]
    return torch.tensor([*values, sum(law.values()) - sum(values)], dtype=torch.float64)


def distance(case: Speculation, outcomes: Outcomes) -> torch.Tensor:
    """Total variation between what was written and the target; a tolerance of 1e-10 in a hundredth, the least scale, is 1e-12."""
    off = vector(summed(outcomes), [(y,) for y in case.responses()])
    off[:-1] -= case.target.probs
    return off.abs().sum() / 2


def three_tokens(case: Speculation, verifiers: Sequence[str] = OTHERS, ways: bool = True) -> Quantities:
    """Laws of one response, its branches side by side: membership behind every drafter, and every other verifier."""
    found: dict[str, Any] = {"none": 0.0}
    for name in verifiers:
        found[name] = distance(case, case.side_by_side(**drawing(case)[name]))
    if ways:
        one, nothing_else = [(y,) for y in case.responses()], torch.zeros(1, dtype=torch.float64)
        laws = torch.stack([vector(summed(case.side_by_side(**way)), one) for way in drafters(case).values()])
        target = torch.cat([case.target.probs, nothing_else]).expand_as(laws)
        found |= {"engine": laws, "target": target, "law": laws[0, :-1]}
    return found


def measure(case: Speculation) -> Quantities:
    """Law of the engine by enumeration, beside the exact law from the policy's own passes."""
    if case.vocab_size > 2:
        return three_tokens(case)
    single, ways = case.target.probs, drafters(case)
    one = [(y,) for y in case.responses()]
    nothing_else = torch.zeros(1, dtype=torch.float64)
    if case.rows == 1:
        laws = torch.stack([vector(case.law(**ways[way]), one) for way in WAYS])
        together = torch.stack([vector(summed(case.side_by_side(**ways[way])), one) for way in WAYS])
        target = torch.cat([single, nothing_else]).expand_as(laws)
        return {"engine": laws, "target": target, "law": laws[0, :-1], "together": together}
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
def _derivation(responses: tuple[Prefix, ...], rows: int, others: range) -> Derivation:
    def symbol(letter: str, h: Prefix, row: int = 0) -> sp.Symbol:
        return sp.Symbol(f"{letter}{row or ''}_" + "".join(map(str, h)))

    def chance(y: Prefix, t: int) -> sp.Expr:
        return symbol(f"a{y[t]}", y[:t]) if y[t] else 1 - sp.Add(*[symbol(f"a{v}", y[:t]) for v in others])

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
        return {symbol(f"a{v}", h): float(law[v].exp()) for h, law in case.laws.items() for v in others}

    return Derivation([chain], point, bind)


def instances() -> list[Speculation]:
    """One response with and without an end token, over two tokens and three; groups of two, with an end token and without."""
    return [
        Speculation(name="one_response", horizon=4),
        Speculation(name="end_token", horizon=4, eos=1, sharpness=1.0),
        Speculation(name="three_tokens", horizon=4, vocab_size=3),
        Speculation(name="three_tokens_end", horizon=4, vocab_size=3, eos=2, sharpness=1.0),
        Speculation(name="group", horizon=3, rows=2, eos=1, sharpness=1.0, layers=1),
        Speculation(name="group_without_end", horizon=2, rows=2, sharpness=1.0, layers=1),
    ]


def branches() -> list[dict[str, Any]]:
    """Branches that were walked in the engine, and the distances found."""
    case = instances()[2]
    every = {f"membership, {name}": way for name, way in drafters(case).items()} | drawing(case)
    rows = []
    for name, way in every.items():
        outcomes = case.side_by_side(**way)
        rows.append({
            "verifier": name, "tokens": case.vocab_size, "horizon": case.horizon, "nodes": way["nodes"],
            "branches": len(outcomes), "total_variation": float(distance(case, outcomes)),
        })  # fmt: skip
    return rows


def misstated() -> Any:
    """The verifier is told another law (here: the uniform one) than the candidates were drawn from."""

    def make(right: Any) -> Any:
        def wrong(*args: Any, **options: Any) -> Any:
            tree, law = right(*args, **options)
            return tree, torch.full_like(law, 1 / law.shape[-1]).log()

        return wrong

    return planted(sampled_trees, "drawn_tree", make)


THEOREM = Theorem(
    id="V3",
    kind="identity",
    title="the engine's output law, every choice enumerated, is the target's",
    hypotheses=(
        "each position is drawn once, from the target's law at its own prefix (after temperature, top-k and top-p)",
        "every response has its own draws, and ends at its own end token or cap",
        "what is drafted depends on the past only",
        "or a verifier that is exact round by round (V4), with candidates drawn from the law it is told",
    ),
    statement="P(engine writes y) = prod_t p(y_t | h_t) for every drafter, budget and verifier; the responses of a group are "
    "independent, and the law of their lengths is the target's. Table: branches walked in the engine itself",
    source="ours",
    claims=(
        Claim("law", "equal", "engine", "target", "the law of one response, under every drafter", tolerance=1e-12),
        Claim("side_by_side", "equal", "together", "engine", "and the same from branches walked as rows of one batch",
              tolerance=1e-12),
        *(Claim(f"{name}_law", "equal", name, "none", f"{name}: total variation at most 1e-12") for name in OTHERS),
        Claim("pairs", "equal", "pairs", "product", "two responses of a batch are independent", tolerance=1e-12),
        Claim("each", "equal", "each", "alone", "each response of a batch alone has the target's law", tolerance=1e-12),
        Claim("lengths", "equal", "lengths", "lengths_alone", "each has the target's law of lengths", tolerance=1e-12),
    ),
    instances=instances,
    measure=measure,
    derive=lambda case: _derivation(tuple(case.responses()), case.rows, range(1, case.vocab_size)),
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
        Mutant(name="misstated_drafter_law", kind="bug", on=("three_tokens_end",), plant=misstated,
               breaks=tuple(f"{name}_law" for name, rule in VERIFIERS.items() if rule.needs_drafter),
               measure=partial(three_tokens, ways=False),
               why="every rule that asks for q gets another one; the two that do not ask are left alone"),
        Mutant(name="rejected_token_kept", kind="bug", on=("three_tokens_end",), breaks=("point_mass_law",),
               plant=lambda: planted(verifier_laws, "without", lambda right: lambda law, token: law),
               measure=partial(three_tokens, verifiers=("point_mass",), ways=False),
               why="a rejected candidate may still be drawn"),
    ),
    table=branches,
)  # fmt: skip
