"""BR-01: the ratio of a response explodes although its tokens agree.

https://github.com/huggingface/trl/issues/4772: a product over tokens of a tiny systematic gap passes any cap, and the
report names neither the length nor the gap. Here 100 tokens are each 1.2 % likelier under the target.
"""

import math
import re

import pytest
import torch

from testbed import InputError, weigh
from testbed.weighting.rule import GRANULARITIES
from tests.museum.specimens import fired, weights
from tests.weighting.worlds import PAIRS, batch_with_ratios

GAP, LENGTH, CAP = 0.012, 100, 3.0


def long_response():
    return batch_with_ratios(torch.full((1, LENGTH), GAP, dtype=torch.float64))


def test_wrong_recipe_calls_a_product_the_ratio():
    sequence_ratio = math.exp(sum([GAP] * LENGTH))
    assert sequence_ratio == pytest.approx(3.3201, abs=5e-5)
    assert sequence_ratio > CAP  # the response is masked, and nothing says why


def test_ours_gives_each_object_its_name():
    batch = long_response()
    product = weights("seq_mis", batch, cap=CAP)
    assert float(product.raw[0, 0]) == pytest.approx(math.exp(1.2), rel=1e-10)
    assert not product.gate.any() and product.granularity == "sequence_product"
    mean = weights("geo_mask", batch)
    assert float(mean.raw[0, 0]) == pytest.approx(1.01207, abs=5e-6) and mean.granularity == "sequence_geomean"
    assert float(weights("exact", batch).raw[0, 0]) == pytest.approx(math.exp(GAP), rel=1e-10)


def test_ours_says_that_the_length_drives_it():
    said = " ".join(fired(long_response()).values())
    assert re.search(r"driven by length, per-token gap 1\.2 ?%", said)
    one_token = batch_with_ratios(torch.tensor([[1.2] + [0.0] * (LENGTH - 1)], dtype=torch.float64))
    assert "driven by length" not in " ".join(fired(one_token).values())


@pytest.mark.parametrize(("rule", "granularity"), PAIRS)
def test_no_rule_accepts_a_bare_sequence(rule, granularity):
    batch = batch_with_ratios([[0.3, -0.2, 0.5]], segment=[[0, 0, 1]])
    assert weights(rule, batch, granularity).granularity in GRANULARITIES
    with pytest.raises(InputError, match="granularity"):
        weights(rule, batch, "sequence")


def test_six_names_are_six_numbers():
    batch = batch_with_ratios([[0.3, -0.2, 0.5, 0.1]], segment=[[0, 0, 1, 2]])
    second = {g: round(float(weigh("tis", batch, granularity=g, cap=math.inf).value[0, 1]), 9) for g in GRANULARITIES}
    assert second.pop("segment") == second.pop("prefix") == second.pop("segment_prefix")  # token 1 ends segment 0
    third = {g: round(float(weigh("tis", batch, granularity=g, cap=math.inf).value[0, 2]), 9) for g in GRANULARITIES}
    assert third.pop("segment") == third.pop("token")  # a segment of one token
    assert third.pop("prefix") == third.pop("segment_prefix")
    assert len(set(second.values())) == 3 and len(set(third.values())) == 2
    first = {g: round(float(weigh("tis", batch, granularity=g, cap=math.inf).value[0, 0]), 9) for g in GRANULARITIES}
    assert len(set(first.values())) == 4  # token = prefix and segment = segment_prefix at the first token
