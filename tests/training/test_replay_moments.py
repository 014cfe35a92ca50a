"""Terms of responses make up the gradient that is trained on, and the moments of a batch are those of its two kinds."""

from itertools import product

import pytest
import torch

from testbed.core.errors import InputError
from testbed.training.replay_moments import ReplayMoments, measured_moments, moments_of, predicted_share, response_terms
from testbed.training.sources import ClockSource
from tests.training.grpo_worlds import EXACT, SMALL, made


def replaying(**settings):
    """A run of which half of each batch is replayed."""
    settings = {"system": "replay", "updates": 9, "rate": 1e-2, **EXACT, **settings}
    return made(
        source=lambda run: ClockSource(run.config, run.env, run.sampler(), run.prompts, run.seed["source"]), **settings
    )


@pytest.mark.parametrize("rule", ["spire", "tis", "ppo_clip"])
def test_terms_add_up_to_the_gradient_that_is_trained_on(rule):
    run = replaying(rule=rule)
    for _ in range(4):
        run.advance()
    drawn = run.source.next_batch()
    assert 0 < int(drawn.replayed.sum()) < len(drawn.replayed)
    terms = response_terms(run, drawn)
    batch, _ = run._scored(drawn.batch)
    advantage = run._advantage(drawn)
    assert float(advantage.abs().max()) > 0
    run.optimizer.zero_grad()
    run.loss(batch, advantage).backward()
    gradient = torch.cat([w.grad.reshape(-1) for w in run.model.parameters()])
    tokens = int(batch.mask.sum())
    assert float((terms.sum(0) / tokens + gradient).abs().max()) <= 1e-6 * float(gradient.abs().max())
    assert float((terms[~drawn.replayed].sum(0) / tokens + gradient).norm()) > 1e-3 * float(gradient.norm())


def test_what_noise_adds_to_the_bias_is_taken_off():
    fresh, again = torch.tensor([[0.0, 1.0], [2.0, 1.0]]).double(), torch.tensor([[1.0, 5.0], [3.0, -3.0]]).double()
    replayed, found = torch.tensor([False, False, False, True, True]), []
    for rows in product((0, 1), repeat=5):  # every sample of two equally likely terms of each kind
        terms = torch.stack([fresh[i] for i in rows[:3]] + [again[i] for i in rows[3:]])
        found.append(moments_of(terms, replayed, 0.0, 0.0))
    mean = {
        name: sum(getattr(one, name) for one in found) / len(found) for name in ("v_fresh", "v_replay", "bias_squared")
    }
    assert mean["v_fresh"] == pytest.approx(1.0, abs=1e-12)  # of the population: 1 and 0 in the two coordinates
    assert mean["v_replay"] == pytest.approx(1.0 + 16.0, abs=1e-12)
    assert mean["bias_squared"] == pytest.approx(1.0, abs=1e-12)  # means (1, 1) and (2, 1)
    assert min(one.bias_squared for one in found) < 0  # clipping each at 0 would be a bias


def test_a_pilot_measures_the_updates_it_is_asked_for_and_leaves_the_run_as_it_is(tmp_path):
    config = replaying(warm_steps=0, updates=4).config
    found = measured_moments(config, 3, at=(1, 2), cache=tmp_path)
    assert len(found) == 2 and all(one.responses == SMALL["prompts"] * SMALL["responses"] for one in found)
    assert all(one.cost_fresh > one.cost_replay > 0 for one in found)
    assert measured_moments(config, 3, at=(2,), cache=tmp_path) == found[1:]


def test_moments_need_a_system_that_replays():
    with pytest.raises(InputError, match="replays"):
        measured_moments(made().config, 0, at=(1,))
    with pytest.raises(InputError, match="at least one"):
        predicted_share([])


def test_the_prediction_moves_as_its_ingredients_say():
    def share(**changes):
        base = {"v_fresh": 1.0, "v_replay": 1.25, "bias_squared": 0.0625, "cost_fresh": 1.0, "cost_replay": 0.25}
        return predicted_share([ReplayMoments(**{**base, "responses": 16, **changes})]).share

    assert share(bias_squared=0.2) < share() < share(bias_squared=0.04)
    assert share(v_replay=1.5) < share() < share(cost_replay=0.1)
    assert share(bias_squared=-1.0) in (0.0, 1.0)  # no bias: an end (K4)
