"""What a finished study found, as its reader meets it: a line for each combination of levels."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from testbed.core.records import RunRecord
from testbed.core.sections import Section
from testbed.core.seeds import SeedTree
from testbed.stats.runs import estimate, interquartile_mean
from testbed.training.study import Cell, Study

MEANING = (
    "Final reward: mean of a run's last three evaluations, 0 if it diverged; mean reward: of all of them. Interquartile means "
    "over seeds, the first with an interval at 95% (bootstrap); of fewer than five seeds it spans the lowest run to the highest, "
    "and covers less. Arms share seeds: compare them seed by seed, from the file that --results writes (columns: "
    "paper_repro/results/README.md)."
)


def found_section(study: Study, pairs: Iterable[tuple[Cell, RunRecord]]) -> Section:
    """Return the section of what runs found: interquartile means over the seeds of each combination (`stats.runs`).

    Parameters
    ----------
    study : Study
    pairs : iterable   every cell of the study that has a record, with it

    Examples
    --------
    >>> from testbed.training.study import Study
    >>> factors = {"rule": {"none": {"rule": "none"}, "tis": {"rule": "tis"}}}
    >>> study = Study(name="x", title="", base={}, factors=factors, seeds=2)
    >>> record = RunRecord(result={"final": 0.5, "area": 0.4, "collapsed": False, "outcome": "finished"}, provenance={})
    >>> found_section(study, [(cell, record) for cell in study.cells()]).rows[1]
    ('tis', '2', '0.500 [0.500, 0.500]', '0.400', '0', '0')
    """
    found: dict[tuple[str, ...], list[dict]] = {}
    for cell, record in pairs:
        found.setdefault(tuple(cell.levels[name] for name in study.factors), []).append(record.result)
    rows = []
    for levels, runs in found.items():
        tree = SeedTree("sweep")[study.name][", ".join(levels)]
        final = estimate([[float(run["final"]) for run in runs]], seeds=tree["final"])
        area = float(interquartile_mean(np.array([float(run["area"]) for run in runs])))
        fell, diverged = (
            sum(flags) for flags in zip(*((r["collapsed"], r["outcome"] == "diverged") for r in runs), strict=True)
        )
        rows.append((*levels, str(len(runs)), str(final), f"{area:.3f}", str(fell), str(diverged)))
    return Section(
        title="WHAT IT FOUND",
        says=f"{study.title or study.name}: {sum(len(runs) for runs in found.values())} runs.",
        header=(*study.factors, "runs", "final reward", "mean reward", "collapsed", "diverged"),
        rows=rows,
        text=tuple(study.factors),
        remarks=[MEANING],
    )
