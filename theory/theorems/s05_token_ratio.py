"""S5: correcting each token alone is the target's update at the behaviors' prefixes; how biased that can be."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor

from testbed.core.prefix_order import node_index
from testbed.estimators.gradient import gradient_terms
from testbed.exact import prefix_distance
from testbed.exact.gradients import exact_gradient
from testbed.exact.law import response_table
from testbed.exact.moments import moments
from testbed.exact.prefix_distance import (
    expected_token_total_variation,
    prefix_total_variation,
    sampler_prefix_law,
)
from testbed.exact.values import action_values, behavior_table, prefix_law, state_values
from testbed.policies.schedule import PrefixSchedule, cuts
from testbed.policies.tabular import TabularPolicy
from testbed.weighting.rules import weigh
from theory.bugs import ratio_inverted
from theory.derivation import Derivation
from theory.nested_updates import nested_derivation
from theory.planting import planted
from theory.shared_worlds import SharedWorld, independent_tokens
from theory.small_worlds import along, long_worlds, small_worlds, uncovered_world
from theory.symbols import symbolic_world
from theory.theorem import Claim, Mutant, Quantities, Theorem
from theory.token_updates import bound_chain, distance_chain, shared_chain, terminal_chain, update_chain
from theory.transformer_worlds import EXPERTS, TransformerWorld, transformer_world, transformer_worlds
from theory.worlds import World, world

REFUTED = ("two_segments", "transformer_dense", "transformer_experts")
FRESH = ("fresh_start", "transformer_fresh_start")


def instances() -> list[Any]:
    """Add to the shared instances a fresh and a stale start, two worlds that attain the bounds, and transformers."""
    base = world("fresh_start", 2, 2, cuts((1,)))
    stale, rest = base.behaviors
    return [
        *small_worlds(),
        *long_worlds(),
        replace(base, schedule=PrefixSchedule((base.target, rest), cuts((1,)))),
        replace(base, name="stale_start", schedule=PrefixSchedule((stale, base.target), cuts((1,)))),
        opposite_prefixes(),
        opposite_prefixes_shared(),
        *transformer_worlds(),
        fresh_transformer(),
    ]


def fresh_transformer() -> TransformerWorld:
    """The target itself writes all tokens but the last."""
    return transformer_world("fresh_start", EXPERTS, ("target", "student"), cuts((2,)))


def opposite_prefixes() -> World:
    """Fair coins, reward +1 for equal tokens and -1 else: the better token is the other one after the other prefix."""
    fair = TabularPolicy.from_probs(torch.tensor([[0.5, 0.5]] * 3).double())
    biased = TabularPolicy.from_probs(torch.tensor([[0.8, 0.2]] * 3).double())
    return world(
        "opposite_prefixes", 2, 2, cuts((1,)), target=fair, policies=(biased, fair), rewards=[1.0, -1.0, -1.0, 1.0]
    )


def opposite_prefixes_shared() -> SharedWorld:
    """The same with one softmax for all prefixes: the two errors meet in one parameter."""
    twin = opposite_prefixes()
    return SharedWorld(
        name="opposite_prefixes_shared", env=twin.env, target=independent_tokens([0.5, 0.5]), schedule=twin.schedule
    )


def at_prefixes(instance: World | TransformerWorld, values: Tensor) -> Tensor:
    """sum_h E_{y~pi}[s X(h, y)] for a table X [N, V]; every (h, y) is shared out among the responses through it."""
    env, pi = instance.env, instance.target
    tokens, mask = response_table(env)
    nodes = node_index(tokens, env.vocab_size)
    through = torch.zeros_like(values).index_put_((nodes[mask], tokens[mask]), mask[mask].double(), accumulate=True)
    share = behavior_table(env, pi).exp() * values / through.clamp(min=1)
    return pi.score_terms(tokens, torch.where(mask, share[nodes, tokens], 0.0)).sum(0)


def scale(instance: World | SharedWorld | TransformerWorld, advantage: Tensor) -> float:
    """max|A| max|s|, over all tokens and prefixes."""
    tokens, mask = response_table(instance.env)
    norms = []
    for t in range(instance.env.horizon):
        only_t = torch.zeros(mask.shape, dtype=torch.float64)
        only_t[:, t] = mask[:, t].double()
        norms.append(instance.target.score_terms(tokens, only_t).flatten(1).norm(dim=1).max())
    return float(advantage.abs().max() * torch.stack(norms).max())


def measure_shared(instance: SharedWorld, tabular: bool = False) -> Quantities:
    """Bias and bound where every prefix shares one softmax; the mutant claims the tabular constant."""
    pi, env, on_policy = instance.target, instance.env, instance.target_law
    a = action_values(env, pi) - state_values(env, pi)[:, None]
    weights = weigh("exact", instance.batch)
    update = moments(instance.law, gradient_terms(instance.batch, weights, pi, along(instance.batch, a))).mean
    gradient = moments(on_policy, gradient_terms(on_policy.batch, on_policy.batch.mask.double(), pi)).mean
    bias = (update - gradient).norm()
    bound = 2 * scale(instance, a) * prefix_total_variation(env, pi, instance.schedule).sum()
    found = {"bias_norm": bias, "bias_bound": bound, "attaining": bias, "attained": bound}
    return found | {"tabular_bound": bound / 2**0.5} if tabular else found


def measure(
    instance: World | SharedWorld | TransformerWorld,
    advantage: str = "target",
    prefixes: str = "sampler",
    bounded: str = "advantage",
) -> Quantities:
    """Expected token-ratio updates, what they are equal to, and the bounds; the arguments are the mutants' readings."""
    if isinstance(instance, SharedWorld) and not isinstance(instance, TransformerWorld):
        return measure_shared(instance)
    law, batch, pi, env, schedule = instance.law, instance.batch, instance.target, instance.env, instance.schedule
    weights, branches = weigh("exact", batch), instance.schedule.branches()
    q = action_values(env, pi)
    a = q - state_values(env, pi)[:, None]
    used = (
        a if advantage == "target" else action_values(env, branches[0][1]) - state_values(env, branches[0][1])[:, None]
    )
    token = moments(law, gradient_terms(batch, weights, pi, along(batch, used))).mean
    terminal = moments(law, gradient_terms(batch, weights, pi)).mean
    gradient, visited = exact_gradient(env, pi), sampler_prefix_law(env, schedule)
    reached = prefix_law(env, pi)
    state_bias = at_prefixes(instance, (visited - reached)[:, None] * a)
    behind = torch.stack([p * prefix_law(env, s)[:, None] * action_values(env, s) for p, s in branches]).sum(0)
    critic_bias = at_prefixes(instance, behind - visited[:, None] * q)
    distance, tokens = prefix_total_variation(env, pi, schedule), expected_token_total_variation(env, pi, schedule)
    constant = scale(instance, a)
    horizon = env.horizon
    found: dict[str, Any] = {
        "token_update": token,
        "prefix_update": at_prefixes(instance, (visited if prefixes == "sampler" else reached)[:, None] * a),
        "bias_norm": ((token if bounded == "advantage" else terminal) - gradient).norm(),
        "bias_bound": 2 * constant * distance.sum(),
        "prefix_distance": distance,
        "token_distance_before": tokens.cumsum(0) - tokens,
        "distance_sum": distance.sum(),
        "quadratic": horizon * (horizon - 1) / 2 * tokens.max(),
        "terminal_update": terminal,
        "terminal_predicted": at_prefixes(instance, behind),
        "terminal_decomposed": gradient + state_bias + critic_bias,
    }
    if isinstance(instance, World):
        found |= {"tabular_bound": 2**0.5 * constant * distance.sum()}
    if instance.name in REFUTED:
        found |= {"token_refuted": token, "gradient_refuted": gradient}
    if instance.name in FRESH:
        found |= {"token_fresh": token, "terminal_fresh": terminal, "gradient_fresh": gradient}
    if instance.name == "opposite_prefixes":
        found |= {"tabular_attaining": found["bias_norm"], "tabular_attained": found["tabular_bound"]}
    return found


@lru_cache(maxsize=32)
def _derivation(shape: tuple[Any, ...]) -> Derivation:
    w = symbolic_world(shape)
    chains = [distance_chain(w)] if w.eos is None else []
    chains += [update_chain(w), terminal_chain(w)]
    if w.horizon <= 2:
        chains.append(bound_chain(w))
    return Derivation(chains, w.point, w.bind)


def derive(instance: World | SharedWorld | TransformerWorld) -> Derivation:
    """Claims' sides for a tabular world, both updates for a transformer, the bias where prefixes share one softmax."""
    if isinstance(instance, TransformerWorld):
        return nested_derivation("S5", instance.env.horizon)
    if isinstance(instance, SharedWorld):
        w = symbolic_world(instance.as_tabular().shape)
        return Derivation([shared_chain(w)], w.point, lambda i: w.bind(i.as_tabular()))
    return _derivation(instance.shape)


def one_position_late(right: Any) -> Any:
    """Bug: a table per position is shifted by one (the first entry repeated)."""

    def wrong(*args: Any) -> Tensor:
        found = right(*args)
        return torch.cat([found[:1], found[:-1]])

    return wrong


def one_position_early(right: Any) -> Any:
    """Bug: a table per position is shifted by one (the last entry repeated)."""

    def wrong(*args: Any) -> Tensor:
        found = right(*args)
        return torch.cat([found[1:], found[-1:]])

    return wrong


THEOREM = Theorem(
    id="S5",
    kind="bound",
    title="the token ratio gives the target's update at the behaviors' prefixes; its bias grows at most quadratically in length",
    hypotheses=(
        "boundaries are prefix-measurable or exogenous; every behavior supports the target",
        "the advantage is the target's own, A^pi (bounds and first identity)",
        "max over all prefixes and tokens; sqrt 2 in place of 2 for a tabular target",
    ),
    statement=(
        "E_mu[sum_t rho_t s_t A^pi] = sum_t E_{h~mu_t} E_{y~pi}[s_t A^pi]; "
        "|bias| <= 2 max|A| max|s| sum_t TV_t (sqrt 2 if tabular); TV_t <= sum_{s<t} E_mu[TV(pi,mu at h_s)], "
        "so sum_t TV_t <= T(T-1)/2 max_t E_mu[TV(pi,mu at h_t)]; "
        "with R for A^pi: sum_t E_{xi,h~mu_t} E_{y~pi}[s_t Q^{mu_xi}] = G + prefix bias + critic bias"
    ),
    source="literature (state-distribution mismatch of per-step corrections); constants and sqrt 2: ours",
    references=("Schulman et al., Trust region policy optimization, ICML 2015, appendix A",),
    claims=(
        Claim(
            "behavior_prefixes",
            "equal",
            "token_update",
            "prefix_update",
            "target's update under the behaviors' prefix law",
        ),
        Claim("unbiased_refuted", "differs", "token_refuted", "gradient_refuted", "not the gradient", margin=0.05),
        Claim("bound", "at_most", "bias_norm", "bias_bound", "bias <= 2 max|A| max|s| sum_t TV_t"),
        Claim("tabular_bound", "at_most", "bias_norm", "tabular_bound", "tabular: sqrt 2 in place of 2"),
        Claim("bound_attained", "equal", "attaining", "attained", "2 is attained with shared parameters"),
        Claim(
            "tabular_bound_attained", "equal", "tabular_attaining", "tabular_attained", "sqrt 2 is attained if tabular"
        ),
        Claim(
            "distance_chain",
            "at_most",
            "prefix_distance",
            "token_distance_before",
            "token by token: at most linear in t",
        ),
        Claim(
            "quadratic", "at_most", "distance_sum", "quadratic", "sum_t TV_t <= T(T-1)/2 max_t E_mu[TV(pi,mu at h_t)]"
        ),
        Claim(
            "terminal_reward", "equal", "terminal_update", "terminal_predicted", "with R: Q^mu at the prefixes of mu"
        ),
        Claim("both_biases", "equal", "terminal_update", "terminal_decomposed", "gradient + prefix bias + critic bias"),
        Claim(
            "exact_at_equal_prefixes",
            "equal",
            "token_fresh",
            "gradient_fresh",
            "fresh start: no prefix bias, A^pi is exact",
        ),
        Claim(
            "critic_bias_remains",
            "differs",
            "terminal_fresh",
            "gradient_fresh",
            "fresh start: R is biased",
            margin=0.05,
        ),
    ),
    instances=instances,
    measure=measure,
    derive=derive,
    outcome=(
        "A token ratio (`tis` without a cap, `exact`) corrects the decision, not the prefix it was taken at: biased, by at most "
        "sqrt 2 max|A| max|s| sum_t TV_t even with the exact advantage; a terminal reward adds "
        "the bias of the behaviors' critic."
    ),
    mutants=(
        Mutant(
            name="prefixes_of_the_target",
            kind="hypothesis",
            breaks=("behavior_prefixes",),
            on=("two_segments", "three_tokens", "transformer_dense"),
            measure=partial(measure, prefixes="target"),
            why="prefixes taken from the target's law: told apart from position 2 on",
        ),
        Mutant(
            name="advantage_of_the_behavior",
            kind="hypothesis",
            breaks=("behavior_prefixes",),
            on=("two_segments", "three_tokens", "transformer_experts"),
            measure=partial(measure, advantage="behavior"),
            why="A^mu instead of A^pi; told apart where later tokens are off-policy",
        ),
        Mutant(
            name="terminal_reward_under_the_bound",
            kind="hypothesis",
            breaks=("bound", "tabular_bound"),
            on=FRESH,
            measure=partial(measure, bounded="terminal"),
            why="equal prefix laws make the bound 0, the reward's critic bias is not",
        ),
        Mutant(
            name="tabular_constant_for_shared_parameters",
            kind="hypothesis",
            breaks=("tabular_bound",),
            on=("opposite_prefixes_shared",),
            measure=partial(measure_shared, tabular=True),
            why="sqrt 2 needs orthogonal scores; with one softmax the errors of two prefixes add up",
        ),
        Mutant(
            name="support_violated",
            kind="hypothesis",
            breaks=("behavior_prefixes", "terminal_reward", "both_biases"),
            instances=lambda: [uncovered_world()],
            why="tokens the behavior never draws are missing from the update",
        ),
        Mutant(
            name="ratio_inverted",
            kind="bug",
            on=("three_tokens", "one_token", "transformer_dense"),
            breaks=("behavior_prefixes", "terminal_reward", "both_biases", "bound", "tabular_bound"),
            plant=ratio_inverted,
            why="log_ratios returns behavior minus target",
        ),
        Mutant(
            name="distance_one_position_late",
            kind="bug",
            breaks=("bound", "tabular_bound"),
            on=("stale_start",),
            plant=lambda: planted(prefix_distance, "prefix_total_variation", one_position_late),
            why="TV of h_{t-1} stands in for h_t; at T=2 nothing is left of it",
        ),
        Mutant(
            name="token_distance_one_position_early",
            kind="bug",
            breaks=("distance_chain", "quadratic"),
            on=("stale_start",),
            plant=lambda: planted(prefix_distance, "expected_token_total_variation", one_position_early),
            why="the distance at h_{t+1} stands in for h_t; a stale first token with a fresh rest tells",
        ),
    ),
)
