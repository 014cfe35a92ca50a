"""S2: the full product of recorded ratios makes the score-function gradient unbiased, whatever the segments."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import sympy as sp
import torch

from testbed.estimators.gradient import gradient_terms
from testbed.exact.gradients import exact_gradient
from testbed.exact.moments import moments
from testbed.policies.schedule import PrefixSchedule, cuts
from testbed.policies.tabular import TabularPolicy
from testbed.weighting.rules import weigh
from theory import bugs
from theory.derivation import Derivation, Step
from theory.nested_updates import nested_derivation
from theory.sampled import MeanCheck
from theory.symbols import symbolic_world
from theory.theorem import Claim, Mutant, Quantities, Theorem
from theory.transformer_worlds import TransformerWorld, transformer_worlds
from theory.worlds import World, standard_worlds, world


def instances() -> list[World | TransformerWorld]:
    """Tabular worlds, and transformers of up to 625 responses."""
    return [*standard_worlds(), *transformer_worlds(wide=True)]


def measure(instance: World | TransformerWorld) -> Quantities:
    """Expected full-product gradient of the library against the library's exact gradient of J."""
    batch = instance.batch
    terms = gradient_terms(batch, weigh("sequence_product", batch), instance.target)
    return {
        "estimator": moments(instance.law, terms).mean,
        "gradient": exact_gradient(instance.env, instance.target),
    }


@lru_cache(maxsize=32)
def _derivation(shape: tuple[Any, ...]) -> Derivation:
    w = symbolic_world(shape)

    def score(y: tuple[int, ...], h: tuple[int, ...], b: int) -> sp.Expr:
        return sp.Add(*[w.score(y, t, h, b) for t in range(len(y))])

    stated = [
        sp.Add(*[p * w.weight(y, xi) * w.total_return(y) * score(y, h, b) for xi, y, p in w.draws()])
        for h, b in w.parameters
    ]
    substituted = [e.xreplace(w.rho_definition()) for e in stated]
    on_policy = [
        sp.Add(*[w.prob_pi(y) * w.total_return(y) * score(y, h, b) for y in w.leaves]) for h, b in w.parameters
    ]
    chain = [
        Step(
            "definition",
            stated,
            "sampler's law, product of all recorded ratios, reward, sum of scores",
            quantity="estimator",
            tex=r"E_\mu\Big[W_T R \sum_t s_t\Big] = \sum_y \mu(y) \prod_t \rho_t\, R(y) \sum_t s_t",
        ),
        Step(
            "ratios",
            substituted,
            "rho_t = pi/mu_S cancels the sampler's probability of every token",
            tex=r"\sum_{\xi, y} P(\xi) \prod_t \mu_S \prod_t \tfrac{\pi}{\mu_S}\, R \sum_t s_t",
        ),
        Step("on_policy", on_policy, "the noise of the schedule sums out", tex=r"\sum_y \pi(y) R(y) \sum_t s_t"),
        Step(
            "log_derivative",
            w.gradient(),
            "sum_t s_t = grad log pi(y), and grad J differentiates sum pi(y) R(y)",
            quantity="gradient",
            tex=r"\nabla \sum_y \pi(y) R(y) = \nabla J",
        ),
    ]
    return Derivation([chain], w.point, w.bind)


def derive(instance: World | TransformerWorld) -> Derivation:
    """Logit by logit for a tabular world, parameter by parameter for a transformer."""
    if isinstance(instance, TransformerWorld):
        return nested_derivation("S2", instance.env.horizon)
    return _derivation(instance.shape)


def uncovered_world() -> list[World]:
    """A first behavior that never draws token 0, although the target does."""
    base = world("uncovered", 2, 2, cuts((1,)))
    blind = TabularPolicy.from_probs(torch.tensor([[0.0, 1.0]] * 3))
    schedule = PrefixSchedule((blind, base.behaviors[1]), cuts((1,)))
    return [World(name="uncovered", env=base.env, target=base.target, schedule=schedule)]


def sampled() -> MeanCheck:
    """E_mu[W_T R] against E_pi[R] from sampled rollouts with three behaviors."""
    instance = next(w for w in standard_worlds() if w.name == "three_segments")
    return MeanCheck.of_weighted_reward("S2", instance, effect=0.25)


TOLD_APART = ("two_segments", "three_segments", "transformer_dense", "transformer_experts")
WHY = "needs at least two different behaviors, one token of each"
THEOREM = Theorem(
    id="S2",
    kind="identity",
    title="full product of recorded ratios: the gradient is unbiased for every admissible schedule",
    hypotheses=(
        "boundaries are prefix-measurable or exogenous (S1)",
        "each token's ratio uses the behavior that drew it",
        "every behavior supports the target",
    ),
    statement="E_mu[W_T R sum_t s_t] = G, the gradient of E_pi[R]",
    source="literature (importance sampling of the score-function estimator); SPIRE's first reading",
    reading=True,
    claims=(Claim("unbiased", "equal", "estimator", "gradient", "full-product estimator has mean grad J"),),
    instances=instances,
    measure=measure,
    derive=derive,
    sampled=sampled,
    outcome="Reading 1 of SPIRE (full product) is unbiased with a terminal reward.",
    mutants=(
        Mutant(
            name="support_violated",
            kind="hypothesis",
            breaks=("unbiased",),
            instances=uncovered_world,
            why="a behavior that cannot draw a token the target draws loses that token's share of the gradient",
        ),
        Mutant(
            name="labels_shifted",
            kind="bug",
            breaks=("unbiased",),
            on=TOLD_APART,
            why=f"labels lag by one token; {WHY}",
            plant=bugs.labels_shifted,
        ),
        Mutant(
            name="all_labeled_newest",
            kind="bug",
            breaks=("unbiased",),
            on=TOLD_APART,
            why=f"every token is filed under the newest behavior; {WHY}",
            plant=bugs.all_labeled_newest,
        ),
        Mutant(
            name="only_last_segment_corrected",
            kind="bug",
            breaks=("unbiased",),
            on=TOLD_APART,
            why=f"ratios of earlier segments are taken to be 1; {WHY}",
            plant=bugs.last_segment_only,
        ),
        Mutant(
            name="ratio_inverted",
            kind="bug",
            breaks=("unbiased",),
            on=TOLD_APART,
            why="log_ratios returns behavior minus target",
            plant=bugs.ratio_inverted,
        ),
    ),
)
