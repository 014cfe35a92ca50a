"""Table 10 and Figure 10 of the CIS paper: what training looks like under each correction."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from paper_repro.cis_controls import share_acted
from paper_repro.cis_settings import Place, arms_studies, places_of
from paper_repro.cis_verdicts import above, by_chance
from paper_repro.lab_cis import FRESH, NAMES, READING
from paper_repro.lab_results import Results
from paper_repro.lab_tables import CRITERION, TINY, iqm, settled
from paper_repro.reported_tables import reported
from paper_repro.study import Finding, Setting
from testbed.training.results_file import POINTS

Row = Mapping[str, Any]
LABELS = {  # our arm -> row of the paper's table
    "none": "No correction", "exact": "Exact ratio", "kpop": "KPop", "icepop": "IcePop", "tis": "TIS (C=2)",
    "tis_113": "TIS (C=1.13)", "seq_tis": "Seq-TIS", "seq_mis": "Seq-MIS", "cis": "CIS",
}  # fmt: skip
MODEL = "dense"  # whose runs claims are judged on; the tables have both
MOST = 1e6  # a gradient that is not finite counts as this
DRAWN = ("reward", "grad_norm", "entropy", "length", "acted", "max_log_k")  # panels (a) to (f)


def late(name: str) -> Callable[[Row], float]:
    """Mean of a curve over the last third of a run, in place of the paper's third epoch.

    A run that diverged earns nothing in what it had left to do; its other curves end where it did.

    Examples
    --------
    >>> late("reward")({"curve_reward": [0.0, 0.1, 0.2, 0.3, 0.5, 0.7], "outcome": "finished"})
    0.6
    >>> late("reward")({"curve_reward": [0.5, 0.6, 0.9, 0.9], "outcome": "diverged"})
    0.0
    """

    def mean(row: Row) -> float:
        values = [value for value in row[f"curve_{name}"] if math.isfinite(value)]
        if name == "reward" and row["outcome"] == "diverged":
            values += [0.0] * (POINTS - len(row["curve_reward"]))
        kept = values[-math.ceil(len(values) / 3) :]
        return sum(kept) / len(kept) if kept else 0.0

    return mean


def spike(name: str) -> Callable[[Row], float]:
    """Number of a run that may be infinite, cut at MOST.

    Examples
    --------
    >>> spike("peak_grad_norm")({"peak_grad_norm": float("inf")})
    1000000.0
    """
    return lambda row: min(MOST, row[name]) if row[name] == row[name] else MOST


STATISTICS: dict[str, Callable[[Row], float]] = {  # column of the paper's table -> number of one run
    "Reward": late("reward"),
    "Grad. norm": spike("late_grad_norm"),
    "Peak grad.": spike("peak_grad_norm"),
    "Entropy": late("entropy"),
    "Length": late("length"),
    "Acted on (%)": lambda row: 100 * share_acted(row),
    "max_t|log k_t|": spike("late_max_log_k"),
}
CLAIMS: tuple[tuple[str, str, str, str], ...] = (  # statistic, the larger arm, the smaller, what is claimed
    ("Peak grad.", "exact", "tis", "the exact ratio has higher peaks of the gradient than TIS"),
    ("Peak grad.", "exact", "icepop", "the exact ratio has higher peaks of the gradient than IcePop"),
    ("Peak grad.", "kpop", "icepop", "KPop, whose weights have no bound, has higher peaks of the gradient than IcePop"),
    ("Grad. norm", "exact", "tis", "the exact ratio has larger gradients than TIS"),
    ("Acted on (%)", "icepop", "kpop", "IcePop acts on more tokens than KPop"),
    ("Acted on (%)", "icepop", "tis", "IcePop acts on more tokens than TIS"),
    ("Acted on (%)", "tis_113", "icepop", "TIS with C = 1.13 acts on more tokens than IcePop"),
    ("Acted on (%)", "tis", "exact", "TIS acts on more tokens than the clamp of the exact ratio"),
    ("Reward", "tis", "none", "without correction the training reward ends below that of TIS"),
    ("Reward", "tis", "tis_113", "TIS with C = 1.13 ends below TIS with C = 2 in training reward"),
    ("Entropy", "none", "tis", "without correction the entropy stays above that of TIS"),
    ("max_t|log k_t|", "tis", "none", "without correction the largest |log k| is below that of TIS"),
)


def table10(setting: Setting) -> Finding:
    """Statistics of training by arm, a table for each model and size of the mismatch, the paper's number and ours in a cell."""
    studies, printed = arms_studies(setting), reported(10)
    finding = Finding(sources={f"runs of {results.name}": results.source for results in studies})
    places = [place for results in studies for place in places_of(results)]
    for place in places:
        for arm, label in LABELS.items():
            row = {"table": f"{place.words[0].upper()}{place.words[1:]}: paper / ours", "arm": NAMES[arm]}
            for column, statistic in STATISTICS.items():
                ours = iqm(place.values(statistic, arm), "table10", column, arm, place.key)
                row[column] = f"{printed[label, column].printed or 'not shown'} / {ours}"
            finding.rows.append(row)
    for claim in CLAIMS:
        finding.claims += [claim_of(place, *claim) for place in places if place.model == MODEL]
    finding.claims = settled(finding.claims, min(results.about["seeds"] for results in studies))
    finding.remarks += [
        f"Verdicts. {CRITERION}",
        "verdicts here are by sign alone, the smallest difference that counts being 0: statistics have units of their own. They "
        "are judged at every size, whether or not the mismatch costs reward there",
        by_chance(finding.claims),
        "Reward is that of the batches trained on, in the paper and here",
        "as in the paper: mean over the last third of training (median for the gradient norm and max|log k|), peak and share "
        "acted on over the whole run. Gradients are those before they are clipped to norm 1. A curve's last third is "
        "the last 5 of its 15 stretches",
        READING,
        "the paper's batches hold thousands of tokens of hundreds of positions, ours some three hundred: a largest |log k| over "
        "fewer tokens is smaller, and lengths have no counterpart (a right answer has six tokens)",
        FRESH,
        TINY,
        *(f"{results.name}: {results.about['limits'].strip()}" for results in studies),
    ]
    return finding


def claim_of(place: Place, column: str, larger: str, smaller: str, claim: str) -> dict[str, str]:
    """Verdict on "this statistic is larger in that arm", by sign; gradients are compared by their common logarithms."""
    statistic, printed = STATISTICS[column], reported(10)
    by_log = "grad" in column.lower()
    first, second = (
        [math.log10(max(x, 1e-9)) if by_log else x for x in place.values(statistic, arm)] for arm in (larger, smaller)
    )
    paper = f"paper {printed[LABELS[larger], column].printed} and {printed[LABELS[smaller], column].printed}"
    unit = " (common logarithms)" if by_log else ""
    address = ("table10", column, larger, smaller, place.key)
    return above(f"{claim} ({place.words})", first, second, paper + unit, *address, margin=0.0)


def figure10(setting: Setting) -> Finding:
    """Curves of six statistics for each arm, model and size of the mismatch: mean over seeds, and the band that they span."""
    finding = Finding()
    for results in arms_studies(setting):
        finding.sources[f"runs of {results.name}"] = results.source
        for place in places_of(results):
            arms = {arm: curves_of(place, arm) for arm in (*LABELS, "cis_linear")}
            finding.curves[place.words] = {
                "name": place.key,
                "stretch": stretch_of(results),
                "arms": {arm: {"name": NAMES[arm], **curves} for arm, curves in arms.items()},
            }
        finding.remarks.append(f"{results.name}: {results.about['limits'].strip()}")
    finding.remarks += [
        "mean over seeds and the band that they span, as in the paper, here over the stretches of a run that the results keep; a "
        "run that diverged has no values after that",
        READING,
        FRESH,
    ]
    return finding


def curves_of(place: Place, arm: str) -> dict[str, Any]:
    """Mean, least and largest of each curve over seeds, stretch by stretch."""
    rows = place.runs(arm)
    out: dict[str, Any] = {}
    for name in DRAWN:
        curves = [row[f"curve_{name}"] for row in rows]
        columns = [
            [float(f"{curve[k]:.4g}") for curve in curves if k < len(curve) and math.isfinite(curve[k])]
            for k in range(max(map(len, curves), default=0))
        ]
        columns = [column for column in columns if column]
        out[name] = {
            "mean": [sum(column) / len(column) for column in columns],
            "low": [min(column) for column in columns],
            "high": [max(column) for column in columns],
        }
    return out


def stretch_of(results: Results) -> int:
    """Updates behind one point of a curve."""
    return -(-int(results.base("updates")) // POINTS)
