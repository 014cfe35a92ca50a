"""L2: one pair of bounds, read on the ratio by one rule and on its inverse by another.

verl 0.9.1: with "0.5_5.0" a ratio of 4.48 is kept as a masked weight and rejected by the k1 filter, which compares
-log r with the logarithms of the bounds. Symmetric bounds hide it, so the values here are not symmetric.
"""

import math

import pytest
import torch

from testbed.weighting.mask import mask_band
from testbed.weighting.rules import RULES
from tests.museum.specimens import weights
from tests.weighting.worlds import PAIRS, batch_of

LOW, HIGH = 0.5, 5.0
TWO_SIDED = [
    (rule, granularity)
    for rule, granularity in PAIRS
    if RULES[rule].home in ("mask", "truncate", "rejection") and "low" in RULES[rule].parameters
]


def one_token(ratio):
    base = -3.0
    return batch_of([[base + math.log(ratio)]], [[base]])


def bounds(rule):
    return {"low": LOW, "high" if "high" in RULES[rule].parameters else "cap": HIGH}


def test_wrong_recipe_compares_the_inverse():
    k1 = -math.log(4.48)
    assert not math.log(LOW) <= k1 <= math.log(HIGH)  # rejected
    assert LOW <= 4.48 <= HIGH  # kept, under the same words


def test_ours_reads_them_on_the_ratio():
    ratios = torch.tensor([[4.48, 1 / 4.48, 2.0, 0.51, 5.01, 0.49]], dtype=torch.float64)
    assert mask_band(ratios.log(), LOW, HIGH).tolist() == [[True, False, True, True, False, False]]


@pytest.mark.parametrize(
    ("ratio", "inside"), [(4.48, True), (1 / 4.48, False), (0.51, True), (4.99, True), (0.21, False)]
)
@pytest.mark.parametrize(("rule", "granularity"), TWO_SIDED)
def test_every_two_sided_rule_means_the_same_bounds(rule, granularity, ratio, inside):
    w = weights(rule, one_token(ratio), granularity, **bounds(rule))
    assert bool(w.acted[0, 0]) != inside
    assert inside or float(w.value[0, 0]) in (0.0, LOW, HIGH)


def test_the_weight_and_the_filter_of_one_name_agree():
    for ratio in (4.48, 1 / 4.48, 2.0, 0.51, 5.01, 0.49):
        batch = one_token(ratio)
        gates = {
            rule: bool(weights(rule, batch, **bounds(rule)).gate) for rule in ("icepop", "k1_token", "k1_sequence")
        }
        assert set(gates.values()) == {LOW <= ratio <= HIGH}, ratio


def test_wrong_recipe_vetoes_the_other_side():
    """A veto written on -log r spares the token it is meant for and drops responses the target finds likelier."""
    threshold, k1 = math.log(1e-4), [-math.log(1e-5), -math.log(1e5)]
    assert [value < threshold for value in k1] == [False, True]


def test_ours_vetoes_what_the_target_finds_unlikely():
    for ratio, kept in ((1e-5, False), (1e5, True), (1.001e-4, True), (0.999e-4, False)):
        pair = batch_of([[math.log(ratio) - 20.0, -1.0]], [[-20.0, -1.0]])
        assert weights("veto", pair).gate.tolist() == [[kept, kept]], ratio


@pytest.mark.parametrize(("rule", "parameter"), [("tis", "cap"), ("seq_tis", "cap"), ("mis", "cap"), ("spire", "cap")])
def test_every_cap_is_on_the_ratio(rule, parameter):
    assert not weights(rule, one_token(1 / 4.48), **{parameter: 3.0}).acted.any()
    assert weights(rule, one_token(4.48), **{parameter: 3.0}).acted.all()
