"""Every format by name, and the choice among them by the fields a file has."""

from __future__ import annotations

import importlib

from testbed.core.errors import InputError
from testbed.diagnosis.adapters.trainer_format import Trainer, TrainerFormat
from testbed.diagnosis.layouts import NEEDS_REWARDS
from testbed.diagnosis.tables import Table

NATIVE = "testbed"
ADAPTERS = ("verl", "trl", "areal", "openrlhf")
FORMATS = (NATIVE, *ADAPTERS)
OWN = ("logp_behavior", "logp_target")  # either makes a dump the testbed's own


def adapter(name: str) -> TrainerFormat:
    """Return what an adapter says about its format."""
    return importlib.import_module(f"testbed.diagnosis.adapters.{name}").FORMAT


def read_trainer(name: str, table: Table, target: str | None, behavior: str | None) -> Trainer:
    """Read a trainer's dump.

    Raises
    ------
    InputError   a needed field is missing
    """
    for chosen, option in ((target, "--target"), (behavior, "--behavior")):
        if chosen is not None and chosen not in table.names:
            raise InputError(f"a dump needs a column `{chosen}` (chosen with {option})", found=_listed(table.names))
    lacking = adapter(name).missing(table.names, _stand_in(name, target, behavior))
    if lacking:
        why = _why(name, lacking)
        raise InputError(f"a dump of format {name} needs {', '.join(lacking)}{why}", found=_listed(table.names))
    return importlib.import_module(f"testbed.diagnosis.adapters.{name}").read(table, target, behavior)


def choose_format(
    names: list[str], given: str | None = None, target: str | None = None, behavior: str | None = None
) -> str:
    """Name of the format to read a file with these fields by.

    Parameters
    ----------
    names : list of str        fields of the file
    given : str                the user's choice; then nothing is guessed
    target, behavior : str     columns the user chose

    Raises
    ------
    InputError   an unknown name; fields of no format, or of several

    Examples
    --------
    >>> choose_format(["rollout_log_probs", "old_log_probs", "response_mask", "token_level_scores"])
    'verl'
    >>> choose_format(["sequence", "position", "logp_behavior", "logp_target", "reward"])
    'testbed'
    """
    if given is not None:
        if given not in FORMATS:
            raise InputError("the format is unknown", found=repr(given), hint="one of " + ", ".join(FORMATS))
        return given
    if set(OWN) & set(names):
        return NATIVE
    fitting = [name for name in ADAPTERS if not adapter(name).missing(names, _stand_in(name, target, behavior))]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise InputError(
            f"the fields fit several formats: {', '.join(fitting)}", found=_listed(names), hint="choose with --format"
        )
    if {target, behavior} <= set(names):  # both columns were chosen by name: the rest is asked for as our own
        return NATIVE
    raise InputError(
        "the fields of a dump must be those of a known format",
        found=_listed(names),
        hint=_nearest(names, target, behavior),
    )


def _nearest(names: list[str], target: str | None, behavior: str | None) -> str:
    """Name the format with most of its needs met (then most of its other fields), and what it lacks."""
    present = {}
    for name in ADAPTERS:
        met = sum(bool(set(options) & set(names)) for options in adapter(name).needs)
        present[name] = (met, len(set(adapter(name).reads) & set(names)))
    most = max(present.values())
    if most[0] == 0:
        needs = "; ".join(f"{name}: {', '.join(adapter(name).missing([]))}" for name in ADAPTERS)
        return f"{NATIVE}: `logp_behavior`, `logp_target`, `reward`; {needs}"
    parts = []
    for name in (name for name in ADAPTERS if present[name] == most):
        lacking = adapter(name).missing(names, _stand_in(name, target, behavior))
        parts.append(f"nearest is {name}, which lacks {', '.join(lacking)}{_why(name, lacking)}")
    return "; ".join(parts)


def _why(name: str, lacking: list[str]) -> str:
    """Say what rewards are for, where they are missing: the rest could do without."""
    rewards = adapter(name).missing([])[-1]
    return f" ({NEEDS_REWARDS})" if rewards in lacking else ""


def _stand_in(name: str, target: str | None, behavior: str | None) -> tuple[str, ...]:
    """Needs that are met by columns the user chose: a target is no substitute, it makes the trainer's own proximal."""
    return (adapter(name).needs[0][0],) if behavior is not None else ()


def _listed(names: list[str]) -> str:
    return "the columns " + ", ".join(names) if names else "none"
