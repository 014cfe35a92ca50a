"""The committed measurement of speculation on the real model: what it must hold for its table to mean something."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from paper_repro.__main__ import app
from paper_repro.real_speculation import DRAFTS
from paper_repro.speculation_prompts import FORMS
from paper_repro.speculation_records import LAWS, RESPONSES, RESULTS, about, read
from paper_repro.speculation_table import ENOUGH, LONG, drafts, failures
from paper_repro.study import Setting
from testbed.core.command import run_command
from testbed.rollout.speculative.near_ties import NEAR

RESPONSES_HELD = 96


@pytest.fixture(scope="module")
def rows():
    return read(RESPONSES)[0]


@pytest.fixture(scope="module")
def laws():
    return read(LAWS)[0]


def of(rows, kind, sums="library"):
    chosen = (rows["drafts"] == kind) & (rows["sums"] == sums)
    return {name: values[chosen] for name, values in rows.items()}


def test_both_files_are_small():
    sizes = [(RESULTS / name).stat().st_size for name in (RESPONSES, LAWS)]
    assert sum(sizes) < 200_000, sizes


def test_it_says_what_produced_it():
    told = about()
    assert told["plan"]["held"] * len(told["forms"]) == RESPONSES_HELD
    assert tuple(told["forms"]) == FORMS
    assert {"torch", "transformers", "python"} <= told["versions"].keys()
    assert told["seconds"] > 0 and len(told["losses"]) == told["plan"]["recipe"]["steps"]
    assert np.mean(told["losses"][-20:]) < 0.8 * np.mean(told["losses"][:5])


def test_every_kind_of_drafts_wrote_the_same_responses(rows):
    """Equal counts: a response without an entry in the ledger has the loop's length under every kind of drafts."""
    tables = [of(rows, kind) for kind in DRAFTS]
    for one in tables:
        assert one["response"].tolist() == list(range(RESPONSES_HELD))
        assert np.bincount(one["form"]).tolist() == [RESPONSES_HELD // len(FORMS)] * len(FORMS)
        whole = one["parted"] < 0
        assert (one["compared"][whole] == one["tokens"][whole]).all()
        assert (one["compared"][~whole] == one["parted"][~whole]).all()
        assert (one["tokens"] >= LONG).sum() >= ENOUGH
    together = np.stack([one["parted"] < 0 for one in tables]).all(0)
    lengths = np.stack([one["tokens"] for one in tables])[:, together]
    assert (lengths == lengths[0]).all()


def test_tokens_are_counted_once(rows):
    """A response's first token is drawn before the first round; then a round writes its accepted drafts and one token more."""
    for kind in DRAFTS:
        one = of(rows, kind)
        assert (one["accepted"] + one["rounds"] + 1 == one["tokens"]).all()


def test_no_response_parts_but_at_a_near_tie(rows):
    assert not failures(rows).any()
    parted = rows["parted"] >= 0
    assert parted.sum() <= rows["near"].sum()
    for name in ("gap_loop", "gap_drafts", "gap_float64"):
        assert np.isnan(rows[name][~parted]).all()
        assert (rows[name][parted] < NEAR).all()
    assert rows["apart"].max() < NEAR


def test_in_the_fixed_order_nothing_differs(rows):
    fixed = of(rows, "taught heads", "fixed")
    assert len(fixed["parted"]) >= 3 and fixed["accepted"].sum() > 0
    assert (fixed["parted"] < 0).all() and not fixed["apart"].any()


def test_accepted_drafts_are_as_many_as_expected(rows):
    """The difference is a sum of martingale differences; each round's has a variance of at most its levels squared."""
    for kind in DRAFTS:
        one = of(rows, kind)
        assert abs(one["accepted"].sum() - one["expected"].sum()) < 5 * 3 * np.sqrt(one["rounds"].sum())
        excess = (one["hits"] - one["coverage"]).sum() / np.sqrt(one["variance"].sum())
        assert abs(excess) < 5
        assert (one["root"] <= one["coverage"] + 1e-4).all() and (one["root"] <= one["rounds"]).all()


def test_laws_are_judged_on_the_same_tokens(rows, laws):
    tokens = of(rows, "untaught heads")["tokens"]
    for kind, head in dict.fromkeys(zip(laws["law"].tolist(), laws["head"].tolist(), strict=True)):
        one = (laws["law"] == kind) & (laws["head"] == head)
        assert (laws["count"][one] == np.maximum(tokens - head, 0)).all()
        assert (laws["top1"][one] <= laws["top4"][one]).all() and (laws["top4"][one] <= laws["count"][one]).all()
        assert (laws["surprise"][one] >= 0).all()


def test_every_check_of_the_table_holds():
    finding = drafts(Setting(scale="real"))
    assert len(finding.checks) == 3 + 2 + 3
    assert all(check.holds for check in finding.checks), [(c.statement, c.found) for c in finding.checks]


def test_measuring_without_the_weights_is_one_sentence(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    arguments = ["measure", "speculation", "--smoke", "--out", str(tmp_path / "out"), "--work", str(tmp_path / "work")]
    assert run_command(app, "paper-repro", arguments) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "make real" in error
    assert list(tmp_path.iterdir()) == []
