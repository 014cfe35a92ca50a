"""A dump written in long format comes back as the batch it describes, whatever the format and the order of its rows."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from testbed.diagnosis import dump
from testbed.diagnosis.dump import load_dump
from testbed.diagnosis.report import diagnose
from tests.diagnosis import dumps

LENGTHS = (3, 1, 4, 2)
FLAT = {"tokens": "token", "segment": "segment", "version": "version", "engine": "engine"} | {
    name: name for name in ("logp_behavior", "logp_target", "logp_proximal", "token_reward", "action_value")
}


def assert_holds(batch, table):
    """Compare with a loop over tokens that shares nothing with the loader."""
    order = list(dict.fromkeys(table["sequence"].tolist()))
    assert batch.mask.shape == (len(order), max(table["position"]) + 1)
    assert batch.n_tokens == len(table["sequence"])
    engines = list(dict.fromkeys(table["engine"].tolist()))
    for i in range(len(table["sequence"])):
        b, t = order.index(table["sequence"][i]), int(table["position"][i])
        assert batch.mask[b, t]
        for field, name in FLAT.items():
            found, expected = getattr(batch, field)[b, t].item(), table[name].tolist()[i]
            if name == "engine" and isinstance(expected, str):
                expected = engines.index(expected)
            assert found == expected, (field, b, t)
        assert batch.reward[b].item() == table["reward"][i]
        assert batch.group[b].item() == table["prompt"][i]


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl", ".npz"])
def test_round_trip(tmp_path, rng, suffix):
    table = dumps.columns(rng, LENGTHS)
    assert_holds(load_dump(dumps.write(tmp_path / f"dump{suffix}", table)), table)


def test_the_order_of_rows_does_not_matter_except_for_who_comes_first(tmp_path, rng):
    table = dumps.columns(rng, LENGTHS)
    shuffled = rng.permutation(len(table["sequence"]))
    table = {name: values[shuffled] for name, values in table.items()}
    batch = load_dump(dumps.write(tmp_path / "dump.parquet", table))
    assert_holds(batch, table)


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_one_row_per_response(tmp_path, rng, suffix):
    table = dumps.columns(rng, LENGTHS)
    rows = dumps.by_response(table)
    path = tmp_path / f"dump{suffix}"
    if suffix == ".parquet":
        pq.write_table(pa.table(rows), path)
    else:
        flat = [{k: v[i] if isinstance(v[i], list) else v[i].item() for k, v in rows.items()} for i in range(4)]
        path.write_text("\n".join(map(json.dumps, flat)))
    assert_holds(load_dump(path), table)


def test_a_response_without_tokens_is_left_out(tmp_path):
    row = {"logp_behavior": [-1.0], "logp_target": [-2.0], "reward": 1.0}
    empty = {"logp_behavior": [], "logp_target": [], "reward": 0.0}
    path = tmp_path / "dump.jsonl"
    path.write_text("\n".join(map(json.dumps, [row, empty, row])))
    batch = load_dump(path)
    assert batch.lengths.tolist() == [1, 1]


def test_optional_columns_have_stated_meanings_when_absent(tmp_path, rng):
    table = {k: v for k, v in dumps.columns(rng, LENGTHS).items() if k in
             ("sequence", "position", "logp_behavior", "logp_target", "reward")}  # fmt: skip
    batch = load_dump(dumps.write(tmp_path / "dump.npz", table))
    assert batch.n_segments == 1
    assert batch.group.tolist() == [0, 1, 2, 3]
    assert batch.logp_proximal is batch.version is batch.engine is batch.token_reward is batch.action_value is None


def test_names_stand_for_numbers_in_order_of_appearance(tmp_path, rng):
    table = dumps.columns(rng, LENGTHS)
    expected = {**table, "engine": np.array([f"z{4 - e}" for e in table["engine"]], dtype=object)}
    named = {**expected, "sequence": np.array([f"s-{99 - s}" for s in table["sequence"]], dtype=object)}
    expected["sequence"] = named["sequence"]
    assert_holds(load_dump(dumps.write(tmp_path / "dump.parquet", named)), expected)


def test_other_columns_can_be_chosen(tmp_path, rng):
    table = dumps.columns(rng, LENGTHS)
    path = dumps.write(tmp_path / "dump.parquet", table)
    batch = load_dump(path, target="logp_proximal", behavior="logp_target")
    assert_holds(batch, {**table, "logp_target": table["logp_proximal"], "logp_behavior": table["logp_target"]})


@pytest.mark.parametrize(("dtype", "expected"), [("float64", torch.float64), ("float32", torch.float32)])
def test_precision_is_that_of_the_file(tmp_path, rng, dtype, expected):
    table = dumps.columns(rng, LENGTHS)
    table["logp_target"] = table["logp_target"].astype(dtype)
    assert load_dump(dumps.write(tmp_path / "dump.parquet", table)).logp_target.dtype == expected


def test_half_precision_is_widened_and_reported(tmp_path, rng):
    table = dumps.columns(rng, (8, 8, 8, 8))
    table["logp_target"] = table["logp_target"].astype("float16")
    batch = load_dump(dumps.write(tmp_path / "dump.parquet", table))
    assert batch.logp_target.dtype == torch.float32
    assert set(batch.facts.low_precision) == {"logp_target"}


def test_a_dump_of_many_responses(tmp_path, rng):
    table = dumps.columns(rng, (50,) * 2000)
    batch = load_dump(dumps.write(tmp_path / "dump.npz", table))
    assert batch.n_tokens == 100_000
    assert torch.equal(batch.logp_target.reshape(-1), torch.from_numpy(table["logp_target"]))


README = Path(dump.__file__).with_name("README.md")


def example():
    """Return the JSONL example that the README gives."""
    found = re.search(r"```json\n(.*?)```", README.read_text(), re.DOTALL)
    assert found is not None
    return found[1]


def test_the_jsonl_example_of_the_readme_is_a_complete_dump(tmp_path):
    path = tmp_path / "example.jsonl"
    path.write_text(example())
    assert len(example().splitlines()) == 3
    batch = load_dump(path)
    assert (batch.batch_size, batch.n_tokens, batch.n_segments) == (3, 9, 1)
    assert batch.group.tolist() == [0, 0, 1]
    assert diagnose(batch)["batch"]["responses"] == 3


@pytest.mark.parametrize("left", [["prompt"], ["sequence", "position", "segment"]])
def test_a_line_per_response_needs_three_columns(tmp_path, left):
    """What the README says of them: without `prompt` each response is its own group."""
    rows = [{k: v for k, v in json.loads(line).items() if k not in left} for line in example().splitlines()]
    path = tmp_path / "example.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    assert load_dump(path).group.tolist() == ([0, 1, 2] if "prompt" in left else [0, 0, 1])
    for name in ("logp_behavior", "logp_target", "reward"):
        short = [{k: v for k, v in row.items() if k != name} for row in rows]
        path.write_text("\n".join(map(json.dumps, short)))
        with pytest.raises(ValueError, match=f"needs a column `{name}`"):
            load_dump(path)


def test_the_readme_says_which_columns_a_line_per_response_can_do_without():
    text = " ".join(README.read_text().split())
    assert "`sequence` and `position` follow from the lines and their lists, without `segment`" in text
    assert '"ran": false' in text
