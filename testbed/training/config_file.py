"""Which settings a command is to use: a file of settings, or a study's base, and changes named on the command line."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from testbed.core.errors import InputError
from testbed.training.fields import require_choice
from testbed.training.grpo_config import GRPOConfig
from testbed.training.study import FIELDS, Study, load_study, merged

STUDIES = Path(__file__).parent / "studies"
CHANGE = re.compile(r"\s*([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)\s*=\s*(.*\S)\s*", re.DOTALL)


def bundled_studies() -> list[str]:
    """Names of the studies that come with the library.

    Examples
    --------
    >>> "smallest_staleness" in bundled_studies()
    True
    """
    return sorted(path.stem for path in STUDIES.glob("*.toml"))


def config_path(asked: str) -> Path:
    """Return the file that is meant: a path, or the name of a bundled study.

    Raises
    ------
    InputError   neither

    Examples
    --------
    >>> config_path("smallest_staleness").name
    'smallest_staleness.toml'
    >>> config_path("smallest_stalenes")
    Traceback (most recent call last):
    ...
    testbed.core.errors.InputError: CONFIG must be a TOML file or a bundled study; found 'smallest_stalenes' (did you mean \
smallest_staleness?)
    """
    if Path(asked).is_file():
        return Path(asked)
    names = bundled_studies()
    if asked in names:
        return STUDIES / f"{asked}.toml"
    near = difflib.get_close_matches(asked, names, n=1)
    hint = f"did you mean {near[0]}?" if near else f"bundled: {', '.join(names)}"
    found = f"no file {asked}" if asked.endswith(".toml") or "/" in asked else repr(asked)
    raise InputError("CONFIG must be a TOML file or a bundled study", found=found, hint=hint)


def load_config(path: Path, changes: Sequence[str] = ()) -> GRPOConfig:
    """Read a run's settings.

    Parameters
    ----------
    path : Path              fields of GRPOConfig at its top, or a study, whose base is taken
    changes : sequence       "field=value", the value as TOML writes it or a bare word, the field of a table behind a dot; of a
                             study also "factor=level"; later ones count

    Raises
    ------
    InputError   no TOML, a study without settings, a change that cannot be read, settings that GRPOConfig refuses

    Examples
    --------
    >>> config = load_config(config_path("smallest_staleness"), ["staleness=8", "rule=tis", "rule_params.cap=3"])
    >>> config.system, dict(config.system_params), config.rule, dict(config.rule_params)
    ('steps_off', {'ahead': 8}, 'tis', {'cap': 3})
    """
    values = _toml(path)
    study = load_study(path) if set(values) & set(FIELDS) else None
    if study is not None and not {"base", "factors"} & set(values):
        hint = "[base] holds settings that all runs share; a file of one run's settings has no title, question, limits or seeds"
        raise InputError(
            "a study must have [base] or [factors]", found=f"only {', '.join(values)} in {path}", hint=hint
        )
    settings: dict[str, Any] = values if study is None else dict(study.base)
    for change in changes:
        settings = merged(settings, _change(change, study))
    return GRPOConfig.of(settings, path.name)


def _change(text: str, study: Study | None) -> dict[str, Any]:
    """What one change sets."""
    match = CHANGE.fullmatch(text)
    if match is None:
        raise InputError(
            "`--set` must be FIELD=VALUE", found=repr(text), hint="such as rule=tis, system_params.ahead=4"
        )
    name, written = match.groups()
    if study is not None and name in study.factors:
        levels = study.factors[name]
        if written in levels:
            return dict(levels[written])
        if name not in GRPOConfig.__dataclass_fields__:
            require_choice(f"--set {name}", written, levels)
    *outer, last = name.split(".")
    changes: dict[str, Any] = {last: _value(written)}
    for part in reversed(outer):
        changes = {part: changes}
    return changes


def _value(written: str) -> Any:
    """A value as TOML reads it; what TOML cannot read is a word."""
    try:
        found = tomllib.loads(f"value = {written}")
    except tomllib.TOMLDecodeError:
        return written
    return found["value"] if len(found) == 1 else written


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError("CONFIG must be a TOML file", found=f"{path}: {error}") from None
