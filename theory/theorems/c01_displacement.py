"""C1: the ratio of trainer to sampler is p + (1-p) e^eps, with eps the shift in log-odds and p the trainer's probability."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import sympy as sp
import torch

from testbed.policies.schedule import PrefixSchedule, one
from testbed.policies.tabular import TabularPolicy
from testbed.weighting import confidence
from testbed.weighting.confidence import displacement
from testbed.weighting.rules import weigh
from theory.derivation import Derivation, Step
from theory.mismatch_worlds import PC, QC, P, Q, bind, mismatches, point, probabilities
from theory.planting import planted
from theory.theorem import Claim, Mutant, Quantities, Theorem
from theory.worlds import World


def measure(instance: World, whose: str = "p") -> Quantities:
    """The library's ratio and displacement of every token. Mutants take the sampler's probability for the trainer's."""
    batch, values = instance.batch, probabilities(instance)
    ratio = weigh("exact", batch).value[:, 0]
    eps = displacement(batch.logp_target, batch.logp_behavior)[:, 0]
    drawn = batch.tokens[:, 0].numpy()
    mine, others = (torch.from_numpy(values[name][drawn]) for name in (whose, whose + "bar"))
    sampled = torch.from_numpy(values["q"][drawn]), torch.from_numpy(values["qbar"][drawn])
    found: dict[str, Any] = {
        "ratio": ratio, "rebuilt": mine + others * eps.exp(),
        "one_plus": 1 + others * torch.expm1(eps), "odds_ratio": eps.exp(),
        "odds": torch.from_numpy(values["p"][drawn] / values["pbar"][drawn]) * sampled[1] / sampled[0],
        "from_sampler": eps.exp() / (sampled[1] + sampled[0] * eps.exp()),
        "eps": eps,
    }  # fmt: skip
    if instance.name == "agreement":
        found |= {"no_shift": np.zeros(len(drawn))}
    return found


@lru_cache(maxsize=1)
def _derivation() -> Derivation:
    odds = (P / PC) / (Q / QC)
    e = sp.Symbol("E")
    chains = [
        [
            Step("definition", odds, "e^eps is the ratio of the odds", tex=r"e^{\varepsilon} = \frac{p/(1-p)}{q/(1-q)}"),
            Step("odds_ratio", P * QC / (PC * Q), "clear the fractions", quantity="odds_ratio",
                 tex=r"\frac{p\,(1-q)}{(1-p)\,q}"),
        ],
        [
            Step("right_side", P + PC * odds, "insert it in p + (1-p) e^eps", quantity="rebuilt",
                 tex=r"p + (1-p)\,e^{\varepsilon}"),
            Step("cancelled", P + P * QC / Q, "1-p cancels", tex=r"p + \frac{p\,(1-q)}{q}"),
            Step("ratio", P / Q, "p q/q + p (1-q)/q", quantity="ratio", tex=r"\frac{p}{q} = k"),
        ],
        [
            Step("inverse", sp.solve(sp.Eq(e, P * (1 - Q) / ((1 - P) * Q)), P)[0].subs(e, odds) / Q,
                 "the same identity solved for p and divided by q: with the sampler's probability it has another form",
                 tex=r"\frac1q\cdot\frac{q\,e^{\varepsilon}}{1 - q + q\,e^{\varepsilon}}"),
            Step("from_sampler", odds / (QC + Q * odds), "cancel q", quantity="from_sampler",
                 tex=r"k = \frac{e^{\varepsilon}}{1 - q + q\,e^{\varepsilon}}"),
        ],
    ]  # fmt: skip
    return Derivation(chains, point, bind)


def naive_complement(right: Any) -> Any:
    """Bug: for confident tokens, 1 - exp(log p) in float32 instead of -expm1(log p)."""

    def wrong(logp_target: Any, logp_behavior: Any) -> Any:
        p, q = logp_target.float().exp(), logp_behavior.float().exp()
        odds = [x.log() - (1 - x).clamp(min=2.0**-24).log() for x in (p, q)]
        return torch.where((1 - p).double() < 1e-6, (odds[0] - odds[1]).double(), right(logp_target, logp_behavior))

    return wrong


def gap_of_logs(right: Any) -> Any:
    """Bug: the log ratio taken for the log-odds shift."""
    return lambda logp_target, logp_behavior: logp_target - logp_behavior


def recorded_in_half_precision() -> list[World]:
    """Equal laws whose record is not equal: the sampler's log-probs pass through bfloat16."""
    base = next(w for w in mismatches() if w.name == "agreement")
    rounded = TabularPolicy(base.target.table.bfloat16().double())
    return [replace(base, schedule=PrefixSchedule((rounded,), one()))]


THEOREM = Theorem(
    id="C1",
    kind="identity",
    title="the ratio is p + (1-p) e^eps, with p the trainer's probability",
    hypotheses=("0 < p, q < 1 are the trainer's and the sampler's probability of the drawn token", "eps = logit p - logit q"),
    statement="k = p/q = p + (1-p) e^eps = 1 + (1-p)(e^eps - 1); in the sampler's probability it is e^eps/(1 - q + q e^eps)",
    source="paper (CIS): the characterization behind its cap; algebra ours",
    claims=(
        Claim("identity", "equal", "ratio", "rebuilt", "k = p + (1-p) e^eps for every token"),
        Claim("around_one", "equal", "ratio", "one_plus", "k = 1 + (1-p)(e^eps - 1)"),
        Claim("in_the_samplers", "equal", "ratio", "from_sampler", "k = e^eps / (1 - q + q e^eps)"),
        Claim("odds", "equal", "odds_ratio", "odds", "e^eps is the ratio of the odds, however confident the token"),
        Claim("no_mismatch", "equal", "eps", "no_shift", "equal laws have no displacement"),
    ),
    instances=mismatches,
    measure=measure,
    derive=lambda instance: _derivation(),
    outcome="A confident token's ratio is nearly 1 whatever the displacement; the confidence in the formula is the trainer's.",
    mutants=(
        Mutant(name="samplers_probability", kind="hypothesis", breaks=("identity", "around_one"),
               on=("mild", "strong", "two_tokens", "doubtful_sampler", "doubtful_trainer"),
               measure=lambda instance: measure(instance, "q"),
               why="the identity holds for the trainer's p only; needs p and q apart"),
        Mutant(name="recorded_in_half_precision", kind="hypothesis", breaks=("no_mismatch",),
               instances=recorded_in_half_precision,
               why="log-probs that passed through bfloat16 are those of another law: what is displaced is the record"),
        Mutant(name="log_ratio_for_displacement", kind="bug", breaks=("identity", "around_one", "in_the_samplers", "odds"),
               on=("mild", "strong", "two_tokens", "doubtful_sampler", "doubtful_trainer"),
               plant=lambda: planted(confidence, "displacement", gap_of_logs),
               why="the shift in log-probability is not that in log-odds; needs q not small"),
        Mutant(name="complement_by_subtraction", kind="bug", breaks=("odds",), on=("very_confident",),
               plant=lambda: planted(confidence, "displacement", naive_complement),
               why="1 - p in float32 is 0 where p = 1 - 2^-40; the ratio hardly feels it, the displacement does"),
    ),
)  # fmt: skip
