"""Cells of the laboratory's tables: interquartile means, comparisons by seed, collapse rates, and verdicts on what is claimed.

Runs are read by `lab_results.results_of(study, setting)`; `results.values("final", rule="tis", staleness=8)` is a list of
numbers, one per seed, and everything here takes such lists. Intervals are at LEVEL. Verdicts follow from intervals alone and
are declared before any run is seen: `judged_better`, `judged_not_worse`, `judged_rate`, and `together` for claims of several
parts.

A seed is a repetition: runs of one seed share prompts and draws as far as they can, so arms are compared seed by seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from paper_repro.comparison import Check
from paper_repro.lab_power import to_tell
from testbed.core.errors import InputError
from testbed.core.seeds import SeedTree
from testbed.stats.interval import Interval
from testbed.stats.intervals import clopper_pearson
from testbed.stats.runs import Estimate, difference_by_seed, estimate, probability_of_improvement

LEVEL = 0.95
MARGIN = 0.05  # of reward, in [0, 1]: a smaller loss than this counts as none
REPRODUCED, NOISE, NOT = "reproduced", "within noise", "not reproduced"
WORDS = (NOT, NOISE, REPRODUCED)  # the weakest part decides
FEWEST = 5  # seeds that a verdict needs
CRITERION = (
    f"intervals at {LEVEL:.0%}: interquartile means and differences by a stratified bootstrap over seeds, rates by "
    f"Clopper and Pearson. reproduced: the whole interval lies where the claim says; not reproduced: it lies where the claim "
    f"says it does not, or lies below a difference of {MARGIN:g} in the claimed direction, or of the paper's own size where that "
    "is smaller; within noise: neither. Where a mismatch of engines is not seen to cost reward, a claim that one arm repairs it "
    "better than another is within noise: nothing to repair here. A claim of several parts has the verdict of its weakest part"
)
CAVEAT = (
    "the paper's full text is not available to this project: its claims are those of its abstract, and every rule and setting "
    "here is a reading of it"
)
TINY = (
    "models of some ten thousand weights on tasks of a few tokens: a verdict says whether the claimed order shows at this scale, "
    "not whether it holds for models of billions of weights"
)


# ------------------------------------------------------------------------------------------------ statistics of an arm
def iqm(values: Sequence[float], *address: str | int | float) -> Estimate:
    """Interquartile mean of runs, with its interval.

    Parameters
    ----------
    values : sequence   a number per run
    address             words and numbers that name the arm: they make the stream of the bootstrap

    Examples
    --------
    >>> str(iqm([0.9, 0.9, 0.9, 0.9], "a table", "an arm"))
    '0.900 [0.900, 0.900]'
    """
    return estimate([list(values)], seeds=_stream("iqm", *address), level=LEVEL)


def iqm_of_strata(strata: Mapping[str, Sequence[float]], *address: str | int | float, level: float = LEVEL) -> Estimate:
    """Interquartile mean of the runs of several tasks or levels together; the bootstrap keeps the mix."""
    return estimate([list(values) for values in strata.values()], seeds=_stream("strata", *address), level=level)


@dataclass(frozen=True, slots=True)
class Rate:
    """How many of some runs, with the exact interval of the probability behind it."""

    count: int
    runs: int
    interval: Interval

    def __str__(self) -> str:
        return f"{self.count}/{self.runs} [{self.interval.low:.2f}, {self.interval.high:.2f}]"


def rate(flags: Sequence[float]) -> Rate:
    """Share of runs of which something holds.

    Examples
    --------
    >>> str(rate([1, 0, 0, 0, 0, 0, 0, 0, 0, 0]))
    '1/10 [0.00, 0.45]'
    """
    count = sum(bool(flag) for flag in flags)
    return Rate(count, len(flags), clopper_pearson(count, len(flags), level=LEVEL))


# ------------------------------------------------------------------------------------------------ two arms
@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Two arms of the same seeds: first - second, and how often the first is ahead."""

    difference: Estimate
    improvement: Estimate

    @property
    def told(self) -> bool:
        """Whether the interval of the difference leaves 0 out."""
        return 0.0 not in self.difference.interval

    @property
    def to_tell(self) -> str:
        """Seeds with which a difference of this size would be told from 0 nine times in ten, in words."""
        return self.to_tell_from(0.0)

    def to_tell_from(self, *bounds: float) -> str:
        """Seeds with which the interval would leave one of the bounds out that a verdict rests on, in words."""
        return to_tell(self.difference, *bounds)

    def __str__(self) -> str:
        low, high = self.difference.interval.low, self.difference.interval.high
        return f"{self.difference.value:+.3f} [{low:+.3f}, {high:+.3f}]"


def compare(
    first: Sequence[float], second: Sequence[float], *address: str | int | float, level: float = LEVEL
) -> Compared:
    """Compare two arms seed by seed.

    Parameters
    ----------
    first, second : sequence   a number per run, of the same seeds
    address                    words and numbers that name the comparison
    level : float              of the intervals: 1 - (1 - LEVEL) / m if one verdict rests on m comparisons

    Raises
    ------
    InputError   arms of different seeds

    Examples
    --------
    >>> found = compare([0.9, 0.8, 0.95, 0.9], [0.5, 0.5, 0.5, 0.4], "a table", "two arms")
    >>> found.told, found.improvement.value, found.to_tell
    (True, 1.0, 'told apart')
    """
    return Compared(
        difference=difference_by_seed(first, second, seeds=_stream("difference", *address), level=level),
        improvement=probability_of_improvement(first, second, level=level),
    )


def arm_row(
    finals: Sequence[float],
    areas: Sequence[float],
    collapsed: Sequence[float],
    reference: Sequence[float] | None,
    *address: str | int | float,
) -> dict[str, str]:
    """Return a table's row of one arm, without its names.

    Parameters
    ----------
    finals, areas, collapsed   per seed
    reference : sequence       final rewards of the arm to compare with, same seeds; None: this arm is the reference
    """
    row = {
        "final reward": str(iqm(finals, *address, "final")),
        "area": str(iqm(areas, *address, "area")),
        "collapsed": str(rate(collapsed)),
        "minus reference": "",
        "P(better)": "",
        "to tell": "",
    }
    if reference is not None:
        found = compare(finals, reference, *address)
        row |= {"minus reference": str(found), "P(better)": str(found.improvement), "to tell": found.to_tell}
    return row


# ------------------------------------------------------------------------------------------------ verdicts
def judged_better(difference: Interval, margin: float = MARGIN, *, gap: float | None = None) -> str:
    """Verdict on "the first arm is better": first - second is claimed to be above 0.

        reproduced: low > 0;   not reproduced: high <= 0, or low <= 0 and high < min(margin, gap);   else within noise

    Parameters
    ----------
    difference : Interval   of first - second
    margin : float          a smaller difference than this counts as none, in the unit of the difference; 0: only the sign counts
    gap : float             the difference that the paper prints, in the same unit: an interval that holds it refutes nothing

    Examples
    --------
    >>> [judged_better(Interval(*ends, 0.95, "")) for ends in ((0.01, 0.2), (-0.1, 0.01), (-0.1, 0.2))]
    ['reproduced', 'not reproduced', 'within noise']
    >>> [judged_better(Interval(-0.1, high, 0.95, ""), gap=0.006) for high in (0.01, 0.005, 0.0)]
    ['within noise', 'not reproduced', 'not reproduced']
    """
    _check(margin)
    if difference.low > 0:
        return REPRODUCED
    least = margin if gap is None else min(margin, gap)
    return NOT if difference.high <= 0 or difference.high < least else NOISE


def judged_not_worse(difference: Interval, margin: float = MARGIN) -> str:
    """Verdict on "the first arm loses nothing": first - second is claimed to be above -margin.

        reproduced: low > -margin;   not reproduced: high < -margin;   else within noise

    Examples
    --------
    >>> [judged_not_worse(Interval(*ends, 0.95, "")) for ends in ((-0.01, 0.2), (-0.3, -0.1), (-0.1, 0.2))]
    ['reproduced', 'not reproduced', 'within noise']
    """
    _check(margin)
    if difference.low > -margin:
        return REPRODUCED
    return NOT if difference.high < -margin else NOISE


def judged_rate(found: Interval, *, most: float | None = None, least: float | None = None) -> str:
    """Verdict on "this happens to at most, or at least, such a share of runs".

    Examples
    --------
    >>> judged_rate(rate([0] * 20).interval, most=0.2), judged_rate(rate([1, 1, 1]).interval, least=0.5)
    ('reproduced', 'within noise')
    """
    if (most is None) == (least is None):
        raise InputError("exactly one of `most` and `least` must be given", found=f"{most}, {least}")
    if most is not None:
        return REPRODUCED if found.high <= most else NOT if found.low > most else NOISE
    assert least is not None
    return REPRODUCED if found.low >= least else NOT if found.high < least else NOISE


def together(*words: str) -> str:
    """Verdict on a claim of several parts: that of its weakest.

    Examples
    --------
    >>> together("reproduced", "within noise"), together("not reproduced", "within noise")
    ('within noise', 'not reproduced')
    """
    return min(words, key=WORDS.index)


def claim_row(claim: str, verdict: str, found: str, to_tell: str) -> dict[str, str]:
    """Return a table's row of a claim of the paper: what is claimed, the verdict, the numbers, and what would tell.

    Raises
    ------
    InputError   a word that is no verdict
    """
    if verdict not in WORDS:
        raise InputError(f"a verdict must be one of {', '.join(WORDS)}", found=repr(verdict))
    return {"claim": claim, "verdict": verdict, "found": found, "to tell": to_tell}


def settled(claims: list[dict[str, str]], seeds: int) -> list[dict[str, str]]:
    """Return claims as they are, or without verdicts where fewer than FEWEST seeds were run: a bootstrap of two runs is none.

    Examples
    --------
    >>> settled([claim_row("better", "reproduced", "+0.1", "")], 2)[0]["verdict"]
    'within noise'
    """
    if seeds >= FEWEST:
        return claims
    return [claim | {"verdict": NOISE, "to tell": f"at least {FEWEST} seeds; {seeds} were run"} for claim in claims]


def settled_checks(checks: list[Check], seeds: int) -> list[Check]:
    """Return checks as they are, or as such that cannot be told where fewer than FEWEST seeds were run."""
    return checks if seeds >= FEWEST else [replace(check, holds=None) for check in checks]


def as_array(values: Sequence[Sequence[float]]) -> np.ndarray:
    """Arms as the rows of an array, seeds as its columns.

    Raises
    ------
    InputError   arms of different numbers of runs
    """
    if len({len(row) for row in values}) != 1:
        raise InputError("arms must have the same seeds", found=f"{[len(row) for row in values]} runs")
    return np.array(values, dtype=float)


def _stream(*address: str | int | float) -> SeedTree:
    tree = SeedTree("laboratory")
    for word in address:
        tree = tree[str(word)]
    return tree


def _check(margin: float) -> None:
    if not margin >= 0:
        raise InputError("`margin` must be >= 0", found=margin)
