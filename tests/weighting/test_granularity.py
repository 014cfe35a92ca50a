"""Log ratios: hand-made numbers, labels, policies, and sums where floating point is tight."""

import math

import numpy as np
import pytest
import torch

from testbed.core.errors import InputError, MissingField
from testbed.weighting.granularity import GRANULARITIES, log_ratios
from testbed.weighting.rules import weigh
from tests.weighting.worlds import batch_of, batch_with_ratios, random_batch


def test_hand_computed_rows():
    batch = batch_with_ratios([[1.0, -2.0, 4.0, -0.5]], segment=[[0, 0, 1, 3]])
    wanted = {
        "token": [1.0, -2.0, 4.0, -0.5],
        "prefix": [1.0, -1.0, 3.0, 2.5],
        "segment": [-1.0, -1.0, 4.0, -0.5],
        "segment_prefix": [-1.0, -1.0, 3.0, 2.5],
        "sequence_product": [2.5] * 4,
        "sequence_geomean": [0.625] * 4,
    }
    assert set(wanted) == set(GRANULARITIES)
    for granularity, row in wanted.items():
        assert log_ratios(batch, granularity)[0].tolist() == row


def test_masked_holes_are_skipped():
    batch = batch_with_ratios([[9.0, 1.0, 9.0, 2.0]], mask=[[False, True, False, True]], segment=[[5, 0, 7, 0]])
    assert log_ratios(batch, "prefix")[0].tolist() == [0.0, 1.0, 0.0, 3.0]
    assert log_ratios(batch, "segment")[0].tolist() == [0.0, 3.0, 0.0, 3.0]
    assert log_ratios(batch, "sequence_geomean")[0].tolist() == [0.0, 1.5, 0.0, 1.5]


@pytest.mark.parametrize("granularity", ["segment", "segment_prefix"])
def test_labels_of_any_size_mean_the_same(granularity, rng):
    batch = random_batch(rng, rows=6, horizon=9)
    versions = torch.where(batch.mask, batch.segment * 10**12 + 7, -1)
    assert torch.equal(log_ratios(batch.replaced(segment=versions), granularity), log_ratios(batch, granularity))


def test_a_zero_probability_reaches_exactly_the_tokens_that_include_it():
    batch = batch_of([[-1.0, -math.inf, -2.0, -3.0]], [[-1.0, -1.0, -1.0, -1.0]], segment=[[0, 1, 1, 2]])
    zero = -math.inf
    wanted = {
        "token": [0.0, zero, -1.0, -2.0],
        "prefix": [0.0, zero, zero, zero],
        "segment": [0.0, zero, zero, -2.0],
        "segment_prefix": [0.0, zero, zero, zero],
        "sequence_product": [zero] * 4,
        "sequence_geomean": [zero] * 4,
    }
    for granularity, row in wanted.items():
        assert log_ratios(batch, granularity)[0].tolist() == row


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_finite_log_probs_never_overflow(granularity, dtype):
    largest = torch.finfo(dtype).max
    batch = batch_of([[0.0, 0.0, -largest, -largest]] * 2, [[-largest, -largest, 0.0, 0.0]] * 2, dtype=dtype)
    impossible = batch.logp_target.clone()
    impossible[1, 3] = -math.inf
    batch = batch.replaced(logp_target=impossible)
    ratios = log_ratios(batch, granularity)
    assert ratios.dtype == dtype
    assert ratios[1, 3] == -math.inf
    assert not ratios.isnan().any()
    assert not ratios.isposinf().any()
    assert not weigh("tis", batch, granularity=granularity).value.isnan().any()


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_log_ratio_of_ten_thousand_survives(sign):
    batch = batch_with_ratios([[sign * 1e4] * 3], dtype=torch.float32)
    assert log_ratios(batch)[0].tolist() == [sign * 1e4] * 3
    assert log_ratios(batch, "sequence_product")[0].tolist() == [sign * 3e4] * 3


@pytest.mark.parametrize("granularity", ["prefix", "segment", "segment_prefix", "sequence_product"])
def test_long_single_precision_sums_are_accumulated_in_double(granularity, rng):
    """20,000 terms that climb to 5e4 and come back: a float32 running sum would carry the rounding of the summit."""
    half = 10_000
    climb = np.repeat([5.0, -5.0], half)
    behavior = (-10 + rng.uniform(-1, 1, (1, 2 * half))).astype(np.float32)
    target = (behavior + climb + rng.uniform(-1, 1, (1, 2 * half))).astype(np.float32)
    batch = batch_of(target, behavior, dtype=torch.float32)
    exact = math.fsum(float(x) for x in (target - behavior)[0])
    got = float(log_ratios(batch, granularity)[0, -1])
    assert abs(got - exact) <= 0.5 * float(np.spacing(np.float32(abs(exact)))) + 1e-7


def test_the_three_policies():
    batch = batch_of([[-1.0]], [[-1.5]], proximal=[[-3.0]])
    mismatch = log_ratios(batch, numerator="proximal")
    drift = log_ratios(batch, denominator="proximal")
    assert (mismatch.item(), drift.item(), log_ratios(batch).item()) == (-1.5, 2.0, 0.5)
    with pytest.raises(InputError, match=r"between target, behavior and proximal; found 'old'"):
        log_ratios(batch, numerator="old")
    with pytest.raises(MissingField, match="logp_proximal"):
        log_ratios(batch.replaced(logp_proximal=None), numerator="proximal")


def test_a_denominator_of_zero():
    batch = batch_of([[-1.0, -math.inf]], [[-1.0, -1.0]], proximal=[[-1.0, -math.inf]])
    assert log_ratios(batch, denominator="proximal")[0].tolist() == [0.0, -math.inf]
    with pytest.raises(InputError, match=r"`logp_proximal` must be finite.*1 of -inf, first at \(0, 1\)"):
        log_ratios(batch.replaced(logp_target=torch.tensor([[-1.0, -2.0]])), denominator="proximal")


def test_an_unknown_granularity_names_the_nearest():
    with pytest.raises(InputError, match=r"`granularity` is unknown; found 'sequence'.*sequence_"):
        log_ratios(batch_with_ratios([[0.0]]), "sequence")


def test_no_tokens_at_all():
    empty = batch_of(torch.zeros(2, 0), torch.zeros(2, 0))
    for granularity in GRANULARITIES:
        assert log_ratios(empty, granularity).shape == (2, 0)
    for rule in ("tis", "minpro", "pnpo", "vtrace", "ppo_clip"):
        assert weigh(rule, empty).value.shape == (2, 0)


def test_tiny_gaps_over_many_tokens():
    """100 tokens of 1.2 % multiply to 3.32, which a mask at 3 drops; their geometric mean is 1.012."""
    batch = batch_with_ratios([[0.012] * 100])
    product, mean = (log_ratios(batch, g).exp()[0, 0].item() for g in ("sequence_product", "sequence_geomean"))
    assert product == pytest.approx(3.3201, abs=1e-4)
    assert mean == pytest.approx(1.01207, abs=1e-5)
    assert not weigh("seq_mis", batch, cap=3.0).gate.any()
    assert weigh("mis", batch, granularity="sequence_geomean", cap=3.0).gate.all()


def test_product_and_mean_are_two_objects():
    batch = batch_with_ratios([[0.002] * 1000])
    assert weigh("sequence_product", batch).value[0, 0].item() == pytest.approx(7.389056, abs=1e-6)
    assert weigh("exact", batch, granularity="sequence_geomean").value[0, 0].item() == pytest.approx(1.002002, abs=1e-6)
