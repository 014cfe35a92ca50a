"""The committed measurement on the real model: what it must hold for the tables to mean something."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from paper_repro.__main__ import app
from paper_repro.cis_displacement import ENOUGH, REQUIRED, full_ranges, overall, ratio_check
from paper_repro.mismatch_samples import BINS
from paper_repro.real_records import NOISE, RESULTS, TOKENS, about, noise_samples, token_samples
from testbed.core.command import run_command


@pytest.fixture(scope="module")
def samples():
    return token_samples()


def test_both_files_are_small():
    sizes = [(RESULTS / name).stat().st_size for name in (TOKENS, NOISE)]
    assert sum(sizes) < 2**20, sizes


def test_it_says_what_produced_it():
    told = about()
    assert told["plan"] == {"seed": 0, "parts": 12, "responses": 64, "horizon": 96}
    assert {"torch", "transformers", "python"} <= told["versions"].keys()
    assert told["seconds"] > 0


def test_there_are_enough_tokens_in_every_range(samples):
    for one in samples:
        assert len(one) >= REQUIRED
        assert full_ranges(one) == list(BINS)
        assert len(np.unique(one.response)) == 12 * 64


def test_log_probs_are_log_probs(samples):
    for one in samples:
        assert (one.logp_target <= 0).all()
        assert (one.logp_behavior <= 0).all()
        assert np.isfinite(one.epsilon[one.finite]).all()


def test_the_spread_is_of_the_papers_size(samples):
    """A dense model's .0997 is between half and twice ours, for either trainer: no unit, sign or scale is wrong."""
    for one in samples:
        assert 0.5 < overall(one)["sd(epsilon)"] / 0.0997 < 2


def test_mad_ratios_lie_between_the_ranges_ends(samples):
    for one in samples:
        found = ratio_check(one)
        assert found.holds is True, found.found
        assert found.found.count(" in [") == len([b for b in range(5) if (one.bin == b).sum() >= ENOUGH])


def test_the_displacement_is_the_drawn_logits_shift_against_the_others(samples):
    """Where the drawn token is nearly certain, eps is its perturbation minus that of what is left of the law."""
    logits, logs = noise_samples()[0]
    assert np.allclose(logits.delta[logits.rank == 0], logits.delta[logs.rank == 0])
    shared = logits.delta - logs.delta  # the change of the log-sum: one number per position, up to float16
    _, place = np.unique(logits.position, return_inverse=True)
    first = shared[logits.rank == 0]
    assert np.abs(shared - first[place]).max() < 1e-12
    assert logs.delta.std() < logits.delta.std()


def test_measuring_without_the_weights_is_one_sentence(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    arguments = ["measure", "--smoke", "--out", str(tmp_path / "out"), "--work", str(tmp_path / "work")]
    assert run_command(app, "paper-repro", arguments) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "make real" in error
    assert list(tmp_path.iterdir()) == []
