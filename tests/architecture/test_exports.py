"""What the packages export lazily can be loaded, and keeps its meaning whatever was imported before."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

from tests.architecture import checks

FOLDERS = {
    path.parent.relative_to(checks.ROOT).as_posix().replace("/", ".")
    for package in checks.PACKAGES
    for path in (checks.ROOT / package).rglob("__init__.py")
}


@pytest.mark.parametrize("name", sorted(FOLDERS))
def test_every_export_loads(name):
    package = importlib.import_module(name)
    assert [export for export in getattr(package, "__all__", []) if not hasattr(package, export)] == []


@pytest.mark.parametrize("name", sorted(FOLDERS))
def test_no_export_is_named_like_a_submodule(name):
    package = importlib.import_module(name)
    submodules = {module.name for module in pkgutil.iter_modules(package.__path__)}
    assert checks.ambiguous_exports(set(getattr(package, "__all__", [])), submodules) == []


@pytest.mark.parametrize(
    "name",
    ["TransformerPolicy", "Transformer", "TransformerConfig", "Numerics", "perturb", "Gaussian", "Laplace", "StudentT"],
)
def test_what_a_reader_starts_from_is_found_at_the_top(name):
    top = importlib.import_module("testbed")
    assert name in top.__all__
    assert getattr(top, name).__module__.startswith("testbed.policies.")
