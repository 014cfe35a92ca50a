"""Transformers as instances: what the theorems' numbers rest on, and that nothing of a world outlives it but the weights."""

from dataclasses import replace

import pytest
import torch

from testbed.core.prefix_order import node_index
from testbed.policies import PrefixSchedule, cuts
from testbed.policies.transformer import TransformerPolicy
from theory.derivation import Evaluator
from theory.nested_trees import NestedTree, scores
from theory.nested_updates import nested_derivation
from theory.theorems import s02_full_product
from theory.transformer_pools import transformer_pools
from theory.transformer_worlds import (
    DENSE,
    behavior,
    checkpoints,
    dense_world,
    expert_world,
    hazard_world,
    step_reward_world,
    transformer_worlds,
)


def test_worlds_are_built_anew_from_weights_built_once():
    assert dense_world() is not dense_world()
    assert dense_world().target.model is dense_world().target.model
    assert all(w.dtype == torch.float64 for w in dense_world().target.parameters())
    assert {w.target.config.layers for w in transformer_worlds(wide=True)} == {2}
    assert expert_world().target.config.experts == 8


def test_training_raises_the_expected_reward():
    env = dense_world().env
    policies = [TransformerPolicy(model) for model in checkpoints(DENSE)]
    worlds = [replace(dense_world(), target=pi, schedule=PrefixSchedule((pi,), cuts(()))) for pi in policies]
    values = [float(w.target_law.expect(w.target_law.batch.reward)) for w in worlds]
    assert len(values) == 4 and values == sorted(values) and values[-1] > values[0] + 0.05
    assert env.rewards.max() >= values[-1]


@pytest.mark.parametrize("kind", ["stale", "staler", "gaussian", "student"])
def test_every_behavior_differs_from_the_target(kind):
    pi, mu = (PrefixSchedule((behavior(DENSE, k),), cuts(())).log_prob_table(3, 3) for k in ("target", kind))
    assert (pi - mu).abs().max() > 0.05


@pytest.mark.parametrize("build", [dense_world, expert_world, hazard_world])
def test_the_same_laws_as_tables(build):
    found = build()
    lifted = found.as_tabular()
    torch.testing.assert_close(lifted.law.log_prob, found.law.log_prob, rtol=0, atol=1e-12)
    torch.testing.assert_close(lifted.batch.logp_target, found.batch.logp_target, rtol=0, atol=1e-12)
    assert torch.equal(lifted.batch.segment, found.batch.segment)


def test_token_scores_add_up_to_the_score_of_a_response(generator):
    found = dense_world()
    tokens, mask = found.batch.tokens, found.batch.mask
    c = torch.where(mask, torch.randn(tokens.shape, generator=generator, dtype=torch.float64), 0.0)
    added = (c[..., None] * scores(found)[node_index(tokens, 3), tokens]).sum(1)
    torch.testing.assert_close(added, found.target.score_terms(tokens, c), rtol=1e-10, atol=1e-12)


def test_nested_laws_have_mass_one_at_every_depth():
    found = step_reward_world()
    tree = NestedTree(3, has_steps=True)
    values = tree.laws(found)
    for t in tree.positions:
        for law in (values[tree.p[t].label], values[tree.m[t].label]):
            assert abs(law.sum(-1) - 1).max() < 1e-12
    assert abs(values[tree.g[3].label][2]).max() == 0  # nothing is earned after the end token


def test_a_chain_evaluated_at_a_network_notices_a_wrong_law():
    found = dense_world()
    derivation = nested_derivation("S2", 3)
    estimate = s02_full_product.measure(found)["estimator"]
    other = replace(found, target=TransformerPolicy(checkpoints(DENSE)[0]))
    right, wrong = (dict(Evaluator(derivation)(w))["estimator"][0] for w in (found, other))
    assert abs(torch.from_numpy(right) - estimate).max() < 1e-12
    assert abs(torch.from_numpy(wrong) - estimate).max() > 1e-2


def test_errors_of_single_responses_are_the_measured_moments():
    for case in transformer_pools():
        assert case.error(1, 0) == pytest.approx(case.v_fresh, rel=1e-10)
        assert case.error(0, 1) == pytest.approx(case.v_replay + case.bias**2, rel=1e-10)
        assert case.copied_error(0, 3) == pytest.approx(case.error(0, 1), rel=1e-10)
