"""Who may import whom, and that a forbidden import would be noticed."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.architecture import checks

CONTRACTS = tomllib.loads((checks.ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
FOLDERS = (
    "training",
    "diagnosis",
    "exact",
    "rollout",
    "estimators",
    "weighting",
    "policies",
    "environments",
    "stats",
    "core",
)


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    code = "from importlinter.cli import lint_imports_command as c; c()"
    command = [sys.executable, "-c", code, "--no-cache"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=100)


def test_the_layers_hold():
    done = lint_imports(checks.ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(CONTRACTS)} kept, 0 broken" in done.stdout


def test_figures_are_kept_from_every_computing_folder():
    contract = next(contract for contract in CONTRACTS if contract.get("source_modules") == ["figures"])
    folders = {path.parent.name for path in (checks.ROOT / "testbed").glob("*/__init__.py")}
    assert checks.uncovered_folders(folders, set(contract["forbidden_modules"])) == []


@pytest.fixture
def skeleton(tmp_path):
    """The project's contracts over empty packages."""
    (tmp_path / "pyproject.toml").write_text((checks.ROOT / "pyproject.toml").read_text())
    for name in (*checks.PACKAGES, "theory/theorems", *(f"testbed/{folder}" for folder in FOLDERS)):
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
        (tmp_path / name / "__init__.py").write_text("")
    for name in ("testbed/__main__", "testbed/_lazy", "theory/theorems/a", "theory/theorems/b"):
        (tmp_path / f"{name}.py").write_text("")
    return tmp_path


def test_an_empty_skeleton_passes(skeleton):
    done = lint_imports(skeleton)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("module", "text", "contract"),
    [
        ("testbed/core/batch.py", "import testbed.stats", "inside testbed"),
        ("testbed/weighting/mask.py", "import testbed.environments", "inside testbed"),
        ("testbed/stray/__init__.py", "", "inside testbed"),
        ("testbed/stats/proof.py", "import sympy", "library neither draws nor proves"),
        ("testbed/core/look.py", "import theory", "packages"),
        ("theory/theorems/a.py", "import theory.theorems.b", "theorems are independent"),
        ("figures/one.py", "import torch", "figures read records and compute nothing"),
        ("figures/one.py", "import testbed.exact", "figures read records and compute nothing"),
        ("paper_repro/one.py", "import trl", "peers stay outside"),
    ],
)
def test_a_forbidden_import_is_noticed(skeleton, module, text, contract):
    (skeleton / module).parent.mkdir(exist_ok=True)
    (skeleton / module).write_text(text)
    done = lint_imports(skeleton)
    assert done.returncode != 0
    assert f"{contract} BROKEN" in done.stdout or f"'{contract}'" in done.stdout + done.stderr
