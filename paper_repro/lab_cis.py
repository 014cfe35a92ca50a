"""What the tables of the CIS training studies share: arms and their names, and rows with the paper's averages beside ours.

The paper's columns are benchmarks that a tiny model cannot be asked. Its average over them stands beside our final reward,
and what is judged (`cis_verdicts`) is an order, never a number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from paper_repro.lab_results import Results
from paper_repro.lab_tables import arm_row, iqm
from paper_repro.reported_tables import Reported, reported

BASE = "Base model (no RL)"
NO_COUNTERPART = (
    "the paper's columns are five benchmarks; a tiny model has one task. Its average stands beside our final reward (mean of the "
    "last three evaluations, in [0, 1]; interquartile mean over seeds), and orders are judged, not numbers. Ours is reward on "
    "prompts that are trained on, the paper's accuracy on problems that are not: ours says how well training went, and nothing "
    "of what carries over"
)
READING = (
    "the paper's cap formula is cut off in the text we had: cis is the odds form, cis_linear the linear one, both at the "
    "paper's lambda and kappa"
)
FRESH = (
    "noise is drawn anew for every version of the weights, has mean 0 and belongs to the prefix: it does not push one way for "
    "many updates, as two real engines may, so a rule may have less to repair here than in the paper; cis_table1_kept has noise "
    "that lasts"
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
    "mean_x1": ("TIS, cap = mean cap of CIS at the paper's size", None),
    "share_x1": ("TIS, acts as often as CIS at the paper's size", None),
    "mean_x8": ("TIS, cap = mean cap of CIS at 8 times", None),
    "share_x8": ("TIS, acts as often as CIS at 8 times", None),
    "mean_x24": ("TIS, cap = mean cap of CIS at 24 times", None),
    "share_x24": ("TIS, acts as often as CIS at 24 times", None),
    "band": ("two-sided band, w >= (1+p)/2", Printed(2, "Two-sided band (w_t>=(1+p_t)/2)")),
    "kappa_0.1": ("raised floor, kappa = 0.1", Printed(2, "Raised floor (kappa=0.1)")),
    "kappa_0": ("no floor, kappa = 0", Printed(2, "No floor (kappa=0)")),
}


NAMES = {arm: name for arm, (name, _) in ARMS.items()}


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
