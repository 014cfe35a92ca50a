"""Controls are biased by exactly what S6 says, their innocent twin is not, and a control that did nothing would be noticed."""

from types import SimpleNamespace

import pytest
import torch

from testbed import ArithmeticTask, SegmentedBatch, cuts, exact_gradient, gradient_terms, moments, weigh
from testbed.core.choices import RandomChooser
from testbed.core.errors import InputError
from testbed.exact.law import ExactLaw
from testbed.exact.output_law import output_law
from testbed.policies.transformer import Transformer
from testbed.rollout.engine import rollout
from testbed.training import controls
from testbed.training.checkpoints import load_checkpoint, save_checkpoint
from testbed.training.controls import ControlSource, redrafted
from testbed.training.grpo_config import CONTROLS, GRPOConfig
from testbed.training.possible import require_possible
from testbed.training.sources import ClockSource
from tests.training.grpo_worlds import SHAPE, made
from theory.theorems.s06_posthoc_boundary import selection_bias
from theory.worlds import world

FIELDS = ("tokens", "mask", "segment", "version", "logp_behavior", "reward", "group")
REWARDS = [1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 0.0]


def small_world(**changes):
    """Two behaviors and a target, three tokens, the first of them kept."""
    return world("control", 2, 3, cuts((1,)), rewards=REWARDS, **changes)


def plain(batch):
    """One response of a batch as something that can be looked up."""
    return tuple(tuple(getattr(batch, name).reshape(-1).tolist()) for name in FIELDS)


def law_of(w, control):
    """Exact law of what a control hands to the trainer, found by taking every choice it can make."""

    def engine(chooser):
        return plain(redrafted(w.env, *w.behaviors, control, 1, chooser, torch.zeros(1, dtype=torch.int64)))

    found = output_law(engine)
    kinds = {"logp_behavior": torch.float64, "reward": torch.float64}
    columns = {name: torch.tensor([row[i] for row in found], dtype=kinds.get(name)) for i, name in enumerate(FIELDS)}
    columns = {name: c[:, 0] if name in ("reward", "group") else c for name, c in columns.items()}
    score = torch.where(columns["mask"], w.target.score(columns["tokens"]), 0.0)
    batch = SegmentedBatch(**columns, logp_target=score)
    log_prob = torch.tensor(list(found.values()), dtype=torch.float64).log()
    return ExactLaw(batch=batch, log_prob=log_prob, branch=torch.zeros(len(found), dtype=torch.int64))


def bias(w, control, rule="sequence_product"):
    """Exact mean of a rule's estimate under a control, less the gradient."""
    law = law_of(w, control)
    assert float(law.probs.sum()) == pytest.approx(1, abs=1e-12)
    mean = moments(law, gradient_terms(law.batch, weigh(rule, law.batch), w.target)).mean
    return mean - exact_gradient(w.env, w.target)


def test_the_full_product_is_off_by_the_selection_that_s6_names():
    w = small_world()
    found, named = bias(w, "post_hoc"), selection_bias(w)
    assert float((found - named).abs().max()) <= 1e-12
    assert float(found.norm()) > 0.05


def test_judging_by_another_draft_is_innocent():
    assert float(bias(small_world(), "blind").abs().max()) <= 1e-12
    ended = world("control that ends", 2, 3, cuts((1,)), rewards=REWARDS, eos=1)
    assert float(bias(ended, "blind").abs().max()) <= 1e-12 < 1e-2 < float(bias(ended, "post_hoc").norm())
    assert (
        float((bias(ended, "post_hoc") - selection_bias(ended)).abs().max()) <= 1e-12
    )  # what has ended is not continued


@pytest.mark.parametrize("fault", ["nothing is written again", "everything is written again"])
def test_a_control_that_looks_at_nothing_would_be_noticed(fault, monkeypatch):
    judge = {"nothing is written again": torch.zeros_like, "everything is written again": torch.ones_like}[fault]
    monkeypatch.setattr(controls, "_failed", lambda *args: judge(args[-1].reward).bool())
    w = small_world()
    assert float(bias(w, "post_hoc").abs().max()) <= 1e-12 < 0.05 < float(selection_bias(w).norm())


def test_log_probs_of_other_tokens_and_of_other_writers_are_a_bias_of_their_own():
    w = small_world()
    honest = float(bias(w, "post_hoc").norm())
    for control in ("post_hoc_overwritten", "post_hoc_rescored"):
        other = bias(w, control)
        assert float((other - bias(w, "post_hoc")).norm()) > 0.02, control
        assert float(other.norm()) > 0.05 and honest > 0.05


def test_of_equal_policies_every_recorded_ratio_is_1_and_the_selection_stays():
    mu = small_world().target
    w = small_world(target=mu, policies=(mu, mu))
    for control in ("post_hoc", "post_hoc_rescored"):
        law = law_of(w, control)
        assert float((law.batch.logp_target - law.batch.logp_behavior).abs().max()) <= 1e-12
        assert float((bias(w, control) - selection_bias(w)).abs().max()) <= 1e-12


def test_what_is_recorded_is_who_wrote_which_token():
    w, n = small_world(), torch.zeros(200, dtype=torch.int64)
    found = {c: redrafted(w.env, *w.behaviors, c, 1, RandomChooser(1), n, versions=(4, 7)) for c in CONTROLS[:3]}
    drafts = rollout(w.env, w.behaviors[0], 200, RandomChooser(1), group=n)
    again = drafts.reward <= 0
    honest, overwritten, rescored = found.values()
    first, second = (mu.score(honest.tokens) for mu in w.behaviors)
    assert torch.equal(honest.segment.amax(1) == 1, again) and 20 < int(again.sum()) < 180
    assert honest.version[again].unique(dim=0).tolist() == [[4, 7, 7]] and honest.version[~again].unique().tolist() == [
        4
    ]
    assert torch.allclose(honest.logp_behavior, torch.where(honest.version == 4, first, second), rtol=0, atol=1e-12)
    assert torch.equal(overwritten.logp_behavior, drafts.logp_behavior) and torch.equal(
        overwritten.tokens, honest.tokens
    )
    assert torch.allclose(rescored.logp_behavior[again], second[again], rtol=0, atol=1e-12)
    assert rescored.version[again].unique().tolist() == [7] and rescored.segment.max() == 0


# ------------------------------------------------------------------------------------------------ in a run
def controlled(control="post_hoc", **settings):
    settings = {"system": "steps_off", "system_params": {"ahead": 2}, "control": control, "rate": 1e-2, **settings}
    return made(
        source=lambda run: ControlSource(run.config, run.env, run.sampler(), run.prompts, run.seed["source"]),
        **settings,
    )


def test_drafts_are_as_old_as_the_system_says():
    run, ages = controlled(updates=5), []
    while run.outcome == "running":
        batch = run.source.next_batch().batch
        ages.append(run.done - int(batch.version[batch.mask].min()))
        assert int(batch.version.max()) <= run.done
        run.advance()
    assert ages == [0, 1, 2, 2, 2]
    assert max(run.curve["segments"]) > 1 and run.curve["engine_seconds"] == [0.0] * 5


def test_a_controlled_run_picked_up_is_the_run_that_was_never_stopped(tmp_path):
    whole = controlled(updates=6)
    while whole.advance():
        pass
    first = controlled(updates=6)
    for _ in range(4):
        first.advance()
    save_checkpoint(tmp_path / "run.pt", first.state())
    second = controlled(updates=6)
    second.restore(load_checkpoint(tmp_path / "run.pt"))
    while second.advance():
        pass
    assert torch.equal(second.model.vector(), whole.model.vector()) and second.curve == whole.curve


def untaught(**settings):
    """A run whose responses have up to three tokens and are hardly ever right."""
    return controlled(env=ArithmeticTask(9), weights=Transformer.random(SHAPE, 0, dtype=torch.float32), **settings)


@pytest.mark.parametrize(("keep", "expected"), [(1, 1), (2, 2), (None, 1)])
def test_a_boundary_lies_where_keep_says(keep, expected):
    run = untaught(updates=2, prompts=16, keep=keep)
    run.advance()
    batch = run.source.next_batch().batch
    two = batch.segment.amax(1) == 1
    kept = ((batch.segment == 0) & batch.mask)[two].sum(1)
    assert len(kept) > 5 and kept.unique().tolist() == [expected]


def test_a_boundary_that_leaves_nothing_to_write_again_is_refused():
    with pytest.raises(InputError, match="`keep` must be < 3"):
        untaught(keep=3)
    nine = {"task": "addition", "task_params": {"max_operand": 9}}
    with pytest.raises(InputError, match="`keep` must be < 3"):
        require_possible([GRPOConfig(**nine, control="blind", system="steps_off", keep=3)])
    with pytest.raises(InputError, match="`keep` must be a whole number >= 1"):
        GRPOConfig(control="blind", system="steps_off", keep=0)
    with pytest.raises(InputError, match="goes with a `control`"):
        GRPOConfig(keep=2)


def test_a_control_without_a_system_of_known_age_is_refused():
    with pytest.raises(InputError, match="steps_off"):
        GRPOConfig(control="post_hoc")
    with pytest.raises(InputError, match="post_hoc"):
        GRPOConfig(control="posthoc", system="steps_off")


@pytest.mark.parametrize("control", CONTROLS)
def test_of_a_controls_system_only_the_age_of_drafts_can_be_set(control):
    for unread in ({"update_seconds": 3.0}, {"replay": "uniform", "replay_share": 0.5}, {"deliver": "response"}):
        with pytest.raises(InputError, match=f"nothing but `ahead`; found {min(unread)} = "):
            GRPOConfig(control=control, system="steps_off", system_params={"ahead": 4, **unread})
    require_possible([GRPOConfig(control=control, system="steps_off", system_params={"ahead": 4})])


def test_a_clock_says_what_a_batch_cost():
    system = {"step_seconds": 0.5, "response_seconds": 0.25, "update_seconds": 3.0, "push_seconds": 1.0}
    run = made(source=lambda run: SimpleNamespace(), updates=2)
    config = GRPOConfig.of({**run.config.plain(), "system_params": system})
    source = ClockSource(config, run.env, run.sampler(), run.prompts, run.seed["source"])
    found = source.next_batch()
    left = (torch.arange(1, 4)[None] <= found.batch.lengths[:, None]).sum(0)  # responses running at each step
    expected = float(sum(0.5 + 0.25 * int(count) for count in left if count))
    assert found.engine_seconds == pytest.approx(expected, abs=1e-9) and found.trainer_seconds == 4.0
