"""Bugs planted in the rules that test tokens, mix, taper or veto: the comparison with their formulas sees each."""

import math

import pytest
import torch

from testbed.weighting import adaptive, budget, obrs, selective, suffix, tapered, truncate
from testbed.weighting.rules import RULES
from tests.weighting.choosers import Always
from tests.weighting.grid import WORLDS
from tests.weighting.planting import plant
from tests.weighting.transcription import disagreements
from tests.weighting.worlds import recorded


def bound_ignored(right):
    """The test min(1, k) that a summary of the paper describes."""
    return lambda log_ratio, log_bound: right(log_ratio, torch.zeros_like(log_bound))


def naive_complement(right):
    """1 - a by subtraction: no digit is left where a is within rounding of 1."""

    def wrong(log_ratio, log_bound):
        accept, _ = right(log_ratio, log_bound)
        return accept, (1.0 - accept.float()).double()

    return wrong


def everything_tested(right):
    return lambda batch, top_k: (right(batch, top_k)[0], batch.mask)


def bound_below_one(right):
    """A maximum over the head that may fall below 1 when the head does not hold it."""

    def wrong(batch, top_k):
        laws = batch.next_token
        ratio = (laws.logp_target - laws.logp_behavior).masked_fill(torch.isneginf(laws.logp_behavior), -torch.inf)
        top = laws.logp_behavior >= laws.logp_behavior.topk(min(top_k, laws.width)).values[..., -1:]
        return ratio.masked_fill(~top, -torch.inf).amax(-1), right(batch, top_k)[1]

    return wrong


def the_targets_head(right):
    """The trainer's likeliest tokens in place of the sampler's."""

    def wrong(batch, top_k):
        laws = batch.next_token
        swapped = type(laws)(
            ids=laws.ids, logp_target=-laws.logp_behavior, logp_behavior=laws.logp_target,
            remaining_target=laws.remaining_target, remaining_behavior=laws.remaining_behavior,
        )  # fmt: skip
        top = laws.logp_target.topk(min(top_k, laws.width)).indices
        drawn = (swapped.ids.gather(-1, top) == batch.tokens[..., None]).any(-1) & batch.mask
        return right(batch, top_k)[0], drawn

    return wrong


def never_rejected(right):
    return lambda log_ratio, accept, reject: torch.ones_like(log_ratio)


def share_of_one(right):
    """The weight p / (q a) without the normalizer of what is kept."""
    return lambda batch, lam, tail: torch.zeros_like(right(batch, lam, tail))


def share_without_lam(right):
    return lambda batch, lam, tail: right(batch, 1.0, tail)


def drawn_token_only(right):
    return lambda batch, lam, tail: torch.minimum(batch.logp_behavior, batch.logp_target - math.log(lam))


def roles_exchanged(right):
    return lambda log_ratio, alpha: right(log_ratio, 1.0 - alpha)


def naive_mixture(right):
    """A tiny coefficient times a ratio that has already overflowed."""
    return lambda log_ratio, alpha: (1.0 - alpha) + alpha * log_ratio.exp()


def every_token_counted(right):
    return lambda batch, granularity: batch.mask


def no_variation(right):
    def wrong(log_ratio, counted, kl_scale):
        share = float(adaptive.ess_from_log(log_ratio, counted)) / int(counted.sum())
        return right(log_ratio, counted, kl_scale) * (1.0 + math.sqrt(max(1.0 / share - 1.0, 0.0)))

    return wrong


def sign_exchanged(right):
    return lambda log_ratio, advantage: right(log_ratio, -advantage)


def every_sign(right):
    """AReaL's budget, which does not look at the advantage."""
    return lambda log_ratio, advantage: torch.ones_like(log_ratio, dtype=torch.bool)


def square_below(right):
    """The published code's threshold: the largest square that keeps the sum below the budget."""

    def wrong(log_ratio, limit):
        tau = right(log_ratio, limit)
        return float(log_ratio.abs()[log_ratio.abs() <= tau].max()) if math.isfinite(tau) else tau

    return wrong


def floor_dropped(right):
    return lambda tau, eps_low, eps_high: right(tau, 0.0, 0.0)


def sides_exchanged(right):
    return lambda log_product, first, shape, rate: right(log_product, ~first, shape, rate)


def not_normalized(right):
    """K^k e^(-lam K) without the factor that makes it 1 on-policy."""

    def wrong(log_product, first, shape, rate):
        lam = rate[0] * first.double() + rate[1] * (~first).double()
        return right(log_product, first, shape, rate) * torch.exp(-lam)

    return wrong


def two_sided(right):
    return lambda log_ratio, cap: right(log_ratio, cap).clamp(min=0.5)


def trigger_included(right):
    return lambda log_ratio, mask, low, high: right(log_ratio, mask, low, high) & (log_ratio <= math.log(high))


def one_trigger_per_token(right):
    """A mask in place of a veto: the trigger goes, the suffix stays."""
    return lambda log_ratio, mask, low, high: log_ratio <= math.log(high)


BUGS = [
    (bound_ignored, selective.acceptance, "sis", {}), (bound_ignored, selective.acceptance, "obrs", {"lam": 3.0, "cap": 0.5}),
    (naive_complement, selective.acceptance, "sis", {"bound": 1.0 + 1e-9, "completion": True, "chooser": Always(0)}),
    (everything_tested, selective.head_log_bound, "sis", {"top_k": 1}),
    (bound_below_one, selective.head_log_bound, "sis", {"top_k": 1}),
    (the_targets_head, selective.head_log_bound, "sis", {"top_k": 1}),
    (never_rejected, selective.expected_weight, "sis", {}),
    (share_of_one, obrs.log_kept_share, "obrs", {}), (share_without_lam, obrs.log_kept_share, "obrs", {"lam": 2.0}),
    (drawn_token_only, obrs.log_kept_share, "obrs", {}),
    (roles_exchanged, adaptive.interpolated, "ais", {"alpha": 0.3}), (no_variation, adaptive.diagnosed_alpha, "ais", {}),
    (naive_mixture, adaptive.interpolated, "ais", {"granularity": "sequence_product"}),
    (every_token_counted, adaptive.weighed_once, "ais", {"granularity": "sequence_product", "kl_scale": 1.0}),
    (sign_exchanged, budget.harmful, "m2po", {"eps_low": 0.0, "eps_high": 0.0}),
    (every_sign, budget.harmful, "m2po", {"eps_low": 0.0, "eps_high": 0.0, "budget": 3.0}),
    (square_below, budget.budget_threshold, "m2po", {"eps_low": 0.0, "eps_high": 0.0}),
    (floor_dropped, budget.window, "m2po", {"tau": 0.05}),
    (sides_exchanged, tapered.gamma_kernel, "vespo", {}), (not_normalized, tapered.gamma_kernel, "vespo", {}),
    (two_sided, truncate.truncate, "topr", {}),
    (trigger_included, suffix.before_trigger, "mu_grpo", {"eps_high": 9.0}),
    (one_trigger_per_token, suffix.before_trigger, "mu_grpo", {"eps_high": 9.0}),
]  # fmt: skip


def seen(rule, given):
    for build in WORLDS.values():
        batch = recorded(build(), 0.93, 0.2) if "next_token" in RULES[rule].needs else build()
        if disagreements(rule, batch, **given):
            return True
    return False


@pytest.mark.parametrize(
    ("bug", "function", "rule", "given"), BUGS, ids=[f"{bug.__name__}-{rule}" for bug, _, rule, _ in BUGS]
)
def test_a_planted_bug_is_seen(bug, function, rule, given, monkeypatch):
    plant(monkeypatch, function, bug(function))
    assert seen(rule, given)


@pytest.mark.parametrize(("rule", "given"), [(rule, given) for _, _, rule, given in BUGS])
def test_without_it_nothing_is(rule, given):
    assert not seen(rule, given)


def test_every_rule_of_these_files_has_a_bug():
    homes = {module.__name__.rsplit(".", 1)[-1] for module in (adaptive, budget, obrs, selective, suffix, tapered)}
    assert {rule for _, _, rule, _ in BUGS} == {name for name, rule in RULES.items() if rule.home in homes}
