"""Several behaviors: shares and weights worked by hand, moments against every joint sample, blind behaviors, refusals."""

from itertools import product

import pytest
import torch

from testbed.core.errors import InputError
from testbed.estimators.multiple_importance import balance_shares, mixture_weight, shared_moments

P = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
Q = torch.tensor([[0.5, 0.5, 0.0], [0.1, 0.2, 0.7]], dtype=torch.float64)
N = torch.tensor([2.0, 1.0], dtype=torch.float64)
F = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)


def test_shares_and_weights_by_hand():
    shares = balance_shares(Q.log(), N)
    torch.testing.assert_close(shares[1], torch.tensor([1 / 11, 2 / 12, 1.0], dtype=torch.float64), rtol=1e-14, atol=0)
    torch.testing.assert_close(shares.sum(0), torch.ones(3, dtype=torch.float64), rtol=1e-14, atol=0)
    weight = mixture_weight(P.log(), Q.log(), N)
    expected = torch.tensor([0.2 * 3 / 1.1, 0.3 * 3 / 1.2, 0.5 * 3 / 0.7], dtype=torch.float64)
    torch.testing.assert_close(weight, expected, rtol=1e-14, atol=0)


@pytest.mark.parametrize("kind", ["balance", "equal"])
def test_moments_are_those_of_every_joint_sample(kind):
    shares = balance_shares(Q.log(), N) if kind == "balance" else torch.full((2, 3), 0.5, dtype=torch.float64)
    found = shared_moments(F, P.log(), Q.log(), N, shares)
    mean = second = 0.0
    for rows in product(range(3), repeat=3):
        owners = (0, 0, 1)
        chance = float(torch.stack([Q[j, y] for j, y in zip(owners, rows, strict=True)]).prod())
        if chance:
            value = sum(float(shares[j, y] * F[y] * P[y] / Q[j, y] / N[j]) for j, y in zip(owners, rows, strict=True))
            mean, second = mean + chance * value, second + chance * value**2
    assert float(found.mean) == pytest.approx(mean, rel=1e-13)
    assert float(found.parts.sum()) == pytest.approx(mean, rel=1e-13)
    assert float(found.variance) == pytest.approx(second - mean**2, rel=1e-11)
    if kind == "balance":
        assert mean == pytest.approx(float((P * F).sum()), rel=1e-13)
    else:
        assert mean == pytest.approx(float((P * F).sum()) - 0.5 * 0.5 * 3.0, rel=1e-13)  # lost with the blind behavior


def test_distant_laws_do_not_overflow():
    log_q = torch.tensor([[-2000.0, -1.0], [-1000.0, -1.0]], dtype=torch.float64)
    shares = balance_shares(log_q, torch.tensor([1.0, 3.0]))
    torch.testing.assert_close(
        shares, torch.tensor([[0.0, 0.25], [1.0, 0.75]], dtype=torch.float64), rtol=1e-13, atol=1e-300
    )
    weight = mixture_weight(torch.tensor([-1000.0, -1.0], dtype=torch.float64), log_q, torch.tensor([1.0, 3.0]))
    torch.testing.assert_close(weight, torch.tensor([4 / 3, 1.0], dtype=torch.float64), rtol=1e-12, atol=0)


def test_what_nobody_draws_has_no_share_and_no_weight():
    log_q = torch.tensor([[0.0, -torch.inf]])
    assert balance_shares(log_q, torch.ones(1)).tolist() == [[1.0, 0.0]]
    assert mixture_weight(torch.tensor([0.5, 0.5]).log(), log_q, torch.ones(1))[1] == 0.0


def test_refusals():
    for counts in ([1.0, 0.0], [1.0, -1.0], [1.0, float("inf")], [1.0, float("nan")]):
        with pytest.raises(InputError, match="`counts` must be positive"):
            balance_shares(Q.log(), torch.tensor(counts))


def test_shapes_are_refused(untyped):
    with pytest.raises(InputError, match="`counts` must have shape"):
        balance_shares(Q.log(), torch.ones(3))
    with pytest.raises(InputError, match="`logp_target` must have shape"):
        mixture_weight(P.log()[:2], Q.log(), N)
    with pytest.raises(InputError, match="`shares` must have shape"):
        shared_moments(F, P.log(), Q.log(), N, torch.ones(2, 2))
    with pytest.raises(InputError, match="`values` must have shape"):
        shared_moments(F[:2], P.log(), Q.log(), N, torch.ones(2, 3))
