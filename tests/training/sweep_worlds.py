"""A study whose cells take no time to speak of, and a program that sweeps it until it is killed."""

import time
from pathlib import Path

from testbed.core.seeds import SeedTree
from testbed.training.study import Study
from testbed.training.sweep import sweep

STUDY = Study(
    name="quick",
    title="quick cells",
    seeds=6,
    base={"updates": 4},
    factors={
        "rule": {"tis": {"rule": "tis"}, "none": {"rule": "none"}},
        "rate": {"1": {"rate": 1e-3}, "2": {"rate": 2e-3}},
    },
)


def quick(cell):
    """A result that depends on the cell, and takes a while."""
    time.sleep(0.05)
    number = SeedTree("quick")[cell.id].integer() % 1000 / 7
    if cell.config.rate == 2e-3 and cell.seed == 3:
        number = float("nan")
    curve = {"reward": [number] * 4, "ages": [[1, 0], [0, 1]]}
    return {
        "outcome": "finished", "reason": "", "updates": 4, "start": 0.0, "best": number, "final": number, "area": number,
        "collapsed": False, "evaluations": [[0, 0.0], [4, number]], "curve": curve,
    }  # fmt: skip


def record(cell, **about):
    """What a finished cell leaves behind."""
    return {"result": {"study_cell": cell.id, **quick(cell)}, "provenance": about}


def failing(cell):
    """As `quick`, but one cell raises an error."""
    if cell.seed == 2 and cell.config.rule == "none":
        raise ZeroDivisionError("no such thing")
    return quick(cell)


def swept(out, backend="loky", jobs=1):
    """Go on with the sweep: what a process does until it is killed."""
    sweep(STUDY, Path(out), quick, jobs=jobs, backend=backend, resume=True)
