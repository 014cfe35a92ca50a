"""The bundled rollouts: they are laws, they agree with each other, and the README's numbers are theirs."""

import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch

import testbed.sample_data as sample_data
from testbed.sample_data import BEHAVIORS, next_token_laws, partial_rollouts_path
from testbed.stats import second_moment

README = Path(sample_data.__file__).with_name("README.md").read_text()


@pytest.fixture(scope="module")
def laws():
    return next_token_laws()


@pytest.fixture(scope="module")
def rollouts():
    return pq.read_table(partial_rollouts_path()).to_pydict()


def test_every_law_sums_to_one(laws):
    assert set(laws.logp_behavior) == set(BEHAVIORS)
    for log_probs in (laws.logp_target, *laws.logp_behavior.values()):
        assert log_probs.shape == laws.words.shape == (12, 4096) and log_probs.dtype == torch.float64
        torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(12).double(), rtol=0, atol=1e-13)


def test_outcomes_are_the_likeliest_words_and_the_rest(laws):
    assert (laws.words[:, -1] == -1).all() and (laws.words[:, :-1] >= 0).all()
    assert (laws.logp_target[:, :-1].diff() <= 0).all()
    assert all(len(set(row)) == 4096 for row in laws.words.tolist())


def test_laws_and_rollouts_tell_the_same_of_the_drawn_words(laws, rollouts):
    places = list(zip(rollouts["sequence"], rollouts["position"], strict=True))
    float32, bfloat16 = [], []
    for i, place in enumerate(zip(laws.sequence.tolist(), laws.position.tolist(), strict=True)):
        row = places.index(place)
        word = laws.words[i] == rollouts["token"][row]
        assert word.sum() == 1
        recorded = {name: float(log_probs[i][word]) for name, log_probs in laws.logp_behavior.items()}
        float32.append(abs(float(laws.logp_target[i][word]) - rollouts["logp_target"][row]))
        float32.append(abs(recorded["v0_f32"] - rollouts["logp_v0_f32"][row]))
        bfloat16.append(abs(recorded["v0_bf16"] - rollouts["logp_v0_bf16"][row]))
    assert max(float32) < 1e-4 < max(bfloat16) < 0.1


def test_segments_are_drawn_by_the_two_behaviors(rollouts):
    rows = list(zip(rollouts["position"], rollouts["segment"], rollouts["behavior"], strict=True))
    assert all(segment == (position >= 24) for position, segment, _ in rows)
    assert all(behavior == ("v0_bf16", "v1_int8w")[segment] for _, segment, behavior in rows)
    assert len(rows) == 4224 and len(set(rollouts["sequence"])) == 128 and len(set(rollouts["prompt"])) == 32
    assert sum(dict(zip(rollouts["sequence"], rollouts["reward"], strict=True)).values()) == 36


@pytest.mark.parametrize("name", BEHAVIORS)
def test_second_moments_are_those_of_the_readme(laws, name):
    log_mu = laws.logp_behavior[name]
    d2 = [
        float(second_moment((pi - mu).exp(), probs=mu.exp())) for pi, mu in zip(laws.logp_target, log_mu, strict=True)
    ]
    smallest, largest = re.search(rf"\| `{name}` \| ([\d.]+) \| ([\d.]+) \|", README).groups()
    for printed, value in ((smallest, min(d2)), (largest, max(d2))):
        assert float(printed) == round(value, len(printed.partition(".")[2]))
