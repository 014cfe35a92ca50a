"""Markov policies: the state follows the tokens, the score is the gradient, bad tables are refused."""

import pytest
import torch

from testbed.core.errors import InputError
from testbed.policies.markov import MarkovPolicy, state_path

TRANSITION = torch.tensor([[0, 1, 2], [2, 0, 1], [1, 1, 0]])


def test_states_follow_the_tokens():
    tokens = torch.tensor([[1, 0, 2, 2], [0, 0, 0, 1]])
    assert state_path(tokens, TRANSITION, 0).tolist() == [[0, 1, 2, 0, 2], [0, 0, 0, 0, 1]]
    assert state_path(tokens, TRANSITION, 2)[:, :2].tolist() == [[2, 1], [2, 1]]


def test_whole_responses_agree_with_prefix_by_prefix(generator):
    pi = MarkovPolicy.random(TRANSITION, 7, start=1)
    tokens = torch.randint(3, (6, 5), generator=generator)
    stepwise = torch.stack([pi.next_log_probs(tokens[:, :t]) for t in range(5)], 1)
    assert torch.equal(pi.log_probs(tokens), stepwise)
    torch.testing.assert_close(stepwise.exp().sum(-1), torch.ones(6, 5).double(), rtol=0, atol=1e-14)


def test_score_terms_are_the_gradient(generator):
    logits = torch.randn(3, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    tokens = torch.randint(3, (5, 6), generator=generator)
    coefficient = torch.randn(5, 6, generator=generator, dtype=torch.float64)
    pi = MarkovPolicy(logits, TRANSITION)
    weighted = (coefficient * pi.score(tokens)).sum(1)
    for row, term in zip(weighted, pi.score_terms(tokens, coefficient), strict=True):
        torch.testing.assert_close(torch.autograd.grad(row, logits, retain_graph=True)[0], term, rtol=1e-10, atol=1e-12)


def test_zero_coefficients_silence_padding(generator):
    pi = MarkovPolicy.random(TRANSITION, 0)
    tokens = torch.tensor([[1, 2, 0, 0], [1, 2, 2, 1]])
    coefficient = torch.tensor([[1.0, 2.0, 0.0, 0.0]]).repeat(2, 1)
    terms = pi.score_terms(tokens, coefficient)
    assert torch.equal(terms[0], terms[1])


def test_from_probs_keeps_zeros():
    pi = MarkovPolicy.from_probs(torch.tensor([[1.0, 0.0], [0.5, 0.5]]), torch.tensor([[0, 1], [1, 0]]))
    assert pi.table[0].tolist() == [0.0, float("-inf")]
    assert torch.isfinite(pi.score_terms(torch.tensor([[0, 0]]), torch.ones(1, 2))).all()


@pytest.mark.parametrize(
    ("logits", "transition", "start", "message"),
    [
        (torch.zeros(3), TRANSITION, 0, "`logits`"),
        (torch.zeros(3, 3), TRANSITION[:2], 0, "`transition` must have shape"),
        (torch.zeros(3, 3), TRANSITION.double(), 0, "integer next states"),
        (torch.zeros(3, 3), TRANSITION + 1, 0, "next state must lie in 0..2"),
        (torch.zeros(3, 3), TRANSITION, 3, "`start`"),
        (torch.full((3, 3), float("-inf")), TRANSITION, 0, "finite largest entry"),
        (torch.full((3, 3), float("nan")), TRANSITION, 0, "no NaN"),
    ],
)
def test_bad_tables_are_refused(logits, transition, start, message):
    with pytest.raises(InputError, match=message):
        MarkovPolicy(logits, transition, start)


def test_probabilities_that_are_no_law_are_refused():
    with pytest.raises(InputError, match="sum to 1"):
        MarkovPolicy.from_probs(torch.tensor([[0.5, 0.6]]), torch.tensor([[0, 0]]))
