"""Dumps of four trainers come back as the responses they were made of, whatever the file and the alignment."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from testbed.core.errors import InputError
from testbed.diagnosis import adapters
from testbed.diagnosis.adapters.registry import ADAPTERS, adapter, choose_format
from testbed.diagnosis.dump import load_dump, read_dump
from testbed.diagnosis.report import diagnose
from tests.diagnosis import trainer_dumps as made

SUFFIXES = (".npz", ".jsonl", ".parquet", ".pt")


def assert_holds(batch, rows, policies):
    """Compare with the responses token by token, by a loop that shares nothing with the adapters."""
    assert batch.lengths.tolist() == [len(row["token"]) for row in rows]
    for b, row in enumerate(rows):
        n = len(row["token"])
        assert batch.tokens[b, :n].tolist() == row["token"]
        assert batch.reward[b].item() == pytest.approx(row["reward"], rel=1e-12)
        for field, policy in policies.items():
            assert getattr(batch, field)[b, :n].tolist() == pytest.approx(row[policy].tolist(), rel=1e-12), field
    assert batch.group.tolist() == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("name", ADAPTERS)
def test_each_trainer_in_each_file_type(tmp_path, rng, name, suffix):
    rows = made.truth(rng)
    dump = read_dump(made.write(tmp_path / f"dump{suffix}", made.MAKERS[name](rows)))
    assert dump.format == name
    assert_holds(dump.batch, rows, {"logp_behavior": "behavior", "logp_target": "trainer"})
    assert dump.batch.logp_proximal is None


@pytest.mark.parametrize("name", ADAPTERS)
def test_a_chosen_target_makes_the_trainers_own_the_proximal_policy(tmp_path, rng, name):
    rows = made.truth(rng)
    path = made.write(tmp_path / "dump.npz", made.MAKERS[name](rows))
    batch = load_dump(path, target=made.TARGETS[name])
    policies = {"logp_behavior": "behavior", "logp_target": "target", "logp_proximal": "trainer"}
    assert_holds(batch, rows, policies)
    assert {gap["gap"] for gap in diagnose(batch)["gaps"]} == {"mismatch", "drift", "total"}


@pytest.mark.parametrize("rolled", [False, True])
def test_areal_before_and_after_its_advantages(tmp_path, rng, rolled):
    rows = made.truth(rng)
    dump = read_dump(made.write(tmp_path / "dump.npz", made.areal(rows, rolled=rolled)))
    assert_holds(dump.batch, rows, {"logp_behavior": "behavior", "logp_target": "trainer", "version": "version"})
    for b, row in enumerate(rows):
        changes = np.cumsum(np.diff(row["version"], prepend=row["version"][0]) != 0)
        assert dump.batch.segment[b, : len(changes)].tolist() == changes.tolist()
    assert ("before" in dump.notes[0]) is not rolled


def test_areal_trajectories_of_different_widths_are_put_together(tmp_path, rng):
    rows = made.truth(rng)
    parts = []
    for row in rows:
        arrays = made.areal([row])
        width = len(row["prompt"]) + len(row["token"])
        parts.append({k: torch.from_numpy(v[:, :width] if v.ndim == 2 else v) for k, v in arrays.items()})
    torch.save(parts, tmp_path / "dump.pt")
    # each has its own width; the log-prob that a roll puts last belongs to no token of the mask
    assert_holds(load_dump(tmp_path / "dump.pt"), rows, {"logp_behavior": "behavior", "logp_target": "trainer"})


def test_tool_output_is_left_out(tmp_path, rng):
    rows = made.truth(rng)
    arrays = made.trl(rows)
    arrays["tool_mask"] = np.ones_like(arrays["completion_mask"])
    arrays["tool_mask"][0, 1:3] = 0
    batch = load_dump(made.write(tmp_path / "dump.npz", arrays))
    assert batch.lengths.tolist() == [3, *made.LENGTHS[1:]]
    assert batch.tokens[0, :3].tolist() == [rows[0]["token"][i] for i in (0, 3, 4)]
    verl = made.verl(rows)
    verl["response_mask"][0, 1:3] = 0
    assert torch.equal(load_dump(made.write(tmp_path / "verl.npz", verl)).logp_behavior, batch.logp_behavior)


def test_verl_scores_of_several_tokens_are_rewards_of_steps(tmp_path, rng):
    arrays = made.verl(made.truth(rng))
    assert read_dump(made.write(tmp_path / "one.npz", arrays)).batch.token_reward is None
    arrays["token_level_scores"][0, 0] = 0.5
    dump = read_dump(made.write(tmp_path / "two.npz", arrays))
    assert dump.batch.token_reward[0, 0].item() == 0.5
    assert dump.batch.reward[0].item() == pytest.approx(arrays["token_level_scores"][0].sum())
    assert "per-token rewards" in dump.notes[0]


def test_verl_versions_are_read_only_where_they_are_known_by_token(tmp_path, rng):
    arrays = made.verl(made.truth(rng))
    assert load_dump(made.write(tmp_path / "one.npz", arrays)).version.max().item() == 7
    arrays["max_global_steps"] = arrays["max_global_steps"] + 1
    dump = read_dump(made.write(tmp_path / "two.npz", arrays))
    assert dump.batch.version is None
    assert "several versions" in dump.notes[0]


@pytest.mark.parametrize("name", ADAPTERS)
def test_a_missing_field_is_named(tmp_path, rng, name):
    for options in adapter(name).needs:
        arrays = {k: v for k, v in made.MAKERS[name](made.truth(rng)).items() if k not in options}
        path = made.write(tmp_path / "dump.npz", arrays)
        with pytest.raises(InputError, match=f"format {name} needs `{options[0]}`"):
            load_dump(path, format_name=name)
        with pytest.raises(InputError, match="must be those of a known format") as caught:
            load_dump(path)
        message = str(caught.value)
        assert f"nearest is {name}, which lacks `{options[0]}`" in message
        others = [other for other in ADAPTERS if other != name and f"nearest is {other}" in message]
        assert others == [] and "logp_behavior" not in message
        assert ("advantages of the clip-type rules" in message) is (options == adapter(name).needs[-1])


def test_fields_of_no_format_list_every_format(tmp_path):
    with pytest.raises(InputError) as caught:
        choose_format(["x", "y"])
    assert all(f"{name}: `" in str(caught.value) for name in (*ADAPTERS, "testbed"))


def test_one_missing_score_is_counted_once(tmp_path, rng):
    arrays = made.verl(made.truth(rng))
    arrays["token_level_scores"][1, 2] = np.nan
    with pytest.raises(InputError, match=r"NaN; found 1 such, the first at \(sequence 1, position 2\)"):
        load_dump(made.write(tmp_path / "dump.npz", arrays))
    trl = made.trl(made.truth(rng))
    trl["advantages"][2] = np.nan
    with pytest.raises(InputError, match=r"found 1 such, the first nan at \(sequence 2, position 0\)"):
        load_dump(made.write(tmp_path / "trl.npz", trl))


@pytest.mark.parametrize(("target", "behavior"), [("rollout_log_probs", None), (None, "old_log_probs")])
def test_one_column_for_target_and_behavior_is_refused(tmp_path, rng, target, behavior):
    path = made.write(tmp_path / "dump.npz", made.verl(made.truth(rng)))
    with pytest.raises(InputError, match="must be two columns"):
        load_dump(path, target=target, behavior=behavior)


def test_an_object_array_says_how_to_save_it(tmp_path, rng):
    arrays = made.verl(made.truth(rng))
    path = made.write(tmp_path / "dump.npz", arrays | {"uid": arrays["uid"].astype(object)})
    with pytest.raises(InputError, match=r"save uid as str \(np\.array\(uid, dtype=str\)\)"):
        load_dump(path)


@pytest.mark.parametrize("kind", [list, lambda uid: uid.astype(object)])
def test_the_recipe_of_the_documentation_saves_a_batch_with_uid(tmp_path, rng, monkeypatch, kind):
    text = (Path(adapters.__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    recipe = text.split("```python\n")[1].split("```")[0]
    rows = made.truth(rng)
    batch = {
        name: kind(values) if name == "uid" else torch.from_numpy(values) for name, values in made.verl(rows).items()
    }
    monkeypatch.chdir(tmp_path)
    exec(recipe, {"numpy": np, "batch": batch})
    read = load_dump(tmp_path / "dump.npz")
    assert read.group.tolist() == [0, 0, 1, 1, 2, 2]
    assert read.lengths.tolist() == [len(row["token"]) for row in rows]


def test_without_uid_a_note_says_that_groups_are_unknown(tmp_path, rng):
    arrays = made.verl(made.truth(rng))
    for names, noted in ((arrays.keys(), False), (arrays.keys() - {"uid"}, True)):
        batch = load_dump(made.write(tmp_path / "dump.npz", {name: arrays[name] for name in names}))
        note = next(f for f in diagnose(batch)["faults"] if f["check"] == "single_groups")
        assert (note["fired"], note["kind"]) == (noted, "note")
        assert ("group statistics cannot be computed" in note["says"]) is noted


def test_the_alignment_of_areal_stands_in_the_documentation():
    text = (Path(adapters.__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    assert "the presence of an `advantages` column decides" in text
    assert "| `logprobs`, `loss_mask` | at t | at t - 1 |" in text


def test_fields_of_two_trainers_ask_for_a_choice(tmp_path, rng):
    rows = made.truth(rng)
    both = made.openrlhf(rows) | made.trl(rows)
    with pytest.raises(InputError, match=r"several formats: trl, openrlhf.*--format"):
        choose_format(list(both))
    path = made.write(tmp_path / "dump.npz", both)
    assert read_dump(path, format_name="openrlhf").columns["logp_target"] == "action_log_probs"
    assert read_dump(path, format_name="trl").columns["logp_target"] == "old_per_token_logps"


def test_columns_that_do_not_fit_the_mask(tmp_path, rng):
    arrays = made.verl(made.truth(rng))
    cases = {
        "old_log_probs": (arrays["old_log_probs"][:, :4], "entry for every token of `response_mask`; found 4 entries"),
        "rollout_log_probs": (arrays["rollout_log_probs"][:4], "same rows; found 4 rows and 6"),
        "uid": (arrays["uid"][:3], "one entry per row of `response_mask`; found 3 for 6"),
        "response_mask": (0 * arrays["response_mask"], "at least one token"),
    }
    for name, (value, words) in cases.items():
        with pytest.raises(InputError) as caught:
            load_dump(made.write(tmp_path / "dump.npz", arrays | {name: value}))
        assert words in str(caught.value)


def test_a_file_of_objects_is_refused_and_none_of_its_code_is_run(tmp_path):
    class Loud:
        def __reduce__(self):
            return (print, ("ran",))

    torch.save({"rollout_log_probs": Loud()}, tmp_path / "dump.pt")
    with pytest.raises(InputError, match=r"weights_only=True; found objects .*torch\.save\(dict\(batch\), path\)"):
        load_dump(tmp_path / "dump.pt")
    (tmp_path / "cut.pt").write_bytes((tmp_path / "dump.pt").read_bytes()[:40])
    with pytest.raises(InputError, match="cut short or corrupt"):
        load_dump(tmp_path / "cut.pt")
    torch.save(torch.zeros(3), tmp_path / "tensor.pt")
    with pytest.raises(InputError, match="must hold a dictionary of tensors"):
        load_dump(tmp_path / "tensor.pt")


def test_signs_are_those_of_the_documentation(tmp_path, rng):
    """The verl metric `kl` and OpenRLHF's `vllm_kl` are k1 here; AReaL's `behave_approx_kl` is minus that."""
    rows = made.truth(rng)
    behave_minus_prox = np.concatenate([r["behavior"] - r["trainer"] for r in rows]).mean()
    for name in ADAPTERS:
        batch = load_dump(made.write(tmp_path / "dump.npz", made.MAKERS[name](rows)))
        total = [g for g in diagnose(batch)["gaps"] if g["gap"] == "total"][-1]
        assert total["kl_k1"] == pytest.approx(behave_minus_prox, rel=1e-10)
        assert total["mean"] == pytest.approx(-behave_minus_prox, rel=1e-10)
