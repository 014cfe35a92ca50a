"""BR-10: ... but most trainers keep rejected tokens in the denominator on purpose.

https://github.com/mlcommons/training/issues/905 surveys them. Both are estimators, and both are biased, each by an amount
that is known exactly. With K the set of kept responses, p = P_mu(K), and batches of n:

    original   E_mu[w f 1{K}]; for w = pi/mu its bias is -E_pi[f 1{not K}], linear and the same for every n
    kept       (1 - (1 - p)^n) E_mu[w f | K]; a ratio, whose bias depends on n and on p
"""

import math

import pytest
import torch

from testbed import PrefixTree, TabularPolicy, batch_statistic, enumerate_law
from tests.museum.specimens import close, contributing, loss_and_gradient, target_probs, weights

TARGET, BEHAVIOR = [0.5, 0.3, 0.2], [0.25, 0.5, 0.25]  # ratios 2, .6, .8
GATES = [
    ("mis", None, {"cap": 1.5}),
    ("icepop", None, {"low": 0.7, "high": 2.5}),
    ("icepop", "sequence_product", {"low": 0.7, "high": 2.5}),
    ("seq_mis", None, {"low": 0.7, "cap": 1.5}),
    ("geo_mask", None, {"low": 0.7, "high": 1.3}),
]


def world(horizon):
    env = PrefixTree(3, horizon, rewards=[0.5 + 0.5 * (k % 3) for k in range(3**horizon)])
    nodes = 1 if horizon == 1 else 4
    pi, mu = (TabularPolicy.from_probs(torch.tensor([row] * nodes, dtype=torch.float64)) for row in (TARGET, BEHAVIOR))
    return enumerate_law(env, pi, mu)


def mean_loss(law, n, rule, granularity, params, reduction):
    """Return the exact expectation, over batches of n responses, of the loss to which a token adds w f."""

    def statistic(index):
        values = []
        for rows in index:
            batch = law.batch.select(rows)
            f = batch.reward[:, None].expand(n, batch.horizon)
            values.append(loss_and_gradient(batch, rule, granularity, reduction, contributing(batch, f), **params)[0])
        return torch.stack(values)

    return batch_statistic(law, n, statistic).mean


def test_wrong_recipe_takes_one_for_the_other():
    """Under one name, two trainers report .49 and 1.23 for the same five tokens; with f = 1 the truth is 1."""
    ratio = torch.tensor([0.1, -1.5, 0.8, -10.0, 0.3], dtype=torch.float64).exp()
    kept = ratio[(ratio >= 0.5) & (ratio <= 2)]
    one_name = {"this trainer": kept.sum() / 5, "that trainer": kept.sum() / 2}
    assert [round(float(v), 6) for v in one_name.values()] == [0.491006, 1.227515]


def test_ours_has_no_default_hidden_in_a_loss_name():
    law = world(1)
    f = law.batch.reward
    truth = (target_probs(law) * f).sum()
    original, kept = (mean_loss(law, 2, "mis", None, {"cap": 1.2}, ("token_mean", d)) for d in ("original", "kept"))
    dropped = ~weights("mis", law.batch, cap=1.2).gate[:, 0]
    assert 0 < float(law.probs[dropped].sum()) < 1
    assert close(original - truth, -(target_probs(law) * f)[dropped].sum())
    assert abs(float(kept - original)) > 1e-2 and abs(float(kept - truth)) > 1e-2


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("normalizer", ["token_mean", "sequence_mean"])
@pytest.mark.parametrize(("rule", "granularity", "params"), GATES)
def test_the_bias_of_both_is_exact_for_every_gate(rule, granularity, params, normalizer, n):
    law = world(1)
    w = weights(rule, law.batch, granularity, **params)
    keep, f = w.gate[:, 0], law.batch.reward
    p = law.probs[keep].sum()
    assert 0.05 < float(p) < 0.95
    joint = law.expect(torch.where(keep, w.value[:, 0] * f, 0.0))
    assert close(mean_loss(law, n, rule, granularity, params, (normalizer, "original")), joint)
    if rule != "geo_mask":
        assert close(joint, (target_probs(law) * f)[keep].sum())
    assert close(mean_loss(law, n, rule, granularity, params, (normalizer, "kept")), (1 - (1 - p) ** n) * joint / p)


@pytest.mark.parametrize("normalizer", ["token_mean", "sequence_mean"])
def test_the_same_holds_when_a_whole_response_is_dropped(normalizer):
    law = world(2)
    w = weights("seq_mis", law.batch, low=0.5, cap=1.5)
    keep, f = w.gate[:, 0], law.batch.reward
    p, joint = law.probs[keep].sum(), law.expect(torch.where(keep, w.value[:, 0] * f, 0.0))
    for n in (1, 2):
        params = {"low": 0.5, "cap": 1.5}
        assert close(mean_loss(law, n, "seq_mis", None, params, (normalizer, "original")), joint)
        assert close(mean_loss(law, n, "seq_mis", None, params, (normalizer, "kept")), (1 - (1 - p) ** n) * joint / p)
    assert math.isclose(float(joint), float((target_probs(law) * f)[keep].sum()), rel_tol=1e-10)
