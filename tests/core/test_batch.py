"""SegmentedBatch: what it refuses, what it repairs, what it reports."""

import math

import pytest
import torch

from testbed import InputError, MissingField, NextTokenLaws, SegmentedBatch


def fields(**changes):
    mask = torch.tensor([[True, True, True], [True, True, False], [False, False, False]])
    base = {
        "tokens": torch.tensor([[0, 1, 2], [2, 1, 0], [0, 0, 0]]),
        "mask": mask,
        "segment": torch.tensor([[0, 0, 1], [0, 2, -5], [3, 1, 2]]),
        "logp_target": torch.full((3, 3), -1.0, dtype=torch.float64),
        "logp_behavior": torch.full((3, 3), -1.5, dtype=torch.float64),
        "reward": torch.tensor([1.0, 0.0, 7.0]),
        "group": torch.tensor([0, 0, 1]),
    }
    return base | changes


def at(name, index, value):
    changed = fields()[name].clone()
    changed[index] = value
    return fields(**{name: changed})


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf, 1e30])
def test_padding_is_cleaned(poison):
    dirty = fields(
        logp_proximal=torch.full((3, 3), -1.0),
        token_reward=torch.ones(3, 3),
        action_value=torch.ones(3, 3),
        version=torch.ones(3, 3, dtype=torch.int64),
    )
    for name in ("logp_target", "logp_behavior", "logp_proximal", "token_reward", "action_value"):
        dirty[name] = torch.where(dirty["mask"], dirty[name], poison)
    batch = SegmentedBatch(**dirty)
    for name in ("tokens", "logp_target", "logp_behavior", "logp_proximal", "token_reward", "action_value"):
        assert (getattr(batch, name)[~batch.mask] == 0).all()
    for name in ("segment", "version"):
        assert (getattr(batch, name)[~batch.mask] == -1).all()


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (at("logp_target", (1, 1), math.nan), r"`logp_target` must not be NaN.*1 NaN, first at \(1, 1\)"),
        (at("logp_behavior", (0, 2), math.nan), r"`logp_behavior` must not be NaN.*first at \(0, 2\)"),
        (at("logp_target", (0, 1), 0.4), r"`logp_target`.*1 above 1e-6, first 0.4 at \(0, 1\).*probability or a logit"),
        (at("logp_behavior", (0, 1), math.inf), r"`logp_behavior`.*above 1e-6"),
        (at("logp_behavior", (1, 0), -math.inf), r"cannot have drawn.*first at \(1, 0\)"),
        (at("reward", 1, math.nan), r"`reward` must be finite.*first at \(1,\)"),
        (at("segment", (0, 1), -1), r"`segment` must be >= 0.*-1 at \(0, 1\)"),
        (at("segment", (0, 0), 4), r"`segment` must not decrease.*0 after 4 at \(0, 1\)"),
        (fields(token_reward=torch.full((3, 3), math.nan)), r"`token_reward` must not be NaN"),
    ],
)
def test_refusals_name_field_count_and_index(bad, message):
    with pytest.raises(InputError, match=message):
        SegmentedBatch(**bad)


@pytest.mark.parametrize(
    ("name", "shape"),
    [("reward", (2,)), ("reward", (3, 1)), ("logp_target", (3, 2)), ("tokens", (2, 3)), ("group", (4,))],
)
@pytest.mark.usefixtures("untyped")
def test_wrong_shapes_are_named(name, shape):
    bad = fields(**{name: torch.zeros(shape, dtype=fields()[name].dtype)})
    with pytest.raises(
        InputError, match=rf"`{name}` must have shape .*found {tuple(shape)}".replace("(", r"\(").replace(")", r"\)")
    ):
        SegmentedBatch(**bad)


def test_tiny_positive_log_probs_are_clipped_and_counted():
    batch = SegmentedBatch(**at("logp_target", (0, 0), 9e-7))
    assert batch.logp_target[0, 0] == 0.0
    assert batch.facts.clipped == {"logp_target": 1}
    assert SegmentedBatch(**fields()).facts.clipped == {}


def test_target_impossible_is_counted_not_refused():
    assert SegmentedBatch(**at("logp_target", (0, 0), -math.inf)).facts.support_mismatches == 1


def test_sixteen_bit_values_are_reported_even_when_widened(generator):
    exact = -torch.rand(3, 3, generator=generator, dtype=torch.float64) * 8
    assert SegmentedBatch(**fields(logp_behavior=exact)).facts.low_precision == {}
    narrow = SegmentedBatch(**fields(logp_behavior=torch.full((3, 3), -5.4321, dtype=torch.bfloat16)))
    assert narrow.facts.low_precision == {"logp_behavior": 0.03125}
    assert narrow.logp_behavior.dtype == torch.float32
    assert float(narrow.logp_behavior[0, 0]) == -5.4375
    many = -torch.rand(4, 40, generator=generator) * 8
    common = {
        "tokens": torch.zeros(4, 40, dtype=torch.int64),
        "mask": torch.ones(4, 40, dtype=torch.bool),
        "segment": torch.zeros(4, 40, dtype=torch.int64),
        "reward": torch.zeros(4),
        "group": torch.zeros(4, dtype=torch.int64),
    }
    widened = SegmentedBatch(logp_target=many, logp_behavior=many.bfloat16().double(), **common)
    assert list(widened.facts.low_precision) == ["logp_behavior"]
    with pytest.raises(InputError, match=r"strict batches.*`logp_behavior` \(grid"):
        SegmentedBatch(logp_target=many, logp_behavior=many.bfloat16().double(), strict=True, **common)


def test_rows_labels_and_lengths():
    batch = SegmentedBatch(**fields())
    assert batch.lengths.tolist() == [3, 2, 0]
    assert (batch.batch_size, batch.horizon, batch.n_tokens, batch.n_segments) == (3, 3, 5, 3)
    assert batch.reward.tolist() == [1.0, 0.0, 0.0]  # a response without tokens has no reward
    picked = batch.select([1, 1, 0])
    assert picked.tokens.tolist() == [[2, 1, 0], [2, 1, 0], [0, 1, 2]]
    both = SegmentedBatch.concatenated([batch, picked])
    assert both.batch_size == 6
    assert torch.equal(both.logp_target[3:], picked.logp_target)


def test_all_masked_batch_is_allowed():
    batch = SegmentedBatch(**fields(mask=torch.zeros(3, 3, dtype=torch.bool)))
    assert (batch.n_tokens, batch.n_segments) == (0, 0)


def test_missing_optional_field_names_the_rule():
    with pytest.raises(MissingField, match=r"rule `decoupled_ppo` needs `logp_proximal`"):
        SegmentedBatch(**fields()).require("logp_proximal", "decoupled_ppo")


def test_next_token_laws_follow_their_rows():
    laws = NextTokenLaws(
        ids=torch.arange(18).reshape(3, 3, 2),
        logp_target=torch.full((3, 3, 2), 0.25).log(),
        logp_behavior=torch.full((3, 3, 2), 0.5).log(),
        remaining_target=torch.full((3, 3), 0.5),
        remaining_behavior=torch.zeros(3, 3),
    )
    real = fields(mask=torch.ones(3, 3, dtype=torch.bool), segment=torch.zeros(3, 3, dtype=torch.int64))
    batch = SegmentedBatch(**real, next_token=laws).select([2, 0])
    assert batch.next_token.ids[0].tolist() == [[12, 13], [14, 15], [16, 17]]


def test_replacing_rewards_keeps_the_facts():
    batch = SegmentedBatch(**at("logp_target", (0, 0), 5e-7))
    assert batch.replaced(reward=torch.zeros(3)).facts.clipped == {"logp_target": 1}
    assert batch.replaced(logp_target=batch.logp_behavior).facts.clipped == {}


def test_repairs_are_remembered_by_what_is_made_from_a_batch():
    clipped = SegmentedBatch(**at("logp_target", (0, 0), 5e-7))
    assert clipped.select([0]).facts.clipped == {"logp_target": 1}
    assert clipped.replaced(logp_behavior=clipped.logp_behavior - 1).facts.clipped == {"logp_target": 1}
    assert SegmentedBatch.concatenated([clipped, clipped]).facts.clipped == {"logp_target": 2}
    coarse = SegmentedBatch(**fields(logp_behavior=torch.full((3, 3), -5.4321, dtype=torch.bfloat16)))
    assert coarse.select([1]).facts.low_precision == {"logp_behavior": 0.03125}
    assert coarse.replaced(logp_behavior=coarse.logp_target).facts.low_precision == {}


@pytest.mark.usefixtures("untyped")
def test_ids_and_labels_are_whole_numbers():
    for dtype in (torch.int32, torch.uint8, torch.int16):
        narrow = SegmentedBatch(**fields(segment=torch.tensor([[0, 0, 1], [0, 2, 0], [3, 1, 2]]).to(dtype)))
        assert narrow.segment.dtype == torch.int64
        assert narrow.n_segments == 3
    for name in ("segment", "tokens", "group"):
        with pytest.raises(InputError, match=rf"`{name}` must be whole numbers; found torch.float32"):
            SegmentedBatch(**fields(**{name: fields()[name].float()}))


def test_rows_out_of_range_and_nothing_to_concatenate():
    batch = SegmentedBatch(**fields())
    assert batch.select([]).batch_size == 0
    with pytest.raises(InputError, match=r"`rows` must lie in 0\.\.2; found 1\.\.99"):
        batch.select([1, 99])
    with pytest.raises(InputError, match="must be a batch to concatenate"):
        SegmentedBatch.concatenated([])
