"""There is one speculative engine: what is enumerated, what is tested and what is timed are calls of the same function."""

import ast
import importlib
from functools import lru_cache

import pytest

from testbed import KeyedChooser
from testbed.policies.transformer import tree_decoder
from testbed.rollout.speculative import engine, responses, staircase
from testbed.rollout.speculative.group_specimens import GROUP_SPECIMENS, specimen_rollout
from tests.architecture.checks import ROOT, tree_files
from tests.rollout.speculative.batched_laws import branched_law
from tests.rollout.speculative.test_node_laws import CASE
from tests.rollout.speculative.worlds import Letters, engine_law, speculative, tiny
from theory.speculative_worlds import Speculation

PACKAGE = "testbed.rollout.speculative"
FOLDER = PACKAGE.replace(".", "/")
ENGINE, PARTS, CLOCK, WRONG_GROUPS = (
    f"{FOLDER}/{name}.py" for name in ("engine", "responses", "staircase", "group_specimens")
)
COPY = f"from {PACKAGE}.responses import Responses\nimport time\nwhile r.active:\n    r.round(draft, rule)\n"


@lru_cache
def sources():
    """Syntax trees of every Python file that has to do with speculation, by path."""
    files = {str(path.relative_to(ROOT)): path for path in tree_files() if path.suffix == ".py"}
    texts = {name: path.read_text(encoding="utf-8") for name, path in files.items()}
    return {name: ast.parse(text) for name, text in texts.items() if "speculative" in name + text}


def with_a_copy():
    """The same files, and one that runs a loop of its own."""
    return {**sources(), "paper_repro/peers/ours.py": ast.parse(COPY)}


def nodes(kind, files):
    """Pairs of a path and a node of this kind."""
    return ((path, node) for path, tree in files.items() for node in ast.walk(tree) if isinstance(node, kind))


def callers_of_a_round(files):
    """Files that ask for a round of responses, `anything.round(draft, rule)`; numbers are rounded to a constant or by name."""
    return {
        path
        for path, node in nodes(ast.Call, files)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "round" and len(node.args) == 2
        if not isinstance(node.args[1], ast.Constant)
    }


def importers(name, files):
    """Files that import a name, or reach for it as an attribute of a module, but for tests and theorems, which plant bugs."""
    found = {path for path, node in nodes(ast.ImportFrom, files) if name in {alias.name for alias in node.names}}
    found |= {
        path for path, node in nodes(ast.Attribute, files) if node.attr == name and isinstance(node.value, ast.Name)
    }
    return {path for path in found if not path.startswith(("tests/", "theory/theorems/"))}


def with_a_clock(files):
    """Files that read the time and know of speculation."""
    timed = {path for path, node in nodes(ast.Import, files) if "time" in {alias.name for alias in node.names}}
    return timed & {path for path, node in nodes(ast.ImportFrom, files) if (node.module or "").startswith(PACKAGE)}


# ------------------------------------------------------------------------------------------------ no second loop
def test_one_file_asks_for_rounds():
    assert callers_of_a_round(sources()) == {ENGINE}


@pytest.mark.parametrize(
    ("part", "files"),
    [
        ("Responses", {ENGINE, WRONG_GROUPS}),  # whose subclasses the same loop grows
        ("grown", {WRONG_GROUPS}),
        ("settled", {PARTS}),
        ("TreeDecoder", {PARTS, CLOCK}),
    ],
)
def test_a_round_is_put_together_in_one_place(part, files):
    assert importers(part, sources()) == files


def test_one_function_has_the_name():
    assert {path for path, node in nodes(ast.FunctionDef, sources()) if node.name == "speculative_rollout"} == {ENGINE}


def test_whoever_times_speculation_times_this_function_or_its_pass():
    """Passes are timed by the decoder that rounds use, with the two calls that a round makes."""
    assert with_a_clock(sources()) - {CLOCK} <= importers("speculative_rollout", sources())
    assert staircase.TreeDecoder is responses.TreeDecoder is tree_decoder.TreeDecoder
    for path in (PARTS, CLOCK):
        calls = {n.func.attr for _, n in nodes(ast.Call, {path: sources()[path]}) if isinstance(n.func, ast.Attribute)}
        assert {"extend", "laws"} <= calls


def test_a_copy_of_the_loop_would_be_noticed():
    copied = {"paper_repro/peers/ours.py"}
    assert callers_of_a_round(with_a_copy()) == {ENGINE} | copied
    assert importers("Responses", with_a_copy()) >= copied
    assert with_a_clock(with_a_copy()) >= copied and not copied & importers("speculative_rollout", with_a_copy())


# ------------------------------------------------------------------------------------------------ the same function
def modules_that_speculate():
    """Importable modules that import the engine."""
    wanted = [
        path for path, node in nodes(ast.ImportFrom, sources()) if "speculative_rollout" in {a.name for a in node.names}
    ]
    return sorted({path.removesuffix(".py").replace("/", ".") for path in wanted if not path.startswith("notebooks/")})


def test_every_module_that_speculates_has_the_same_function():
    found = modules_that_speculate()
    assert {"theory.speculative_worlds", "tests.rollout.speculative.worlds"} <= set(found)
    for name in found:
        assert importlib.import_module(name).speculative_rollout is engine.speculative_rollout, name


ENUMERATED = Speculation(name="one_engine", horizon=2)
RUNS = {
    "theory, branch by branch": lambda: ENUMERATED.law(n=2, drafter=lambda: ENUMERATED.heads(1), nodes=1),
    "theory, side by side": lambda: ENUMERATED.side_by_side(drafter=lambda: ENUMERATED.heads(1), nodes=1),
    "tests, branch by branch": lambda: engine_law(Letters(2, 2), tiny(2), 1),
    "tests, side by side": lambda: branched_law(Letters(2, 2), tiny(2)),
    "tests, path by path": lambda: speculative(CASE),
    "wrong groups": lambda: specimen_rollout(next(iter(GROUP_SPECIMENS)), Letters(2, 2), tiny(2), 2, KeyedChooser(0)),
}


@pytest.mark.parametrize("name", list(RUNS))
def test_every_way_to_run_it_goes_through_the_one_loop(name, monkeypatch):
    kinds, right = [], engine.grown

    def watched(kind, *args, **options):
        kinds.append(kind)
        return right(kind, *args, **options)

    for module in (engine, importlib.import_module(f"{PACKAGE}.group_specimens")):
        monkeypatch.setattr(module, "grown", watched)
    RUNS[name]()
    assert kinds
    if name == "wrong groups":
        assert all(issubclass(kind, responses.Responses) for kind in kinds)
    else:
        assert set(kinds) == {responses.Responses}
