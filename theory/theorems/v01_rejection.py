"""V1: a token drawn from q and accepted with min(1, p/q), or else drawn from the residual, has law p."""

from __future__ import annotations

from functools import lru_cache

import sympy as sp
import torch

from testbed.rollout.speculative import specimens
from testbed.rollout.speculative.verify import laws
from testbed.rollout.speculative.verify.drawing import proposal_of
from testbed.rollout.speculative.verify.enumeration import Drafts
from testbed.rollout.speculative.verify.protocol import Verifier
from testbed.rollout.speculative.verify.registry import verify
from theory.derivation import Derivation, Step
from theory.draft_rounds import TOY, RoundCase, constant, varied
from theory.draft_symbols import RoundSymbols, kept, least, left
from theory.planting import planted
from theory.theorem import Claim, Mutant, Quantities, Theorem


def rule(proposal, chooser):
    """The library's token rule, looked up when called."""
    return verify("token_rejection", proposal, chooser)


def measure(case: RoundCase, verifier: Verifier | None = None, drafts: Drafts | None = None) -> Quantities:
    """Law of a round over all drafts, coins and draws: its first token, all its tokens, its acceptance."""
    law = case.emits(verifier or rule, drafts or case.chains)
    p, q = case.p(()), case.q(())
    distance = sum(abs(a - b) for a, b in zip(p, q, strict=True)) / 2
    return {
        "first": law.completed(case.target, 1), "first_of_target": p,
        "all_tokens": law.completed(case.target, case.horizon), "all_of_target": case.target_law(),
        "accepted": law.at_least(1), "overlap": 1 - distance,
    }  # fmt: skip


@lru_cache(maxsize=8)
def _derivation(vocab_size: int, ratios: bool) -> Derivation:
    w = RoundSymbols(vocab_size, 1)
    p, q = w.p(()), w.q(())
    mins, rest = kept(p, q), left(p, q)
    accept = [least(1, a / b) for a, b in zip(p, q, strict=True)]
    rejected = sp.Add(*[b * (1 - a) for a, b in zip(accept, q, strict=True)])
    mass = sp.Add(*rest)
    ratio_steps = [
        Step("rule", [b * a + rejected * r / mass for a, b, r in zip(accept, q, rest, strict=True)],
             "drawn and accepted, or anything drawn and rejected and then drawn from the residual", quantity="first",
             tex=r"q(y)\min\!\big(1,\tfrac{p(y)}{q(y)}\big) + \sum_x q(x)\Big(1-\min\!\big(1,\tfrac{p(x)}{q(x)}\big)\Big) "
             r"\frac{(p-q)^+(y)}{\sum (p-q)^+}"),
        Step("no_ratios", [m + (1 - sp.Add(*mins)) * r / mass for m, r in zip(mins, rest, strict=True)],
             "q min(1, p/q) = min(p, q)", tex=r"\min(p,q)(y) + (1-\alpha)\frac{(p-q)^+(y)}{\sum (p-q)^+}"),
    ]  # fmt: skip
    law = [
        Step("masses", [m + r for m, r in zip(mins, rest, strict=True)],
             "p - min(p, q) = (p - q)+, so the residual's mass is 1 - alpha; where it is 0 nothing is rejected", quantity="first",
             tex=r"\min(p,q)(y) + (p-q)^+(y)"),
        Step("target", p, "one of the two is p less the other", quantity="first_of_target", tex=r"p(y)"),
    ]  # fmt: skip
    acceptance = [
        Step("overlap", sp.Add(*mins), "sum of q min(1, p/q)", quantity="accepted", tex=r"\alpha = \sum_x \min(p,q)(x)"),
        Step("distance", 1 - sp.Add(*[sp.Abs(a - b) for a, b in zip(p, q, strict=True)]) / 2,
             "min(a, b) = (a + b - |a - b|)/2, and both laws sum to 1", quantity="overlap", tex=r"1 - \mathrm{TV}(p,q)"),
    ]  # fmt: skip
    return Derivation([(ratio_steps if ratios else []) + law, acceptance], w.point, w.bind)


def derive(case: RoundCase) -> Derivation:
    """With ratios where the drafter draws every token and differs from the target; division-free elsewhere."""
    p, q = case.p(()), case.q(())
    return _derivation(case.vocab_size, min(q) > 0 and p != q)


def instances() -> list[RoundCase]:
    """Laws with and without zeros, equal, disjoint, and different after every prefix."""
    return [
        constant("toy", TOY, TOY[::-1], (1,)),
        varied("two_tokens", 2, (1, 1)),
        varied("three_tokens", 3, (1,)),
        constant("target_has_zeros", (0.5, 0.0, 0.5), (0.2, 0.5, 0.3), (1, 1)),
        constant("drafter_has_zeros", (0.3, 0.3, 0.4), (0.0, 0.5, 0.5), (1,)),
        constant("sure_drafter", (0.25, 0.75), (1.0, 0.0), (1, 1)),
        constant("disjoint", (0.5, 0.5, 0.0), (0.0, 0.0, 1.0), (1,)),
        constant("agreement", (0.5, 0.25, 0.25), (0.5, 0.25, 0.25), (1, 1)),
    ]


def argmax_drafts(case: RoundCase) -> Quantities:
    """Mutated reading: the drafter's argmax, with the probability that its softmax gives it."""
    empty = torch.zeros(1, 0, dtype=torch.int64)
    draft = specimens.argmax_draft(case.drafter, empty, len(case.branching))
    proposal = proposal_of(case.target, empty, draft.tokens, draft.parent, draft.drafter)
    return measure(case, drafts=Drafts(proposal=proposal, chance=torch.ones(1, dtype=torch.float64)))


TELLING = ("toy", "two_tokens", "three_tokens")
THEOREM = Theorem(
    id="V1",
    kind="identity",
    title="token rejection emits the target's law and accepts with probability 1 - TV",
    hypotheses=(
        "each drafted token is drawn from q, and q is the law that it is verified with",
        "coins and residual draws are fresh: independent of the draft and of each other",
        "p is the law to be sampled: after temperature, top-k, top-p",
    ),
    statement="x ~ q accepted with min(1, p(x)/q(x)), else y ~ (p-q)+ normalized: the emitted token has law p, also where p or q "
    "is 0; P(accept) = sum min(p, q) = 1 - TV(p, q); chains of such tokens with a bonus from p have the target's joint law",
    source="literature (arXiv 2211.17192, arXiv 2302.01318)",
    claims=(
        Claim("output", "equal", "first", "first_of_target", "the first emitted token has the target's law"),
        Claim("joint", "equal", "all_tokens", "all_of_target", "a round, continued by the target, has the target's joint law"),
        Claim("acceptance", "equal", "accepted", "overlap", "a drafted token is accepted with probability 1 - TV"),
    ),
    instances=instances,
    measure=measure,
    derive=derive,
    outcome="Token rejection costs nothing in law if q is the sampling law, coins are fresh and rejections draw the residual.",
    mutants=(
        Mutant(name="residual_not_subtracted", kind="bug", breaks=("output", "joint"), on=TELLING,
               plant=lambda: planted(laws, "residual", lambda right: lambda p, q, share=None: (p, right(p, q, share)[1])),
               why="a rejection draws from p: needs p and q that differ"),
        Mutant(name="same_coin_reused", kind="hypothesis", breaks=("output", "joint"), on=("toy",),
               measure=lambda case: measure(case, specimens.token_coin_reused),
               why="the coin that rejected also draws from the residual, whose beginning it then misses; needs a residual of at "
               "least two tokens"),
        Mutant(name="argmax_draft_with_softmax_q", kind="hypothesis", breaks=("output", "joint", "acceptance"), on=TELLING,
               measure=argmax_drafts, why="the draft is certain, but verified with the softmax's probability"),
    ),
)  # fmt: skip
