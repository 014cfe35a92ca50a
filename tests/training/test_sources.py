"""Runs on every system: staleness as promised, bit-identical continuation, and the speculative engine as a source."""

import pytest
import torch

from testbed.core.errors import InputError
from testbed.rollout.systems import SYSTEMS
from testbed.training.checkpoints import load_checkpoint, save_checkpoint
from testbed.training.sources import ClockSource, OnPolicySource
from tests.training.grpo_worlds import TASK, made, ran


def clocked(run):
    return ClockSource(run.config, run.env, run.sampler(), run.prompts, run.seed["source"])


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_run_picked_up_is_the_run_that_was_never_stopped_on_every_system(system, tmp_path):
    settings = {"updates": 6, "rate": 1e-2, "system": system, "rule": "tis", "noise": "gaussian", "noise_scale": 0.3}
    whole = ran(source=clocked, **settings)
    first = made(source=clocked, **settings)
    for _ in range(3):
        first.advance()
    save_checkpoint(tmp_path / "run.pt", first.state())
    second = made(source=clocked, **settings)
    second.restore(load_checkpoint(tmp_path / "run.pt"))
    while second.advance():
        pass
    assert torch.equal(second.model.vector(), whole.model.vector())
    assert second.curve == whole.curve and second.evaluations == whole.evaluations and second.kept == whole.kept


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_staleness_is_what_the_system_says(ahead):
    run = ran(source=clocked, system="steps_off", system_params={"ahead": ahead}, updates=6, rate=1e-2)
    assert run.curve["staleness"] == [min(ahead, update) for update in range(6)]
    drift = run.curve["max_log_k"]
    assert (max(drift) > 1e-2) == (ahead > 0)


def test_replayed_responses_are_old_and_their_advantage_is_not_made_anew():
    run = ran(source=clocked, system="replay", system_params={"replay_share": 0.5}, updates=6, rate=1e-2)
    assert max(run.curve["staleness"]) > 0.4
    assert len(run.kept) < 6 * run.config.batch  # as many fresh responses as there are advantages


def test_drafts_change_how_fast_a_batch_comes_and_not_its_law():
    """Membership accepts what the target itself drew: reward and recorded log-probs are the plain engine's, in law."""
    settings = {"updates": 3, "rate": 1e-3, "sampler": {"dtype": "float64"}, "trainer": {"dtype": "float64"}}
    fast = ran(engine="speculative", nodes=3, **settings)
    assert max(fast.curve["max_log_k"]) < 1e-10  # the trainer finds the very numbers that the tree pass recorded
    with pytest.raises(InputError, match="no noisy law; found 'gaussian'"):
        made(engine="speculative", nodes=3, noise="gaussian")


def test_what_an_engine_does_not_read_is_refused():
    with pytest.raises(InputError, match=r"needs `system_params` = \{\}: no clock runs; found \{'ahead': 0\}"):
        made(engine="speculative", system_params={"ahead": 0})
    with pytest.raises(InputError, match="`nodes` goes with `engine` = 'speculative'; found 5 with 'plain'"):
        made(nodes=5)
    assert made(engine="speculative", nodes=0).config.nodes == 0


def test_scale_and_duration_of_noise_are_ignored_without_noise():
    """An arm without noise may keep what another factor says about it, as `no_mismatch` of the bundled studies does."""
    runs = [ran(updates=3, **more) for more in ({}, {"noise_scale": 8.0, "noise_lasts": "run"})]
    assert torch.equal(runs[0].model.vector(), runs[1].model.vector()) and runs[0].curve == runs[1].curve


def test_noise_that_lasts_is_the_same_under_every_version_and_noise_that_does_not_is_another():
    """One prompt, one prefix, unchanged weights: what the samplers of versions 0, 1 and 7 say of the next token."""
    said = {}
    for lasts in ("version", "run"):
        run = made(noise="gaussian", noise_lasts=lasts)
        samplers = [run.engines.sampler(run.model, version).at(torch.tensor([2])) for version in (0, 1, 7)]
        said[lasts] = [sampler.next_log_probs(torch.tensor([[1, 3]])) for sampler in samplers]
    first, *later = said["run"]
    assert all(torch.equal(first, other) for other in later)
    assert torch.equal(first, said["version"][0])  # a run's noise is that of version 0
    assert all((first - other).abs().max() > 0.1 for other in said["version"][1:])
    other_run = made(noise="gaussian", noise_lasts="run", seed=6)
    elsewhere = other_run.engines.sampler(run.model, 0).at(torch.tensor([2]))
    assert (first - elsewhere.next_log_probs(torch.tensor([[1, 3]]))).abs().max() > 0.1


def test_on_policy_batches_follow_from_seed_and_version():
    one, two = (made(seed=5).source for _ in range(2))
    for source in (one, two):
        source.version = 4
    assert torch.equal(one.next_batch().batch.tokens, two.next_batch().batch.tokens)
    two.version = 5
    assert not torch.equal(one.next_batch().batch.group, two.next_batch().batch.group)
    assert isinstance(made().source, OnPolicySource) and TASK.n_prompts == 9
