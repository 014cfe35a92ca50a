"""Tokens of a run as it is trained: they are those of the run itself, caps match them, and the figure has all three times."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from paper_repro import cis_tokens, lab_results
from paper_repro.cis_tokens import matched_caps, walked
from paper_repro.lab_results import bundled
from paper_repro.study import Setting
from testbed.training.grpo_config import GRPOConfig
from testbed.training.lab import train_grpo

SMALL = GRPOConfig.of(
    {**lab_results.SMALL, "task": "sorting", "task_params": {"digits": 2, "base": 2}, "noise": "moe", "noise_scale": 8.0,
     "rule": "cis", "rule_params": {"lam": 0.5}, "updates": 3, "prompts": 4, "responses": 4}
)  # fmt: skip


def test_walked_tokens_are_those_of_the_run_itself():
    tokens, run = list(walked(SMALL, 0)), train_grpo(SMALL, 0)
    assert [one.update for one in tokens] == [0, 1, 2]
    for name, value in (("acted", lambda one: one.acted.mean()), ("max_log_k", lambda one: np.abs(one.log_k).max())):
        np.testing.assert_allclose([value(one) for one in tokens], run.curve[name], rtol=1e-6)


def test_matched_caps_match():
    found, tokens = matched_caps(SMALL, (0, 1)), [one for seed in (0, 1) for one in walked(SMALL, seed)]
    k, p = np.exp(np.concatenate([t.log_k for t in tokens])), np.exp(np.concatenate([t.logp for t in tokens]))
    caps = 1 + np.maximum(1 - p, 5e-3) * np.expm1(0.5)
    assert found["mean cap"] == pytest.approx(caps.mean(), rel=1e-6)
    assert found["share"] == pytest.approx((k > caps).mean()) and 0.02 < found["share"] < 0.98
    assert (k > found["cap of equal share"]).mean() == pytest.approx(found["share"], abs=1.5 / len(k))


def test_tokens_of_the_figure_are_early_middle_and_late(tmp_path):
    found = cis_tokens.figure12(Setting(scale="tiny", smoke=True, out=tmp_path))
    for arm in cis_tokens.OPERATORS:
        panels = found.curves[arm]["panels"]
        assert list(panels) == list(cis_tokens.TIMES)
        starts = [panels[time]["updates"][0] for time in panels]
        assert starts == sorted(set(starts))
        for panel in panels.values():
            assert len(panel["doubt"]) == len(panel["log k"]) == len(panel["acted"]) > 0
            assert panel["share"] == pytest.approx(np.mean(panel["acted"]))


def test_runs_of_the_figure_are_those_of_the_sweep(tmp_path, monkeypatch):
    """Every seed has a warm start of its own: the figure's runs begin with that of their seed."""
    asked = []
    monkeypatch.setattr(
        cis_tokens, "walked", lambda config, seed, cache: asked.append((config, seed)) or walked(SMALL, 0)
    )
    monkeypatch.setattr(cis_tokens, "small", lambda study: study)
    cis_tokens.figure12(Setting(scale="tiny", smoke=True, out=tmp_path))
    cells = {
        cell.levels["arm"]: cell
        for cell in bundled("mismatch").cells()
        if cell.seed == 2 and cell.levels["noise"] == "x8"
    }
    for arm, (config, seed) in zip(cis_tokens.OPERATORS, asked, strict=True):
        assert seed == cells[arm].seed and config == replace(cells[arm].config, updates=config.updates)
