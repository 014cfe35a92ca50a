"""README.md is fresh, its commands run from a bare clone, and its Python examples run."""

from __future__ import annotations

import os
import re
import subprocess

import pytest

from tests.architecture import checks

README = checks.ROOT / "README.md"


def test_the_generated_parts_are_fresh():
    from paper_repro.readme import catalogue_rows, complaints, tree_block
    from paper_repro.training_claims import claims_block, read_claims
    from theory.catalogue import catalogue

    expected = catalogue_rows(catalogue(), {})
    assert expected
    assert complaints(README.read_text(), tree_block(checks.ROOT), expected, claims_block(read_claims())) == []


def test_the_two_commands_come_first():
    commands = [command for command, _ in checks.readme_commands(README.read_text())]
    assert [command.split("#")[0].strip() for command in commands[:2]] == ["make verify", "make test"]


def test_the_python_examples_print_what_the_page_says(capsys):
    """A python block directly followed by a text block must print exactly that text."""
    blocks = re.findall(
        r"^```python\n(.*?)^```\n\n(?:```text\n(.*?)^```)?", README.read_text(), re.DOTALL | re.MULTILINE
    )
    assert any(printed for _, printed in blocks)
    for block, printed in blocks:
        exec(compile(block, str(README), "exec"), {"__name__": "readme"})
        assert capsys.readouterr().out == printed


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_command_runs_in_a_bare_clone(tmp_path):
    clone, home = tmp_path / "clone", tmp_path / "home"
    home.mkdir()
    subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", str(checks.ROOT), str(clone)], check=True)
    commands = checks.readme_commands((clone / "README.md").read_text())
    assert commands
    for command, status in commands:
        done = subprocess.run(
            ["env", "-i", f"PATH={os.environ['PATH']}", f"HOME={home}", "sh", "-c", command],
            cwd=clone, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == status, f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
