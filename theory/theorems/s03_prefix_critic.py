"""S3: prefix products suffice when what multiplies the score is known at the token: the target's critic, or per-step rewards."""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import sympy as sp
import torch
from torch import Tensor

from testbed.core.prefix_order import node_count
from testbed.estimators import per_decision
from testbed.estimators.gradient import gradient_terms
from testbed.estimators.per_decision import per_decision_gradient_terms
from testbed.exact.gradients import exact_gradient
from testbed.exact.moments import moments
from testbed.exact.values import action_values
from testbed.weighting.rules import weigh
from theory.derivation import Derivation, Step
from theory.nested_updates import baseline_derivation
from theory.planting import planted
from theory.prefix_bugs import prefix_before_the_token
from theory.small_worlds import along, long_worlds, small_worlds, uncovered_world
from theory.symbols import SymbolicWorld, symbolic_world
from theory.theorem import Claim, Mutant, Quantities, Theorem
from theory.transformer_worlds import TransformerWorld, step_reward_world, transformer_worlds
from theory.worlds import STREAM, World

STEPS = "steps_"  # worlds with per-step rewards


def baseline(nodes: int) -> Tensor:
    """Return an arbitrary function of the prefix [N, 1]."""
    return 2 * torch.rand(nodes, 1, generator=STREAM["baseline"].torch_generator(), dtype=torch.float64) - 1


def instances() -> list[World | TransformerWorld]:
    """Worlds of one to three positions with terminal and with per-step rewards; transformers with either."""
    short = [*small_worlds(), *small_worlds(STEPS, step_rewards=True)]
    long = [*long_worlds(), *long_worlds("long_steps_", step_rewards=True)]
    return [*short, *long, *transformer_worlds(), step_reward_world()]


def measure(
    instance: World | TransformerWorld, critic: Tensor | None = None, subtracted: Tensor | None = None
) -> Quantities:
    """Return the library's expected estimators and its exact gradient; the mutants pass another critic or baseline."""
    law, batch, pi = instance.law, instance.batch, instance.target
    weights = weigh("prefix", batch)
    q = action_values(instance.env, pi) if critic is None else critic
    b = baseline(q.shape[0]).expand_as(q) if subtracted is None else subtracted
    found = {
        "critic": moments(law, gradient_terms(batch, weights, pi, along(batch, q))).mean,
        "critic_minus_baseline": moments(law, gradient_terms(batch, weights, pi, along(batch, q - b))).mean,
        "gradient": exact_gradient(instance.env, pi),
    }
    if batch.token_reward is not None:
        found["per_decision"] = moments(law, per_decision_gradient_terms(batch, weights, pi)).mean
    return found


def measure_behavior_critic(instance: World | TransformerWorld) -> Quantities:
    """Q of the sampler in place of the target's."""
    return measure(instance, critic=action_values(instance.env, instance.schedule.branches()[0][1]))


def measure_token_baseline(instance: World | TransformerWorld) -> Quantities:
    """A baseline that knows the token it is subtracted from."""
    size, horizon = instance.env.vocab_size, instance.env.horizon
    shape = (node_count(size, horizon), size)
    b = torch.rand(shape, generator=STREAM["token baseline"].torch_generator(), dtype=torch.float64)
    return measure(instance, subtracted=b)


@lru_cache(maxsize=32)
def _derivation(shape: tuple[Any, ...]) -> Derivation:
    w = symbolic_world(shape)
    b = {h: sp.Symbol("b_" + "".join(map(str, h)), real=True) for h in w.prefixes}
    chains = [_critic_chain(w, b)] + ([_per_decision_chain(w)] if w.has_steps else [])

    def point(rng: random.Random) -> Mapping[sp.Symbol, Any]:
        return {**w.point(rng), **{s: sp.Rational(rng.randint(-9, 9), 4) for s in b.values()}}

    def bind(instance: World) -> Mapping[sp.Symbol, float]:
        values = baseline(len(b))[:, 0].tolist()
        return {**w.bind(instance), **dict(zip(b.values(), values, strict=True))}

    return Derivation(chains, point, bind)


def _critic_chain(w: SymbolicWorld, b: dict[tuple[int, ...], sp.Symbol]) -> list[Step]:
    def known_at(y: tuple[int, ...], t: int, h: tuple[int, ...], c: int) -> sp.Expr:
        return w.score(y, t, h, c) * (w.action_value(y[:t], y[t]) - b[y[:t]])

    stated = [
        sp.Add(
            *[
                p * w.weight(y, xi, t + 1) * known_at(y, t, h, c)
                for xi, y, p in w.draws()
                for t in range(len(y))
                if y[:t] == h
            ]
        )
        for h, c in w.parameters
    ]
    corrected = [
        sp.Add(*[w.prob_pi(h) * w.pi(h, a) * known_at((*h, a), len(h), h, c) for a in range(w.vocab_size)])
        if _live(w, h)
        else sp.Integer(0)
        for h, c in w.parameters
    ]
    free = [e.xreplace(dict.fromkeys(b.values(), sp.Integer(0))) for e in corrected]
    return [
        Step(
            "definition",
            stated,
            "sampler's law, prefix products, scores times critic minus baseline",
            quantity="critic_minus_baseline",
            tex=r"E_\mu\Big[\sum_t W_t s_t (Q^\pi(h_t, y_t) - b(h_t))\Big]",
        ),
        Step(
            "ratios",
            [e.xreplace(w.rho_definition()) for e in stated],
            "rho_t = pi/mu_S cancels mu up to and including t",
            tex=r"\sum_{\xi, y} P(\xi) \sum_t \pi(y_{\le t})\, \mu(y_{>t} \mid y_{\le t})\, s_t (Q^\pi - b)",
        ),
        Step(
            "continuation",
            corrected,
            "what follows t appears in no factor: it sums to 1 under mu, and so does the noise",
            tex=r"\sum_t \sum_{h_t, y_t} \pi(h_t) \pi(y_t \mid h_t)\, s_t (Q^\pi(h_t, y_t) - b(h_t))",
        ),
        Step(
            "baseline",
            free,
            "E_pi[s_t | h_t] = 0 removes any function of the prefix",
            quantity="critic",
            tex=r"\sum_t \sum_{h_t, y_t} \pi(h_t) \pi(y_t \mid h_t)\, s_t Q^\pi(h_t, y_t)",
        ),
        Step(
            "gradient",
            w.gradient(),
            "policy-gradient theorem; the right side is J, differentiated",
            quantity="gradient",
            tex=r"\nabla \sum_y \pi(y) R(y) = \nabla J",
        ),
    ]


def _per_decision_chain(w: SymbolicWorld) -> list[Step]:
    def credit(y: tuple[int, ...], u: int, h: tuple[int, ...], c: int) -> sp.Expr:
        return w.step_reward(y[:u], y[u]) * sp.Add(*[w.score(y, t, h, c) for t in range(u + 1)])

    stated = [
        sp.Add(*[p * w.weight(y, xi, u + 1) * credit(y, u, h, c) for xi, y, p in w.draws() for u in range(len(y))])
        for h, c in w.parameters
    ]
    corrected = [
        sp.Add(
            *[
                w.prob_pi((*g, a)) * credit((*g, a), len(g), h, c)
                for g in w.prefixes
                if _live(w, g)
                for a in range(w.vocab_size)
            ]
        )
        for h, c in w.parameters
    ]
    return [
        Step(
            "definition",
            stated,
            "each per-step reward under its own prefix product credits the scores up to it",
            quantity="per_decision",
            tex=r"E_\mu\Big[\sum_u r_u W_u \sum_{t \le u} s_t\Big]",
        ),
        Step(
            "ratios",
            [e.xreplace(w.rho_definition()) for e in stated],
            "rho_t = pi/mu_S cancels mu up to and including u",
            tex=r"\sum_{\xi, y} P(\xi) \sum_u \pi(y_{\le u})\, \mu(y_{>u} \mid y_{\le u})\, r_u \sum_{t \le u} s_t",
        ),
        Step(
            "continuation",
            corrected,
            "what follows u sums to 1 under mu, and so does the noise",
            tex=r"\sum_u \sum_{y_{\le u}} \pi(y_{\le u})\, r_u \sum_{t \le u} s_t",
        ),
        Step(
            "gradient",
            w.gradient(),
            "sum_{t<=u} s_t = grad log pi(y_<=u); the right side is J, differentiated",
            quantity="gradient",
            tex=r"\nabla E_\pi\Big[\sum_u r_u\Big]",
        ),
    ]


def derive(instance: World | TransformerWorld) -> Derivation:
    """Logit by logit for a tabular world, parameter by parameter for a transformer."""
    if isinstance(instance, TransformerWorld):
        return baseline_derivation(instance.env.horizon, instance.env.token_rewards is not None, baseline)
    return _derivation(instance.shape)


def _live(w: SymbolicWorld, h: tuple[int, ...]) -> bool:
    return w.eos is None or w.eos not in h


def scores_after_the_reward(right: Any) -> Any:
    """Bug: every reward credits all tokens, later ones included (harmless on-policy, where later scores have mean 0)."""

    def wrong(batch: Any, w: Any) -> Tensor:
        return torch.where(batch.mask, right(batch, w)[:, :1], 0.0)

    return wrong


BOTH = ("unbiased", "any_baseline")
THEOREM = Theorem(
    id="S3",
    kind="identity",
    title="prefix products are exact with the target's own critic, or reward by reward",
    hypotheses=(
        "boundaries are prefix-measurable or exogenous (S1)",
        "every behavior supports the target",
        "Q is the critic of the *target*; b is a function of the prefix alone",
        "W_t includes the token's own ratio",
    ),
    statement="E_mu[sum_t W_t s_t (Q^pi(h_t,y_t) - b(h_t))] = G; E_mu[sum_u r_u W_u sum_{t<=u} s_t] = grad E_pi[sum_u r_u]",
    source="literature (per-decision importance sampling); SPIRE's second reading",
    references=("Precup, Sutton and Singh, Eligibility traces for off-policy policy evaluation, ICML 2000",),
    reading=True,
    claims=(
        Claim("unbiased", "equal", "critic", "gradient", "prefix products with Q of the target have mean grad J"),
        Claim(
            "any_baseline", "equal", "critic_minus_baseline", "gradient", "any function of the prefix changes nothing"
        ),
        Claim(
            "per_decision", "equal", "per_decision", "gradient", "per-step rewards, each under its own prefix product"
        ),
    ),
    instances=instances,
    measure=measure,
    derive=derive,
    outcome="Reading 2 of SPIRE (prefix product with the target's critic, or per-step rewards) is unbiased for every schedule.",
    mutants=(
        Mutant(
            name="critic_of_the_behavior",
            kind="hypothesis",
            breaks=BOTH,
            on=("two_segments", "three_tokens", "transformer_experts"),
            measure=measure_behavior_critic,
            why="Q^mu instead of Q^pi; told apart where Q^mu - Q^pi is not constant in the token (later tokens off-policy)",
        ),
        Mutant(
            name="baseline_reads_the_token",
            kind="hypothesis",
            breaks=("any_baseline",),
            on=("two_segments", "one_token", "transformer_experts"),
            measure=measure_token_baseline,
            why="b(h_t, y_t) is no baseline: E_pi[s_t b] is not 0",
        ),
        Mutant(
            name="support_violated",
            kind="hypothesis",
            breaks=(*BOTH, "per_decision"),
            instances=lambda: [uncovered_world(), uncovered_world(STEPS, step_rewards=True)],
            why="what the behavior never draws is missing from the mean",
        ),
        Mutant(
            name="product_through_t_minus_1",
            kind="bug",
            breaks=(*BOTH, "per_decision"),
            plant=prefix_before_the_token,
            on=("two_segments", "three_tokens", "steps_two_segments", "transformer_dense", "transformer_experts"),
            why="the token's own ratio is left out; told apart wherever a token is off-policy",
        ),
        Mutant(
            name="scores_after_the_reward",
            kind="bug",
            breaks=("per_decision",),
            on=("steps_two_segments", "long_steps_three_segments", "transformer_steps"),
            plant=lambda: planted(per_decision, "weighted_reward_to_go", scores_after_the_reward),
            why="a reward also credits tokens drawn after it; off-policy their scores do not have mean 0",
        ),
    ),
)
