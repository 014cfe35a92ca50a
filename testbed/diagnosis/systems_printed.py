"""The systems of the asynchronous clock as text: one line each, or every value of one."""

from __future__ import annotations

from typing import Any

from testbed.core.sections import Section
from testbed.rollout.system import System
from testbed.rollout.systems import SYSTEMS, find_system

PUSHES = {"finish": "finish under theirs", "recompute": "go on, read again", "stale_cache": "go on, stale cache"}


def list_systems() -> tuple[list[Section], list[dict[str, Any]]]:
    """All systems, as a table and as records.

    Examples
    --------
    >>> sections, records = list_systems()
    >>> len(sections[0].rows) == len(records), records[0]["name"]
    (True, 'synchronous')
    """
    systems = list(SYSTEMS.values())
    table = Section(
        title="SYSTEMS",
        says=f"{len(systems)} ways to run a generator beside a trainer; each can be changed value by value.",
        header=("system", "bound", "running at a push", "generation"),
        rows=[(s.name, "none" if s.bound is None else str(s.bound), PUSHES[s.push], _generation(s)) for s in systems],
        text=("running at a push", "generation"),
        remarks=["The bound is the most updates between writing a fresh token and training on it."],
    )
    sources = Section(
        title="SOURCES", says="Papers, by arXiv number.", header=("system", "source"), text=("source",),
        rows=[(s.name, s.source) for s in systems if s.source],
    )  # fmt: skip
    return [table, sources], [_record(s) for s in systems]


def one_system(name: str) -> tuple[list[Section], list[dict[str, Any]]]:
    """Every value of one system.

    Raises
    ------
    InputError   unknown name
    """
    system = find_system(name)
    rows = [(key, str(value)) for key, value in system.plain().items() if key != "name"]
    advice = 'The system schedules only; to train as its paper does, set `rule` to "decoupled_ppo", too.'
    section = Section(
        title=system.name, says=_generation(system) + ".", header=("value", "is"), rows=rows, text=("is",),
        remarks=[advice] if system.objective == "decoupled" else [],
    )  # fmt: skip
    return [section], [_record(system)]


def _record(system: System) -> dict[str, Any]:
    return system.plain() | {"bound": system.bound}


def _generation(system: System) -> str:
    """What is started when, in a few words."""
    if system.generation == "stream":
        limit = f"queue of {system.queue}" if system.ahead is None else f"staleness <= {system.ahead}"
        return f"stream, {limit}"
    words = [f"rounds, {system.ahead} ahead"]
    if system.pinned:
        words.append("pinned to that version")
    if system.start > 1:
        words.append(f"x{system.start:g} started, rest {'lost' if system.leftover == 'drop' else 'resumed'}")
    if system.refill:
        words.append("refilled")
    if system.replay != "off":
        words.append(f"{system.replay_share:.0%} replayed ({system.replay})")
    return ", ".join(words)
