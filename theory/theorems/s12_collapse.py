"""S12: second moments only grow, capped means only fall, and the typical weight dies long before either is extreme."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import sympy as sp
import torch
from torch import Tensor

from testbed.core.prefix_order import node_index
from testbed.exact import iid_weights
from testbed.exact.ratio_moments import ratio_moment
from testbed.exact.values import behavior_table
from testbed.policies.schedule import PrefixSchedule, cuts
from testbed.policies.tabular import TabularPolicy
from testbed.policies.truncated import Truncated
from testbed.weighting import segment_ends, truncate
from testbed.weighting.granularity import log_ratios
from testbed.weighting.segment_ends import segment_end_log_ratios
from theory.collapse_symbols import capped, collapse_derivation
from theory.derivation import Derivation, Step
from theory.iid_laws import IidLaw, iid_derivation, measure_iid
from theory.nested_caps import nested_collapse
from theory.planting import planted
from theory.real_laws import M, P, R, is_real, real_laws, summand_derivation
from theory.segment_symbols import small_worlds
from theory.theorem import Claim, Mutant, Quantities, Theorem
from theory.transformer_worlds import TransformerWorld, transformer_worlds
from theory.worlds import World, standard_worlds, world

FEW_CAPS = (0.5, 1.0, 2.0, 5.0)


def prefix_weights(instance: World | TransformerWorld) -> Tensor:
    """Log W_t for t = 0..T of every response; W stays where it is after the response's end."""
    steps = log_ratios(instance.batch).double().cumsum(1)
    return torch.cat([torch.zeros_like(steps[:, :1]), steps], 1)


def caps(instance: World | TransformerWorld) -> Tensor:
    """Every value some W_t takes: E min(W_t, c) is linear in c between them, so they decide the claim for all c."""
    if is_real(instance):
        return torch.tensor(FEW_CAPS, dtype=torch.float64)
    values = prefix_weights(instance).exp().flatten()
    return torch.unique(values[values > 0])


def moment_rows(instance: World | TransformerWorld, power: float) -> Tensor:
    """E_mu[rho^power | H_t] at every token of every response; NaN past the end."""
    log_pi = behavior_table(instance.env, instance.target)
    tables = [ratio_moment(log_pi, behavior_table(instance.env, s), power) for _, s in instance.schedule.branches()]
    nodes = node_index(instance.batch.tokens, instance.env.vocab_size)
    return torch.where(instance.batch.mask, torch.stack(tables)[instance.law.branch[:, None], nodes], torch.nan)


def measure(instance: World | IidLaw | TransformerWorld, average: bool = False) -> Quantities:
    """Second moments, capped means at every cap, both bounds; for iid tokens exact medians. `average`: mutated bounds."""
    if isinstance(instance, IidLaw):
        return measure_iid(instance)
    law = instance.law
    second = law.expect((2 * segment_end_log_ratios(law.batch, len(instance.behaviors))).exp())
    log_weight, cap = prefix_weights(instance), caps(instance)
    wide = log_weight.repeat(len(cap), 1)
    bound = cap.repeat_interleave(len(log_weight))[:, None].expand_as(wide)
    kept = truncate.truncate(wide, bound).reshape(len(cap), *log_weight.shape)
    mean = torch.einsum("n,cnt->tc", law.probs, kept)
    d2, affinity = moment_rows(instance, 2.0), moment_rows(instance, 0.5).nan_to_num(1.0)
    least = (law.expect(d2.nanmean(1)) if average else d2[~d2.isnan()].min()) ** instance.env.horizon
    largest = law.expect(affinity) if average else affinity.amax(0)
    values = {
        "second": second, "second_before": torch.cat([second.new_ones(1), second[:-1]]),
        "capped": mean[1:], "capped_before": mean[:-1],
        "capped_last": mean[-1], "collapse_bound": cap.sqrt() * largest.prod(),
    }  # fmt: skip
    if instance.env.eos is None or average:
        values |= {"growth_floor": least, "second_last": law.expect((2 * log_weight[:, -1]).exp())}
    if instance.name == "attained":
        two = int((cap - 2).abs().argmin())  # the weight is 0 or 2
        values |= {"attained_left": mean[-1, two], "attained_right": values["collapse_bound"][two]}
    if is_real(instance):
        values["capped_summand"] = law.probs * kept[FEW_CAPS.index(2.0), :, 1]
    return values


@lru_cache(maxsize=1)
def _summand() -> Derivation:
    two = sp.Integer(2)
    return summand_derivation([
        Step("definition", M * capped(R, two), "one word's share of E min(W, 2)", quantity="capped_summand",
             tex=r"\mu \min(\rho, 2)"),
        Step("ratio", capped(P, 2 * M), "rho = pi/mu", quantity="capped_summand", tex=r"\min(\pi, 2\mu)"),
        Step("geometric_mean", sp.sqrt(two) * sp.sqrt(P * M), "min(x, y) <= sqrt(x y)", "<=",
             tex=r"\sqrt 2 \sqrt{\pi\mu}"),
    ])  # fmt: skip


def derive(instance: World | IidLaw | TransformerWorld) -> Derivation:
    """Derivation of an instance: iid tokens, one summand of a recorded law, sums over a transformer's tree, a world's shape."""
    if isinstance(instance, TransformerWorld):
        return nested_collapse(instance.env.horizon, caps)
    if isinstance(instance, IidLaw):
        return iid_derivation(len(instance.target))
    return _summand() if is_real(instance) else collapse_derivation(instance.shape, caps)


def rows(*probs: float) -> TabularPolicy:
    """Two-token policy from the probability of token 1 after each prefix."""
    return TabularPolicy.from_probs(torch.tensor([[1 - p, p] for p in probs], dtype=torch.float64))


def attained() -> World:
    """A sure first word (weight 0 or 2), then a word on-policy after it, far off it after the word with weight 0."""
    mu = rows(0.5, 0.1, 0.4)
    return world("attained", 2, 2, cuts((1,)), target=rows(1.0, 0.9, 0.4), policies=(mu, mu))


def instances() -> list[World | IidLaw | TransformerWorld]:
    """Shared worlds, equality of the collapse bound, recorded laws, transformers, and iid tokens up to 4,096 of them."""
    third = (1 / 3, 2 / 3)
    return [
        *[w for w in small_worlds() if w.name not in ("one_segment", "three_tokens")],
        attained(),
        *real_laws(),
        *transformer_worlds(),
        IidLaw(name="halve_or_double", target=third[::-1], behavior=third, lengths=(1, 2, 3, 64, 4096)),
        IidLaw(name="nearly_on_policy", target=(0.52, 0.48), behavior=(0.5, 0.5), lengths=(1, 16, 4096)),
        IidLaw(name="three_words", target=(0.5, 0.3, 0.2), behavior=(0.2, 0.3, 0.5), lengths=(1, 2, 8, 128)),
    ]


def uncovered() -> list[World]:
    """A first behavior that keeps only its likelier word, although the target may say either."""
    base = world("uncovered", 2, 2, cuts((1,)))
    kept = tuple(
        TabularPolicy(PrefixSchedule((Truncated(mu, top_k=1),), lambda prefix: 0).log_prob_table(2, 2))
        for mu in base.behaviors
    )
    return [World(name="uncovered", env=base.env, target=base.target, schedule=PrefixSchedule(kept, cuts((1,))))]


def early_end() -> list[World]:
    """Every prefix is off-policy, but a response may end after its first word."""
    mu = rows(0.5, 0.5, 0.5)
    return [world("early_end", 2, 2, cuts((1,)), target=rows(0.9, 0.9, 0.9), policies=(mu, mu), eos=1)]


def floor_ignoring_ends(instance: World) -> Quantities:
    """Mutated reading: the floor at the full horizon although responses end before it."""
    least = moment_rows(instance, 2.0)
    log_weight = prefix_weights(instance)[:, -1]
    return {
        "growth_floor": least[~least.isnan()].min() ** instance.env.horizon,
        "second_last": instance.law.expect((2 * log_weight).exp()),
    }


def masked(right: Any) -> Any:
    """Bug: what exceeds the cap is dropped instead of capped."""
    return lambda log_ratio, cap: torch.where(log_ratio.exp() <= cap, right(log_ratio, cap), 0.0)


def last_segment(right: Any) -> Any:
    """Bug: the product of the segment alone."""

    def wrong(batch: Any, n_segments: int | None = None) -> Tensor:
        total = right(batch, n_segments)
        return torch.cat([total[:, :1], total.diff(dim=1)], 1)

    return wrong


def one_arrangement(right: Any) -> Any:
    """Bug: every vector of word counts as likely as a single arrangement of it, up to normalization."""

    def wrong(target: Tensor, behavior: Tensor, length: int) -> tuple[Tensor, Tensor]:
        log_weight, probs = right(target, behavior, length)
        count = torch.arange(len(probs), dtype=torch.float64)
        ways = torch.lgamma(count + 1) + torch.lgamma(length - count + 1)
        return log_weight, torch.softmax(probs.log() + ways, 0)

    return wrong


THEOREM = Theorem(
    id="S12",
    kind="bound",
    title="sequence weights collapse before they explode",
    hypotheses=(
        "boundaries are prefix-measurable or exogenous (S1); every behavior supports the target",
        "floor: chi2 >= c at every reachable prefix, and every response has exactly T tokens",
        "collapse: BC_t(h) = sum sqrt(pi mu) at reachable prefixes of length t, 1 for responses that ended",
        "median: tokens are independent and identically distributed, drawn from mu",
    ),
    statement="E W_(k)^2 is nondecreasing in k and >= (1+c)^T; E min(W_T, c) is nonincreasing in T for every c and "
    "<= sqrt(c) prod_t sup_h BC_t(h); (1/T) log median -> -KL(mu||pi), at distance <= sd(log rho)/sqrt(T); the median is "
    "not monotone",
    source="ours; median: literature (weak law of large numbers, |median - mean| <= sd)",
    references=("Hotelling and Solomons, The limits of a measure of skewness, 1932",),
    claims=(
        Claim("grows", "at_most", "second_before", "second", "E W_(k)^2 nondecreasing in k"),
        Claim("growth_floor", "at_most", "growth_floor", "second_last", "E W_T^2 >= (1 + least chi2)^T"),
        Claim("capped_falls", "at_most", "capped", "capped_before", "E min(W_t, c) nonincreasing in t, for every c"),
        Claim("collapse", "at_most", "capped_last", "collapse_bound", "E min(W_T, c) <= sqrt(c) prod sup BC"),
        Claim("attained", "equal", "attained_left", "attained_right", "with equality for a weight in {0, c}"),
        Claim("median", "at_most", "median_off", "reach", "|(1/T) log median + KL(mu||pi)| <= sd(log rho)/sqrt(T)"),
        Claim("mean_rate", "equal", "mean_rate", "minus_kl", "E log W_T = -T KL(mu||pi)"),
        Claim("variance_rate", "equal", "variance_rate", "token_variance", "Var log W_T = T Var log rho"),
        Claim("medians_catalogued", "equal", "medians", "catalogued", "rho in {1/2, 2}: medians .5, 1, .5"),
    ),
    instances=instances,
    measure=measure,
    derive=derive,
    outcome="A long response's weight is almost always near 0, with or without a cap: E W = 1 rests on responses never drawn.",
    mutants=(
        Mutant(name="support_violated", kind="hypothesis", breaks=("grows",), instances=uncovered,
               why="a behavior that misses words of the target loses mass: the ratio's mean is below 1, so may be its d2"),
        Mutant(name="responses_end_early", kind="hypothesis", breaks=("growth_floor",), instances=early_end,
               measure=floor_ignoring_ends, why="a response that ends stops growing; needs chi2 > 0 at every prefix"),
        Mutant(name="averages_for_extremes", kind="hypothesis", on=("attained",),
               breaks=("collapse", "attained", "growth_floor"), measure=lambda w: measure(w, average=True),
               why="BC and chi2 averaged under mu: far off after a word the target never says, where W is 0 anyway"),
        Mutant(name="median_under_target", kind="hypothesis", breaks=("median",), on=("three_words",),
               measure=lambda law: measure_iid(law, "target"), why="drawn from pi the weight grows like exp(+T KL(pi||mu))"),
        Mutant(name="masked_not_capped", kind="bug", breaks=("capped_falls",),
               on=("two_segments", "stopping_time", "transformer_dense", "transformer_experts"),
               plant=lambda: planted(truncate, "truncate", masked),
               why="E[W; W <= c] may grow with t; needs weights that fall below the cap again"),
        Mutant(name="segment_alone", kind="bug", breaks=("grows",), on=("three_segments",),
               instances=standard_worlds,
               plant=lambda: planted(segment_ends, "segment_end_log_ratios", last_segment),
               why="W_(k) without the segments before it; needs a later segment closer to the target"),
        Mutant(name="one_arrangement", kind="bug", on=("halve_or_double",),
               breaks=("median", "mean_rate", "variance_rate", "medians_catalogued"),
               plant=lambda: planted(iid_weights, "iid_weight_law", one_arrangement),
               why="multinomial coefficients forgotten: the law concentrates on the likeliest word alone"),
    ),
)  # fmt: skip
