"""Verdicts on more than two arms of a CIS training study: is one above all others, do they stand in the paper's order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from paper_repro.cis_verdicts import Runs, difference_of, least, per_place, signed
from paper_repro.lab_power import to_tell
from paper_repro.lab_tables import LEVEL, MARGIN, NOISE, NOT, REPRODUCED, as_array, claim_row, judged_better, together
from testbed.core.seeds import SeedTree
from testbed.stats.interval import Interval
from testbed.stats.runs import Estimate, expanded, interquartile_mean

AGREE, RESAMPLES = 0.3, 2000  # a rank correlation surely below the first is no agreement


def highest(
    claim: str, first: Runs, others: Mapping[str, Runs], gaps: Mapping[str, float | None], *address: str
) -> dict[str, str]:
    """Verdict on "this arm ends above all others", with intervals that hold for all of them together (Bonferroni).

    Parameters
    ----------
    first : mapping    place -> final rewards by seed, of the arm that is claimed to be first
    others : mapping   name -> the same of every other arm
    gaps : mapping     name -> the lead that the paper prints, None where it prints none

    Examples
    --------
    >>> first = {"place": [0.9, 0.8, 0.9, 0.9]}
    >>> highest("a first", first, {"b": {"place": [0.1] * 4}, "c": {"place": [0.95] * 4}}, {"b": None, "c": None}, "d")["verdict"]
    'not reproduced'
    """
    level = 1 - (1 - LEVEL) / len(others)
    found = {name: difference_of(first, runs, "highest", *address, name, level=level) for name, runs in others.items()}
    words = {name: judged_better(one.interval, gap=gaps[name]) for name, one in found.items()}
    verdict = together(*words.values())
    last = min((name for name in found if words[name] == verdict), key=lambda name: found[name].value)
    text = (
        f"surely above {sum(word == REPRODUCED for word in words.values())} of {len(found)} (intervals at {level:.1%}); "
        f"the word rests on {last}: {signed(found[last])}"
    )
    return claim_row(claim, verdict, text, per_place(found[last], (0.0, least(MARGIN, gaps[last])), first))


def agreement(finals: Runs, paper: Mapping[str, float], *address: str) -> tuple[float, Interval]:
    """Kendall's rank correlation between the paper's averages and our interquartile means, with a bootstrap over seeds.

    Parameters
    ----------
    finals : mapping   arm -> final rewards by seed
    paper : mapping    arm -> the paper's average

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
    half = expanded((1 - LEVEL) / 2, values.shape[1])
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


def ordered(claim: str, finals: Runs, paper: Mapping[str, float], *address: str) -> dict[str, str]:
    """Verdict on "the arms stand in the paper's order", and how many seeds would tell."""
    value, interval = agreement(finals, paper, *address)
    verdict, seeds = judged_agreement(interval), len(next(iter(finals.values())))
    tau = Estimate(value=value, interval=interval, runs=seeds)
    found = f"Kendall's tau {value:+.2f} [{interval.low:+.2f}, {interval.high:+.2f}] over {len(paper)} arms"
    return claim_row(claim, verdict, found, to_tell(tau, 0.0, AGREE))


def _tau(first: np.ndarray, second: Sequence[float]) -> float:
    """Pairs in the same order minus pairs in the other, over all pairs; a tie counts for neither."""
    a, b = np.asarray(first), np.asarray(second)
    agree = np.sign(a[:, None] - a) * np.sign(b[:, None] - b)
    return float(agree.sum() / (len(a) * (len(a) - 1)))
