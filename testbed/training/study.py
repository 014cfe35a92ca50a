"""A study: settings that all its runs share, factors whose levels change some of them, and a seed for every repetition.

A study is a TOML file. `[base]` holds fields of GRPOConfig; each entry of `[factors]` is a list of values of the field of that
name, or a table that gives every level a name and the fields it sets; `[design]` says which combinations are run.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

from testbed.core.errors import InputError
from testbed.training import designs
from testbed.training.fields import require_choice, require_table, require_text, require_whole
from testbed.training.grpo_config import GRPOConfig

FORMAT = 1  # of what a cell's number stands for; another one makes every cell new
TEXTS = ("title", "question", "limits")
TABLES = ("base", "factors", "design")
FIELDS = (*TEXTS, "seeds", *TABLES)
DESIGN = ("kind", "words")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One run of a study.

    Parameters
    ----------
    levels : dict      factor -> name of its level
    config : GRPOConfig
    seed : int         number of the repetition; runs of one seed share warm start, prompts and draws as far as they can
    """

    levels: dict[str, str]
    config: GRPOConfig
    seed: int

    @property
    def id(self) -> str:
        """Name of the cell's record: readable levels, and a hash of everything the run is a function of."""
        content = json.dumps([FORMAT, self.config.plain(), self.seed], sort_keys=True)
        words = "-".join(
            "".join(c if c.isalnum() or c in "._" else "_" for c in level) for level in self.levels.values()
        )
        return f"{words[:80]}-s{self.seed}-{hashlib.sha256(content.encode()).hexdigest()[:12]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """What is varied, what is not, and how often.

    Parameters
    ----------
    name : str                      of the file
    title, question, limits : str   what it shows, what it asks, and what it cannot tell
    seeds : int                     repetitions of every combination
    base : mapping                  fields of GRPOConfig
    factors : mapping               factor -> level -> fields that the level sets
    kind, words                     of the design (`designs`)

    Raises
    ------
    InputError   naming the field, its value and what is allowed, for every combination, before anything is run
    """

    name: str
    title: str
    question: str = ""
    limits: str = ""
    seeds: int
    base: Mapping[str, Any]
    factors: Mapping[str, Mapping[str, Mapping[str, Any]]]
    kind: str = "grid"
    words: tuple[tuple[str, ...], ...] = ()

    def __post_init__(self) -> None:
        require_whole("seeds", self.seeds, 1)
        require_choice("kind", self.kind, designs.KINDS)
        if self.words and self.kind != "fraction":
            raise InputError("`words` go with kind 'fraction'", found=f"{[*map(list, self.words)]} with {self.kind!r}")
        self.cells()

    def combinations(self) -> list[dict[str, str]]:
        """Levels of every combination that is run."""
        levels = {name: list(found) for name, found in self.factors.items()}
        if self.kind == "fraction":
            return list(designs.fraction(levels, self.words))
        return list(designs.grid(levels) if self.kind == "grid" else designs.one_at_a_time(levels))

    def cells(self, seeds: int | None = None) -> list[Cell]:
        """Every run, seed by seed, so that a study cut short holds whole repetitions."""
        configs = [(levels, self.config(levels)) for levels in self.combinations()]
        count = self.seeds if seeds is None else seeds
        return [_cell(levels, config, seed) for seed in range(count) for levels, config in configs]

    def cell(self, levels: Mapping[str, str], seed: int) -> Cell:
        """One run, of the study or of a pilot of it: every seed begins with a warm start of its own, all levels alike.

        Were there one warm start for all seeds, its luck would be in every run and in no interval.
        """
        return _cell(dict(levels), self.config(levels), seed)

    def config(self, levels: Mapping[str, str]) -> GRPOConfig:
        """Settings of a combination: the base, then what each level sets, tables within tables merged."""
        values: dict[str, Any] = dict(self.base)
        for name, level in levels.items():
            values = merged(values, self.factors[name][level])
        return GRPOConfig.of(values, f"study `{self.name}`")


def _cell(levels: dict[str, str], config: GRPOConfig, seed: int) -> Cell:
    return Cell(levels=levels, config=with_own_start(config, seed), seed=seed)


def with_own_start(config: GRPOConfig, seed: int) -> GRPOConfig:
    """Return the settings with the warm start of a repetition.

    Examples
    --------
    >>> with_own_start(GRPOConfig(warm_seed=5), 2).warm_seed
    7
    """
    return replace(config, warm_seed=config.warm_seed + seed)


def merged(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Change some values; tables are changed within.

    Examples
    --------
    >>> merged({"a": {"x": 1, "y": 2}, "b": 3}, {"a": {"y": 5}})
    {'a': {'x': 1, 'y': 5}, 'b': 3}
    """
    out = dict(values)
    for name, value in changes.items():
        inner = isinstance(value, Mapping) and isinstance(out.get(name), Mapping)
        out[name] = merged(out[name], value) if inner else value
    return out


def load_study(path: Path | str, *, seeds: int | None = None) -> Study:
    """Read a study.

    Parameters
    ----------
    path : Path | str      a TOML file
    seeds : int | None     repetitions in place of the file's

    Raises
    ------
    InputError   no such file, no TOML, an unknown field or one of another kind, a factor without levels or with two equal
                 ones, a field that two factors set so that the first changes nothing, or settings that GRPOConfig refuses

    Examples
    --------
    >>> load_study("nowhere.toml")
    Traceback (most recent call last):
    ...
    testbed.core.errors.InputError: a study must be a TOML file; found no file nowhere.toml
    """
    path = Path(path)
    try:
        found = tomllib.loads(path.read_text())
    except OSError:
        raise InputError("a study must be a TOML file", found=f"no file {path}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError("a study must be a TOML file", found=f"{path}: {error}") from None
    for name in found:
        require_choice(f"field of {path.name}", name, FIELDS)
    for name in TEXTS:
        require_text(name, found.get(name, ""))
    for name in TABLES:
        require_table(name, found.get(name, {}))
    design = found.get("design", {})
    for name in design:
        require_choice("field of [design]", name, DESIGN)
    factors = {name: _levels(name, levels) for name, levels in found.get("factors", {}).items()}
    study = Study(
        name=path.stem,
        title=found.get("title", path.stem),
        question=found.get("question", ""),
        limits=found.get("limits", ""),
        seeds=found.get("seeds", 10) if seeds is None else seeds,
        base=found.get("base", {}),
        factors=factors,
        kind=design.get("kind", "grid"),
        words=_words(design.get("words", [])),
    )
    _refuse_overwritten(study)
    return study


def _levels(name: str, found: Any) -> dict[str, dict[str, Any]]:
    if isinstance(found, list) and found:
        levels = [(str(value), {name: value}) for value in found]
    elif isinstance(found, dict) and found and all(isinstance(value, dict) for value in found.values()):
        levels = list(found.items())
    else:
        hint = "a list of values of the field, or a table: level = { field = value }"
        raise InputError(f"factor `{name}` must have levels", found=repr(found), hint=hint)
    for (level, fields), (other, same) in combinations(levels, 2):
        if level == other or fields == same:  # one name would hide a level; one content would run everything twice
            raise InputError(f"levels of factor `{name}` must differ", found=f"{level!r} and {other!r}")
    return dict(levels)


def _words(found: Any) -> tuple[tuple[str, ...], ...]:
    """Defining words of a fraction, as a file holds them."""
    for word in found if isinstance(found, list) else [None]:
        if not isinstance(word, list) or not word or not all(isinstance(name, str) for name in word):
            hint = 'such as words = [["a", "b", "c"]]'
            raise InputError("`words` must be a list of lists of factors", found=repr(found), hint=hint)
        if len(set(word)) < len(word):  # its sign would cancel, and the word would halve nothing
            raise InputError("a defining word must name a factor once", found=repr(word))
    return tuple(tuple(word) for word in found)


def _refuse_overwritten(study: Study) -> None:
    """Refuse a factor's field that a later factor sets again in every run: the first one would change nothing.

    A later factor may do so in some of its levels, such as one that turns off what the first varies.
    """
    for (name, levels), (later, others) in combinations(study.factors.items(), 2):
        met = list(others.values())
        if study.kind == "one_at_a_time":  # all levels of a factor are run at the first of every other one
            met = met[:1]
        own = {path for level in levels.values() for path in _paths(level)}
        lost = own.intersection(*map(_paths, met))
        if lost:
            hint = "a later factor wins, so that the earlier one changes nothing"
            raise InputError(
                "no factor may set what another one always sets",
                found=f"`{min(lost)}` in {name} and {later}",
                hint=hint,
            )


def _paths(level: Mapping[str, Any], outer: str = "") -> set[str]:
    """Fields that a level sets, those of tables behind a dot."""
    found: set[str] = set()
    for name, value in level.items():
        found |= _paths(value, f"{outer}{name}.") if isinstance(value, Mapping) else {outer + name}
    return found
