"""V12: reusing an earlier response and going on from the target at the first rejection biases every token."""

from __future__ import annotations

from functools import lru_cache, partial

import sympy as sp

from testbed.rollout.speculative import specimens
from testbed.rollout.speculative.verify import laws
from theory.derivation import Derivation, Step
from theory.draft_rounds import TOY, RoundCase, constant, varied
from theory.draft_symbols import RoundSymbols, kept, least
from theory.planting import planted
from theory.theorem import Claim, Mutant, Quantities, Theorem

GAIN = sp.Symbol("g", positive=True)  # e^b
LENIENCE = 0.5


def published(proposal, chooser):
    """SPEC-RL without lenience, looked up when called."""
    return specimens.spec_rl(proposal, chooser)


def repaired(proposal, chooser):
    """The same with the residual."""
    return specimens.spec_rl_repaired(proposal, chooser)


def measure(case: RoundCase, lenience: float = LENIENCE) -> Quantities:
    """Laws of the first token of the next response and of the whole of it, as published, repaired, and with lenience."""
    p, q = case.p(()), case.q(())
    accepted = [min(a, b) for a, b in zip(p, q, strict=True)]
    alpha = sum(accepted)
    law = case.emits(published, case.chains)
    lenient = case.emits(partial(specimens.spec_rl, lenience=lenience), case.chains).completed(case.target, 1)
    right = case.emits(repaired, case.chains)
    found: Quantities = {
        "first": law.completed(case.target, 1), "mixture": [m + (1 - alpha) * a for m, a in zip(accepted, p, strict=True)],
        "tv": law.distance(case.target, 1),
        "formula": sum(abs(m - alpha * a) for m, a in zip(accepted, p, strict=True)) / 2,
        "accepted": law.at_least(1), "alpha": alpha,
        "repaired": right.completed(case.target, case.horizon), "target": case.target_law(),
        "lenient": lenient,
    }  # fmt: skip
    ratios = [b / a for a, b in zip(p, q, strict=True) if a > 0]
    if max(ratios) - min(ratios) > 1e-6:
        found |= {"biased": law.completed(case.target, 1), "unbiased": p}
    if case.name == "toy":
        found |= {"toy": law.distance(case.target, 1), "digits": 0.14}
        far = case.emits(partial(specimens.spec_rl, lenience=lenience), case.chains).distance(case.target, 1)
        found |= {"toy_lenient": far, "lenient_digits": 0.235, "grows_from": law.distance(case.target, 1)}
    return found


@lru_cache(maxsize=8)
def _derivation(vocab_size: int) -> Derivation:
    w = RoundSymbols(vocab_size, 1)
    p, q = w.p(()), w.q(())
    mins = kept(p, q)
    alpha = sp.Add(*mins)
    law = [
        Step("as_published", [m + sp.Add(*[b - n for b, n in zip(q, mins, strict=True)]) * a
                              for a, m in zip(p, mins, strict=True)],
             "an old token y kept, or any old token rejected and y drawn from p", quantity="first",
             tex=r"\min(p,q)(y) + \sum_x \big(q - \min(p,q)\big)(x)\; p(y)"),
        Step("mixture", [m + (1 - alpha) * a for a, m in zip(p, mins, strict=True)], "q sums to 1", quantity="mixture",
             tex=r"\tilde p(y) = \min(p,q)(y) + (1-\alpha)\,p(y)"),
    ]  # fmt: skip
    distance = [
        Step("distance", sp.Add(*[sp.Abs(m + (1 - alpha) * a - a) for a, m in zip(p, mins, strict=True)]) / 2,
             "total variation from p", quantity="tv", tex=r"\mathrm{TV}(\tilde p, p)"),
        Step("formula", sp.Add(*[sp.Abs(m - alpha * a) for a, m in zip(p, mins, strict=True)]) / 2,
             "0 iff min(p, q) = alpha p, that is iff q is a multiple of p wherever p > 0",
             quantity="formula", tex=r"\tfrac12 \sum_y \big|\min(p,q)(y) - \alpha\, p(y)\big|"),
    ]  # fmt: skip
    generous = [least(GAIN * a, b) for a, b in zip(p, q, strict=True)]
    lenient = [
        Step("lenient", [b * least(1, GAIN * a / b) + sp.Add(*[y * (1 - least(1, GAIN * x / y))
                                                              for x, y in zip(p, q, strict=True)]) * a
                         for a, b in zip(p, q, strict=True)],
             "accepted with min(1, g p/q), g = e^b",
             tex=r"q(y)\min\!\big(1, \tfrac{g\,p(y)}{q(y)}\big) "
             r"+ \sum_x q(x)\big(1 - \min(1, \tfrac{g\,p(x)}{q(x)})\big)\, p(y)"),
        Step("lenient_mixture", [m + (1 - sp.Add(*generous)) * a for a, m in zip(p, generous, strict=True)],
             "the same with min(g p, q): the larger g, the nearer to q", quantity="lenient",
             tex=r"\min(g\,p,q)(y) + (1-\alpha_g)\,p(y)"),
    ]  # fmt: skip

    def point(rng):
        return {**w.point(rng), GAIN: sp.Rational(rng.randint(9, 30), 9)}

    return Derivation([law, distance, lenient], point, lambda case: {**w.bind(case), GAIN: float(sp.exp(LENIENCE))})


def derive(case: RoundCase) -> Derivation:
    """One token's law; where the earlier policy could not draw a token, without the ratios of the lenient rule."""
    whole = _derivation(case.vocab_size)
    if min(case.q(())) > 0:
        return whole
    return _without_ratios(case.vocab_size)


@lru_cache(maxsize=8)
def _without_ratios(vocab_size: int) -> Derivation:
    whole = _derivation(vocab_size)
    return Derivation(whole.chains[:2], whole.point, whole.bind)


def instances() -> list[RoundCase]:
    """An earlier policy that differs, has other zeros, or is the same."""
    return [
        constant("toy", TOY, TOY[::-1], (1,)),
        varied("two_tokens", 2, (1, 1)),
        varied("three_tokens", 3, (1,)),
        constant("earlier_has_zeros", (0.3, 0.3, 0.4), (0.0, 0.5, 0.5), (1,)),
        constant("now_has_zeros", (0.5, 0.0, 0.5), (0.2, 0.5, 0.3), (1, 1)),
        constant("same_policy", (0.5, 0.25, 0.25), (0.5, 0.25, 0.25), (1, 1)),
        constant("disjoint", (0.5, 0.5, 0.0), (0.0, 0.0, 1.0), (1,)),
        constant("now_forbidden", (0.4, 0.6, 0.0), (0.2, 0.3, 0.5), (1,)),
    ]


def unchanged(case: RoundCase) -> Quantities:
    """Mutated reading: the bias is claimed although q is a multiple of p where p allows a token."""
    law = case.emits(published, case.chains)
    return {"biased": law.completed(case.target, 1), "unbiased": case.p(())}


TELLING = ("toy", "two_tokens", "three_tokens")
THEOREM = Theorem(
    id="V12",
    kind="counterexample",
    refutes="a rejected token of an earlier response may be replaced by a draw from the current policy",
    title="the law is min(p, q) + (1 - alpha) p; the residual repairs it",
    hypotheses=(
        "the earlier response was drawn from q, and q is known",
        "each token is kept with min(1, p/q) (lenience b: min(1, e^b p/q)) up to the first rejection; then the policy goes on",
        "q is no multiple of p on the tokens that p allows",
    ),
    statement="one token's law is p~ = min(p, q) + (1 - alpha) p, alpha = sum min(p, q): TV(p~, p) = 1/2 sum |min(p, q) - alpha "
    "p| > 0; drawing the rejected token from (p-q)+ normalized makes it exact; lenience puts min(e^b p, q) in place of min(p, q)",
    source="ours; SPEC-RL, arXiv 2509.23232, read from its code",
    claims=(
        Claim("biased", "differs", "biased", "unbiased", "tokens do not have the target's law", margin=1e-2),
        Claim("law", "equal", "first", "mixture", "their law is min(p, q) + (1 - alpha) p"),
        Claim("distance", "equal", "tv", "formula", "at total variation 1/2 sum |min(p, q) - alpha p|"),
        Claim("acceptance", "equal", "accepted", "alpha", "what is kept is kept as often as by the exact rule"),
        Claim("repaired", "equal", "repaired", "target", "with the residual the whole response has the target's law"),
        Claim("toy", "equal", "toy", "digits", "0.14 for p = (.4, .3, .2, .1) and q backwards"),
        Claim("lenience", "equal", "toy_lenient", "lenient_digits", "0.235 with lenience 0.5, to three digits", tolerance=5e-3),
        Claim("grows", "at_most", "grows_from", "toy_lenient", "lenience moves the law further"),
    ),
    instances=instances,
    measure=measure,
    derive=derive,
    outcome="Reused rollouts need the residual at the cut, and q's whole row there; otherwise correct them as off-policy data.",
    mutants=(
        Mutant(name="policy_unchanged", kind="hypothesis", breaks=("biased",), on=("same_policy",), measure=unchanged,
               why="p = q: everything is kept, and nothing is biased"),
        Mutant(name="nothing_in_common", kind="hypothesis", breaks=("biased",), on=("disjoint",), measure=unchanged,
               why="alpha = 0: everything is drawn anew from p"),
        Mutant(name="a_token_was_forbidden", kind="hypothesis", breaks=("biased",), on=("now_forbidden",), measure=unchanged,
               why="the policy only lost a token: what is left of q is a multiple of p, and p is its own residual"),
        Mutant(name="residual_not_subtracted", kind="bug", breaks=("repaired",), on=TELLING,
               plant=lambda: planted(laws, "residual", lambda right: lambda p, q, share=None: (p, right(p, q, share)[1])),
               why="the repair then does what it repairs"),
        Mutant(name="ratio_inverted", kind="bug", breaks=("law", "distance", "acceptance", "repaired"),
               on=("two_tokens", "three_tokens"),
               plant=lambda: planted(laws, "acceptance", lambda right: lambda p, q, token: right(q, p, token)),
               why="kept with min(1, q/p); on the toy pair, which is symmetric, acceptance would not tell"),
    ),
)  # fmt: skip
