"""Differences between averages that the CIS paper prints, and how sure its three seeds make them."""

from __future__ import annotations

import math

from scipy.stats import t as student

from paper_repro.reported_tables import Reported

PAPER_SEEDS = 3


def gap_of(first: Reported | None, second: Reported | None) -> float | None:
    """Difference of two of the paper's averages, which are percentages, as a fraction; None where one is not shown.

    Examples
    --------
    >>> from paper_repro.lab_cis import average_of
    >>> round(gap_of(average_of("cis"), average_of("icepop")), 4), gap_of(average_of("cis"), average_of("seq_tis"))
    (0.006, None)
    """
    if first is None or second is None or first.mean is None or second.mean is None:
        return None
    return (first.mean - second.mean) / 100


def in_the_paper(first: Reported | None, second: Reported | None) -> str:
    """Say how far apart two averages of the paper are, with Welch's two-sided p-value for its three seeds each.

    Examples
    --------
    >>> from paper_repro.lab_cis import average_of
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
