"""What the tables of the CIS training studies share: arms and their names, the paper's averages beside ours, and its contrasts.

The paper's columns are benchmarks that a tiny model cannot be asked. Its average over them stands beside our final reward,
and what is judged is never a number but an order, seed by seed: is this arm above that one, does this one collapse.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import t as student

from paper_repro.lab_results import Results
from paper_repro.lab_tables import (
    LEVEL,
    NOISE,
    NOT,
    REPRODUCED,
    arm_row,
    as_array,
    claim_row,
    compare,
    iqm,
    judged_better,
    judged_rate,
    rate,
    together,
)
from paper_repro.reported_tables import Reported, reported
from testbed.core.seeds import SeedTree
from testbed.stats.interval import Interval
from testbed.stats.runs import interquartile_mean

PAPER_SEEDS, BASE = 3, "Base model (no RL)"
OFTEN = 0.5  # "collapses" says that at least so many runs do
AGREE, RESAMPLES = 0.3, 2000  # a rank correlation surely below the first is no agreement
NO_COUNTERPART = (
    "the paper's columns are five benchmarks; a tiny model has one task. Its average stands beside our final reward (mean of the "
    "last three evaluations, in [0, 1]; interquartile mean over seeds), and orders are judged, not numbers"
)
READING = (
    "the paper's cap formula is cut off in the text we had: cis is the odds form, cis_linear the linear one, both at the "
    "paper's lambda and kappa"
)
FRESH = (
    "noise is drawn anew for every version of the weights, has mean 0 and belongs to the prefix: it does not push one way for "
    "many updates, as two real engines may, so a rule has less to repair here than in the paper"
)


@dataclass(frozen=True, slots=True)
class Printed:
    """Where the paper prints an arm: number of the table and label of the row."""

    table: int
    row: str

    @property
    def average(self) -> Reported | None:
        """Average over the paper's benchmarks; None where the text we had does not show it."""
        found = reported(self.table).get((self.row, "Avg"))
        return found if found is not None and found.mean is not None else None


MODEL = "Qwen1.5-MoE-A2.7B: "
ARMS: dict[
    str, tuple[str, Printed | None]
] = {  # level of the factor `arm` -> what the tables call it, and the paper's row
    "no_mismatch": ("Engines agree", None),
    "none": ("No correction", Printed(1, MODEL + "No correction")),
    "exact": ("Exact ratio", Printed(1, MODEL + "Exact ratio")),
    "kpop": ("KPop", Printed(1, MODEL + "KPop")),
    "icepop": ("IcePop", Printed(1, MODEL + "IcePop")),
    "tis": ("TIS, C = 2", Printed(1, MODEL + "TIS")),
    "seq_tis": ("Seq-TIS", Printed(1, MODEL + "Seq-TIS")),
    "seq_mis": ("Seq-MIS", Printed(1, MODEL + "Seq-MIS")),
    "cis": ("CIS", Printed(2, "CIS (lambda=2.3, kappa=5e-3)")),
    "cis_linear": ("CIS, linear cap", None),
    "tis_113": ("TIS, C = 1.13", Printed(2, "Fixed ratio cap (TIS, C=1.13)")),
    "mean_x8": ("TIS, cap = mean cap of CIS at 8 times", None),
    "share_x8": ("TIS, acts as often as CIS at 8 times", None),
    "mean_x24": ("TIS, cap = mean cap of CIS at 24 times", None),
    "share_x24": ("TIS, acts as often as CIS at 24 times", None),
    "band": ("two-sided band, w >= (1+p)/2", Printed(2, "Two-sided band (w_t>=(1+p_t)/2)")),
    "kappa_0.1": ("raised floor, kappa = 0.1", Printed(2, "Raised floor (kappa=0.1)")),
    "kappa_0": ("no floor, kappa = 0", Printed(2, "No floor (kappa=0)")),
}


def average_of(arm: str) -> Reported | None:
    """Return the paper's average of an arm, if the text we had shows one.

    Examples
    --------
    >>> found = average_of("cis")
    >>> found.printed if found else "", average_of("seq_tis"), average_of("mean_x8")
    ('34.78 ± 0.25', None, None)
    """
    printed = ARMS[arm][1]
    return None if printed is None else printed.average


def ranks(values: Mapping[str, float]) -> dict[str, int]:
    """Rank of each name, 1 for the largest.

    Examples
    --------
    >>> ranks({"a": 0.5, "b": 0.9, "c": 0.5})
    {'b': 1, 'a': 2, 'c': 2}
    """
    order = sorted(values.items(), key=lambda item: -item[1])
    return {name: 1 + sum(other > value for other in values.values()) for name, value in order}


# ------------------------------------------------------------------------------------------------ rows
def rows_of(
    results: Results,
    factor: str,
    printed: Mapping[str, Reported | None],
    reference: str,
    title: str,
    names: Mapping[str, str] | None = None,
    **levels: str,
) -> list[dict[str, str]]:
    """Rows of every level of a factor: the paper's average and rank, our final reward and rank, area, collapses, differences.

    Ranks are among the levels whose average the paper shows.

    Parameters
    ----------
    factor : str            whose levels are the rows
    printed : mapping       level -> the paper's average
    reference : str         level that the others are compared with
    title : str             of the table
    names : mapping         level -> label
    levels                  levels of the other factors
    """
    found = [level for level in results.levels(factor) if level in printed]
    finals = {level: results.values("final", **{factor: level}, **levels) for level in found}
    theirs = {level: cell.mean for level in found if (cell := printed[level]) is not None and cell.mean is not None}
    ours = {level: iqm(finals[level], *_address(results, factor, level, levels)).value for level in theirs}
    standing, printed_standing = ranks(ours), ranks(theirs)
    rows = []
    for level in found:
        areas, collapsed = (results.values(name, **{factor: level}, **levels) for name in ("area", "collapsed"))
        against = None if level == reference else finals[reference]
        row = {"table": title, factor: (names or {}).get(level, level)}
        cell = printed[level]
        row["paper, average"] = cell.printed if cell is not None else "not shown"
        row["paper, rank"], row["our rank"] = (str(found.get(level, "")) for found in (printed_standing, standing))
        rows.append(row | arm_row(finals[level], areas, collapsed, against, *_address(results, factor, level, levels)))
    return rows


def _address(results: Results, factor: str, level: str, levels: Mapping[str, str]) -> tuple[str, ...]:
    return (results.name, factor, level, *levels.values())


# ------------------------------------------------------------------------------------------------ claims
def in_the_paper(first: Reported | None, second: Reported | None) -> str:
    """Say how far apart two averages of the paper are, with Welch's two-sided p-value for its three seeds each.

    Examples
    --------
    >>> in_the_paper(average_of("cis"), average_of("tis"))
    'paper 34.78 - 31.40 = +3.38, Welch p = 0.140'
    """
    if first is None or second is None or first.mean is None or second.mean is None:
        return "paper: not shown"
    text = f"paper {first.mean:.2f} - {second.mean:.2f} = {first.mean - second.mean:+.2f}"
    if not first.sd or not second.sd:
        return text
    return f"{text}, Welch p = {welch(first, second):.3f}"


def welch(first: Reported, second: Reported) -> float:
    """Two-sided p-value of the difference of two printed means of PAPER_SEEDS seeds each."""
    assert first.mean is not None and second.mean is not None and first.sd is not None and second.sd is not None
    a, b = first.sd**2 / PAPER_SEEDS, second.sd**2 / PAPER_SEEDS
    freedom = (a + b) ** 2 / ((a * a + b * b) / (PAPER_SEEDS - 1))
    return float(2 * student.sf(abs(first.mean - second.mean) / math.sqrt(a + b), freedom))


def above(claim: str, better: Sequence[float], worse: Sequence[float], paper: str, *address: str) -> dict[str, str]:
    """Verdict on "this arm ends above that one", seed by seed.

    Examples
    --------
    >>> above("a above b", [0.9] * 9 + [0.8], [0.1] * 10, "", "doc")["verdict"]
    'reproduced'
    """
    found = compare(better, worse, "above", *address)
    verdict = judged_better(found.difference.interval)
    return claim_row(claim, verdict, _joined(f"ours {found}", paper), found.to_tell)


def collapses(
    claim: str, flags: Sequence[float], arm: Sequence[float], sound: Sequence[float], paper: str, *address: str
) -> dict[str, str]:
    """Verdict on "this arm collapses where that one does not": at least half of its runs, and it ends below.

    Parameters
    ----------
    flags : sequence   whether each run of the arm collapsed
    arm, sound         final rewards by seed of the arm and of the one it is compared with
    """
    broken, found = rate(flags), compare(sound, arm, "collapses", *address)
    verdict = together(judged_rate(broken.interval, least=OFTEN), judged_better(found.difference.interval))
    return claim_row(claim, verdict, _joined(f"collapsed {broken}, ends lower by {found}", paper), found.to_tell)


def agreement(
    finals: Mapping[str, Sequence[float]], paper: Mapping[str, float], *address: str
) -> tuple[float, Interval]:
    """Kendall's rank correlation between the paper's averages and our interquartile means, with a bootstrap over seeds.

    Examples
    --------
    >>> ours = {"a": [0.1, 0.1, 0.2], "b": [0.5, 0.4, 0.5], "c": [0.8, 0.9, 0.9]}
    >>> agreement(ours, {"a": 30.0, "b": 31.0, "c": 34.0}, "doc")[0]
    1.0
    """
    names = list(paper)
    values, theirs = as_array([finals[name] for name in names]), [paper[name] for name in names]
    tree = SeedTree("laboratory")["agreement"]
    for word in address:
        tree = tree[word]
    drawn = tree.numpy_generator().integers(values.shape[1], size=(RESAMPLES, values.shape[1]))
    found = [_tau(interquartile_mean(values[:, index]), theirs) for index in drawn]
    half = (1 - LEVEL) / 2
    low, high = np.quantile(found, [half, 1 - half])
    return _tau(interquartile_mean(values), theirs), Interval(float(low), float(high), LEVEL, "bootstrap")


def judged_agreement(found: Interval) -> str:
    """Verdict on "arms stand in the paper's order": a rank correlation above 0.

    Examples
    --------
    >>> [judged_agreement(Interval(*ends, 0.95, "")) for ends in ((0.1, 0.9), (-0.5, 0.2), (-0.5, 0.5))]
    ['reproduced', 'not reproduced', 'within noise']
    """
    if found.low > 0:
        return REPRODUCED
    return NOT if found.high < AGREE else NOISE


def _tau(first: np.ndarray, second: Sequence[float]) -> float:
    """Pairs in the same order minus pairs in the other, over all pairs; a tie counts for neither."""
    a, b = np.asarray(first), np.asarray(second)
    agree = np.sign(a[:, None] - a) * np.sign(b[:, None] - b)
    return float(agree.sum() / (len(a) * (len(a) - 1)))


def _joined(*parts: str) -> str:
    return "; ".join(part for part in parts if part)
