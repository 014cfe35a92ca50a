"""BR-16: [B, 1] times [B] becomes [B, B].

https://github.com/NVIDIA-NeMo/RL/pull/3753: a metric over responses is summed over all pairs of them. A batch of one hides
the mistake, so shapes are checked, not results.
"""

import pytest
import torch

from testbed import InputError, gradient_terms, policy_loss, weigh
from testbed.core.numerics import masked_mean, masked_sum, safe_exp
from testbed.estimators.per_decision import weighted_reward_to_go
from testbed.estimators.reward_scope import scoped_rewards
from testbed.estimators.value import value_terms
from testbed.exact.moments import moments
from testbed.rollout.staleness import select_by_staleness
from testbed.stats.divergence import kl
from testbed.stats.weight_statistics import mean_weight
from tests.museum.specimens import exact_world, ragged

COLUMN = torch.ones(4, 1, dtype=torch.float64)


def test_wrong_recipe_sums_all_pairs():
    weight, valid = torch.ones(2, 1), torch.ones(2)
    assert float((weight * valid).sum() / valid.sum()) == 2.0
    alone = torch.ones(1, 1), torch.ones(1)
    assert float((alone[0] * alone[1]).sum() / alone[1].sum()) == 1.0  # B = 1 hides it


@pytest.mark.usefixtures("untyped")
def test_ours_averages_what_has_one_shape_and_refuses_the_rest():
    assert float(mean_weight(torch.ones(2), torch.ones(2, dtype=torch.bool))) == 1.0
    assert float(masked_mean(torch.ones(2), torch.ones(2, dtype=torch.bool))) == 1.0
    for reduce in (mean_weight, masked_mean):
        with pytest.raises(InputError, match="shape"):
            reduce(torch.ones(2, 1), torch.ones(2, dtype=torch.bool))


DOORS = {
    "weigh": lambda b: weigh("ppo_clip", b, COLUMN),
    "policy_loss": lambda b: policy_loss(b.logp_target, b, "tis", COLUMN),
    "policy_loss_logp": lambda b: policy_loss(b.logp_target[:, :1], b, "tis"),
    "gradient_terms": lambda b: gradient_terms(b, COLUMN, None),
    "gradient_terms_advantage": lambda b: gradient_terms(b, b.mask.double(), None, COLUMN),
    "reward": lambda b: b.replaced(reward=COLUMN),
    "group": lambda b: b.replaced(group=COLUMN.long()),
    "logp_target": lambda b: b.replaced(logp_target=-COLUMN),
    "state_value": lambda b: value_terms(b, "doubly_robust", COLUMN),
    "reward_to_go": lambda b: weighted_reward_to_go(b, COLUMN),
    "scoped_rewards": lambda b: scoped_rewards(b, COLUMN.bool()),
    "source": lambda b: select_by_staleness(b, 9, 9, COLUMN.long()),
    "masked_sum": lambda b: masked_sum(COLUMN, b.mask.any(1)),
    "safe_exp": lambda b: safe_exp(COLUMN, b.mask.any(1)),
    "kl": lambda b: kl(COLUMN, b.mask.any(1)),
    "mean_weight": lambda b: mean_weight(COLUMN, b.mask.any(1)),
}


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize("door", DOORS)
def test_every_door_refuses_a_column(door):
    with pytest.raises(InputError, match=r"shape|\(4, 1\)"):
        DOORS[door](ragged())


def test_a_law_wants_one_term_per_response():
    law, _ = exact_world()
    with pytest.raises(InputError, match="one term per response"):
        moments(law, torch.ones(1, 3))
