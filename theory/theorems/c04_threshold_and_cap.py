"""C4: a constant threshold on the displacement is a cap on the ratio that tightens as the trainer's confidence grows."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
import sympy as sp
import torch

from testbed.weighting import confidence
from testbed.weighting.confidence import confidence_log_cap, displacement, truncate_displacement
from testbed.weighting.rules import weigh
from theory.derivation import Derivation, Step
from theory.mismatch_worlds import PC, QC, P, Q, mismatches, point, probabilities
from theory.planting import planted
from theory.theorem import Claim, Mutant, Quantities, Theorem
from theory.worlds import World

L, PHI, E = sp.symbols("L phi E", positive=True)  # e^lambda, max(1-p, kappa), e^eps
LAMBDA = sp.Symbol("lambda", nonnegative=True)
FORMS = ("odds", "linear", "loglinear")
DOUBTS = np.array([0.9, 0.5, 0.1, 1e-2, 1e-4])  # of tokens above any floor
CONFIDENCES = np.concatenate([np.linspace(0.01, 0.99, 25), 1 - np.logspace(-3, -12, 10)])


@dataclass(frozen=True, kw_only=True)
class Threshold:
    """A world of one token with the two parameters of the rule."""

    name: str
    world: World
    lam: float
    floor: float


def edges(p: np.ndarray, pbar: np.ndarray, lam: float, floor: float) -> dict[str, np.ndarray]:
    """Caps of the three readings."""
    phi = np.maximum(pbar, floor)
    return {"odds": 1 + phi * np.expm1(lam), "linear": 1 + lam * phi, "loglinear": np.exp(lam * phi)}


def measure(instance: Threshold, at_floor: bool = True, whose: str = "p") -> Quantities:
    """The rule's weights and where it acts, against the threshold on the displacement, token by token.

    Mutants leave the floor out of the threshold, or read the sampler's confidence.
    """
    batch, lam, floor = instance.world.batch, instance.lam, instance.floor
    drawn = batch.tokens[:, 0].numpy()
    values = {name: v[drawn] for name, v in probabilities(instance.world).items()}
    p, pbar = values[whose], values[whose + "bar"]
    eps = displacement(batch.logp_target, batch.logp_behavior)[:, 0].numpy()
    found: dict[str, Any] = {}
    for form, cap in edges(p, pbar, lam, floor if at_floor else 0.0).items():
        w = weigh("cis", batch, lam=lam, floor=floor, cap_form=form)
        decided = np.abs(np.log(values["p"] / values["q"]) - np.log(cap)) > 1e-9  # not a tie up to rounding
        edge = np.log1p((cap - 1) / pbar)
        found |= {f"{form}_acts": w.acted[:, 0].numpy()[decided], f"{form}_beyond": (eps > edge)[decided]}
        if form == "odds":
            odds = np.minimum(np.exp(eps), np.exp(edge))
            found |= {"weight": w.value[:, 0], "clipped": values["p"] + values["pbar"] * odds}
        grid = confidence_log_cap(torch.from_numpy(np.log(CONFIDENCES))[None], lam, floor, form)[0].numpy()
        found |= {f"{form}_more": np.exp(grid[1:]), f"{form}_less": np.exp(grid[:-1])}
    found |= {
        "excess": values["p"] / values["q"] - (1 + pbar * np.expm1(lam)),
        "of_odds": pbar * (np.exp(eps) - np.exp(lam)),
    }
    found |= _thresholds((batch.logp_target if whose == "p" else batch.logp_behavior)[:, 0].numpy(), pbar, instance)
    if lam == 0:
        found |= {
            "at_zero": weigh("cis", batch, lam=0.0, floor=floor).value[:, 0],
            "at_most_one": np.minimum(values["p"] / values["q"], 1),
        }
    return found


def _thresholds(log_p: np.ndarray, pbar: np.ndarray, instance: Threshold) -> dict[str, Any]:
    """Where the library's caps lie on the displacement, from k = 1 + (1-p)(e^eps - 1): at the tokens, and over confidences."""
    lam, floor, batch = instance.lam, instance.floor, instance.world.batch

    def threshold(log_p: np.ndarray, doubt: np.ndarray, floor: float, form: str) -> np.ndarray:
        return np.log1p(np.expm1(confidence_log_cap(torch.from_numpy(log_p), lam, floor, form).numpy()) / doubt)

    at_tokens = threshold(log_p, pbar, floor, "odds")
    found: dict[str, Any] = {
        "odds_threshold": np.exp(at_tokens),
        "floored_threshold": at_tokens,
        "lambda": np.full(len(pbar), lam),
    }
    found["floored_edge"] = np.log1p(np.maximum(pbar, floor) * np.expm1(lam) / pbar)
    for form, level in (("odds", lam), ("linear", np.log1p(lam)), ("loglinear", lam)):
        found |= {
            f"{form}_level": threshold(np.log1p(-DOUBTS), DOUBTS, 0.0, form),
            f"{form}_constant": np.full(len(DOUBTS), level),
        }
    found["loglinear_constant"] = found["loglinear_level"][0]
    if lam == 0:
        del found["loglinear_level"]  # every reading is the cap 1 there
    if floor == 0:
        found |= {"unfloored": weigh("cis", batch, lam=lam, floor=0.0).value}
        found |= {"other_route": truncate_displacement(batch.logp_target, batch.logp_behavior, lam)}
    return found


@lru_cache(maxsize=1)
def _derivation() -> Derivation:
    ratio = P + PC * E
    chains = [
        [
            Step("excess", P / Q - (1 + PC * (L - 1)), "ratio over the cap of the odds reading, C1 to come",
                 tex=r"k - \big(1 + (1-p)(e^{\lambda} - 1)\big)"),
            Step("inserted", P + PC * (P * QC / (PC * Q)) - (P + PC) - PC * (L - 1), "C1, and 1 = p + (1-p)",
                 tex=r"p + (1-p)e^{\varepsilon} - p - (1-p)\,e^{\lambda}"),
            Step("threshold", PC * (P * QC / (PC * Q) - L), "positive exactly where eps > lambda, at any p", quantity="excess",
                 tex=r"(1-p)\,(e^{\varepsilon} - e^{\lambda})"),
        ],
        [
            Step("floored", sp.solve(sp.Eq(ratio, 1 + PHI * (L - 1)), E)[0], "the cap is 1 + phi (e^lambda - 1), phi = max(1-p, "
                 "kappa): where does the ratio of C1 reach it?",
                 tex=r"p + (1-p)e^{\varepsilon} = 1 + \varphi(e^{\lambda} - 1)"),
            Step("edge", 1 + PHI * (L - 1) / PC, "solved: e^lambda where phi = 1-p; where phi = kappa it rises as 1-p falls",
                 quantity="odds_threshold", tex=r"e^{\varepsilon} = 1 + \frac{\varphi\,(e^{\lambda} - 1)}{1-p}"),
        ],
        [
            Step("linear_reading", sp.solve(sp.Eq(ratio, 1 + LAMBDA * PC), E)[0], "the reading 1 + lambda (1-p)",
                 tex=r"p + (1-p)e^{\varepsilon} = 1 + \lambda(1-p)"),
            Step("constant", 1 + LAMBDA, "a constant threshold as well, log(1 + lambda)", tex=r"e^{\varepsilon} = 1 + \lambda"),
        ],
        [
            Step("slope", sp.diff(1 + (1 - P) * (L - 1), P), "cap of the odds reading in p", tex=r"\frac{d\,\mathrm{cap}}{dp}"),
            Step("sign", 1 - L, "never rises for lambda >= 0", tex=r"-(e^{\lambda} - 1)"),
            Step("falls", sp.Integer(0), "e^lambda >= 1", "<=", tex="0"),
        ],
    ]  # fmt: skip

    def draw(rng: random.Random) -> dict[sp.Symbol, Any]:
        more = {L: 1 + sp.Rational(rng.randint(0, 40), 5), PHI: sp.Rational(rng.randint(1, 9), 10)}
        return {**point(rng), **more, LAMBDA: sp.Rational(rng.randint(0, 12), 5)}

    def bind(instance: Threshold) -> dict[sp.Symbol, Any]:
        values = probabilities(instance.world)
        numbers = {P: values["p"], Q: values["q"], PC: values["pbar"], QC: values["qbar"]}
        return {
            **numbers,
            L: float(np.exp(instance.lam)),
            PHI: np.maximum(values["pbar"], instance.floor),
            LAMBDA: instance.lam,
        }

    return Derivation(chains, draw, bind)


def instances() -> list[Threshold]:
    """Every mismatch with the paper's default, with a high floor, without a floor, at lambda 0 and at a small lambda."""
    settings = {
        "default": (2.3, 5e-3),
        "high_floor": (2.3, 0.1),
        "no_floor": (1.6, 0.0),
        "zero": (0.0, 5e-3),
        "tight": (0.45, 5e-3),
    }
    return [
        Threshold(name=f"{world.name}_{name}", world=world, lam=lam, floor=floor)
        for world in mismatches()
        for name, (lam, floor) in settings.items()
    ]


def floor_dropped(right: Any) -> Any:
    """Bug: phi = 1-p, without the floor."""
    return lambda logp_target, lam, floor, cap_form: right(logp_target, lam, 0.0, cap_form)


def confident_of_the_sampler(right: Any) -> Any:
    """Bug: the cap of the complementary confidence."""
    return lambda logp_target, lam, floor, cap_form: right(torch.log(-torch.expm1(logp_target)), lam, floor, cap_form)


def floor_as_ceiling(right: Any) -> Any:
    """Bug: min(1-p, kappa) for max(1-p, kappa)."""

    def wrong(logp_target: Any, lam: float, floor: float, cap_form: str) -> Any:
        return right(torch.log1p(torch.expm1(logp_target).clamp(min=-floor)), lam, 0.0, cap_form)

    return wrong


def one_forgotten(right: Any) -> Any:
    """Bug: 1 + phi e^lambda."""

    def wrong(logp_target: Any, lam: float, floor: float, cap_form: str) -> Any:
        phi = (-torch.expm1(logp_target)).clamp(min=floor)
        return torch.log1p(phi * np.exp(lam)) if cap_form == "odds" else right(logp_target, lam, floor, cap_form)

    return wrong


def linear_for_loglinear(right: Any) -> Any:
    """Bug: 1 + lambda phi for e^{lambda phi}."""
    return lambda logp_target, lam, floor, form: right(
        logp_target, lam, floor, "linear" if form == "loglinear" else form
    )


ACTS = tuple(f"{form}_acts" for form in FORMS)
THEOREM = Theorem(
    id="C4",
    kind="identity",
    title="a threshold on the displacement is a cap that tightens with the trainer's confidence",
    hypotheses=("0 < p, q < 1; lambda >= 0; 0 <= kappa <= 1; phi = max(1-p, kappa), p the trainer's probability",),
    statement="eps <= lambda iff k <= 1 + (1-p)(e^lambda - 1), which falls in p; with the floor the rule acts iff eps > log(1 + "
    "phi (e^lambda - 1)/(1-p)), that is lambda where 1-p >= kappa and more where 1-p < kappa. Readings of the paper's cap: odds "
    "(this one), linear 1 + lambda phi (threshold log(1 + lambda)), loglinear e^{lambda phi} (no constant threshold); lambda = 0 "
    "caps at 1 in all of them",
    source="paper (CIS), in a reading: its cap's row is not in the text we have",
    reading=True,
    claims=(
        Claim("clipped_odds", "equal", "weight", "clipped", "odds: the weight is p + (1-p) min(e^eps, e^threshold)"),
        *(Claim(f"{form}_acts", "equal", f"{form}_acts", f"{form}_beyond", f"{form}: acts exactly beyond its threshold on eps")
          for form in FORMS),
        *(Claim(f"{form}_tightens", "at_most", f"{form}_more", f"{form}_less", f"{form}: the cap never rises with confidence")
          for form in FORMS),
        Claim("excess", "equal", "excess", "of_odds", "k - cap = (1-p)(e^eps - e^lambda) without a floor"),
        Claim("floor_formula", "equal", "floored_threshold", "floored_edge", "odds: threshold log(1 + phi (e^lambda - 1)/(1-p))"),
        Claim("floor_loosens", "at_most", "lambda", "floored_threshold", "the floor only raises the threshold"),
        Claim("odds_level", "equal", "odds_level", "odds_constant", "odds without a floor: the threshold is lambda at any p"),
        Claim("linear_level", "equal", "linear_level", "linear_constant", "linear: it is log(1 + lambda) at any p"),
        Claim("loglinear_level", "differs", "loglinear_level", "loglinear_constant", "loglinear: it varies with p", margin=0.03),
        Claim("other_route", "equal", "unfloored", "other_route", "odds without a floor: cutting eps at lambda is the same "
              "weight"),
        Claim("zero", "equal", "at_zero", "at_most_one", "lambda = 0 is the cap 1, whatever the confidence"),
    ),
    instances=instances,
    measure=measure,
    derive=lambda instance: _derivation(),
    outcome="Odds and linear readings are both constant thresholds on the displacement, lambda and log(1 + lambda): the "
    "paper's words do not tell them apart. The floor matters where 1-p < kappa, and there only.",
    mutants=(
        Mutant(name="no_floor_in_threshold", kind="hypothesis", breaks=("clipped_odds", *ACTS), on=("confident_default",
               "confident_high_floor", "very_confident_high_floor"), measure=partial(measure, at_floor=False),
               why="eps > lambda where 1-p < kappa; needs a confident token with a displacement between the two thresholds"),
        Mutant(name="samplers_confidence", kind="hypothesis", breaks=("excess",),
               on=("doubtful_sampler_default", "strong_default"), measure=partial(measure, whose="q"),
               why="the identity behind the cap is in the trainer's probability"),
        Mutant(name="floor_dropped", kind="bug", breaks=("clipped_odds", *ACTS, "floor_formula"), on=("confident_high_floor",),
               plant=lambda: planted(confidence, "confidence_log_cap", floor_dropped),
               why="phi = 1-p; needs 1-p < kappa and a displacement that acts"),
        Mutant(name="complementary_confidence", kind="bug",
               breaks=("clipped_odds", *ACTS, *(f"{form}_tightens" for form in FORMS), "floor_formula", "floor_loosens",
                       "odds_level", "linear_level"),
               on=("mild_tight", "doubtful_sampler_default", "strong_default"),
               plant=lambda: planted(confidence, "confidence_log_cap", confident_of_the_sampler),
               why="the cap loosens with confidence"),
        Mutant(name="floor_taken_for_a_ceiling", kind="bug", on=("strong_default", "doubtful_trainer_tight"),
               breaks=("clipped_odds", *ACTS, "floor_formula", "floor_loosens",
                       *(f"{form}_level" for form in FORMS)),
               plant=lambda: planted(confidence, "confidence_log_cap", floor_as_ceiling),
               why="phi = min(1-p, kappa): doubtful tokens are capped as if they were sure"),
        Mutant(name="linear_for_loglinear", kind="bug", breaks=("loglinear_level",), on=("doubtful_trainer_default",
               "mild_tight"),
               plant=lambda: planted(confidence, "confidence_log_cap", linear_for_loglinear),
               why="1 + lambda phi where e^{lambda phi} is asked for: its threshold no longer varies"),
        Mutant(name="one_forgotten", kind="bug", on=("doubtful_trainer_no_floor", "doubtful_trainer_zero", "two_tokens_zero"),
               breaks=("clipped_odds", "odds_acts", "floor_formula", "odds_level", "other_route", "zero"),
               plant=lambda: planted(confidence, "confidence_log_cap", one_forgotten),
               why="1 + phi e^lambda for 1 + phi (e^lambda - 1): lambda = 0 is no longer the cap 1"),
    ),
)  # fmt: skip
