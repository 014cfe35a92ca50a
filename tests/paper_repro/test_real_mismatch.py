"""The measurement on a real model, with stand-ins for it: what is recorded, resumed, and written."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from paper_repro import measure as measurement
from paper_repro import real_mismatch
from paper_repro.mismatch_samples import TokenSample
from paper_repro.real_mismatch import Engines, Plan, measure
from paper_repro.real_prompts import QUESTIONS, questions
from paper_repro.real_records import noise_samples, token_samples, write_results
from testbed.core.seeds import SeedTree
from tests.policies.language_models import CountingModel

PLAN = Plan(seed=3, parts=3, responses=8, horizon=12)
SIZE = 30


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(real_mismatch, "STRIDE", 3)


def engines(shifts=(0.1, 0.0)):
    trainers = tuple(CountingModel(SIZE, shift) for shift in shifts)
    return Engines(
        sampler=CountingModel(SIZE, dtype=torch.bfloat16),
        trainers=trainers,
        encode=lambda text: torch.tensor([ord(letter) % SIZE for letter in text[:6]]),
    )


def test_log_probs_are_those_of_the_engines(tmp_path):
    part = measure(PLAN, tmp_path, engines, say=lambda line: None)[0]
    asked = questions(0, PLAN.responses, SeedTree(PLAN.seed)["real mismatch"][0])
    for row in range(PLAN.responses):
        mine = part["response"] == row
        known = torch.cat([engines().encode(asked[row]), torch.from_numpy(part["token"][mine])])
        assert part["position"][mine].tolist() == list(range(mine.sum()))
        assert len(part["token"][mine]) == PLAN.horizon or part["token"][mine][-1] == real_mismatch.END
        for i, (q, p) in enumerate(zip(part["logp_behavior"][mine], part["logp_target_float32"][mine], strict=True)):
            for model, value in ((engines().sampler, q), (engines().trainers[0], p)):
                law = torch.log_softmax(model.logits(known[: 6 + i]).double(), -1)
                assert float(law[known[6 + i]]) == value


def test_perturbations_are_trainer_minus_sampler_at_the_likeliest_tokens(tmp_path):
    part = measure(PLAN, tmp_path, engines, say=lambda line: None)[1]
    shifted = part["noise_token"] == 1
    rounding = 2.0**-8  # of logits below 2 in bfloat16
    assert np.abs(part["noise_delta_float32"][~shifted]).max() <= rounding
    assert np.abs(part["noise_delta_float32"][shifted] - 0.1).max() <= rounding
    places = part["noise_response"] * 7 + part["noise_position"]
    assert (places % 3 == 0).all()
    for place in np.unique(part["noise_response"] * 100 + part["noise_position"]):
        logq = part["noise_logq"][part["noise_response"] * 100 + part["noise_position"] == place]
        assert len(logq) == real_mismatch.TOP
        assert (np.diff(logq) <= 0).all()
        assert np.exp(logq).sum() < 1


def test_equal_engines_have_no_mismatch(tmp_path):
    def same():
        model = CountingModel(SIZE)
        return Engines(sampler=model, trainers=(model, model), encode=engines().encode)

    for part in measure(PLAN, tmp_path, same, say=lambda line: None):
        assert (part["logp_behavior"] == part["logp_target_float32"]).all()
        assert (part["noise_delta_bfloat16"] == 0).all()


def test_an_interrupted_measurement_goes_on_and_repeats_nothing(tmp_path, monkeypatch):
    whole = measure(PLAN, tmp_path / "whole", engines, say=lambda line: None)
    done, original = [], real_mismatch.measure_part

    def counted(engines, plan, number):
        if number == 2 and len(done) == 2:
            raise KeyboardInterrupt
        done.append(number)
        return original(engines, plan, number)

    monkeypatch.setattr(real_mismatch, "measure_part", counted)
    with pytest.raises(KeyboardInterrupt):
        measure(PLAN, tmp_path / "parts", engines, say=lambda line: None)
    done.append(-1)
    lines = []
    resumed = measure(PLAN, tmp_path / "parts", engines, say=lines.append)
    assert done == [0, 1, -1, 2]
    assert len(lines) == 1
    assert "about 0 s left" in lines[0]
    for one, other in zip(whole, resumed, strict=True):
        assert one.keys() == other.keys()
        assert all(np.array_equal(one[name], other[name]) for name in one if name != "seconds")
    measure(PLAN, tmp_path / "parts", lambda: pytest.fail("nothing is left to measure"), say=lines.append)


def test_another_seed_measures_other_tokens(tmp_path):
    first = measure(PLAN, tmp_path, engines, say=lambda line: None)[0]
    other = measure(Plan(seed=4, parts=1, responses=8, horizon=12), tmp_path, engines, say=lambda line: None)[0]
    assert not np.array_equal(first["token"], other["token"])


def test_both_files_give_back_what_was_measured(tmp_path):
    parts = measure(PLAN, tmp_path / "work", engines, say=lambda line: None)
    write_results(parts, {"plan": "a test"}, tmp_path)
    exact, rough = token_samples(tmp_path)
    assert isinstance(exact, TokenSample)
    assert np.allclose(exact.logp_target, np.concatenate([p["logp_target_float32"] for p in parts]), rtol=1e-6)
    assert np.allclose(rough.logp_target, np.concatenate([p["logp_target_bfloat16"] for p in parts]), rtol=1e-6)
    assert len(np.unique(exact.response)) == PLAN.parts * PLAN.responses
    assert exact.finite.all()
    noise = noise_samples(tmp_path)[0][0]
    assert np.allclose(noise.delta, np.concatenate([p["noise_delta_float32"] for p in parts]), rtol=1e-3, atol=1e-6)
    assert len(np.unique(noise.position)) == len(noise) / real_mismatch.TOP
    fewer = token_samples(tmp_path, limit=5)[0]
    assert len(np.unique(fewer.response)) == 5


def test_a_probability_that_rounds_to_one_is_marked(tmp_path):
    part = measure(PLAN, tmp_path / "work", engines, say=lambda line: None)
    part[0]["one"][:4] = [1, 2, 4, 7]
    write_results(part, {}, tmp_path)
    exact, rough = token_samples(tmp_path)
    assert exact.finite[:4].tolist() == [False, False, True, False]
    assert rough.finite[:4].tolist() == [False, True, False, False]


def test_all_prompts_of_a_question_have_two_digit_operands():
    for number in range(len(QUESTIONS)):
        lengths = {len(text) for text in questions(number, 40, SeedTree("test"))}
        assert len(lengths) == 1


def test_a_smoke_measurement_leaves_the_full_files_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(measurement, "load_engines", engines)
    monkeypatch.setattr(measurement.metadata, "version", lambda name: "0")
    files = measurement.measure_and_write(tmp_path / "out", tmp_path / "work", smoke=True)
    assert {path.parent for path in files} == {tmp_path / "out" / "smoke"}
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["smoke"]
