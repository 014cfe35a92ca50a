"""C6: what a cap costs in bias is the mean of what it cuts off."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

import numpy as np
import sympy as sp
import torch

from testbed.weighting import truncate as truncation
from testbed.weighting.confidence import displacement
from theory.capped_tokens import Capped, capped_tokens
from theory.derivation import Derivation, Step
from theory.mismatch_worlds import PC, F, K, P, Q, bind, point, probabilities
from theory.planting import planted
from theory.theorem import Claim, Mutant, Quantities, Theorem

C = sp.Symbol("c", nonnegative=True)


def measure(instance: Capped, target_mean: bool = True) -> Quantities:
    """Bias of the capped mean by enumeration, against the mean of the excess. Mutants take the bias from a biased truth."""
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
    if instance.rule == "cis" and instance.params["floor"] == 0.0:
        eps = displacement(batch.logp_target, batch.logp_behavior)[:, 0]
        over = (eps.exp() - np.exp(instance.params["lam"])).clamp(min=0)
        found |= {"odds_excess": -law.expect(values["pbar"] * over * f), "odds_bias": found["bias"]}
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
    odds, lam = sp.symbols("E L", positive=True)
    positive = lambda x: (x + sp.Abs(x)) / 2  # noqa: E731
    form = [
        Step("excess", positive(P + PC * odds - (P + PC + PC * (lam - 1))), "the odds cap, with C1", tex=r"(k - 1 - "
             r"(1-p)(e^\lambda-1))_+"),
        Step("scaled", PC * positive(odds - lam), "1-p is positive and comes out: only eps > lambda counts",
             tex=r"(1-p)\,(e^{\varepsilon} - e^{\lambda})_+"),
    ]  # fmt: skip

    def draw(rng: Any) -> dict[sp.Symbol, Any]:
        more = {
            C: sp.Rational(rng.randint(0, 20), 7),
            odds: sp.Rational(rng.randint(1, 30), 7),
            lam: sp.Rational(rng.randint(5, 30), 5),
        }
        return {**point(rng), **more}

    return Derivation([chain, form], draw, lambda i: {**bind(i.world), C: i.caps, F: i.world.env.rewards.numpy()})


def instances() -> list[Capped]:
    """Every mismatch under a constant cap, a tight one and readings of the confidence cap."""
    return capped_tokens("tis", "tight_tis", "odds", "odds_floor", "linear")


def masked_instead(right: Any) -> Any:
    """Bug: what exceeds the cap is dropped instead of capped."""

    def wrong(log_ratio: Any, cap: Any) -> Any:
        capped = right(log_ratio, cap)
        return torch.where(log_ratio.exp() > capped * (1 + 1e-12), torch.zeros_like(capped), capped)

    return wrong


THEOREM = Theorem(
    id="C6",
    kind="identity",
    title="the bias of a cap is minus the mean of the truncated excess",
    hypotheses=("tokens are drawn from q; c >= 0 may depend on the token and on its context, not on the draw", "q > 0 wherever "
    "p > 0"),
    statement="E_q[min(k,c) f] - E_p[f] = -E_q[(k-c)+ f]; with the odds cap and 1-p >= kappa it is -E_q[(1-p)(e^eps - "
    "e^lambda)+ f]: "
    "only displacements above lambda contribute; the mean weight is 1 - E_q(k-c)+ <= 1",
    source="paper (CIS): a bias controlled by the truncated excess; identity standard (Ionides 2008)",
    references=("Ionides 2008, J. Comput. Graph. Stat. 17:295",),
    claims=(
        Claim("bias", "equal", "bias", "minus_excess", "bias of the capped mean = -E_q[(k-c)+ f]"),
        Claim("odds", "equal", "odds_bias", "odds_excess", "odds cap: = -E_q[(1-p)(e^eps - e^lambda)+ f]"),
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
        Mutant(name="masked_instead_of_capped", kind="bug", breaks=("bias", "mean_weight"),
               on=("strong_tis", "doubtful_sampler_tis", "strong_tight_tis"),
               plant=lambda: planted(truncation, "truncate", masked_instead),
               why="dropping loses the whole contribution, not the excess (C10)"),
    ),
)  # fmt: skip
