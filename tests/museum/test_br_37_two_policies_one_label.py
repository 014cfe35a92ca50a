"""BR-37: one trajectory, two policies, one label.

https://github.com/NVIDIA-NeMo/labs-molt/pull/124: a rollout that spans a weight refit has the log-probs of no single
policy. Token 1 is drawn from (.8, .2), token 2 from (.3, .7), the target is (.5, .5) and f = 1{a = 0, b = 1}: truth .25.
"""

import math

import pytest
import torch

from testbed import PrefixSchedule, PrefixTree, TabularPolicy, cuts, enumerate_law, value_terms
from testbed.stats.weight_statistics import second_moment
from testbed.weighting.segment_ends import segment_end_log_ratios
from tests.museum.specimens import close, fired, last_real, weights
from tests.weighting.worlds import PAIRS

FIRST, NEWEST, TARGET = ([0.8, 0.2], [0.3, 0.7], [0.5, 0.5])
OFF = {  # parameters under which an operator does nothing
    "tis": {"cap": math.inf}, "mis": {"cap": math.inf}, "icepop": {"low": 0.0, "high": math.inf},
    "band": {"low": 0.0, "high": math.inf}, "cispo": {"eps_low": 1.0, "eps_high": math.inf}, "seq_tis": {"cap": math.inf},
    "seq_mis": {"low": 0.0, "cap": math.inf}, "spire": {"cap": "none"}, "exact": {}, "prefix": {}, "segment": {},
    "segment_prefix": {}, "sequence_product": {},
}  # fmt: skip


def policy(row):
    return TabularPolicy.from_probs(torch.tensor([row] * 3, dtype=torch.float64))


def world():
    env = PrefixTree(2, 2, rewards=[0.0, 1.0, 0.0, 0.0])
    return enumerate_law(env, policy(TARGET), PrefixSchedule((policy(FIRST), policy(NEWEST)), cuts((1,))))


def at_the_end(rule, batch, granularity=None, **params):
    return last_real(weights(rule, batch, granularity, **params).value, batch)


def test_wrong_recipe_labels_everything_newest():
    drawn = 0.8 * 0.7
    assert drawn * (0.5 / 0.3) * (0.5 / 0.7) == pytest.approx(0.6667, abs=5e-5)
    law = world()
    relabeled = law.batch.replaced(logp_behavior=policy(NEWEST).score(law.batch.tokens), segment=0 * law.batch.segment)
    assert float(law.expect(value_terms(relabeled))) == pytest.approx(2 / 3, rel=1e-10)


def test_wrong_recipe_corrects_the_last_segment_only():
    drawn = 0.8 * 0.7
    assert drawn * (0.5 / 0.7) == pytest.approx(0.4)
    law = world()
    assert float(law.expect(at_the_end("segment", law.batch) * law.batch.reward)) == pytest.approx(0.4, rel=1e-10)


def test_ours_gives_all_five_numbers():
    law = world()
    truth = torch.where(law.batch.reward == 1, law.batch.logp_target.sum(1).exp(), 0.0).sum()
    assert float(truth) == pytest.approx(0.25, rel=1e-10)
    assert float(law.expect(value_terms(law.batch))) == pytest.approx(0.25, rel=1e-10)
    for granularity in ("segment_prefix", "sequence_product", "prefix"):
        w = at_the_end("tis", law.batch, granularity, cap=math.inf)
        assert float(law.expect(w * law.batch.reward)) == pytest.approx(0.25, rel=1e-10)
    newest = law.batch.replaced(logp_behavior=policy(NEWEST).score(law.batch.tokens))
    assert round(float(law.expect(at_the_end("sequence_product", newest) * law.batch.reward)), 4) == 0.6667
    assert round(float(law.expect(at_the_end("segment", law.batch) * law.batch.reward)), 4) == 0.4


def test_ours_has_the_second_moment_as_a_product_of_segments():
    law = world()
    full = second_moment(at_the_end("sequence_product", law.batch), probs=law.probs)
    assert round(float(full), 6) == 1.860119
    first = segment_end_log_ratios(law.batch)[:, 0].exp()
    one = float(second_moment(first, probs=law.probs))
    two = sum(p**2 / q for p, q in zip(TARGET, NEWEST, strict=True))
    assert one == pytest.approx(1.5625, rel=1e-10) and two == pytest.approx(1.190476, abs=5e-7)
    assert float(full) == pytest.approx(one * two, rel=1e-10)


def test_ours_sees_a_version_that_changes_inside_a_label():
    law = world()
    versions = law.batch.segment + 3
    honest = law.batch.replaced(version=versions)
    assert "label_mixture" not in fired(honest)
    assert "label_mixture" in fired(honest.replaced(segment=0 * law.batch.segment))


@pytest.mark.parametrize(("rule", "granularity"), [pair for pair in PAIRS if pair[0] in OFF])
def test_every_rule_with_its_operator_off(rule, granularity):
    """At the last token the products through it are exact; a token's, a segment's and a mean ratio are not."""
    law = world()
    estimate = law.probs * at_the_end(rule, law.batch, granularity, **OFF[rule])
    truth = law.batch.logp_target.sum(1).exp()
    if granularity in ("prefix", "segment_prefix", "sequence_product"):
        assert close(estimate, truth)
    else:
        assert float((estimate - truth).abs().max()) > 1e-2
