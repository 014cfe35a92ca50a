"""The measurement of speculation with a tiny transformer in the real model's place: what is counted, resumed, and caught."""

from __future__ import annotations

import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from paper_repro import measure as measurement
from paper_repro import real_speculation, speculation_table
from paper_repro.__main__ import app
from paper_repro.real_speculation import DRAFTS, Speculation, Unit, measure_speculation, units
from paper_repro.speculation_arrays import batch_of
from paper_repro.speculation_prompts import FORMS, prompts_of
from paper_repro.speculation_records import LAWS, RESPONSES, read, response_rows, write_speculation
from paper_repro.speculation_rounds import expected_accepted
from paper_repro.speculation_subject import Asked, Plan, Subject
from paper_repro.speculation_table import drafts, failures, ledger_checks
from paper_repro.study import Setting
from paper_repro.tables import table_text
from testbed.core.command import run_command
from testbed.core.errors import InputError
from testbed.core.seeds import SeedTree
from testbed.policies.transformer import Transformer, TransformerConfig
from testbed.rollout.speculative import DraftTree, HeadRecipe
from testbed.rollout.speculative.near_ties import NEAR
from theory.speculative_bugs import cache_not_compacted, depth_off_by_one, sibling_visible

PLAN = Plan(
    seed=5, taught=1, responses=3, held=2, each=1, horizon=10, recipe=HeadRecipe(steps=24, batch=12, rate=1e-2),
    fixed=2, fixed_horizon=6,
)  # fmt: skip
CONFIG = TransformerConfig(vocab_size=50, width=16, heads=4, key_heads=2, layers=2, hidden=24, context=32)
MODEL = Transformer.random(CONFIG, seed=0, sharpness=4.0)
TRAIN = [*(Unit("sample", form) for form in range(len(FORMS))), Unit("teach")]


def subject():
    return Subject(model=MODEL, encode=lambda text: torch.tensor([ord(letter) % 50 for letter in text[-12::2]]), eos=2)


def measure(work, plan=PLAN, say=lambda line: None, made=subject):
    return measure_speculation(plan, work, made, say)


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    return tmp_path_factory.mktemp("work")


@pytest.fixture(scope="module")
def found(work):
    return measure(work)


def of_kind(found, kind):
    return {unit: arrays for unit, arrays in found.items() if unit.kind == kind}


# ------------------------------------------------------------------------------------------------ what is measured
def test_prompts_taught_are_not_held_out():
    taught, held = set(), set()
    for form in range(len(FORMS)):
        learn, judge = prompts_of(form, 8, 12, SeedTree(0))
        assert (len(set(learn)), len(set(judge))) == (8, 12)
        taught, held = taught | set(learn), held | set(judge)
    assert not taught & held
    topics = {text.split("about ")[-1].rstrip(".") for text in taught if "poem" in text}
    assert not any(f" {topic} " in f" {text.rstrip('.')} " for topic in topics for text in held)
    with pytest.raises(InputError, match="topic"):
        prompts_of(6, 20, 20, SeedTree(0))


def test_every_prompt_is_answered_once_and_the_parts_hold_all_forms():
    asked = Asked.of(subject(), PLAN)
    groups = [asked.taught(form) for form in range(len(FORMS))] + [asked.held(part) for part in range(PLAN.parts)]
    count = torch.bincount(torch.cat(groups))
    assert count.tolist() == [PLAN.responses, 1, 1] * len(FORMS)
    assert (asked.held(0) // 3).tolist() == list(range(len(FORMS)))


def test_tokens_are_the_loops_and_drafts_were_accepted(found):
    for unit, arrays in of_kind(found, "draft").items():
        loop = found[Unit("loop", unit.number)]
        assert np.array_equal(arrays["tokens"], loop["tokens"]) and np.array_equal(arrays["mask"], loop["mask"])
        assert arrays["accepted"].sum() + arrays["rounds"].sum() >= arrays["mask"].sum() - len(arrays["mask"])
        assert 0 < arrays["apart"].max() < 1e-4
    by_kind = {
        kind: sum(a["accepted"].sum() for u, a in of_kind(found, "draft").items() if u.draft == number)
        for number, kind in enumerate(DRAFTS)
    }
    assert by_kind["taught heads"] > by_kind["untaught heads"] > 0 < by_kind["prompt lookup"]


def test_in_the_fixed_order_engines_agree_to_the_bit(found):
    drafted = found[Unit("fixed", 0, 1)]
    assert np.array_equal(drafted["log_prob"], found[Unit("fixed", 0, 0)]["log_prob"])
    assert drafted["accepted"].sum() > 0 == drafted["apart"].max()


def test_streams_are_those_that_the_tokens_were_drawn_from(found):
    asked = Asked.of(subject(), PLAN)
    for unit in (Unit("sample", 3), Unit("draft", 1, 0), Unit("draft", 1, 1)):
        batch, kept = batch_of(found[unit]), torch.from_numpy(found[unit]["states"])
        with torch.no_grad():
            states = asked.policy.at(batch.group).hidden_states(batch.tokens)
        assert torch.allclose(kept[batch.mask], states[batch.mask], rtol=0, atol=1e-4)


def test_heads_are_judged_by_the_tokens_they_speak_of(found, work):
    run = Speculation(PLAN, subject(), work / PLAN.name())
    heads, asked = run.heads(taught=True), run.asked
    for unit, arrays in of_kind(found, "heads").items():
        batch = batch_of(found[Unit("loop", unit.number)])
        with torch.no_grad():
            own = asked.policy.at(batch.group).log_probs(batch.tokens)
            states = asked.policy.at(batch.group).hidden_states(batch.tokens)
            taught = heads.log_laws(states, asked.policy.weights(), asked.policy.numerics)
        row = int(batch.lengths.argmax())
        for column, (law, ahead) in enumerate(
            [(own, 0), *((own, k) for k in (1, 2, 3)), *((taught[:, :, k - 1], k) for k in (1, 2, 3))]
        ):
            length, top, surprise = int(batch.lengths[row]) - ahead, 0, 0.0
            for t in range(length):
                token = int(batch.tokens[row, t + ahead])
                top += token in law[row, t].topk(4).indices.tolist()
                surprise -= float(law[row, t, token])
            assert (arrays["count"][row, column], arrays["top4"][row, column]) == (length, top)
            assert abs(arrays["surprise"][row, column] - surprise) < 1e-3


def test_expected_drafts_are_the_path_probabilities_of_nodes_that_can_be_accepted():
    law = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.6, 0.3], [0.2, 0.2, 0.6], [0.3, 0.3, 0.4]], dtype=torch.float64)
    tree = DraftTree(
        tokens=torch.tensor([[0, 1, 2], [0, 1, -1]]), parent=torch.tensor([[-1, 0, 0], [-1, 0, 0]]),
        depth=torch.tensor([[1, 2, 2], [1, 2, 2]]), log_weight=torch.zeros(2, 3), levels=2,
    )  # fmt: skip
    finished = SimpleNamespace(tree=tree, log_probs=law.log().expand(2, -1, -1))
    remaining = torch.tensor([9, 9])
    both = expected_accepted(finished, remaining, None)
    assert torch.allclose(both, torch.tensor([0.5 + 0.5 * 0.6 + 0.5 * 0.3, 0.5 + 0.5 * 0.6], dtype=torch.float64))
    assert torch.allclose(expected_accepted(finished, remaining, 2), torch.tensor([0.8, 0.8], dtype=torch.float64))
    assert torch.allclose(expected_accepted(finished, torch.tensor([2, 1]), None), torch.tensor([0.5, 0.0]).double())
    assert expected_accepted(finished, remaining, 0).tolist() == [0.0, 0.0]  # nothing below an end token


# ------------------------------------------------------------------------------------------------ interruptions
def test_an_interrupted_measurement_goes_on_and_repeats_nothing(found, tmp_path, monkeypatch):
    monkeypatch.setattr(real_speculation, "CHECKPOINT", 4)
    done, updates, advance = [], [], real_speculation.HeadTeacher.advance
    measured = Speculation.measured

    def noted(self, unit):
        if unit.kind == "draft" and len(done) == 12:
            done.append(None)
            raise KeyboardInterrupt
        out = measured(self, unit)
        done.append(unit)
        return out

    def advanced(self):
        if len(updates) == 10:
            updates.append(None)
            raise KeyboardInterrupt
        updates.append(self.step)
        return advance(self)

    monkeypatch.setattr(Speculation, "measured", noted)
    monkeypatch.setattr(real_speculation.HeadTeacher, "advance", advanced)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            measure(tmp_path)
    assert (len(updates), updates[10]) == (10 + 1 + 24 - 8, None)
    lines = []
    resumed = measure(tmp_path, say=lines.append)
    assert [unit for unit in done if unit is not None] == units(PLAN)
    assert updates[11] == 8  # from the latest checkpoint
    assert "about 0 s left" in lines[-1]
    for unit, arrays in found.items():
        assert arrays.keys() == resumed[unit].keys()
        for name in arrays.keys() - {"seconds"}:
            assert np.array_equal(arrays[name], resumed[unit][name], equal_nan=arrays[name].dtype.kind == "f"), name
    measure(tmp_path, made=lambda: pytest.fail("nothing is left to measure"))


def test_another_seed_measures_other_tokens(found, tmp_path):
    asked = Speculation(Plan(seed=6, taught=1, responses=3, held=2, each=1, horizon=10), subject(), tmp_path)
    assert not np.array_equal(asked.loop(Unit("loop", 0))["tokens"], found[Unit("loop", 0)]["tokens"])


# ------------------------------------------------------------------------------------------------ wrong engines
@pytest.mark.parametrize("plant", [depth_off_by_one, cache_not_compacted, sibling_visible])
def test_a_wrong_engine_parts_where_there_is_no_near_tie(found, work, tmp_path, plant, monkeypatch):
    monkeypatch.setattr(speculation_table, "ENOUGH", 1)
    monkeypatch.setattr(speculation_table, "LONG", PLAN.horizon)
    right = response_rows(found, PLAN)
    assert all(check.holds for check in ledger_checks(right)), [check.found for check in ledger_checks(right)]
    folder = tmp_path / PLAN.name()
    shutil.copytree(work / PLAN.name(), folder)
    for path in (*folder.glob("draft-*-1.npz"), folder / "fixed-00-1.npz"):
        path.unlink()
    with plant():
        rows = response_rows(measure(tmp_path), PLAN)
    wrong = failures(rows)
    assert wrong.sum() >= 2
    assert (rows["drafts"][wrong] == "taught heads").all()
    assert np.nanmax([rows["gap_loop"][wrong], rows["gap_drafts"][wrong], rows["gap_float64"][wrong]]) > 100 * NEAR
    first = ledger_checks(rows)[0]
    library = (wrong & (rows["sums"] == "library")).sum()
    assert first.holds is False and f"{library} where there was no near tie" in first.found


def test_a_gap_that_nobody_computed_excuses_nothing(found):
    rows = response_rows(found, PLAN)
    for name in ("gap_loop", "gap_drafts", "gap_float64"):
        rows[name] = np.full_like(rows[name], NEAR / 2)
    rows["parted"][:3] = 4
    assert not failures(rows).any()
    rows["gap_drafts"][1], rows["gap_float64"][2] = np.inf, np.nan
    assert failures(rows)[:3].tolist() == [False, True, True]


def test_too_few_long_responses_cannot_tell(found):
    assert ledger_checks(response_rows(found, PLAN))[0].holds is None


# ------------------------------------------------------------------------------------------------ records
@pytest.fixture(scope="module")
def folder(found, tmp_path_factory):
    out = tmp_path_factory.mktemp("records")
    write_speculation(found, PLAN, {"model": "a tiny one", "engines": "ours", "positions": 7}, out)
    return out


def test_files_give_back_what_was_measured(found, folder):
    rows, told = read(RESPONSES, folder)
    assert told["positions"] == 7
    for number, kind in enumerate(DRAFTS):
        mine = (rows["drafts"] == kind) & (rows["sums"] == "library")
        parts = [found[Unit("draft", part, number)] for part in range(PLAN.parts)]
        for name in ("accepted", "rounds", "expected", "coverage"):
            assert np.allclose(rows[name][mine], np.concatenate([part[name] for part in parts]), rtol=1e-6)
        assert rows["response"][mine].tolist() == list(range(PLAN.parts * len(FORMS)))
        assert rows["form"][mine].tolist() == [*range(len(FORMS))] * PLAN.parts
    laws = read(LAWS, folder)[0]
    assert len(laws["count"]) == PLAN.parts * len(FORMS) * 7
    own = (laws["law"] == "the model's own").nonzero()[0]
    assert laws["count"][own].sum() == sum(found[Unit("loop", part)]["mask"].sum() for part in range(PLAN.parts))


def test_the_table_says_what_the_record_holds(found, folder):
    finding = drafts(Setting(scale="real", smoke=True), folder)
    parts = [found[Unit("draft", part, 1)] for part in range(PLAN.parts)]
    value = sum(part["accepted"].sum() for part in parts) / sum(part["rounds"].sum() for part in parts)
    (row,) = [r for r in finding.rows if (r["quantity"], r["of"]) == ("accepted drafts per round", "taught heads")]
    low, high = map(float, row["interval"].strip("[]").split(", "))
    assert row["ours"] == f"{value:.3f}" and low <= value <= high
    assert {r["over"].split(" prompts")[0] for r in finding.rows} == {str(PLAN.parts * len(FORMS))}
    text = table_text({"name": "drafts", "scale": "real", "title": "t", "smoke": True, **finding.plain()})
    assert "no number of the paper" in text and "7 positions" in text and row["ours"] in text
    with pytest.raises(InputError, match="real"):
        drafts(Setting(scale="tiny"), folder)


def test_a_smoke_measurement_leaves_the_full_files_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(measurement, "load_subject", subject)
    monkeypatch.setattr(measurement.metadata, "version", lambda name: "0")
    files = measurement.measure_speculation_and_write(tmp_path / "out", tmp_path / "work", smoke=True)
    assert {path.parent for path in files} == {tmp_path / "out" / "smoke"}
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["smoke"]
    assert read(RESPONSES, tmp_path / "out" / "smoke")[1]["plan"]["held"] == 1


def test_what_cannot_be_measured_is_one_sentence(tmp_path, capsys):
    assert run_command(app, "paper-repro", ["measure", "speed", "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "mismatch, speculation or cost" in error
    assert list(tmp_path.iterdir()) == []
