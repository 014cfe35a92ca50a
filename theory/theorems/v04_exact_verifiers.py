"""V4: membership, point mass, multi-round, block and traversal rules are exact, and accept as many tokens as formulas say."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

import sympy as sp

from testbed.rollout.speculative.verify import block, expected, sequoia, token_rejection
from testbed.rollout.speculative.verify.enumeration import Drafts
from testbed.rollout.speculative.verify.registry import verify
from theory.derivation import Derivation, Step
from theory.draft_rounds import TOY, RoundCase, constant, varied
from theory.draft_symbols import RoundSymbols, kept, least, left, over
from theory.planting import planted
from theory.theorem import Claim, Mutant, Quantities, Theorem

ON_TREES = ("membership", "point_mass", "specinfer", "sequoia", "traversal", "traversal_without_replacement")
ON_CHAINS = ("token_rejection", "block")
SETS = {"membership": "chosen", "point_mass": "chosen", "sequoia": "distinct", "traversal_without_replacement": "distinct",
        "token_rejection": "chains", "block": "chains"}  # fmt: skip
A = sp.Symbol("a", positive=True)


def formula(name: str, case: RoundCase) -> float:
    """Expected number of accepted tokens."""
    laws = case.p, case.q
    if name in ("membership", "point_mass"):
        return expected.path_probabilities(case.p, *case.tree)
    if name in ON_CHAINS:
        return (expected.block_chain if name == "block" else expected.token_chain)(*laws, len(case.branching))
    distinct = SETS.get(name) == "distinct"
    if name.startswith("traversal"):
        return expected.leaf_to_root(*laws, case.branching, distinct)
    return expected.child_by_child(*laws, case.branching, (), distinct)


def measure(case: RoundCase, only: tuple[str, ...] = ON_TREES + ON_CHAINS, drafts: Drafts | None = None) -> Quantities:
    """Per rule: the law of a round completed by the target, and the expected acceptance, enumerated and by formula."""
    found: dict[str, Any] = {"target": case.target_law(), "target_first": case.p(())}
    for name in only:
        law = case.emits(partial(verify, name), drafts or getattr(case, SETS.get(name, "drawn")))
        found[name] = law.completed(case.target, case.horizon)
        found[f"{name}_first"] = law.completed(case.target, 1)
        found[f"{name}_accepted"] = law.expected_accepted
        found[f"{name}_formula"] = formula(name, case)
        if name == "block":
            found["block_runs"] = case.by_run(law)
            found["traversal_runs"] = case.by_run(case.emits(partial(verify, "traversal"), case.chains))
    if case.name == "textbook" and len(only) > 1:
        found |= {"examples": [found["token_rejection_accepted"], found["block_accepted"]], "printed": [10 / 9, 11 / 9]}
    if case.name == "toy" and len(only) > 1:
        found |= {"examples": [found["specinfer_accepted"], found["sequoia_accepted"]], "printed": [18 / 25, 107 / 140]}
    if len(only) == 1:
        return {k: v for k, v in found.items() if k.startswith(("target", only[0]))}
    return found


@lru_cache(maxsize=8)
def _derivation(vocab_size: int, two_children: bool, two_levels: bool, ratios: bool) -> Derivation:
    w = RoundSymbols(vocab_size, 2 if two_levels else 1)
    p, q = w.p(()), w.q(())
    chains = [_entered(p, q)]
    if two_children:
        chains.append(_independent(p, q))
    if two_children and ratios:
        chains.append(_distinct(p, q))
    if two_levels:
        chains += _blocks(w)

    def point(rng: Any) -> dict[sp.Symbol, Any]:
        return {**w.point(rng), A: sp.Rational(rng.randint(1, 9), 9)}

    return Derivation(chains, point, lambda case: {**w.bind(case), A: 1.0})


def _independent(p: list[Any], q: list[Any]) -> list[Step]:
    """Two independent children, in masses: nothing is divided by what may be 0."""
    rest = left(p, q)
    mass = sp.Add(*rest)
    second = [least(r, mass * b) for r, b in zip(rest, q, strict=True)]
    after = [over(r, mass * b) for r, b in zip(rest, q, strict=True)]
    first = kept(p, q)
    return [
        Step("two_rounds", [x + y + z for x, y, z in zip(first, second, after, strict=True)],
             "first child kept, second kept against the residual r = (p-q)+ of mass m, or a draw from what is left then",
             quantity="specinfer_first",
             tex=r"\min(p,q) + \min(r, m\,q) + (r - m\,q)^+,\quad r = (p-q)^+,\ m = \textstyle\sum r"),
        Step("one_round", [x + r for x, r in zip(first, rest, strict=True)], "the second round emits r, by V1",
             tex=r"\min(p,q) + (p-q)^+"),
        Step("target", p, "and so does the first", quantity="target_first", tex="p"),
    ]  # fmt: skip


def _distinct(p: list[Any], q: list[Any]) -> list[Step]:
    """Two children without replacement: what was rejected is known, and the second was drawn from q without it."""
    first, rest = kept(p, q), left(p, q)
    mass = sp.Add(*rest)
    rejected = [b - k for b, k in zip(q, first, strict=True)]
    left_q = [[0 if y == x else b / (1 - q[x]) for y, b in enumerate(q)] for x in range(len(q))]
    rounds = [
        first[y]
        + sp.Add(
            *[d * (least(r / mass, law[y]) + over(r / mass, law[y])) for d, law in zip(rejected, left_q, strict=True)]
        )
        for y, r in enumerate(rest)
    ]
    return [
        Step("two_rounds", rounds, "first child kept; or x rejected, and the second, drawn from q without x, verified for r/m",
             quantity="sequoia_first",
             tex=r"\min(p,q)(y) + \sum_x (q-\min(p,q))(x)\Big[\min\!\big(\tfrac{r}{m}, q_{-x}\big) "
             r"+ \big(\tfrac{r}{m} - q_{-x}\big)^+\Big](y)"),
        Step("any_second", [k + sp.Add(*rejected) * r / mass for k, r in zip(first, rest, strict=True)],
             "by V1 the second round emits r/m whatever x was: any law will do if it is the one that was drawn from",
             tex=r"\min(p,q)(y) + \sum_x (q-\min(p,q))(x)\, \tfrac{r(y)}{m}"),
        Step("target", p, "rejections have mass m", quantity="target_first", tex="p(y)"),
    ]  # fmt: skip


def _blocks(w: RoundSymbols) -> list[list[Step]]:
    """Chains of two tokens, in masses: m_1 = min(p, q), m_2 = min(m_1 p', q q')."""
    p, q = w.p(()), w.q(())
    pairs = [(x, y) for x in w.tokens for y in w.tokens]
    one = kept(p, q)
    two = {(x, y): least(one[x] * w.p((x,))[y], q[x] * w.q((x,))[y]) for x, y in pairs}
    stopped = {(x, y): over(one[x] * w.p((x,))[y], q[x] * w.q((x,))[y]) for x, y in pairs}
    law = [
        Step("emitted", [over(p[x], q[x]) * w.p((x,))[y] + stopped[x, y] + two[x, y] for x, y in pairs],
             "x is a correction, y the target's; or x is accepted, y the correction, of mass (m_1 p' - q q')+; or both are",
             tex=r"(p-q)^+(x)\,p'(y) + \big(m_1 p' - q q'\big)^+ + \min(m_1 p',\, q q')"),
        Step("second", [(over(p[x], q[x]) + one[x]) * w.p((x,))[y] for x, y in pairs], "(u - v)+ + min(u, v) = u",
             tex=r"\big((p-q)^+ + m_1\big)(x)\; p'(y)"),
        Step("target", [p[x] * w.p((x,))[y] for x, y in pairs], "again", tex="p(x)\\,p'(y)"),
    ]  # fmt: skip
    length = [
        Step("tokens", sp.Add(*one) + sp.Add(*[one[x] * least(w.p((x,))[y], w.q((x,))[y]) for x, y in pairs]),
             "token rule: both coins", quantity="token_rejection_accepted", tex=r"\sum m_1 + \sum m_1 \min(p', q')"),
        Step("blocks", sp.Add(*one) + sp.Add(*two.values()), "m_1 <= q, so min(m_1 p', m_1 q') <= min(m_1 p', q q')",
             relation="<=", quantity="block_accepted", tex=r"\sum m_1 + \sum \min(m_1 p',\, q q')"),
    ]  # fmt: skip
    return [law, length]


def _entered(p: list[Any], q: list[Any]) -> list[Step]:
    """One step of traversal at a node that is entered with acceptance a: its mass a p is all emitted."""
    scaled = [A * x for x in p]
    rest = left(scaled, q)
    mass = sp.Add(*rest)
    child = [b * least(1, s / b) for s, b in zip(scaled, q, strict=True)]
    rejected = sp.Add(*[b * (1 - least(1, s / b)) for s, b in zip(scaled, q, strict=True)])
    updated = mass / (mass + 1 - A)
    return [
        Step("child_or_rest", [c + rejected * updated * r / mass for c, r in zip(child, rest, strict=True)],
             "a child is entered with a_x = min(1, a p/q) and accepted with it; else the node, with a' and law (a p - q)+/s",
             tex=r"q\,a_x + \Big(\sum_x q (1-a_x)\Big)\, a'\, \frac{(ap-q)^+}{s},\quad a' = \frac{s}{s+1-a}"),
        Step("rejections", [least(s, b) + (1 - A + mass) * updated * r / mass for s, b, r in zip(scaled, q, rest, strict=True)],
             "sum q (1 - a_x) = 1 - sum min(a p, q) = 1 - a + s", tex=r"\min(ap,q) + (1-a+s)\, a'\, \frac{(ap-q)^+}{s}"),
        Step("what_is_left", [least(s, b) + r for s, b, r in zip(scaled, q, rest, strict=True)],
             "a' is chosen to make this so; with a = 1, the root", quantity="traversal_first",
             tex=r"\min(ap,q) + (ap-q)^+"),
        Step("carried", scaled, "a node entered with a emits a p: by induction from the leaves",
             quantity="target_first", tex=r"a\,p"),
    ]  # fmt: skip


def derive(case: RoundCase) -> Derivation:
    """Chains of the masses for the shape; ratios only where the drafter does not stop short."""
    p, q = case.p(()), case.q(())
    ratios = max(q) < 1 and p != q and any(a > b for a, b in zip(p, q, strict=True))
    return _derivation(case.vocab_size, case.branching[0] == 2, len(case.branching) == 2, ratios)


def instances() -> list[RoundCase]:
    """One and two levels, zeros, a drafter that runs out of tokens, equal laws, the textbook's pair."""
    return [
        constant("toy", TOY, TOY[::-1], (2,)),
        varied("three_tokens", 3, (2,)),
        varied("two_levels", 2, (2, 2)),
        varied("chain_below", 3, (1, 1)),
        constant("target_has_zeros", (0.5, 0.0, 0.5), (0.2, 0.5, 0.3), (2,)),
        constant("drafter_runs_out", (0.2, 0.3, 0.5), (0.6, 0.4, 0.0), (3,)),
        constant("sure_drafter", (0.25, 0.75), (1.0, 0.0), (2, 1)),
        constant("agreement", (0.25, 0.75), (0.25, 0.75), (2, 1)),
        constant("disjoint", (0.5, 0.5, 0.0), (0.0, 0.0, 1.0), (2,)),
        constant("textbook", (1 / 3, 2 / 3), (2 / 3, 1 / 3), (1, 1)),
    ]


def misinformed(case: RoundCase) -> Quantities:
    """Mutated reading: independent children given to the rule for distinct ones."""
    return measure(case, ("sequoia",), case.drawn)


def replaced(case: RoundCase) -> Quantities:
    """Mutated reading: distinct children given to the rule for independent ones."""
    return measure(case, ("specinfer",), case.distinct)


def token_coins(right: Any) -> Any:
    """Bug: the coins of single tokens, of which the last success is taken."""

    def wrong(proposal: Any, joint: Any, p: Any, q: Any) -> Any:
        coins = right(proposal, joint, p, q)
        coins[:, 1:] = token_rejection.chances(p, q, proposal.tokens)
        return coins

    return wrong


RULES = (*ON_TREES, *ON_CHAINS)
THEOREM = Theorem(
    id="V4",
    kind="identity",
    title="every registered verifier is exact, and accepts as many tokens as its formula says",
    hypotheses=(
        "the draft is of the rule's kind: chosen without its draws; a drawn chain; siblings drawn independently; or without "
        "replacement, in the order in which they are tried",
        "q is the law that was drawn from; a law with k tokens gives at most k distinct children, and the residual after them",
        "0/0 = 0 in the updates of block and traversal (nothing is left over: a rejection is impossible)",
    ),
    statement="continued by the target, a round has the target's joint law. E tau: membership and point mass, sum of the nodes' "
    "path probabilities; token rule, sum of prod min(p_i, q_i); block, sum of m_i = min(m_{i-1} p_i, q_1...q_i), never less; "
    "multi-round and traversal, recursions over children and depths; on chains traversal is the block rule",
    source="literature (arXiv 2305.09781, 2402.12374, 2403.10444, 2505.12398); traversal's updates are our own completion",
    claims=(
        *(Claim(f"{name}_law", "equal", name, "target", f"{name}: the round has the target's joint law") for name in RULES),
        *(Claim(f"{name}_length", "equal", f"{name}_accepted", f"{name}_formula", f"{name}: expected acceptance by formula")
          for name in RULES),
        Claim("block_accepts_more", "at_most", "token_rejection_accepted", "block_accepted", "block never accepts less"),
        Claim("chains", "equal", "traversal_runs", "block_runs", "on chains traversal emits what block does, run by run"),
        Claim("examples", "equal", "examples", "printed", "10/9 and 11/9 on the textbook's pair; 18/25 and 107/140 on the toy"),
    ),
    instances=instances,
    measure=measure,
    derive=derive,
    outcome="Any of these rules may be used: they differ in speed and in what they must know about the draft, not in law.",
    mutants=(
        Mutant(name="stale_q_without_replacement", kind="bug", breaks=("sequoia_law", "sequoia_length"),
               on=("toy", "three_tokens"),
               plant=lambda: planted(sequoia, "left_over", lambda right: lambda p, q, token: (right(p, q, token)[0], q)),
               measure=partial(measure, only=("sequoia",)),
               why="the rejected token stays in q, which the second child was not drawn from"),
        Mutant(name="block_with_the_token_rule", kind="bug", breaks=("block_law", "block_length", "chains", "examples"),
               on=("textbook",), plant=lambda: planted(block, "successes", token_coins),
               why="the last success of token coins: needs two tokens"),
        Mutant(name="distinct_children_taken_for_independent", kind="hypothesis", breaks=("specinfer_law", "specinfer_length"),
               on=("toy", "three_tokens"), measure=replaced, why="the second child was drawn from q without the first"),
        Mutant(name="independent_children_taken_for_distinct", kind="hypothesis", breaks=("sequoia_law", "sequoia_length"),
               on=("toy", "three_tokens"), measure=misinformed, why="the second child may repeat the first"),
    ),
)  # fmt: skip
