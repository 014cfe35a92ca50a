"""BR-45: "clipping already protects replay".

https://github.com/RLinf/RLinf/issues/922, with the counter-argument in https://github.com/huggingface/trl/pull/7120: for a
negative advantage PPO's surrogate has no upper clip. Ratio 10, advantage -1, eps .2: the loss is 10 and grows with the
ratio; a dual clip at 3 gives 3.
"""

import math

import pytest
import torch

from testbed.weighting import clip
from testbed.weighting.rules import RULES
from tests.museum.specimens import REDUCTIONS, loss_and_gradient
from tests.weighting.worlds import PAIRS, SURROGATES, batch_of

RATIOS = (10.0, 100.0, 1e4, 1e8)
WIDEST = {"m2po": math.exp(0.5), "mu_grpo": 2.0}  # upper end of the window, where it is not 1.2


def stale(ratio, advantage, proximal=None):
    base = -1.0 - math.log(ratio)
    return batch_of([[-1.0]], [[base]], proximal=[[base if proximal is None else proximal]], reward=[advantage])


def test_wrong_recipe_clips_one_side():
    r, advantage, eps = 10.0, -1.0, 0.2
    surrogate = min(r * advantage, min(max(r, 1 - eps), 1 + eps) * advantage)
    assert -surrogate == 10.0  # "at most 1.2" is what was believed


def test_ours_has_both_and_documents_it():
    for rule, expected in (("ppo_clip", 10.0), ("dual_clip", 3.0)):
        loss, gradient = loss_and_gradient(stale(10.0, -1.0), rule)
        assert float(loss) == pytest.approx(expected, rel=1e-12)
        assert bool(gradient.any()) == (rule == "ppo_clip")
    assert "unbounded" in RULES["ppo_clip"].summary and "nothing bounds the loss" in clip.__doc__


@pytest.mark.parametrize("reduction", REDUCTIONS, ids="-".join)
@pytest.mark.parametrize(("rule", "granularity"), [pair for pair in PAIRS if pair[0] in SURROGATES])
def test_every_surrogate_is_linear_or_dual(rule, granularity, reduction):
    for ratio in RATIOS:
        loss, gradient = loss_and_gradient(stale(ratio, -1.0), rule, granularity, reduction)
        dropped = rule == "dual_clip"
        assert float(loss) == pytest.approx(3.0 if dropped else ratio, rel=1e-9)
        assert float(gradient[0, 0]) == pytest.approx(0.0 if dropped else ratio, rel=1e-9)
        bounded, none = loss_and_gradient(stale(ratio, 1.0), rule, granularity, reduction)
        assert -WIDEST.get(rule, 1.2) - 0.01 < float(bounded) < -1.0 and not none.any()


@pytest.mark.parametrize("ratio", RATIOS)
def test_a_capped_mismatch_is_bounded_where_the_gap_is_mismatch(ratio):
    """Decoupled: the same ratio is harmless if the proximal policy accounts for it, and linear if it does not."""
    loss, _ = loss_and_gradient(stale(ratio, -1.0, proximal=-1.0), "decoupled_ppo", cap=5.0)
    assert float(loss) == pytest.approx(5.0, rel=1e-12)
    loss, _ = loss_and_gradient(stale(ratio, -1.0), "decoupled_ppo", cap=5.0)
    assert float(loss) == pytest.approx(ratio, rel=1e-9)
    for rule, cap in (("tis", 2.0), ("icepop", 0.0), ("band", 5.0)):
        loss, gradient = loss_and_gradient(stale(ratio, -1.0), rule)
        assert float(gradient[0, 0]) == pytest.approx(cap, rel=1e-12)
        assert torch.isfinite(loss)
