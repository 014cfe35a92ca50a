"""A printed number beside a measured one, and what may be said about the two.

Declared once, for every cell. Ours comes with an interval at LEVEL from a bootstrap over whole responses; the paper's with
the rounding of its last digit (it prints no error for these tables; with millions of tokens rounding is the larger).
The range around the paper's number is TOLERANCE of it, or an absolute tolerance where the number is near 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import numpy as np

from paper_repro.mismatch_samples import Array, resampled
from paper_repro.reported_tables import Reported
from testbed.core.seeds import SeedTree

LEVEL, TOLERANCE = 0.95, 0.10
CRITERION = (
    f"reproduced: our whole {LEVEL:.0%} interval (bootstrap over responses) lies within {TOLERANCE:.0%} of the printed number, "
    "or within the stated absolute tolerance; within noise: interval and range overlap, so the sample cannot tell; "
    "not reproduced: they do not meet; fitted: our model was given this number; size: a sample size, nothing to reproduce; "
    "other model: the paper's number is of a mixture of experts and ours of a dense model, or depends on how sure the model is "
    "of its tokens; too few: fewer than 100 tokens; not measured: the model at this scale has no such thing; missing: the text "
    "we had does not show the paper's number"
)
VERDICTS = (
    "reproduced", "within noise", "not reproduced", "fitted", "size", "other model", "too few", "not measured", "missing",
)  # fmt: skip
FEWEST = 100  # tokens behind a number that is judged
Sample = TypeVar("Sample")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One cell of a table, the paper's and ours.

    Parameters
    ----------
    source : str                        whose numbers ours are
    row, column : str                   as in the paper
    paper : str                         as printed, or ""
    unit : str                          "%" where the paper prints percent signs, else ""; of the paper's number and of ours
    ours, low, high : float | None      the number and its interval; None = not measured
    verdict : str                       one of VERDICTS
    """

    source: str
    row: str
    column: str
    paper: str
    unit: str
    ours: float | None
    low: float | None
    high: float | None
    verdict: str

    def plain(self) -> dict[str, Any]:
        """Return the cell as a dictionary."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A statement of the paper, or one required of our data, and whether it holds here."""

    statement: str
    holds: bool | None
    found: str

    @property
    def word(self) -> str:
        """Return "holds", "does not hold" or "cannot be told"."""
        return "cannot be told" if self.holds is None else "holds" if self.holds else "does not hold"

    def plain(self) -> dict[str, Any]:
        """Return the check as a dictionary."""
        return {"statement": self.statement, "verdict": self.word, "found": self.found}


def judge(paper: Reported | None, low: float, high: float, tolerance: float | None = None) -> str:
    """Return the verdict on a cell from the paper's number and our interval.

    Parameters
    ----------
    paper : Reported | None     None or a cell without number: "missing"
    low, high : float           our interval
    tolerance : float | None    absolute; None = TOLERANCE of the printed number

    Examples
    --------
    >>> from paper_repro.reported_tables import reported
    >>> cell = reported(6)["sd(epsilon)", "Dense"]
    >>> [judge(cell, *ours) for ours in ((0.095, 0.105), (0.08, 0.12), (0.2, 0.3))]
    ['reproduced', 'within noise', 'not reproduced']
    """
    if paper is None or paper.mean is None:
        return "missing"
    room = paper.rounding + (TOLERANCE * abs(paper.mean) if tolerance is None else tolerance)
    least, most = paper.mean - room, paper.mean + room
    if high < least or low > most:
        return "not reproduced"
    return "reproduced" if least <= low and high <= most else "within noise"


def measured(
    sample: Any,
    statistics: Callable[[Any], Mapping[str, float]],
    seeds: SeedTree,
    resamples: int,
) -> dict[str, tuple[float, float, float]]:
    """Return each statistic of a sample with its interval: (value, low, high).

    Parameters
    ----------
    sample           TokenSample or NoiseSample
    statistics       sample -> name -> number; a number that is not finite in a draw is left out of its interval
    resamples        number of bootstrap draws of whole responses
    """
    found = statistics(sample)
    draws: dict[str, list[float]] = {name: [] for name in found}
    for index in resampled(sample.response, seeds.numpy_generator(), resamples):
        for name, value in statistics(sample.of(index)).items():
            draws[name].append(value)
    half = (1 - LEVEL) / 2
    out = {}
    for name, value in found.items():
        finite = np.array([v for v in draws[name] if np.isfinite(v)])
        low, high = np.quantile(finite, [half, 1 - half]) if len(finite) else (np.nan, np.nan)
        out[name] = (float(value), float(low), float(high))
    return out


def cell(
    source: str,
    paper: Reported | None,
    found: tuple[float, float, float] | None,
    *,
    row: str = "",
    column: str = "",
    tolerance: float | None = None,
    verdict: str | None = None,
) -> Cell:
    """Join a printed number with ours; `verdict` overrides the judgment where there is nothing to judge."""
    row, column = (paper.row, paper.column) if paper is not None else (row, column)
    value, low, high = (None, None, None) if found is None else found
    if verdict is None:
        verdict = "not measured" if low is None or high is None else judge(paper, low, high, tolerance)
    printed, unit = ("", "") if paper is None else (paper.printed, paper.unit)
    return Cell(
        source=source, row=row, column=column, paper=printed, unit=unit, ours=value, low=low, high=high, verdict=verdict
    )


def median_deviation(values: Array) -> float:
    """Median absolute deviation from the median."""
    return float(np.median(np.abs(values - np.median(values)))) if len(values) else float("nan")
