"""Every rule about the tree can fail: each is shown what it must refuse, and what it must let pass."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.architecture import checks


def test_a_file_over_the_limit_is_refused_and_one_at_it_is_not():
    assert checks.too_long({"a.py": 401, "b.py": 400}) == ["a.py has 401 lines, more than 400"]


def test_the_median_must_stay_below_its_limit():
    assert checks.long_median({"a": 150, "b": 150, "c": 1})
    assert not checks.long_median({"a": 149, "b": 400, "c": 1})


def test_a_file_over_a_mebibyte_is_refused():
    assert checks.too_big({"a": 2**20 + 1, "b": 2**20}) == ["a has 1048577 bytes, more than 1048576"]


def test_a_vague_module_name_is_refused():
    assert checks.vague_names(["testbed/core/utils.py", "testbed/core/batch.py"]) == [
        "testbed/core/utils.py: name the concept"
    ]


def test_a_notebook_needs_its_twin():
    assert checks.lonely_notebooks(["n/1_a.ipynb", "n/1_a.py", "n/2_b.ipynb"]) == ["n/2_b.ipynb has no .py twin"]


@pytest.mark.parametrize(
    "call",
    [
        "np.random.seed(0)",
        "numpy.random.normal(size=3)",
        "torch.manual_seed(1)",
        "np.random.default_rng()",
        "default_rng()",
        "random.shuffle(x)",
        "random.Random()",
    ],
)
def test_global_randomness_is_refused(call):
    assert checks.global_randomness(f"def f(x):\n    return {call}\n") == [f"line 2: {call.split('(')[0]}"]


@pytest.mark.parametrize(
    "call",
    [
        "np.random.default_rng(seed)",
        "random.Random(3)",
        "torch.Generator().manual_seed(1)",
        "rng.normal()",
        "np.random.PCG64(3)",
    ],
)
def test_seeded_generators_pass(call):
    assert checks.global_randomness(call) == []


def test_a_docstring_may_name_what_code_may_not_call():
    assert checks.global_randomness('"""Never np.random.seed(0)."""') == []


def test_heavy_imports_are_found_in_a_real_report():
    code = "import sys; sys.modules['sympy.core'] = sys; import fractions"
    report = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", code], capture_output=True, text=True, check=True
    ).stderr
    assert checks.heavy_imports(report) == []
    assert checks.heavy_imports(report, heavy=("fractions",)) == ["fractions"]


def test_heavy_imports_count_submodules_and_not_namesakes():
    report = "import time:  1 |  2 |   torch.nn\nimport time:  1 |  2 | scipyish\n"
    assert checks.heavy_imports(report) == ["torch"]


@pytest.mark.parametrize(
    "text", ["see /" + "root/x", 'p = "/' + "home/me/x" + '"', "--index-" + "url x", "//py" + "pi.org/simple"]
)
def test_traces_of_a_machine_are_refused(text):
    assert len(checks.machine_traces(f"fine\n{text}\n")) == 1


@pytest.mark.parametrize("text", ["out/verify/verdicts.json", "/usr/bin/env bash", "~/wo" + "rk/x", "network/root/y"])
def test_ordinary_paths_pass(text):
    assert checks.machine_traces(text) == []


def test_readme_commands_are_read_with_their_exit_status():
    text = (
        "```sh\nmake verify  # three minutes\n# a remark\na \\\n  b   # exit 1: refuted\n```\n```text\nnot this\n```\n"
    )
    assert checks.readme_commands(text) == [("make verify  # three minutes", 0), ("a    b   # exit 1: refuted", 1)]


def test_an_uncovered_folder_is_found():
    assert checks.uncovered_folders({"core", "exact", "new"}, {"torch", "testbed.exact"}) == ["new"]


def test_an_export_named_like_a_submodule_is_found():
    assert checks.ambiguous_exports({"weigh", "truncate"}, {"truncate", "mask"}) == ["truncate"]
