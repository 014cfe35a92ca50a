"""C7: a constant cap touches tokens that the sampler finds unlikely, however sure of them the trainer is."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
import sympy as sp
import torch

from testbed.weighting import confidence
from testbed.weighting import truncate as truncation
from testbed.weighting.confidence import confidence_log_cap
from testbed.weighting.rules import weigh
from theory.derivation import Derivation, Step
from theory.mismatch_worlds import P, Q, mismatches, point, probabilities
from theory.planting import planted
from theory.theorem import Claim, Mutant, Quantities, Theorem
from theory.worlds import World

CAP, L, U = sp.symbols("C L u", positive=True)  # constant cap, e^lambda, 1-p
LAMBDAS = (2.3, 0.45)
AROUND = 0.05  # of 1-p, on either side of the crossing


@dataclass(frozen=True, kw_only=True)
class ConstantCap:
    """A world of one token under one constant cap."""

    name: str
    world: World
    cap: float


def measure(instance: ConstantCap, whose: str = "q", floor: float = 0.0) -> Quantities:
    """Which tokens the rule touches, and where its cap equals the confidence cap.

    Mutants look at the trainer's probability, or cross the caps below the floor.
    """
    batch, cap = instance.world.batch, instance.cap
    drawn = batch.tokens[:, 0].numpy()
    values = {name: v[drawn] for name, v in probabilities(instance.world).items()}
    p, q = values["p"], values["q"]
    w = weigh("tis", batch, cap=cap)
    acted = w.acted[:, 0].numpy().astype(float)
    decided = np.abs(np.log(p / q) - np.log(cap)) > 1e-9
    found: dict[str, Any] = {
        "acts": acted[decided], "unlikely": (values[whose] < (p if whose == "q" else 1.0) / cap).astype(float)[decided],
        "touched": acted * values["q"] * cap, "gap": p - cap * q, "one": 1.0,
    }  # fmt: skip

    def confidence_cap(u: float, lam: float) -> float:
        return float(confidence_log_cap(torch.tensor([[np.log1p(-u)]], dtype=torch.float64), lam, floor, "odds").exp())

    crossings = {lam: (cap - 1) / np.expm1(lam) for lam in LAMBDAS}
    found["crossing"] = crossings[LAMBDAS[0]]
    inside = [(u, lam) for lam, u in crossings.items() if u < 1 - AROUND]
    if inside:
        caps = {name: [confidence_cap(u * by, lam) for u, lam in inside]
                for name, by in (("cap_at_crossing", 1.0), ("tighter", 1 - AROUND), ("looser", 1 + AROUND))}  # fmt: skip
        found |= {**caps, "constant": np.full(len(inside), cap)}
    if instance.name == "doubtful_sampler_2":
        found |= {"touched_p": acted[0] * p[0], "sure": 0.9}
    return found


@lru_cache(maxsize=1)
def _derivation() -> Derivation:
    chains = [
        [
            Step("over", Q * (P / Q - CAP), "k > C, times q", tex=r"q\,(k - C)"),
            Step("unlikely", P - CAP * Q, "so k > C iff q < p/C, however sure the trainer", quantity="gap",
                 tex=r"p - C q"),
            Step("at_most", 1 - CAP * Q, "p <= 1: none is touched whose q is 1/C or more", "<=", tex=r"1 - C q"),
        ],
        [
            Step("equal_caps", sp.solve(sp.Eq(1 + U * (L - 1), CAP), U)[0], "where the odds cap equals C",
                 tex=r"1 + (1-p)(e^\lambda-1) = C"),
            Step("crossing", (CAP - 1) / (L - 1), "solved for 1-p", quantity="crossing",
                 tex=r"1 - p = \frac{C - 1}{e^\lambda - 1}"),
        ],
        [
            Step("difference", 1 + U * (L - 1) - CAP, "odds cap less constant cap at 1-p = u", tex=r"1 + u\,(e^\lambda-1) - C"),
            Step("sign", (L - 1) * (U - (CAP - 1) / (L - 1)), "of the sign of u less the crossing: surer tokens are capped "
                 "tighter than C, more doubtful ones looser", tex=r"(e^\lambda-1)\,\Big(u - \frac{C-1}{e^\lambda-1}\Big)"),
        ],
    ]  # fmt: skip

    def draw(rng: Any) -> dict[sp.Symbol, Any]:
        more = {
            CAP: sp.Rational(rng.randint(11, 40), 10),
            L: 1 + sp.Rational(rng.randint(1, 40), 4),
            U: sp.Rational(rng.randint(1, 8), 9),
        }
        return {**point(rng), **more}

    def bind(instance: ConstantCap) -> dict[sp.Symbol, Any]:
        drawn = instance.world.batch.tokens[:, 0].numpy()
        values = probabilities(instance.world)
        return {P: values["p"][drawn], Q: values["q"][drawn], CAP: instance.cap, L: float(np.exp(LAMBDAS[0])), U: 0.5}

    return Derivation(chains, draw, bind)


def instances() -> list[ConstantCap]:
    """Every mismatch under the paper's two constant caps and a large one."""
    caps = {"2": 2.0, "1p13": 1.13, "8": 8.0}
    return [
        ConstantCap(name=f"{world.name}_{name}", world=world, cap=cap)
        for world in mismatches()
        for name, cap in caps.items()
    ]


def capped_by_trainer(right: Any) -> Any:
    """Bug: the cap on the inverse ratio."""
    return lambda log_ratio, cap: right(-log_ratio, cap)


def half_as_doubtful(right: Any) -> Any:
    """Bug: phi = (1-p)^2."""

    def wrong(logp_target: Any, lam: float, floor: float, cap_form: str) -> Any:
        doubt = -torch.expm1(logp_target)
        return right(torch.log1p(-(doubt**2)), lam, floor, cap_form)

    return wrong


THEOREM = Theorem(
    id="C7",
    kind="identity",
    title="a constant cap touches only tokens of low sampler probability",
    hypotheses=("0 < q <= 1, p <= 1, C > 0", "for the crossing: the odds cap, 1 < C < e^lambda, and a crossing above the floor "
    "kappa"),
    statement="k > C iff q < p/C, and p/C <= 1/C: with C = 2 a token of p = .9, q = .4 is touched, and none with q >= 1/2 is. "
    "The caps C and 1 + (1-p)(e^lambda - 1) cross at 1-p = (C-1)/(e^lambda - 1): surer tokens are capped tighter by the latter",
    source="ours, about a reading of CIS; its 'low confidence' has to be the sampler's for a constant cap",
    reading=True,
    claims=(
        Claim("acts", "equal", "acts", "unlikely", "acts exactly where q < p/C"),
        Claim("samplers", "at_most", "touched", "one", "touched tokens have q < 1/C"),
        Claim("sure_of_it", "equal", "touched_p", "sure", "C = 2 touches a token that the trainer gives .9, the sampler .4"),
        Claim("crossing", "equal", "cap_at_crossing", "constant", "the odds cap equals C at 1-p = (C-1)/(e^lambda - 1)"),
        Claim("tighter", "at_most", "tighter", "constant", "it is tighter for surer tokens"),
        Claim("looser", "at_most", "constant", "looser", "and looser for more doubtful ones"),
    ),
    instances=instances,
    measure=measure,
    derive=lambda instance: _derivation(),
    outcome="A constant cap cannot act on tokens the sampler was sure of, and a confidence cap mostly acts there: the two "
    "rules cut different tokens, so equal shares acted on are not equal corrections.",
    mutants=(
        Mutant(name="trainers_probability", kind="hypothesis", breaks=("acts",), on=("doubtful_sampler_2", "strong_2"),
               measure=partial(measure, whose="p"),
               why="'low confidence' read as the trainer's; needs p high and q low"),
        Mutant(name="crossing_below_the_floor", kind="hypothesis", breaks=("crossing", "tighter"), on=("mild_1p13",),
               measure=partial(measure, floor=0.3),
               why="surer than 1 - kappa the odds cap no longer tightens, and stays above C"),
        Mutant(name="inverse_ratio", kind="bug", breaks=("acts", "samplers"), on=("doubtful_sampler_2", "strong_2"),
               plant=lambda: planted(truncation, "truncate", capped_by_trainer),
               why="the bound binds on q/p, as verl's k1 bounds do"),
        Mutant(name="doubt_squared", kind="bug", breaks=("crossing", "looser"), on=("doubtful_sampler_2",),
               plant=lambda: planted(confidence, "confidence_log_cap", half_as_doubtful),
               why="phi = (1-p)^2 tightens too early"),
    ),
)  # fmt: skip
