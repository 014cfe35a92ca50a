"""The law of responses with the schedule's noise summed out, against the enumerated law."""

import pytest
import torch

from testbed import (
    ExogenousSchedule,
    PrefixSchedule,
    PrefixTree,
    TabularPolicy,
    cuts,
    enumerate_law,
    exogenous_hazard,
    one,
)
from testbed.policies.families import mixture
from testbed.policies.marginal import marginal_log_probs

MUS = tuple(TabularPolicy.random(2, 3, seed) for seed in (1, 2))


@pytest.mark.parametrize("eos", [None, 1])
@pytest.mark.parametrize("rate", [0.0, 0.3, 1.0])
def test_sums_to_the_probability_of_the_response(eos, rate):
    schedule = exogenous_hazard(MUS, rate, 3)
    law = enumerate_law(PrefixTree(2, 3, [0.0] * 8, eos), MUS[0], schedule)
    found = marginal_log_probs(schedule, law.batch.tokens, law.batch.mask).sum(1).exp()
    same = (law.batch.tokens[:, None] == law.batch.tokens).all(2) & (law.batch.mask[:, None] == law.batch.mask).all(2)
    assert torch.allclose(found, same.double() @ law.probs, rtol=1e-12)


def test_without_noise_it_is_the_recorded_behavior():
    schedule = PrefixSchedule(MUS, cuts((1,)))
    batch = enumerate_law(PrefixTree(2, 3, [0.0] * 8), MUS[0], schedule).batch
    assert torch.allclose(marginal_log_probs(schedule, batch.tokens), batch.logp_behavior, atol=1e-12)


def test_mixing_responses_is_not_mixing_tokens():
    mus = tuple(TabularPolicy.from_probs(torch.tensor([[p, 1 - p]] * 7)) for p in (0.25, 0.75))
    schedule = ExogenousSchedule([(0.5, PrefixSchedule((mu,), one())) for mu in mus])
    tokens = torch.tensor([[0, 0, 0]])
    whole, by_token = marginal_log_probs(schedule, tokens).exp(), mixture(*mus, 0.5).score(tokens).exp()
    assert by_token[0].tolist() == pytest.approx([1 / 2, 1 / 2, 1 / 2], abs=1e-12)
    assert whole[0].tolist() == pytest.approx([1 / 2, 5 / 8, 7 / 10], abs=1e-12)  # a 0 speaks for the second policy


def test_what_one_branch_cannot_draw_leaves_the_other_and_what_none_can_is_minus_infinity():
    sure = TabularPolicy.from_probs(torch.tensor([[1.0, 0.0]] * 7))
    schedule = ExogenousSchedule([(0.25, PrefixSchedule((sure,), one())), (0.75, PrefixSchedule((MUS[0],), one()))])
    tokens = torch.tensor([[1, 0, 1]])
    expected = MUS[0].score(tokens)
    expected[0, 0] += torch.tensor(0.75, dtype=torch.float64).log()
    assert torch.allclose(marginal_log_probs(schedule, tokens), expected, atol=1e-12)
    never = marginal_log_probs(PrefixSchedule((sure,), one()), torch.tensor([[0, 1, 0]]))
    assert never.tolist() == [[0.0, float("-inf"), float("-inf")]]


def test_padding_is_zero_and_has_no_effect():
    schedule = exogenous_hazard(MUS, 0.5, 3)
    mask = torch.tensor([[True, True, False]])
    a, b = (marginal_log_probs(schedule, torch.tensor([[0, 1, pad]]), mask) for pad in (0, 1))
    assert torch.equal(a, b) and a[0, 2] == 0
