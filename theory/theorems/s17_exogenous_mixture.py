"""S17: under an exogenous schedule the realized weight averages to the weight against the mixture of its branches."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import sympy as sp
import torch
from torch import Tensor

from testbed.core.batch import SegmentedBatch
from testbed.estimators.gradient import gradient_terms
from testbed.exact.gradients import exact_gradient
from testbed.exact.law import ExactLaw, enumerate_law
from testbed.exact.moments import moments
from testbed.policies import marginal
from testbed.policies.schedule import ExogenousSchedule, PrefixSchedule, exogenous_hazard, one
from testbed.policies.tabular import TabularPolicy
from testbed.stats.weight_statistics import second_moment
from testbed.weighting.rules import weigh
from theory import bugs
from theory.derivation import Derivation, Step
from theory.planting import planted
from theory.response_weights import response_weight
from theory.symbols import symbolic_world
from theory.theorem import Claim, Mutant, Quantities, Theorem
from theory.worlds import STREAM, World, one_hot_policy, world


def of_each_response(batch: SegmentedBatch, values: Tensor) -> Tensor:
    """Sum of values over the rows that hold the same response, responses in order of first appearance."""
    row: dict[tuple[int, ...], int] = {}
    rows = [
        row.setdefault((*t, n), len(row)) for t, n in zip(batch.tokens.tolist(), batch.lengths.tolist(), strict=True)
    ]
    return torch.zeros(len(row), dtype=torch.float64).index_add_(0, torch.tensor(rows), values)


def measure(instance: World, schedule: Any = None) -> Quantities:
    """Realized and mixture weights of the library over the joint law of noise and response.

    `schedule` is what the mixture is computed from (default: the one that drew).
    """
    law, batch = instance.law, instance.batch
    mixed = batch.replaced(
        logp_behavior=marginal.marginal_log_probs(schedule or instance.schedule, batch.tokens, batch.mask)
    )
    realized, mixture = response_weight(batch), response_weight(mixed)
    mass = of_each_response(batch, law.probs)
    conditional = of_each_response(batch, law.probs * realized) / mass
    spread = of_each_response(batch, law.probs * realized**2) / mass - conditional**2
    terms = moments(law, gradient_terms(batch, weigh("sequence_product", batch), instance.target))
    mixed_terms = moments(law, gradient_terms(mixed, weigh("sequence_product", mixed), instance.target))
    return {
        "conditional": conditional,
        "mixture": of_each_response(batch, law.probs * mixture) / mass,
        "realized_second": second_moment(realized, probs=law.probs),
        "mixture_second": second_moment(mixture, probs=law.probs),
        "mixture_plus_spread": second_moment(mixture, probs=law.probs) + float((mass * spread).sum()),
        "realized_seconds": terms.second,
        "mixture_seconds": mixed_terms.second,
        "mixture_gradient": mixed_terms.mean,
        "gradient": exact_gradient(instance.env, instance.target),
    }


@lru_cache(maxsize=32)
def _derivation(shape: tuple[Any, ...]) -> Derivation:
    w = symbolic_world(shape)
    branches = range(len(w.branches))
    pairs = [(b, c) for b in branches for c in branches if b < c]

    def mix(y: tuple[int, ...]) -> sp.Expr:
        return sp.Add(*[w.prior(b) * w.prob_mu(y, b) for b in branches])

    def joint(y: tuple[int, ...], power: int) -> sp.Expr:
        return sp.Add(*[w.prior(b) * w.prob_mu(y, b) * w.weight(y, b) ** power for b in branches])

    def distance(y: tuple[int, ...]) -> sp.Expr:
        terms = [
            w.prior(b) * w.prior(c) * (w.prob_mu(y, b) - w.prob_mu(y, c)) ** 2 / (w.prob_mu(y, b) * w.prob_mu(y, c))
            for b, c in pairs
        ]
        return sp.Add(*terms)

    bayes = [joint(y, 1) / mix(y) for y in w.leaves]
    second = sp.Add(*[joint(y, 2) for y in w.leaves])
    split = sp.Add(*[w.prob_pi(y) ** 2 / mix(y) * (1 + distance(y)) for y in w.leaves])
    mixture_second = sp.Add(*[w.prob_pi(y) ** 2 / mix(y) for y in w.leaves])
    conditional = [
        Step(
            "definition",
            bayes,
            "posterior of the noise given the response, times the product of recorded ratios",
            quantity="conditional",
            tex=r"E[W \mid y] = \sum_\xi \frac{P(\xi) \mu_\xi(y)}{\mu_{mix}(y)} \prod_t \rho_t",
        ),
        Step(
            "ratios",
            [e.xreplace(w.rho_definition()) for e in bayes],
            "each branch's probability cancels in its own ratio",
            tex=r"\frac{\pi(y)}{\mu_{mix}(y)} \sum_\xi P(\xi)",
        ),
        Step(
            "prior",
            [w.prob_pi(y) / mix(y) for y in w.leaves],
            "the probabilities of all branches sum to 1",
            quantity="mixture",
            tex=r"\frac{\pi(y)}{\mu_{mix}(y)}",
        ),
    ]
    moment = [
        Step(
            "definition",
            second,
            "second moment over noise and response",
            quantity="realized_second",
            tex=r"E[W^2] = \sum_{\xi, y} P(\xi) \mu_\xi(y) \prod_t \rho_t^2",
        ),
        Step(
            "ratios",
            second.xreplace(w.rho_definition()),
            "one factor mu_xi cancels",
            tex=r"\sum_y \pi(y)^2 \sum_\xi P(\xi)/\mu_\xi(y)",
        ),
        Step(
            "lagrange",
            split,
            "sum P/mu * sum P mu = 1 + sum over pairs of branches, because the P sum to 1",
            quantity="mixture_plus_spread",
            tex=r"\sum_y \tfrac{\pi^2}{\mu_{mix}} \big(1 + \sum_{\xi<\zeta} P(\xi)P(\zeta) "
            r"\tfrac{(\mu_\xi-\mu_\zeta)^2}{\mu_\xi \mu_\zeta}\big)",
        ),
        Step(
            "squares",
            mixture_second,
            "squares are not negative; they vanish iff all branches draw y alike",
            relation=">=",
            quantity="mixture_second",
            tex=r"\sum_y \pi(y)^2/\mu_{mix}(y) = E[W_{mix}^2]",
        ),
    ]
    return Derivation([conditional, moment], w.point, w.bind)


def either(name: str, *policies: TabularPolicy) -> World:
    """One of two policies writes the whole response, as when requests are spread over engines."""
    base = world(name, policies[0].vocab_size, policies[0].horizon)
    noise = ExogenousSchedule(
        [(0.3, PrefixSchedule(policies, one())), (0.7, PrefixSchedule(policies, lambda prefix: 1))]
    )
    return World(name=name, env=base.env, target=base.target, schedule=noise)


def instances() -> list[World]:
    """Hazards at horizons 2 and 3, an end token, a choice of engine; without noise, on-policy, deterministic target."""
    mu = TabularPolicy.random(2, 2, STREAM["s17 on-policy"])
    return [
        world("boundary_or_none", 2, 2, hazard=0.4),
        world("two_boundaries", 2, 3, behaviors=3, hazard=0.3),
        world("end_token", 3, 2, hazard=0.5, eos=2),
        world("no_noise", 2, 2, hazard=0.0),
        world("on_policy", 2, 2, hazard=0.4, target=mu, policies=(mu, mu)),
        world("deterministic_target", 2, 2, hazard=0.4, target=one_hot_policy(2, 2, "s17 deterministic")),
        either("two_engines", *(TabularPolicy.random(2, 2, STREAM[f"s17 engine {k}"]) for k in range(2))),
    ]


def unsupported() -> list[World]:
    """One of two engines never draws token 0 first, although the target does; the mixture still covers it."""
    blind = TabularPolicy.from_probs(torch.tensor([[0.0, 1.0], [0.5, 0.5], [0.5, 0.5]]))
    return [either("unsupported", blind, TabularPolicy.random(2, 2, STREAM["s17 engine 1"]))]


def relabeled() -> list[World]:
    """Which engine is named in the record depends on the finished response: its last token."""

    def sampler(w: World) -> ExactLaw:
        honest = enumerate_law(w.env, w.target, w.schedule)
        named = (honest.batch.tokens[:, -1] == 0).long()
        scores = torch.stack([mu.score(honest.batch.tokens) for mu in w.behaviors])
        recorded = scores.gather(0, named[None, :, None].expand(1, -1, w.env.horizon))[0]
        return ExactLaw(batch=honest.batch.replaced(logp_behavior=recorded), log_prob=honest.log_prob, branch=named)

    base = next(w for w in instances() if w.name == "two_engines")
    return [World(name="relabeled", env=base.env, target=base.target, schedule=base.schedule, sampler=sampler)]


def misjudged(instance: World) -> Quantities:
    """Mixture computed for a hazard of 0.9 instead of the one that drew."""
    return measure(instance, exogenous_hazard(instance.behaviors, 0.9, instance.env.horizon))


def by_token(right: Any) -> Any:
    """Bug: the branches' next-token laws are averaged by the prior at every position, whatever the prefix says of the noise."""

    def wrong(schedule: Any, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        alone = [right(branch, tokens, mask).exp() * prob for prob, branch in schedule.branches()]
        return torch.stack(alone).sum(0).log()

    return wrong


THEOREM = Theorem(
    id="S17",
    kind="identity",
    title="exogenous schedule: weights against the mixture of its branches are the mean of the realized ones, and steadier",
    hypotheses=(
        "the schedule's noise xi is independent of the tokens, and of known law P(xi)",
        "every branch supports the target",
        "W uses the behaviors of the branch that drew the response",
    ),
    statement="E[W_realized | y] = pi(y) / mu_mix(y), mu_mix = sum_xi P(xi) mu_xi; hence E[W_mix^2] <= E[W_realized^2]",
    source="literature (Rao-Blackwell; deterministic-mixture weights)",
    references=(
        "Veach and Guibas, Optimally combining sampling techniques for Monte Carlo rendering, SIGGRAPH 1995",
        "Owen and Zhou, Safe and effective importance sampling, JASA 95 (2000) 135-143",
    ),
    claims=(
        Claim(
            "conditional",
            "equal",
            "conditional",
            "mixture",
            "given the response, the realized weight has mean pi/mu_mix",
        ),
        Claim(
            "smaller", "at_most", "mixture_second", "realized_second", "mixture weights have the smaller second moment"
        ),
        Claim("gap", "equal", "realized_second", "mixture_plus_spread", "by the mean variance of W given the response"),
        Claim(
            "terms",
            "at_most",
            "mixture_seconds",
            "realized_seconds",
            "and so has every component of the gradient's terms",
        ),
        Claim(
            "unbiased", "equal", "mixture_gradient", "gradient", "the gradient weighted by pi/mu_mix has mean grad J"
        ),
    ),
    instances=instances,
    measure=measure,
    derive=lambda instance: _derivation(instance.shape),
    outcome="Where the schedule's noise has a known law, divide by the mixture of its branches: unbiased too, and never noisier.",
    mutants=(
        Mutant(
            name="branch_misses_support",
            kind="hypothesis",
            breaks=("conditional", "gap", "smaller", "terms"),
            instances=unsupported,
            why="E[W|y] is pi/mu_mix times the probability of the branches that can draw y; needs one that cannot",
        ),
        Mutant(
            name="noise_follows_the_tokens",
            kind="hypothesis",
            breaks=("conditional", "gap", "smaller", "terms"),
            instances=relabeled,
            why="the recorded branch is a function of the response, so its ratio is not averaged over the posterior",
        ),
        Mutant(
            name="noise_law_misjudged",
            kind="hypothesis",
            measure=misjudged,
            on=("boundary_or_none",),
            breaks=("conditional", "gap", "smaller", "terms", "unbiased"),
            why="a mixture with other branch probabilities; needs branches that differ",
        ),
        Mutant(
            name="mixed_token_by_token",
            kind="bug",
            breaks=("conditional", "gap", "unbiased"),
            plant=lambda: planted(marginal, "marginal_log_probs", by_token),
            on=("two_engines",),
            why="the prefix tells which branch drew it; needs noise that lasts for two tokens",
        ),
        Mutant(
            name="ratio_inverted",
            kind="bug",
            breaks=("conditional", "gap", "unbiased"),
            on=("boundary_or_none",),
            plant=bugs.ratio_inverted,
            why="behavior over target: the reciprocal of a mean is not the mean of reciprocals",
        ),
    ),
)
