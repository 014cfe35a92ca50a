"""Rules that draw, and rules that read next-token laws, against their formulas at 50 digits: every branch of the draw."""

import math

import pytest
import torch

from testbed.core.batch import NextTokenLaws, SegmentedBatch
from testbed.weighting.rules import weigh
from tests.weighting.choosers import Always
from tests.weighting.grid import WORLDS
from tests.weighting.transcription import disagreements
from tests.weighting.worlds import recorded

SETS = [
    ("sis", {}), ("sis", {"completion": True}), ("sis", {"top_k": 1}), ("sis", {"top_k": 2, "completion": True}),
    ("sis", {"bound": 1.9, "completion": True}), ("sis", {"bound": math.inf, "completion": True}),
    ("obrs", {}), ("obrs", {"lam": 2.3, "cap": 1.7}), ("obrs", {"lam": 0.4, "cap": math.inf}), ("obrs", {"share": 0.3}),
]  # fmt: skip


@pytest.fixture(scope="module")
def worlds():
    return {name: recorded(build(), 0.93, 0.2) for name, build in WORLDS.items()}


@pytest.mark.parametrize("index", [0, 1], ids=["rejects", "accepts"])
@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize(("rule", "given"), SETS)
def test_each_answer_of_the_draw(rule, given, world, index, worlds):
    assert disagreements(rule, worlds[world], chooser=Always(index), **given) == []


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize(("rule", "given"), SETS)
def test_the_mean_over_the_draw(rule, given, world, worlds):
    assert disagreements(rule, worlds[world], **given) == []


@pytest.mark.parametrize("rule", ["sis", "obrs"])
def test_a_bound_per_token_is_each_tokens_own(rule, worlds):
    batch = worlds["mild"]
    name = {"sis": "bound", "obrs": "share"}[rule]
    first, second = {"sis": (1.2, 4.0), "obrs": (0.9, 0.2)}[rule]
    odd = (torch.arange(batch.horizon) % 2 == 1).expand(batch.mask.shape)
    given = torch.where(odd, *(torch.tensor(value, dtype=torch.float64) for value in (first, second)))
    mixed = weigh(rule, batch, **{name: given})
    a, b = (weigh(rule, batch, **{name: value}).value for value in (first, second))
    assert torch.equal(mixed.value, torch.where(odd, a, b))
    assert not torch.equal(a, b)


def test_the_head_is_the_samplers_and_ties_belong_to_it():
    """Three tokens of sampler mass .5, .25, .25: a head of two holds all three, and one of one holds only the first."""
    q, p = (0.5, 0.25, 0.25), (0.2, 0.3, 0.5)
    law = {name: torch.tensor(x, dtype=torch.float64).log().expand(3, 1, 3) for name, x in (("p", p), ("q", q))}
    none = torch.zeros(3, 1)
    drawn = torch.arange(3)[:, None]
    batch = SegmentedBatch(
        tokens=drawn, mask=torch.ones(3, 1, dtype=torch.bool), segment=torch.zeros(3, 1, dtype=torch.int64),
        logp_target=law["p"].gather(-1, drawn[..., None])[..., 0], reward=torch.ones(3),
        logp_behavior=law["q"].gather(-1, drawn[..., None])[..., 0], group=torch.zeros(3, dtype=torch.int64),
        next_token=NextTokenLaws(
            ids=torch.arange(3).expand(3, 1, 3), logp_target=law["p"], logp_behavior=law["q"],
            remaining_target=none, remaining_behavior=none,
        ),
    )  # fmt: skip
    k = [0.4, 1.2, 2.0]
    two = [0.2 + 0.8 * 0.4, 0.6 + 0.4 * 1.2, 1.0]  # M = 2
    assert weigh("sis", batch, top_k=2).value[:, 0].tolist() == pytest.approx(two, rel=1e-12)
    one = [0.4 + 0.6 * 0.4, *k[1:]]  # M = 1, and no test outside the head
    assert weigh("sis", batch, top_k=1).value[:, 0].tolist() == pytest.approx(one, rel=1e-12)
