"""Exact laws, moments and multisets: right against brute force, and clear about what they refuse."""

import itertools
import math

import pytest
import torch

from testbed import (
    InputError,
    PrefixSchedule,
    PrefixTree,
    TabularPolicy,
    TooLarge,
    action_values,
    after_token,
    batch_statistic,
    enumerate_law,
    exogenous_hazard,
    moments,
    output_law,
)
from testbed.exact.law import ExactLaw
from testbed.exact.moments import multisets

PI = TabularPolicy.random(2, 3, 0)
MUS = (TabularPolicy.random(2, 3, 1), TabularPolicy.random(2, 3, 2))


def small_law():
    tree = PrefixTree.random(2, 2, 3)
    return enumerate_law(tree, TabularPolicy.random(2, 2, 4), TabularPolicy.random(2, 2, 5))


def test_law_against_a_loop():
    schedule = PrefixSchedule(MUS, after_token(1))
    law = enumerate_law(PrefixTree.random(2, 3, 3), PI, schedule)
    for row, y in enumerate(itertools.product(range(2), repeat=3)):
        p, q, labels = 0.0, 0.0, []
        for t in range(3):
            prefix = torch.tensor([y[:t]], dtype=torch.int64).reshape(1, t)
            k = int(1 in y[:t])
            labels.append(k)
            p += float(MUS[k].next_log_probs(prefix)[0, y[t]])
            q += float(PI.next_log_probs(prefix)[0, y[t]])
        assert law.batch.tokens[row].tolist() == list(y)
        assert law.batch.segment[row].tolist() == labels
        assert float(law.log_prob[row]) == pytest.approx(p, rel=1e-14)
        assert float(law.batch.logp_target[row].sum()) == pytest.approx(q, rel=1e-14)


def test_ended_responses_appear_once():
    tree = PrefixTree(2, 3, rewards=[float(r) for r in range(8)], eos=1)
    law = enumerate_law(tree, PI, MUS[0])
    shown = [tuple(t[:n]) for t, n in zip(law.batch.tokens.tolist(), law.batch.lengths.tolist(), strict=True)]
    assert shown == [(0, 0, 0), (0, 0, 1), (0, 1), (1,)]
    assert law.batch.reward.tolist() == [0.0, 1.0, 3.0, 7.0]  # padded with eos: 000, 001, 011, 111
    assert float(law.probs.sum()) == pytest.approx(1.0, abs=1e-14)


def test_impossible_responses_are_left_out():
    blind = TabularPolicy.from_probs(torch.tensor([[0.0, 1.0]] * 7))
    law = enumerate_law(PrefixTree.random(2, 3, 0), PI, blind)
    assert law.batch.tokens.tolist() == [[1, 1, 1]]


def test_exogenous_branches_are_rows_of_their_own():
    law = enumerate_law(PrefixTree.random(2, 3, 3), PI, exogenous_hazard(MUS, 0.3, 3))
    assert law.branch.unique().tolist() == [0, 1, 2, 3]
    masses = [float(law.probs[law.branch == b].sum()) for b in range(4)]
    assert masses == pytest.approx([0.49, 0.21, 0.21, 0.09], rel=1e-12)


def test_a_law_must_have_mass_one():
    law = small_law()
    for shift in (1e-9, -1e-9):
        with pytest.raises(InputError, match="must sum to 1; found"):
            ExactLaw(batch=law.batch, log_prob=law.log_prob + shift, branch=law.branch)
    with pytest.raises(InputError, match="must sum to 1; found"):
        ExactLaw(batch=law.batch.select([0, 1]), log_prob=law.log_prob[:2], branch=law.branch[:2])


def test_a_policy_that_is_no_law_is_noticed():
    class Leaky(TabularPolicy):
        @property
        def table(self):
            return super().table - 0.01

    with pytest.raises(InputError, match="must sum to 1"):
        enumerate_law(PrefixTree.random(2, 3, 3), PI, Leaky(PI.logits))


def test_too_large_says_how_large_and_what_instead():
    huge = PrefixTree.__new__(PrefixTree)
    huge.vocab_size, huge.horizon, huge.eos = 32, 512, None
    for ask in (lambda: enumerate_law(huge, PI, PI), lambda: action_values(huge, PI)):
        with pytest.raises(TooLarge, match=r"up to 1,048,576 responses; found 32\^512 = .*testbed.exact.dynamic"):
            ask()
    with pytest.raises(InputError, match=r"V\*\*T = 3\*\*2 = 9 values; found shape \(8,\)"):
        PrefixTree(3, 2, rewards=[0.0] * 8)


def test_moments_against_numpy():
    law = small_law()
    terms = torch.stack([law.batch.reward, law.batch.reward**2], 1)
    m = moments(law, terms)
    p, x = law.probs.numpy(), terms.numpy()
    mean = p @ x
    torch.testing.assert_close(m.mean.numpy(), mean, rtol=1e-14, atol=0)
    torch.testing.assert_close(m.variance.numpy(), p @ (x - mean) ** 2, rtol=1e-13, atol=0)
    torch.testing.assert_close(m.second.numpy(), p @ x**2, rtol=1e-14, atol=0)
    with pytest.raises(InputError, match="one term per response of the law; found 3 for 4"):
        moments(law, terms[:3])


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_multisets_against_ordered_batches(n):
    law = small_law()
    index, prob = multisets(law, n)
    assert float(prob.sum()) == pytest.approx(1.0, abs=1e-13)
    assert len(index) == math.comb(4 + n - 1, n)
    ordered = {}
    for batch in itertools.product(range(4), repeat=n):
        key = tuple(sorted(batch))
        ordered[key] = ordered.get(key, 0.0) + math.prod(float(law.probs[i]) for i in batch)
    for row, p in zip(index.tolist(), prob.tolist(), strict=True):
        assert p == pytest.approx(ordered[tuple(row)], rel=1e-12)


def test_batch_statistic_of_a_mean_is_the_textbook():
    law = small_law()
    single = moments(law, law.batch.reward)
    for n in (1, 3):
        m = batch_statistic(law, n, lambda index: law.batch.reward[index].mean(1))
        assert float(m.mean) == pytest.approx(float(single.mean), rel=1e-12)
        assert float(m.variance) == pytest.approx(float(single.variance) / n, rel=1e-11)


def test_batch_statistic_prints_its_limit():
    law = small_law()
    with pytest.raises(
        TooLarge, match=r"up to 100 multisets; found C\(4\+30-1, 30\) = 5,456 for 4 responses and batches of 30"
    ):
        batch_statistic(law, 30, lambda index: index.double().mean(1), limit=100)
    with pytest.raises(InputError, match="`n` must be >= 1"):
        batch_statistic(law, 0, lambda index: index.double().mean(1))


def test_output_law_merges_equal_outputs():
    got = output_law(lambda c: int(c.choose(torch.tensor([[0.5, 0.25, 0.25]]))) > 0)
    assert got == {False: 0.5, True: 0.5}
