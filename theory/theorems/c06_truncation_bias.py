"""C6: what a cap costs in bias is the mean of what it cuts off."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
import sympy as sp
import torch

from testbed.policies.schedule import PrefixSchedule, one
from testbed.policies.tabular import TabularPolicy
from testbed.weighting import confidence
from testbed.weighting import truncate as truncation
from testbed.weighting.confidence import displacement
from testbed.weighting.rules import weigh
from theory.capped_tokens import Capped, capped_tokens
from theory.derivation import Derivation, Step
from theory.mismatch_worlds import PC, QC, F, K, P, Q, bind, noisy, point, probabilities
from theory.planting import planted
from theory.theorem import Claim, Mutant, Quantities, Theorem

C = sp.Symbol("c", nonnegative=True)
L = sp.Symbol("L", positive=True)  # e^lambda


def measure(instance: Capped, target_mean: bool = True, above_floor: bool = True) -> Quantities:
    """Bias of the capped mean by enumeration, against the mean of the excess.

    Mutants take the bias from another truth, or forget that the odds form supposes 1-p >= kappa.
    """
    law, batch = instance.world.law, instance.world.batch
    w, f, caps = instance.weights, batch.reward, instance.of_drawn(instance.caps)
    values = {name: instance.of_drawn(v) for name, v in probabilities(instance.world).items()}
    truth = instance.world.target_law.expect(instance.world.target_law.batch.reward)
    if not target_mean:
        truth = law.expect(f)
    ratio = values["p"] / values["q"]
    cut = (ratio - caps).clamp(min=0)
    found: dict[str, Any] = {
        "bias": law.expect(w * f) - truth, "minus_excess": -law.expect(cut * f),
        "summand": law.probs * (w - ratio) * f,
        "mean_weight": law.expect(w), "one_less": 1 - law.expect(cut), "one": 1.0,
    }  # fmt: skip
    uncertain = bool((values["pbar"] > 0).all())
    if (
        instance.form == "odds"
        and uncertain
        and (bool((values["pbar"] >= instance.params["floor"]).all()) or not above_floor)
    ):
        lam = instance.params["lam"]
        eps = displacement(batch.logp_target, batch.logp_behavior)[:, 0]
        over = (eps.exp() - np.exp(lam)).clamp(min=0)
        decided = (ratio.log() - caps.log()).abs() > 1e-9  # no tie up to rounding
        acted = weigh("cis", batch, **instance.params).acted[:, 0]
        found |= {"odds_excess": -law.expect(values["pbar"] * over * f), "odds_bias": found["bias"]}
        found |= {
            "acts": acted[decided].double(),
            "beyond": (eps > lam)[decided].double(),
            "odds_summand": found["summand"],
        }
    return found


@lru_cache(maxsize=1)
def _derivation() -> Derivation:
    over = (K - C + sp.Abs(K - C)) / 2
    under = (K + C - sp.Abs(K - C)) / 2
    chain = [
        Step("summand", Q * under * F - P * F, "one token's share of E_q[min(k,c) f] - E_p[f]", quantity="summand",
             tex=r"q\,\min(k,c)\,f - p\,f"),
        Step("over", Q * under * F - Q * K * F, "p = q k", tex=r"q\,(\min(k,c) - k)\,f"),
        Step("excess", -Q * over * F, "min(k,c) = k - (k-c)+: summed over tokens, minus the mean of the excess",
             tex=r"-q\,(k-c)_+\,f"),
    ]  # fmt: skip
    odds = P * QC / (PC * Q)
    positive = lambda x: (x + sp.Abs(x)) / 2  # noqa: E731
    form = [
        Step("excess", -Q * positive(P / Q - (1 + PC * (L - 1))) * F, "the odds cap, where 1-p >= kappa",
             tex=r"-q\,\big(k - 1 - (1-p)(e^\lambda-1)\big)_+ f"),
        Step("displacement", -Q * positive(P + PC * odds - (P + PC) - PC * (L - 1)) * F, "k = p + (1-p) e^eps (C1), 1 = p + "
             "(1-p)",
             tex=r"-q\,\big(p + (1-p)e^{\varepsilon} - p - (1-p)e^\lambda\big)_+ f"),
        Step("scaled", -Q * PC * positive(odds - L) * F, "1-p is positive and comes out: only eps > lambda counts",
             quantity="odds_summand", tex=r"-q\,(1-p)\,(e^{\varepsilon} - e^{\lambda})_+ f"),
    ]  # fmt: skip

    def draw(rng: Any) -> dict[sp.Symbol, Any]:
        more = {
            C: sp.Rational(rng.randint(0, 20), 7),
            L: sp.Rational(rng.randint(5, 30), 5),
        }
        return {**point(rng), **more}

    def numbers(i: Capped) -> dict[sp.Symbol, Any]:
        values = bind(i.world)
        pbar = np.where(values[PC] > 0, values[PC], 1.0)  # no displacement is compared where p = 1
        return {**values, PC: pbar, C: i.caps, L: float(np.exp(i.params.get("lam", 0.0)))}

    return Derivation([chain, form], draw, numbers)


def instances() -> list[Capped]:
    """Every mismatch under a constant cap, a tight one and readings of the confidence cap."""
    return capped_tokens("tis", "tight_tis", "odds", "odds_floor", "linear")


def masked_instead(right: Any) -> Any:
    """Bug: what exceeds the cap is dropped instead of capped."""

    def wrong(log_ratio: Any, cap: Any) -> Any:
        capped = right(log_ratio, cap)
        return torch.where(log_ratio.exp() > capped * (1 + 1e-12), torch.zeros_like(capped), capped)

    return wrong


def confident_tokens() -> list[Capped]:
    """Tokens surer than 1 - kappa, displaced by more than lambda."""
    return [c for c in capped_tokens("odds_floor") if c.name == "confident_odds_floor"]


def lost_support() -> list[Capped]:
    """A sampler that never draws one of the trainer's tokens."""
    world = noisy("cut_tail", 4, 0.5)
    logits = world.behaviors[0].table.clone()
    logits[0, 0] = -torch.inf
    cut = replace(world, schedule=PrefixSchedule((TabularPolicy(logits),), one()))
    return [Capped(name="cut_tail_tis", world=cut, rule="tis", params={"cap": 2.0})]


def raised_too(right: Any) -> Any:
    """Bug: small ratios are raised to 1/cap."""
    return lambda log_ratio, cap: right(log_ratio, cap).clamp(min=1 / cap)


def linear_reading(right: Any) -> Any:
    """Bug: 1 + lambda phi where the odds form is asked for."""
    return lambda logp_target, lam, floor, cap_form: right(logp_target, lam, floor, "linear")


THEOREM = Theorem(
    id="C6",
    kind="identity",
    title="the bias of a cap is minus the mean of the truncated excess",
    hypotheses=("tokens are drawn from q, and q > 0 wherever p > 0", "c >= 0 and f are functions of the token and its context"),
    statement="E_q[min(k,c) f] - E_p[f] = -E_q[(k-c)+ f]; with the odds cap, p < 1 and 1-p >= kappa it is -E_q[(1-p)(e^eps - "
    "e^lambda)+ f]: only displacements above lambda are acted on and contribute; the mean weight is 1 - E_q(k-c)+ <= 1",
    source="paper (CIS): a bias controlled by the truncated excess, its cap in the odds reading; identity standard (Ionides "
    "2008)",
    reading=True,
    references=("Ionides 2008, J. Comput. Graph. Stat. 17:295",),
    claims=(
        Claim("bias", "equal", "bias", "minus_excess", "bias of the capped mean = -E_q[(k-c)+ f]"),
        Claim("odds", "equal", "odds_bias", "odds_excess", "odds cap: = -E_q[(1-p)(e^eps - e^lambda)+ f]"),
        Claim("acts", "equal", "acts", "beyond", "odds cap, 1-p >= kappa: acts exactly where eps > lambda"),
        Claim("mean_weight", "equal", "mean_weight", "one_less", "mean weight 1 - E_q(k-c)+"),
        Claim("shrinks", "at_most", "mean_weight", "one", "a cap never raises the mean weight: a hidden cut of the step size"),
    ),
    instances=instances,
    measure=measure,
    derive=lambda instance: _derivation(),
    outcome="Report the mean excess, not the share of tokens acted on: it is the bias, and its sign is opposite to that of f.",
    mutants=(
        Mutant(name="truth_of_the_sampler", kind="hypothesis", breaks=("bias", "odds"),
               on=("strong_odds", "doubtful_sampler_odds"),
               measure=partial(measure, target_mean=False), why="the bias is against E_p f, not against E_q f; needs a cap "
               "that cuts"),
        Mutant(name="surer_than_the_floor", kind="hypothesis", breaks=("odds", "acts"), instances=confident_tokens,
               measure=partial(measure, above_floor=False),
               why="1-p >= kappa dropped: there the floor lets displacements above lambda pass"),
        Mutant(name="lost_support", kind="hypothesis", breaks=("bias", "mean_weight"), instances=lost_support,
               why="a token that the sampler never draws: its whole share is lost, not an excess"),
        Mutant(name="raised_too", kind="bug", breaks=("bias", "mean_weight", "shrinks"), on=("doubtful_sampler_tis",),
               plant=lambda: planted(truncation, "truncate", raised_too),
               why="a clamp to [1/C, C], which frameworks call truncated importance sampling; needs many tokens below 1/C"),
        Mutant(name="linear_for_odds", kind="bug", breaks=("bias", "odds", "mean_weight"),
               on=("two_tokens_odds", "strong_odds"), plant=lambda: planted(confidence, "confidence_log_cap", linear_reading),
               why="the other reading's cap is tighter; needs a displacement that it cuts"),
        Mutant(name="masked_instead_of_capped", kind="bug", breaks=("bias", "mean_weight"),
               on=("strong_tis", "doubtful_sampler_tis", "strong_tight_tis"),
               plant=lambda: planted(truncation, "truncate", masked_instead),
               why="dropping loses the whole contribution, not the excess (C10)"),
    ),
)  # fmt: skip
