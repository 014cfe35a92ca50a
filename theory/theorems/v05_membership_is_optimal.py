"""V5: on a tree that was chosen without the verifier's draws, no exact verifier accepts more than the membership walk."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache, partial
from itertools import product
from typing import Any

import sympy as sp
import torch

from testbed.rollout.speculative import walk
from testbed.rollout.speculative.verify import expected
from testbed.rollout.speculative.verify.enumeration import Drafts, one_draft
from testbed.rollout.speculative.verify.protocol import Proposal
from testbed.rollout.speculative.verify.registry import verify
from theory.derivation import Derivation, Step
from theory.draft_rounds import TOY, RoundCase, constant, varied
from theory.draft_symbols import RoundSymbols
from theory.planting import planted
from theory.theorem import Claim, Mutant, Quantities, Theorem
from theory.verification_optimum import expected_prefix, most_accepted, tree_paths

STOP = sp.Symbol("c", positive=True)
SOONER = 0.25  # probability with which another exact rule stops before it asks


def one_hot(drafts: Drafts) -> Drafts:
    """The same tree, each child with a law that could have drawn nothing else: what rules for drawn trees can be told."""
    proposal = drafts.proposal
    laws = torch.full_like(proposal.target, -torch.inf)
    for place, up in enumerate(proposal.parent[0].tolist()):
        laws[:, up + 1, int(proposal.tokens[0, place])] = 0.0
    return replace(drafts, proposal=replace(proposal, drafter=laws))


def measure(case: RoundCase) -> Quantities:
    """Expected acceptance of the walk, of other exact rules on the same tree, and of the best there can be."""
    walk = case.emits(partial(verify, "membership"), case.chosen)
    others = [case.emits(partial(verify, "point_mass"), case.chosen).expected_accepted]
    if max(case.branching) == 1:
        sure = one_hot(case.chosen)
        others += [
            case.emits(partial(verify, rule), sure).expected_accepted
            for rule in ("token_rejection", "block", "traversal")
        ]
        others.append(case.emits(stops_sooner, case.chosen).expected_accepted)
    return {
        "walk": walk.expected_accepted, "paths": expected.path_probabilities(case.p, *case.tree),
        "prefix": expected_prefix(case), "program": most_accepted(case),
        "others": others, "exact": walk.completed(case.target, case.horizon), "target": case.target_law(),
    }  # fmt: skip


def stops_sooner(proposal: Proposal, chooser: Any) -> Any:
    """An exact rule that sometimes asks the target only once: the walk on an emptied tree."""
    key = torch.stack([torch.arange(len(proposal.tokens)), torch.full((len(proposal.tokens),), -2)], 1)
    heads = chooser.choose(torch.tensor([[SOONER, 1 - SOONER]] * len(proposal.tokens), dtype=torch.float64), key)
    empty = replace(proposal, tokens=torch.where((heads == 0)[:, None], -1, proposal.tokens))
    return verify("membership", empty, chooser)


@lru_cache(maxsize=16)
def _derivation(vocab_size: int, nodes: tuple[tuple[int, ...], ...], depth: int) -> Derivation:
    w = RoundSymbols(vocab_size, depth)

    def prob(y: tuple[int, ...]) -> sp.Expr:
        return sp.Mul(*[w.p(y[:t])[y[t]] for t in range(len(y))])

    responses = list(product(range(vocab_size), repeat=depth))
    inside = {y: [t for t in range(1, depth + 1) if y[:t] in nodes] for y in responses}
    paths = [sum((prob(v) for v in nodes), sp.Integer(0))]
    walk = [
        Step("longest_prefix", sum((prob(y) * len(inside[y]) for y in responses), sp.Integer(0)),
             "an exact rule accepts a prefix of Y ~ p that lies in T: at most the longest, which the walk accepts",
             quantity="prefix", tex=r"E\,\max\{t: Y_{\le t}\in T\} = \sum_y p(y) \sum_t 1\{y_{\le t}\in T\}"),
        Step("exchanged", sum((prob(y) for v in nodes for y in responses if y[: len(v)] == v), sp.Integer(0)),
             "sum over nodes first", tex=r"\sum_{v\in T}\ \sum_{y \succeq v} p(y)"),
        Step("paths", paths, "the rest of a response has mass 1", quantity="walk", tex=r"\sum_{v\in T} P(v)"),
    ]  # fmt: skip
    sooner = [
        Step("stops_sooner", sum((prob(y) * len(inside[y]) * (1 - STOP) for y in responses), sp.Integer(0)),
             "a rule that ends the round at once with probability c", tex=r"(1-c)\sum_y p(y) \sum_t 1\{y_{\le t}\in T\}"),
        Step("bound", paths, "tau <= longest prefix, response by response", relation="<=", quantity="program",
             tex=r"\le \sum_{v\in T} P(v)"),
    ]  # fmt: skip

    def point(rng: Any) -> dict[sp.Symbol, Any]:
        return {**w.point(rng), STOP: sp.Rational(rng.randint(1, 9), 10)}

    return Derivation([walk, sooner], point, lambda case: {**w.bind(case), STOP: SOONER})


def derive(case: RoundCase) -> Derivation:
    """For the case's tree."""
    return _derivation(case.vocab_size, tuple(tree_paths(case)[1:]), len(case.branching))


def instances() -> list[RoundCase]:
    """Chains, single levels and trees; a tree that holds every token; tokens the target forbids."""
    return [
        constant("toy", TOY, TOY[::-1], (2,)),
        varied("chain", 2, (1, 1, 1)),
        varied("chain_of_three_tokens", 3, (1, 1)),
        varied("tree", 3, (2, 1)),
        varied("wide_tree", 3, (2, 2)),
        varied("every_token", 2, (2, 1)),
        constant("forbidden_token", (0.5, 0.0, 0.5), (0.1, 0.6, 0.3), (2,)),
    ]


def drawn_drafts(case: RoundCase) -> Quantities:
    """Mutated reading: drafts drawn from the target's own law, all of which the token rule accepts."""
    twin = replace(case, drafter=case.target)
    return {**measure(case), "others": [case.emits(partial(verify, "token_rejection"), twin.chains).expected_accepted]}


def peeking(case: RoundCase) -> Quantities:
    """Mutated reading: a drafter that sees the walk's draws and drafts just those; the law stays the target's."""
    total, law = 0.0, torch.zeros_like(case.target_law())
    responses = list(product(range(case.vocab_size), repeat=case.horizon))
    for y, probability in zip(responses, case.target_law().tolist(), strict=True):
        drafts = one_draft(case.target, y[:-1], list(range(-1, case.horizon - 2)))
        (run,) = verify("membership", drafts.proposal, Script(y)).emitted()
        total += probability * (len(run) - 1)
        law[responses.index(run)] += probability
    return {**measure(case), "walk": total, "exact": law}


class Script:
    """Draws the given token at each position."""

    def __init__(self, tokens: tuple[int, ...]) -> None:
        self.tokens = tokens

    def choose(self, probs: Any, key: Any = None) -> Any:
        """Return the token of the key's position."""
        return torch.tensor([self.tokens[t] for t in key[:, 1].tolist()])


def first_child_only(right: Any) -> Any:
    """Bug: only the first child of a node is compared."""

    def wrong(tree: Any, at: Any, token: Any) -> Any:
        children = tree.parent == at[:, None] - 1
        return right(tree, at, token) & (children.cumsum(1) == 1)

    return wrong


TELLING = ("toy", "chain_of_three_tokens", "tree", "wide_tree")
THEOREM = Theorem(
    id="V5",
    kind="optimum",
    title="for a tree that was not drawn the membership walk is optimal: E tau is the sum of path probabilities",
    hypotheses=(
        "the tree T is chosen without the verifier's draws, and is not itself a draw (given the prefix it is fixed)",
        "siblings hold different tokens",
        "the verifier is exact: continued by the target, its round has the target's joint law",
    ),
    statement="E tau <= E[longest prefix of Y in T] = sum over v in T of P(v), Y ~ p; the membership walk attains it; the "
    "linear program over all exact laws of a round has this optimum",
    source="ours; for one node the bound of optimal transport (arXiv 2502.18779)",
    claims=(
        Claim("attained", "equal", "walk", "paths", "the walk accepts the sum of path probabilities"),
        Claim("optimum", "equal", "program", "paths", "no exact law of a round accepts more: the linear program's optimum"),
        Claim("prefix", "equal", "prefix", "paths", "both are the expected longest prefix of a response in the tree"),
        Claim("others", "at_most", "others", "paths", "point mass, token, block and traversal rules, and one that stops sooner"),
        Claim("exact", "equal", "exact", "target", "and the walk is exact"),
    ),
    instances=instances,
    measure=measure,
    derive=derive,
    outcome="With top-k candidates, emit the target's own draw: a cleverer verifier pays only where candidates are drawn.",
    mutants=(
        Mutant(name="candidates_were_drawn", kind="hypothesis", breaks=("others",), on=("toy", "chain_of_three_tokens"),
               measure=drawn_drafts, why="q = p: the token rule accepts every draft, more than any fixed chain can have"),
        Mutant(name="drafter_peeks", kind="hypothesis", breaks=("attained",), on=("chain", "chain_of_three_tokens"),
               measure=peeking, why="a tree that knows the draws is accepted whole, and the law is still the target's"),
        Mutant(name="first_child_only", kind="bug", breaks=("attained",), on=TELLING[:1] + TELLING[3:],
               plant=lambda: planted(walk, "children_holding", first_child_only),
               why="later children are never matched: exact, but short of the bound"),
    ),
)  # fmt: skip
