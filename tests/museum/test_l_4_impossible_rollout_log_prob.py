"""L4: the rollout says that it drew a token of log-prob -inf.

Five answers from six trainers: the cap, after exp(20) (verl, slime), or after an infinity (TRL), 1 (AReaL), 0 (NeMo), infinity or
NaN (prime-rl). Our contract: it is refused, because the sampler cannot have drawn it; the mirror image, a *target* of -inf, is
an honest fact, has weight exactly 0 and is counted.
"""

import math

import pytest
import torch

from testbed import InputError, SegmentedBatch, log_ratios
from tests.museum.specimens import REDUCTIONS, loss_and_gradient, ragged, weights
from tests.weighting.worlds import PAIRS

INF, CAP = math.inf, 2.0


def test_wrong_recipe_has_as_many_answers_as_authors():
    log_ratio = torch.tensor(-1.0) - torch.tensor(-INF)
    answers = {
        "clamp, then cap": float(log_ratio.clamp(max=20).exp().clamp(max=CAP)),
        "not finite means 0 nats": float(torch.nan_to_num(log_ratio, posinf=0.0).exp()),
        "not finite means weight 0": float(torch.nan_to_num(log_ratio.exp(), posinf=0.0)),
        "as it comes": float(log_ratio.exp()),
    }
    assert list(answers.values()) == [2.0, 1.0, 0.0, INF]
    assert (log_ratio.exp() * 0.0).isnan()


def test_ours_refuses_it_and_says_where():
    batch = ragged()
    behavior = batch.logp_behavior.clone()
    behavior[1, 3] = behavior[3, 0] = -INF
    with pytest.raises(
        InputError, match=r"`logp_behavior` must be finite on drawn tokens.*2 of -inf, first at \(1, 3\)"
    ):
        batch.replaced(logp_behavior=behavior)
    both = batch.logp_target.clone()
    both[1, 3] = both[3, 0] = -INF
    with pytest.raises(InputError, match="cannot have drawn"):
        batch.replaced(logp_behavior=behavior, logp_target=both)  # also where the two would cancel


def test_ours_has_the_contract_in_writing():
    assert "behavior log-prob of -inf" in SegmentedBatch.__doc__
    assert "-inf where a numerator probability of 0 is included" in log_ratios.__doc__


@pytest.mark.parametrize(("rule", "granularity"), PAIRS)
def test_the_mirror_image_weighs_zero_under_every_rule(rule, granularity):
    batch = ragged()
    target = batch.logp_target.clone()
    target[1, 3] = target[3, 0] = -INF
    mirrored = batch.replaced(logp_target=target)
    assert mirrored.facts.support_mismatches == 2
    w = weights(rule, mirrored, granularity)
    assert w.value[1, 3] == w.value[3, 0] == 0.0 and w.value.isfinite().all() and w.saturated == 0
    for reduction in REDUCTIONS:
        loss, gradient = loss_and_gradient(mirrored, rule, granularity, reduction)
        assert loss.isfinite() and gradient.isfinite().all() and gradient[1, 3] == gradient[3, 0] == 0.0


def test_a_proximal_policy_may_not_divide_by_zero_either():
    batch = ragged()
    proximal = batch.logp_proximal.clone()
    proximal[3, 0] = -INF
    with pytest.raises(InputError, match="`logp_proximal` must be finite where it divides"):
        weights("decoupled_ppo", batch.replaced(logp_proximal=proximal))
