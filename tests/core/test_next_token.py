"""Next-token laws at the door: what is refused, what is repaired, and what follows the rows."""

import math
from dataclasses import fields

import pytest
import torch

from testbed.core.batch import NextTokenLaws, SegmentedBatch
from testbed.core.errors import InputError

MASK = torch.tensor([[True, True, False], [True, False, False]])
HEAD_P, HEAD_Q, IDS = (0.5, 0.25), (0.125, 0.625), (4, 2)


def laws(slots=2, **changes):
    """Return laws of two recorded tokens, a quarter of the mass outside, at every position of a [2, 3] batch."""
    parts = {
        "ids": torch.tensor(IDS).expand(2, 3, 2).clone(),
        "logp_target": torch.tensor(HEAD_P, dtype=torch.float64).log().expand(2, 3, 2).clone(),
        "logp_behavior": torch.tensor(HEAD_Q, dtype=torch.float64).log().expand(2, 3, 2).clone(),
        "remaining_target": torch.full((2, 3), 0.25, dtype=torch.float64),
        "remaining_behavior": torch.full((2, 3), 0.25, dtype=torch.float64),
    }
    return NextTokenLaws(**{**parts, **changes})


def batch_of(next_token, mask=MASK, **more):
    return SegmentedBatch(
        tokens=torch.full(mask.shape, 4),
        mask=mask,
        segment=torch.zeros(mask.shape, dtype=torch.int64),
        logp_target=torch.full(mask.shape, math.log(0.5), dtype=torch.float64),
        logp_behavior=torch.full(mask.shape, math.log(0.125), dtype=torch.float64),
        reward=torch.ones(len(mask)),
        group=torch.zeros(len(mask), dtype=torch.int64),
        next_token=next_token,
        **more,
    )


def put(name, value, where=(0, 1)):
    """Return laws with one entry replaced."""
    parts = laws()
    tensor = getattr(parts, name).clone()
    tensor[where] = value
    return laws(**{name: tensor})


def equal(a, b):
    return all(torch.equal(getattr(a, f.name), getattr(b, f.name)) for f in fields(NextTokenLaws))


def test_padding_holds_unused_slots_whatever_stood_there():
    clean = batch_of(laws()).next_token
    assert torch.equal(clean.ids, torch.where(MASK[..., None], torch.tensor(IDS), -1))
    assert (clean.logp_target[~MASK] == -math.inf).all() and (clean.logp_behavior[~MASK] == -math.inf).all()
    assert not clean.remaining_target[~MASK].any() and not clean.remaining_behavior[~MASK].any()
    for poison in (math.nan, math.inf, -math.inf, 1e30):
        for name in ("logp_target", "logp_behavior", "remaining_target", "remaining_behavior"):
            assert equal(batch_of(put(name, poison, (0, 2))).next_token, clean), (name, poison)
    assert equal(batch_of(put("ids", 7, (1, 1))).next_token, clean)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            put("logp_target", math.nan),
            r"`next_token.logp_target` must be log-prob.*2 that are not, first nan at \(0, 1, 0\)",
        ),
        (put("logp_behavior", 0.3), r"`next_token.logp_behavior` must be.*did you pass a probability"),
        (put("remaining_target", -0.1), r"`next_token.remaining_target` must lie in \[0, 1\]; found -0.1 at \(0, 1\)"),
        (put("remaining_behavior", math.nan), r"`next_token.remaining_behavior` must lie in \[0, 1\]"),
        (
            put("remaining_behavior", 0.5),
            r"`next_token.logp_behavior` and its remaining mass must sum to 1; found 1.25 at",
        ),
        (put("logp_target", -9.0), r"must sum to 1"),
        (put("ids", 4), r"`next_token.ids` must be distinct at each position; found one twice at \(0, 1\)"),
    ],
)
def test_what_is_refused(changes, message):
    with pytest.raises(InputError, match=message):
        batch_of(changes)


def test_shapes_and_kinds(untyped):
    with pytest.raises(InputError, match=r"`next_token.logp_target` must have shape \(2, 3, 2\); found \(2, 3, 3\)"):
        batch_of(laws(logp_target=torch.zeros(2, 3, 3)))
    with pytest.raises(InputError, match=r"`next_token.remaining_target` must have shape \(2, 3\)"):
        batch_of(laws(remaining_target=torch.zeros(2, 2)))
    with pytest.raises(InputError, match=r"`next_token.ids` must be whole numbers \[B, T, k\]; found torch.float32"):
        batch_of(laws(ids=torch.zeros(2, 3, 2)))
    with pytest.raises(InputError, match=r"`next_token.ids` must have shape \(2, 3, 2\)"):
        batch_of(laws(ids=torch.zeros(3, 3, 2, dtype=torch.int64)))


def test_unused_slots_are_empty_and_do_not_count_as_the_same_token():
    ids = laws().ids.clone()
    ids[0, 0] = torch.tensor([-1, -3])
    loose = laws(ids=ids, remaining_target=put("remaining_target", 1.0, (0, 0)).remaining_target,
                 remaining_behavior=put("remaining_behavior", 1.0, (0, 0)).remaining_behavior)  # fmt: skip
    found = batch_of(loose).next_token
    assert found.ids[0, 0].tolist() == [-1, -1]
    assert found.logp_target[0, 0].tolist() == [-math.inf, -math.inf]


def test_repairs_are_counted_and_remembered():
    tiny = put("logp_target", torch.tensor([5e-7, -math.inf]), (0, 1))
    rest = put("remaining_target", 0.0).remaining_target
    batch = batch_of(laws(logp_target=tiny.logp_target, remaining_target=rest))
    assert batch.facts.clipped == {"next_token.logp_target": 1}
    assert float(batch.next_token.logp_target.max()) == 0.0
    assert batch.select([0]).facts.clipped == batch.facts.clipped
    assert batch.replaced(reward=torch.zeros(2)).facts.clipped == batch.facts.clipped
    assert batch.replaced(next_token=laws()).facts.clipped == {}
    assert SegmentedBatch.concatenated([batch, batch]).facts.clipped == {"next_token.logp_target": 2}


def test_sixteen_bits_are_widened_and_reported():
    narrow = laws(logp_behavior=laws().logp_behavior.bfloat16())
    batch = batch_of(narrow)
    assert batch.next_token.logp_behavior.dtype == torch.float32
    assert set(batch.facts.low_precision) == {"next_token.logp_behavior"}
    with pytest.raises(InputError, match=r"strict batches.*`next_token.logp_behavior`"):
        batch_of(narrow, strict=True)


def test_laws_follow_their_rows_and_widths_are_reconciled():
    one = batch_of(laws())
    wide = batch_of(
        NextTokenLaws(
            ids=torch.arange(3).expand(2, 3, 3), logp_target=torch.full((2, 3, 3), 0.25).log(),
            logp_behavior=torch.full((2, 3, 3), 0.25).log(), remaining_target=torch.full((2, 3), 0.25),
            remaining_behavior=torch.full((2, 3), 0.25),
        )
    )  # fmt: skip
    both = SegmentedBatch.concatenated([one, wide])
    assert both.next_token.width == 3
    assert both.next_token.ids[0, 0].tolist() == [*IDS, -1] and both.next_token.ids[2, 0].tolist() == [0, 1, 2]
    back = both.select([2, 3, 0])
    assert torch.equal(back.next_token.ids, both.next_token.ids[[2, 3, 0]])
    assert SegmentedBatch.concatenated([one, batch_of(None)]).next_token is None
    assert batch_of(laws(), mask=torch.zeros(2, 3, dtype=torch.bool)).next_token.ids.max() == -1
