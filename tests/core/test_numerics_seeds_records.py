"""Masked arithmetic, named streams, atomic records."""

import json
import math
from pathlib import Path

import mpmath
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from testbed import InputError
from testbed.core import RunRecord, SeedTree, numerics, write_json_atomic


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf, 1e30])
def test_nothing_off_the_mask_reaches_value_or_gradient(poison):
    mask = torch.tensor([[True, False, True]])
    clean = torch.tensor([[1.0, 0.0, 3.0]], requires_grad=True)
    dirty = torch.tensor([[1.0, poison, 3.0]], requires_grad=True)
    for function in (numerics.masked_sum, numerics.masked_mean):
        for dim in (None, 1):
            a, b = function(clean, mask, dim).sum(), function(dirty, mask, dim).sum()
            assert a == b
            (grad,) = torch.autograd.grad(b, dirty)
            assert torch.equal(grad, torch.autograd.grad(a, clean)[0])
    w, saturated = numerics.safe_exp(dirty, mask)
    assert saturated == 0
    assert torch.equal(torch.autograd.grad(w.sum(), dirty)[0], torch.tensor([[math.e, 0.0, math.e**3]]))


def test_empty_means_are_zero_and_connected():
    x = torch.tensor([[1.0, 2.0]], requires_grad=True)
    mean = numerics.masked_mean(x, torch.zeros(1, 2, dtype=torch.bool))
    mean.backward()
    assert mean == 0
    assert torch.equal(x.grad, torch.zeros(1, 2))


def test_long_float32_sums_do_not_drift():
    x = torch.full((1_000_000,), 0.1)
    mask = torch.ones_like(x, dtype=torch.bool)
    assert float(numerics.masked_sum(x, mask)) == pytest.approx(0.1 * 1e6, rel=1e-6)
    running = numerics.cumulative_sum(x)
    assert float(running[-1]) == pytest.approx(1e5, rel=1e-6)
    assert running.dtype == torch.float32


@given(st.floats(-700, -1e-300))
def test_log1m_exp_against_many_digits(logp):
    with mpmath.workdps(400):  # 1 - exp(-700) needs 304 digits before the first that matters
        exact = float(mpmath.log(1 - mpmath.exp(mpmath.mpf(logp))))
    got = float(numerics.log1m_exp(torch.tensor(logp, dtype=torch.float64)))
    assert got == pytest.approx(exact, rel=1e-13, abs=1e-300)


def test_streams_depend_on_their_address_alone():
    root = SeedTree("study")
    assert root["a"]["b"].integer() == SeedTree("study")["a"]["b"].integer()
    distinct = {
        root.integer(),
        root["a"].integer(),
        root["a"]["b"].integer(),
        root["ab"].integer(),
        root["b"]["a"].integer(),
        SeedTree("study2").integer(),
        SeedTree(1).integer(),
        SeedTree("1").integer(),
    }
    assert len(distinct) == 8
    a = root["x"].torch_generator()
    assert torch.rand(3, generator=a).tolist() == torch.rand(3, generator=root["x"].torch_generator()).tolist()
    assert root["x"].numpy_generator().random() == root["x"].numpy_generator().random()


def test_records_are_whole_or_absent(tmp_path):
    path = tmp_path / "deep" / "record.json"
    RunRecord(result={"nan": math.nan, "inf": -math.inf, "tensor": torch.tensor([1.5, 2.0])}).save(path)
    assert json.loads(path.read_text())["result"] == {"nan": "nan", "inf": "-inf", "tensor": [1.5, 2.0]}
    assert {"git", "python", "torch", "started"} <= set(RunRecord.load(path).provenance)
    before = path.read_text()

    class Unprintable:
        def __str__(self):
            raise RuntimeError("interrupted while writing")

    with pytest.raises(RuntimeError, match="interrupted"):
        write_json_atomic(path, {"x": Unprintable()})
    assert path.read_text() == before
    assert [p.name for p in path.parent.iterdir()] == ["record.json"]


def test_a_record_follows_links_and_leaves_devices_alone(tmp_path):
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    real.write_text("{}")
    link.symlink_to(real)
    write_json_atomic(link, {"x": 1})
    assert link.is_symlink()
    assert json.loads(real.read_text()) == {"x": 1}
    write_json_atomic("/dev/null", {"x": 1})
    assert not Path("/dev/null").is_file()


@pytest.mark.parametrize("where", ["/proc/record.json", "/dev/null/record.json"])
def test_an_output_that_cannot_be_written_is_named(where):
    with pytest.raises(InputError, match=f"must be a file that can be written; found {where}"):
        write_json_atomic(where, {})


def test_a_folder_is_no_output(tmp_path):
    with pytest.raises(InputError, match="must be a file; found"):
        write_json_atomic(tmp_path, {})
