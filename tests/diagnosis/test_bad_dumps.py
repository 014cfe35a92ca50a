"""Every way a dump can be wrong ends in one sentence that says what to look at."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from testbed.core.errors import InputError
from testbed.diagnosis.dump import load_dump
from tests.diagnosis import dumps

LENGTHS = (3, 1, 4, 2)  # sequences are numbered 7, 17, 27, 37


def changed(name, index, value):
    def change(table):
        values = table[name].astype(object) if isinstance(value, str) else table[name].astype(np.result_type(
            table[name], np.asarray(value)))  # fmt: skip
        values[index] = value
        return {**table, name: values}

    return change


def without(*names):
    return lambda table: {k: v for k, v in table.items() if k not in names}


CASES = {
    "no target": (without("logp_target"), ["`logp_target`", "--target", "the columns sequence, prompt, position"]),
    "no behavior": (without("logp_behavior"), ["`logp_behavior`", "--behavior", "logp_proximal"]),
    "no reward": (without("reward"), ["`reward`", "logp_target", "advantages of the clip-type rules"]),
    "no sequence": (without("sequence"), ["`sequence`", "position"]),
    "no position": (without("position"), ["`position`", "sequence"]),
    "gap in positions": (changed("position", 2, 5), ["0, 1, 2", "5 after 1 in sequence 7"]),
    "position twice": (changed("position", 2, 1), ["0, 1, 2", "1 after 1 in sequence 7"]),
    "not from 0": (changed("position", 3, 4), ["0, 1, 2", "4 at the start in sequence 17"]),
    "two rewards": (changed("reward", 5, 9.0), ["`reward`", "9", "in sequence 27", "token_reward"]),
    "two groups": (changed("prompt", 5, 9), ["`group`", "in sequence 27"]),
    "NaN target": (changed("logp_target", 6, np.nan), ["`logp_target`", "NaN", "(sequence 27, position 2)"]),
    "NaN behavior": (changed("logp_behavior", 9, np.nan), ["`logp_behavior`", "NaN", "(sequence 37, position 1)"]),
    "NaN proximal": (changed("logp_proximal", 0, np.nan), ["`logp_proximal`", "NaN", "(sequence 7, position 0)"]),
    "NaN reward": (changed("reward", 3, np.nan), ["`reward`", "NaN", "(sequence 17, position 0)"]),
    "infinite reward": (changed("reward", 3, np.inf), ["`reward`", "finite", "(sequence 17, position 0)"]),
    "probability": (changed("logp_target", 4, 0.25), ["log-probabilities", "0.25", "(sequence 27, position 0)", "logit"]),
    "impossible": (changed("logp_behavior", 4, -np.inf), ["`logp_behavior`", "probability 0", "(sequence 27, position 0)"]),
    "negative label": (changed("segment", 3, -1), ["`segment`", ">= 0", "(sequence 17, position 0)"]),
    "half label": (changed("segment", 3, 0.5), ["`segment`", "whole numbers", "0.5"]),
    "falling label": (changed("segment", slice(4, 8), [1, 1, 0, 1]), ["`segment`", "decrease", "(sequence 27, position 2)"]),
}  # fmt: skip


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl", ".npz"])
@pytest.mark.parametrize("case", CASES)
def test_bad_columns(tmp_path, rng, suffix, case):
    change, words = CASES[case]
    path = dumps.write(tmp_path / f"dump{suffix}", change(dumps.columns(rng, LENGTHS)))
    with pytest.raises(InputError) as caught:
        load_dump(path)
    message = str(caught.value)
    assert [word for word in words if word not in message] == [], message
    assert "\n" not in message


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl", ".npz"])
@pytest.mark.parametrize("name", ["logp_target", "reward", "position", "segment"])
def test_text_where_numbers_belong(tmp_path, rng, suffix, name):
    table = dumps.columns(rng, LENGTHS)
    table[name] = np.array(["abc"] * len(table[name]), dtype="U3" if suffix == ".npz" else object)
    with pytest.raises(InputError, match=rf"`{name}` must hold (whole )?numbers; found 'abc'"):
        load_dump(dumps.write(tmp_path / f"dump{suffix}", table))


@pytest.mark.parametrize("suffix", [".parquet", ".npz"])
@pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
def test_a_file_cut_short(tmp_path, rng, suffix, share):
    whole = dumps.write(tmp_path / f"whole{suffix}", dumps.columns(rng, LENGTHS)).read_bytes()
    path = tmp_path / f"dump{suffix}"
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(InputError, match=r"must be a readable (parquet|npz) file; found .*cut short"):
        load_dump(path)


def test_a_parquet_file_with_a_damaged_page(tmp_path, rng):
    path = dumps.write(tmp_path / "dump.parquet", dumps.columns(rng, (50,) * 20))
    content = bytearray(path.read_bytes())
    content[4:3000] = b"\xff" * 2996  # the first columns' pages; the footer stays whole
    path.write_bytes(content)
    with pytest.raises(InputError, match="must be a readable parquet file"):
        load_dump(path)


def test_a_line_cut_short(tmp_path, rng):
    path = dumps.write(tmp_path / "dump.jsonl", dumps.columns(rng, LENGTHS))
    path.write_text(path.read_text()[:-30])
    with pytest.raises(InputError, match=r"found line 10: .*cut short"):
        load_dump(path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[1, 2]\n", "must be a JSON object; found line 1"),
        ('{"logp_behavior": -1}\n{"logp_target": -1}\n', "found the columns logp_behavior, logp_target"),
        ('{"reward": 1, "logp_target": -1, "logp_behavior": -1}\n{"reward": 1}\n', "found row 1 of 'dump.jsonl' without it"),
        ('{"reward": 1, "logp_target": [-1], "logp_behavior": [-1, -2]}\n', "1 in `logp_target` and 2 in `logp_behavior`"),
        ('{"reward": 1, "logp_target": -1, "logp_behavior": [-1]}\n{"reward": 1, "logp_target": -1, "logp_behavior": 2}\n',
         "lists in every row or in none"),
        ('{"reward": 1, "logp_target": -1, "logp_behavior": "x"}\n{"reward": 1, "logp_target": -1, "logp_behavior": 2}\n',
         "found int and str"),
        ("\n\n", "`logp_behavior`"),
    ],
)  # fmt: skip
def test_bad_lines(tmp_path, text, words):
    path = tmp_path / "dump.jsonl"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        load_dump(path)
    assert words in str(caught.value)


def test_bytes_that_are_no_text(tmp_path):
    path = tmp_path / "dump.jsonl"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="UTF-8"):
        load_dump(path)


def test_missing_empty_unknown(tmp_path):
    with pytest.raises(InputError, match="found no such file"):
        load_dump(tmp_path / "nowhere.parquet")
    with pytest.raises(InputError, match="found a folder"):
        load_dump(tmp_path)
    for suffix in (".parquet", ".jsonl", ".npz"):
        path = tmp_path / f"empty{suffix}"
        path.touch()
        with pytest.raises(InputError, match="must not be empty; found 0 bytes"):
            load_dump(path)
    (tmp_path / "dump.csv").write_text("a,b\n")
    with pytest.raises(InputError, match=r"\.parquet, \.jsonl or \.npz"):
        load_dump(tmp_path / "dump.csv")


@pytest.mark.parametrize("suffix", [".parquet", ".npz"])
def test_no_rows(tmp_path, rng, suffix):
    table = {name: values[:0] for name, values in dumps.columns(rng, LENGTHS).items()}
    with pytest.raises(InputError, match="at least one token"):
        load_dump(dumps.write(tmp_path / f"dump{suffix}", table))


def test_nulls_are_no_numbers(tmp_path, rng):
    table = dumps.columns(rng, LENGTHS)
    for name, words in (
        ("segment", "no nulls; found 1, the first in row 4"),
        ("logp_target", "(sequence 27, position 0)"),
    ):
        arrays = {k: pa.array(v) for k, v in table.items()}
        arrays[name] = pa.array([None if i == 4 else v for i, v in enumerate(table[name].tolist())])
        pq.write_table(pa.table(arrays), tmp_path / "dump.parquet")
        with pytest.raises(InputError) as caught:
            load_dump(tmp_path / "dump.parquet")
        assert words in str(caught.value)


def test_a_column_of_another_kind(tmp_path, rng):
    table = {k: pa.array(v) for k, v in dumps.columns(rng, LENGTHS).items()}
    table["reward"] = pa.array([b"x"] * 10)
    pq.write_table(pa.table(table), tmp_path / "dump.parquet")
    with pytest.raises(InputError, match="`reward` must hold numbers or text; found the type binary"):
        load_dump(tmp_path / "dump.parquet")


def test_npz_refuses_pickles_matrices_and_unequal_lengths(tmp_path, rng):
    table = dumps.columns(rng, LENGTHS)
    for name, value, words in (
        ("logp_target", np.zeros((2, 5)), "one-dimensional; found shape (2, 5)"),
        ("logp_target", -np.ones(4), "all columns must have one length; found 4 in `logp_target`, 10"),
        ("logp_target", np.array([{}] * 10, dtype=object), "numbers or text; found Python objects"),
    ):
        np.savez(tmp_path / "dump.npz", **{**table, name: value})
        with pytest.raises(InputError) as caught:
            load_dump(tmp_path / "dump.npz")
        assert words in str(caught.value)
    np.save(tmp_path / "single.npy", np.zeros(3))
    (tmp_path / "single.npy").rename(tmp_path / "single.npz")
    with pytest.raises(InputError, match="found another format"):
        load_dump(tmp_path / "single.npz")


def test_strict_refuses_sixteen_bits(tmp_path, rng):
    table = dumps.columns(rng, LENGTHS)
    table["logp_target"] = table["logp_target"].astype("float16")
    with pytest.raises(InputError, match="float32 or float64"):
        load_dump(dumps.write(tmp_path / "dump.parquet", table), strict=True)
