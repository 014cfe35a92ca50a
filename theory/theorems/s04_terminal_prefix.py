"""S4: prefix and segment-end products with a terminal reward are biased, by exactly the value the later behaviors add."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor

from testbed.estimators.gradient import gradient_terms
from testbed.exact import segment_values
from testbed.exact.gradients import exact_gradient
from testbed.exact.moments import moments
from testbed.exact.values import action_values, behavior_table, prefix_law
from testbed.policies.schedule import PrefixSchedule, cuts
from testbed.policies.tabular import TabularPolicy
from testbed.weighting.rules import weigh
from theory.derivation import Derivation
from theory.nested_updates import nested_derivation
from theory.planting import planted
from theory.prefix_bugs import prefix_before_the_token, segment_prefix_forgets_earlier
from theory.small_worlds import along, long_worlds, small_worlds, uncovered_world
from theory.symbols import symbolic_world
from theory.theorem import Claim, Mutant, Quantities, Theorem
from theory.transformer_worlds import DENSE, TransformerWorld, transformer_world, transformer_worlds
from theory.uncorrected_rest import bias_chain, difference
from theory.worlds import World, world

ZERO = 1e-10  # a bias or a spread below this is rounding
# reading -> weighting rule and its parameters; `spire` without a cap is the product through the end of the segment
KINDS: dict[str, tuple[str, dict[str, Any]]] = {"prefix": ("prefix", {}), "segment_end": ("spire", {"cap": "none"})}
REFUTED = {
    "prefix": ("two_segments", "stale_start", "long_first_segment", "transformer_experts"),
    "segment_end": ("two_segments", "long_first_segment", "transformer_experts"),
}
APART = ("stale_start", "long_first_segment", "transformer_experts", "transformer_stale_start")


def resumed(base: World) -> World:
    """Let the target itself write the second segment: a stale start, resumed on-policy."""
    return replace(
        base, schedule=PrefixSchedule((base.behaviors[0], base.target), base.schedule.branches()[0][1].segment_of)
    )


def instances() -> list[World | TransformerWorld]:
    """Add to the shared instances those that tell the readings apart, some where the bias vanishes, and transformers."""
    pi, first, second = (TabularPolicy.from_probs(torch.tensor([[p, 1 - p]] * 3).double()) for p in (0.5, 0.8, 0.3))
    return [
        *small_worlds(),
        *long_worlds(),
        resumed(world("stale_start", 2, 3, cuts((2,)))),
        resumed(world("fresh_rest", 2, 2, cuts((1,)))),
        world("long_first_segment", 2, 3, cuts((2,))),
        world("additive_reward", 2, 2, cuts((1,)), target=pi, policies=(first, second), rewards=[0.0, 1.0, 0.5, 1.5]),
        *transformer_worlds(),
        transformer_world("stale_start", DENSE, ("staler", "target"), cuts((2,))),
        transformer_world("fresh_rest", DENSE, ("staler", "target"), cuts((1,))),
    ]


def measure(
    instance: World | TransformerWorld,
    posterior: bool = False,
    constant: tuple[str, ...] | None = None,
    undrawn: bool = False,
) -> Quantities:
    """Every reading's expected gradient, its bias, and the bias predicted; logit by logit where there are logits.

    Mutants ask for the posterior over the noise, say where D is to count as constant, or let undrawn tokens count too.
    """
    law, batch, pi, env = instance.law, instance.batch, instance.target, instance.env
    gradient = exact_gradient(env, pi)

    def mean(rule: str, advantage: Tensor | None = None, **params: Any) -> Tensor:
        return moments(law, gradient_terms(batch, weigh(rule, batch, **params), pi, advantage)).mean

    critic = along(batch, action_values(env, pi))
    found: dict[str, Any] = {"gradient": gradient, "full_product": mean("sequence_product")}
    probs = behavior_table(env, pi).exp()
    visits = prefix_law(env, pi)[:, None] * probs
    estimates = {}
    for reading, (rule, params) in KINDS.items():
        estimate = estimates[reading] = mean(rule, **params)
        d = difference(instance, reading, posterior)
        on_policy = instance.target_law
        terms = gradient_terms(on_policy.batch, on_policy.batch.mask.double(), pi, along(on_policy.batch, d))
        spread = d - (probs * d).sum(1, keepdim=True)
        centered = torch.where(visits > 0, spread, 0.0)
        flat = bool((spread if undrawn else centered).abs().max() < ZERO)
        found |= {
            f"{reading}_critic": mean(rule, critic, **params),
            f"{reading}_bias": estimate - gradient,
            f"{reading}_predicted": moments(on_policy, terms).mean,
        }
        if isinstance(instance, World):
            found |= {
                f"{reading}_per_logit": visits * centered,
                f"{reading}_bias_is_zero": float((estimate - gradient).abs().max() < ZERO),
                f"{reading}_difference_is_constant": float(flat),
            }
        if flat if constant is None else reading in constant:
            found |= {f"{reading}_constant": estimate, f"gradient_{reading}_constant": gradient}
        if instance.name in REFUTED[reading]:
            found |= {f"{reading}_refuted": estimate, f"gradient_{reading}_refuted": gradient}
        if instance.name == "deterministic_target":
            found |= {"spread": spread[0], "drawn_spread": centered[0]}
    if instance.name in APART:
        found |= {f"{reading}_apart": estimate for reading, estimate in estimates.items()}
    return found


@lru_cache(maxsize=32)
def _derivation(shape: tuple[Any, ...]) -> Derivation:
    w = symbolic_world(shape)
    return Derivation([bias_chain(w, reading) for reading in KINDS], w.point, w.bind)


def derive(instance: World | TransformerWorld) -> Derivation:
    """Logit by logit for a tabular world, parameter by parameter for a transformer."""
    if isinstance(instance, TransformerWorld):
        return nested_derivation("S4", instance.env.horizon)
    return _derivation(instance.shape)


def claims() -> tuple[Claim, ...]:
    """The same claims for both readings, the refutations first."""
    found = [
        Claim(
            f"{r}_unbiased_refuted", "differs", f"{r}_refuted", f"gradient_{r}_refuted", "not the gradient", margin=0.1
        )
        for r in KINDS
    ]
    found.append(
        Claim("readings_apart", "differs", "prefix_apart", "segment_end_apart", "the products disagree", margin=0.03)
    )
    found.append(
        Claim("undrawn_tokens_are_exempt", "differs", "spread", "drawn_spread", "no bias though D varies there")
    )
    found.append(Claim("full_product_unbiased", "equal", "full_product", "gradient", "reading 1: full product (S2)"))
    for r in KINDS:
        found += [
            Claim(
                f"{r}_critic_unbiased",
                "equal",
                f"{r}_critic",
                "gradient",
                "with Q of the target the weights are exact (S3)",
            ),
            Claim(f"{r}_bias", "equal", f"{r}_bias", f"{r}_predicted", "bias = E_pi[sum_t s_t D]"),
            Claim(
                f"{r}_zero_if_constant",
                "equal",
                f"{r}_constant",
                f"gradient_{r}_constant",
                "no bias if D is constant in y",
            ),
            Claim(
                f"{r}_zero_iff_constant",
                "equal",
                f"{r}_bias_is_zero",
                f"{r}_difference_is_constant",
                "tabular: bias 0 iff D(h, .) is constant over the tokens the target can draw at every prefix it reaches",
            ),
            Claim(
                f"{r}_bias_per_logit",
                "equal",
                f"{r}_bias",
                f"{r}_per_logit",
                "tabular: P(h) pi(a|h) (D - E_pi D) at (h, a)",
            ),
        ]
    return tuple(found)


def behaviors_from_the_token_on(right: Any) -> Any:
    """Bug: the behaviors take over right after the token instead of at the end of its segment."""
    return lambda env, target, schedule: action_values(env, schedule)


PREDICTED = ("prefix_bias", "prefix_bias_per_logit", "segment_end_bias", "segment_end_bias_per_logit")
THEOREM = Theorem(
    id="S4",
    kind="counterexample",
    refutes="prefix and segment-end products are unbiased for every schedule",
    title="with a terminal reward, prefix and segment-end products are biased by what the uncorrected rest is worth",
    hypotheses=(
        "boundaries are prefix-measurable, or depend on exogenous noise xi besides (S1)",
        "every behavior supports the target; W uses the realized behaviors",
        "terminal reward R, no critic",
        "'only if': tabular target; constant over the tokens the target can draw at the prefixes it reaches",
    ),
    statement=(
        "E_mu[sum_t W_t s_t R] - G = E_pi[sum_t s_t D(h_t,y_t)], D = E_xi[Q^{mu_xi}] - Q^pi, xi from its prior; for W_(S_t) the "
        "same with Q following pi to the end of t's segment. 0 if D(h,.) is constant in y at every reachable h; tabular: only if"
    ),
    source="ours; SPIRE's third and fourth reading",
    reading=True,
    claims=claims(),
    instances=instances,
    measure=measure,
    derive=derive,
    outcome=(
        "Readings of SPIRE: 1 full product, unbiased for every schedule; 2 prefix product with the target's critic, unbiased for "
        "every schedule; 3 prefix product with the bare reward, biased unless every later *token* is on-policy (or D constant); "
        "4 segment-end product with the bare reward, biased unless every later *segment* is: a stale start resumed on-policy "
        "separates 3 from 4."
    ),
    mutants=(
        Mutant(
            name="posterior_over_the_noise",
            kind="hypothesis",
            breaks=PREDICTED,
            on=("random_behavior", "long_exogenous_boundary", "transformer_hazard"),
            measure=partial(measure, posterior=True),
            why="xi given (h, y) instead of its prior; told apart by an exogenous schedule whose behaviors differ",
        ),
        Mutant(
            name="unbiased_for_every_schedule",
            kind="hypothesis",
            on=("two_segments", "transformer_experts"),
            breaks=("prefix_zero_if_constant", "segment_end_zero_if_constant"),
            measure=partial(measure, constant=tuple(KINDS)),
            why="D is not constant in y here",
        ),
        Mutant(
            name="later_segments_on_policy_suffices_for_prefix",
            kind="hypothesis",
            breaks=("prefix_zero_if_constant",),
            on=("stale_start", "transformer_stale_start"),
            measure=partial(measure, constant=tuple(KINDS)),
            why="the prefix product leaves the rest of t's own stale segment uncorrected; two stale tokens tell",
        ),
        Mutant(
            name="undrawn_tokens_count",
            kind="hypothesis",
            on=("deterministic_target",),
            breaks=("prefix_zero_iff_constant", "segment_end_zero_iff_constant"),
            measure=partial(measure, undrawn=True),
            why="'only if' over all tokens: a deterministic target has no bias although D varies over tokens it never draws",
        ),
        Mutant(
            name="support_violated",
            kind="hypothesis",
            instances=lambda: [uncovered_world()],
            breaks=("full_product_unbiased", "prefix_critic_unbiased", "segment_end_critic_unbiased", *PREDICTED),
            why="what the first behavior never draws is missing from every mean",
        ),
        Mutant(
            name="product_through_t_minus_1",
            kind="bug",
            on=("two_segments", "long_first_segment", "transformer_experts"),
            breaks=("prefix_bias", "prefix_bias_per_logit", "prefix_critic_unbiased"),
            plant=prefix_before_the_token,
            why="the token's own ratio is left out",
        ),
        Mutant(
            name="earlier_segments_uncorrected",
            kind="bug",
            on=("two_segments", "long_first_segment", "transformer_experts"),
            breaks=("segment_end_bias", "segment_end_bias_per_logit", "segment_end_critic_unbiased"),
            plant=segment_prefix_forgets_earlier,
            why="only t's own segment is corrected; needs a second segment after an off-policy first",
        ),
        Mutant(
            name="behaviors_from_the_token_on",
            kind="bug",
            on=("long_first_segment", "long_stopping_time", "transformer_experts"),
            breaks=("segment_end_bias", "segment_end_bias_per_logit"),
            plant=lambda: planted(segment_values, "segment_end_action_values", behaviors_from_the_token_on),
            why="Q follows mu right after the token; told apart where a segment has two tokens",
        ),
    ),
)
