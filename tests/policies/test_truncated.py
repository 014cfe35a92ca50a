"""Truncated policies: temperature on logits, deterministic ties, the surviving mass, refused knobs."""

import pytest
import torch

from testbed.core.errors import InputError
from testbed.policies.markov import MarkovPolicy
from testbed.policies.tabular import TabularPolicy
from testbed.policies.truncated import Truncated

EMPTY = torch.empty(1, 0, dtype=torch.int64)


def one_node(*probs):
    return TabularPolicy.from_probs(torch.tensor([probs], dtype=torch.float64))


def law(policy):
    return policy.next_log_probs(EMPTY)[0].exp()


def test_temperature_acts_on_logits_and_normalizes():
    logits = torch.tensor([[2.0, 1.0, 0.0]], dtype=torch.float64)
    got = Truncated(TabularPolicy(logits), temperature=0.6).next_log_probs(EMPTY)[0]
    torch.testing.assert_close(got, torch.tensor([-0.202573, -1.869240, -3.535906]).double(), rtol=0, atol=5e-7)
    assert abs(float(got.exp().sum()) - 1) < 1e-14
    divided = TabularPolicy(logits).table[0] / 0.6  # the recipe that forgets to normalize
    assert abs(float(divided.exp().sum()) - 0.6208) < 5e-5


def test_nucleus_keeps_the_crossing_token_and_reports_the_surviving_mass():
    pi = one_node(0.5, 0.3, 0.15, 0.05)
    mu = Truncated(pi, top_p=0.8)
    torch.testing.assert_close(law(mu), torch.tensor([0.625, 0.375, 0.0, 0.0]).double(), rtol=1e-14, atol=0)
    assert mu.next_log_probs(EMPTY)[0, 2] == float("-inf")
    ratio = law(pi)[:2] / law(mu)[:2]
    torch.testing.assert_close(ratio, mu.surviving_mass(EMPTY).expand(2), rtol=1e-14, atol=0)
    assert law(Truncated(pi, top_p=0.81)).count_nonzero() == 3
    single = TabularPolicy.from_probs(torch.tensor([[0.5, 0.3, 0.15, 0.05]], dtype=torch.float32))
    assert law(Truncated(single, top_p=0.8)).count_nonzero() == 2


@pytest.mark.parametrize(
    ("knobs", "kept"),
    [
        ({"top_k": 1}, [1]),
        ({"top_k": 2}, [1, 2]),
        ({"top_k": 3}, [0, 1, 2]),
        ({"top_k": 9}, [0, 1, 2, 3]),
        ({"top_p": 0.01}, [1]),
        ({"top_p": 0.31}, [1, 2]),
        ({"top_p": 0.6}, [1, 2]),
        ({"top_p": 0.61}, [0, 1, 2]),
        ({"top_p": 1.0}, [0, 1, 2, 3]),
    ],
)
def test_ties_go_to_the_lower_token(knobs, kept):
    mu = Truncated(one_node(0.2, 0.3, 0.3, 0.2), **knobs)
    assert torch.nonzero(law(mu))[:, 0].tolist() == kept


def test_top_p_counts_mass_among_the_top_k():
    # after top_k = 2 the first token alone holds 0.5 / 0.8 >= 0.6: without renormalizing, two tokens would stay
    assert law(Truncated(one_node(0.5, 0.3, 0.2), top_k=2, top_p=0.6)).tolist() == [1.0, 0.0, 0.0]
    assert law(Truncated(one_node(0.5, 0.3, 0.2), top_p=0.6)).count_nonzero() == 2


def test_temperature_comes_before_the_nucleus():
    hot = Truncated(one_node(0.7, 0.2, 0.1), temperature=100.0, top_p=0.5)
    assert law(hot).count_nonzero() == 2  # nearly uniform: one token holds less than half
    assert law(Truncated(one_node(0.7, 0.2, 0.1), top_p=0.5)).count_nonzero() == 1


@pytest.mark.parametrize("knobs", [{}, {"top_k": 4}, {"top_p": 1.0}])
def test_a_filter_that_cuts_nothing_is_the_policy_bit_for_bit(knobs, generator):
    pi = TabularPolicy(torch.randn(1, 4, generator=generator, dtype=torch.float64))
    assert torch.equal(Truncated(pi, **knobs).next_log_probs(EMPTY), pi.next_log_probs(EMPTY))


def test_forbidden_tokens_stay_forbidden_and_tails_survive():
    mu = Truncated(one_node(0.0, 0.6, 0.4), temperature=3.0, top_k=3)
    assert law(mu)[0] == 0 and float(law(mu).sum()) == pytest.approx(1, abs=1e-14)
    tail = TabularPolicy(torch.tensor([[0.0, -300.0]], dtype=torch.float64))
    assert torch.isfinite(Truncated(tail, top_p=1.0).next_log_probs(EMPTY)).all()


def test_whole_responses_agree_with_prefix_by_prefix(generator):
    pi = TabularPolicy.random(3, 3, 5, scale=2.0)
    mu = Truncated(pi, temperature=0.7, top_k=2, top_p=0.9)
    tokens = torch.randint(3, (7, 3), generator=generator)
    stepwise = torch.stack([mu.next_log_probs(tokens[:, :t]) for t in range(3)], 1)
    assert torch.equal(mu.log_probs(tokens), stepwise)
    assert (stepwise == float("-inf")).any()


def test_filter_works_on_a_table_of_any_shape():
    pi = MarkovPolicy.random(torch.tensor([[0, 1, 1], [1, 0, 0]]), 3)
    mu = Truncated(pi, top_k=2)
    tokens = torch.tensor([[1], [0]])
    assert torch.equal(mu.filter(pi.table)[torch.tensor([1, 0])], mu.next_log_probs(tokens))


@pytest.mark.parametrize(
    "knobs",
    [
        {"temperature": 0.0}, {"temperature": -1.0}, {"temperature": float("nan")}, {"temperature": float("inf")},
        {"top_k": 0}, {"top_k": -2}, {"top_k": True}, {"top_p": 0.0}, {"top_p": 1.1}, {"top_p": float("nan")},
    ],
)  # fmt: skip
def test_knobs_outside_their_range_are_refused(knobs):
    with pytest.raises(InputError, match=next(iter(knobs))):
        Truncated(one_node(0.5, 0.5), **knobs)
