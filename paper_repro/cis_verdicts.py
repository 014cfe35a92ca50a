"""Verdicts on contrasts between two arms of a CIS training study: is one above another, as good as it, does it collapse.

What is judged is never a number but an order, seed by seed, in one place (a model and a size of the mismatch) or over several
places together, which are then the strata of the bootstrap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from paper_repro.lab_power import TOLD, multiplicity, rate_to_tell, to_tell
from paper_repro.lab_tables import (
    LEVEL,
    MARGIN,
    NOISE,
    claim_row,
    compare,
    iqm_of_strata,
    judged_better,
    judged_not_worse,
    judged_rate,
    rate,
    together,
)
from testbed.core.errors import InputError
from testbed.stats.runs import Estimate

OFTEN = 0.5  # "collapses" says that at least so many runs do, "does not" that at most so many do
NOTHING = "nothing to repair here"
Runs = Mapping[str, Sequence[float]]  # place -> a number per seed


# ------------------------------------------------------------------------------------------------ two arms
def above(
    claim: str,
    better: Sequence[float],
    worse: Sequence[float],
    paper: str,
    *address: str,
    margin: float = MARGIN,
    gap: float | None = None,
) -> dict[str, str]:
    """Verdict on "this arm ends above that one", seed by seed.

    Parameters
    ----------
    better, worse : sequence   a number per seed
    paper : str                what the paper prints of the two
    margin, gap : float        as in `judged_better`

    Examples
    --------
    >>> above("a above b", [0.9] * 9 + [0.8], [0.1] * 10, "", "doc")["verdict"]
    'reproduced'
    """
    found = compare(better, worse, "above", *address)
    verdict = judged_better(found.difference.interval, margin, gap=gap)
    told = found.to_tell_from(0.0, least(margin, gap))
    return claim_row(claim, verdict, joined(f"ours {found}", paper), told)


def near(claim: str, values: Sequence[float], default: Sequence[float], paper: str, *address: str) -> dict[str, str]:
    """Verdict on "this level does as well as the default", to within the margin of the laboratory.

    Examples
    --------
    >>> near("flat", [0.9, 0.91, 0.9, 0.9], [0.9, 0.9, 0.91, 0.9], "", "doc")["verdict"]
    'reproduced'
    """
    found = compare(values, default, "near", *address)
    verdict = judged_not_worse(found.difference.interval)
    return claim_row(claim, verdict, joined(f"ours {found}", paper), found.to_tell_from(-MARGIN))


def pooled(
    claim: str, first: Runs, second: Runs, paper: str, *address: str, gap: float | None = None, worse: bool = False
) -> dict[str, str]:
    """Verdict on "this arm ends above that one", or (`worse`) "is not worse", over all places together, seed by seed.

    Examples
    --------
    >>> runs = {"one": [0.9, 0.8, 0.9, 0.9], "other": [0.7, 0.7, 0.6, 0.7]}
    >>> pooled("a above b", runs, {place: [0.1] * 4 for place in runs}, "", "doc")["verdict"]
    'reproduced'
    """
    found = difference_of(first, second, *address)
    verdict = judged_not_worse(found.interval) if worse else judged_better(found.interval, gap=gap)
    bounds = (-MARGIN,) if worse else (0.0, least(MARGIN, gap))
    return claim_row(claim, verdict, joined(f"ours {signed(found)}", paper), per_place(found, bounds, first))


def difference_of(first: Runs, second: Runs, *address: str, level: float = LEVEL) -> Estimate:
    """Interquartile mean of first - second, seed by seed; places are the strata of the bootstrap."""
    strata = {}
    for place in first:
        a, b = np.asarray(first[place]), np.asarray(second[place])
        if a.shape != b.shape:
            raise InputError("arms compared by seed must have the same seeds", found=f"{len(a)} and {len(b)} runs")
        strata[place] = (a - b).tolist()
    return iqm_of_strata(strata, "difference", *address, level=level)


def signed(found: Estimate) -> str:
    """Write an estimated difference.

    Examples
    --------
    >>> from testbed.stats.interval import Interval
    >>> signed(Estimate(value=0.1, interval=Interval(-0.1, 0.3, 0.95, ""), runs=5))
    '+0.100 [-0.100, +0.300]'
    """
    return f"{found.value:+.3f} [{found.interval.low:+.3f}, {found.interval.high:+.3f}]"


# ------------------------------------------------------------------------------------------------ collapse
def collapses(
    claim: str,
    arm: Sequence[float],
    arm_fell: Sequence[float],
    sound: Sequence[float],
    sound_fell: Sequence[float],
    paper: str,
    *address: str,
    gap: float | None = None,
) -> dict[str, str]:
    """Verdict on "this arm collapses, that one does not": at least OFTEN, at most OFTEN of the runs, and it ends below.

    Parameters
    ----------
    arm, sound : sequence             final rewards by seed of the arm and of the one that is said to stand
    arm_fell, sound_fell : sequence   whether each of their runs collapsed

    Examples
    --------
    >>> low, high = [0.1] * 10, [0.9] * 9 + [0.8]
    >>> [collapses("", low, [1] * 10, high, [fell] * 10, "", "doc")["verdict"] for fell in (0, 1)]
    ['reproduced', 'not reproduced']
    """
    broken, standing, found = rate(arm_fell), rate(sound_fell), compare(sound, arm, "collapses", *address)
    words = {
        "its collapses": judged_rate(broken.interval, least=OFTEN),
        "the other's": judged_rate(standing.interval, most=OFTEN),
        "rewards": judged_better(found.difference.interval, gap=gap),
    }
    verdict, told = together(*words.values()), TOLD
    if verdict == NOISE:
        needed = {
            "its collapses": rate_to_tell(arm_fell, OFTEN, LEVEL),
            "the other's": rate_to_tell(sound_fell, OFTEN, LEVEL),
            "rewards": found.to_tell_from(0.0, least(MARGIN, gap)),
        }
        told = joined(*(f"{part}: {needed[part]}" for part, word in words.items() if word == NOISE))
    text = f"collapsed {broken}, the other {standing}; ends lower by {found}"
    return claim_row(claim, verdict, joined(text, paper), told)


# ------------------------------------------------------------------------------------------------ what verdicts rest on
def needs_harm(claim: dict[str, str], harm: bool | None) -> dict[str, str]:
    """Return a claim as it is where the mismatch costs reward; else no arm can lead by repairing it, and none can fail to.

    Examples
    --------
    >>> row = claim_row("a above b", "not reproduced", "", "")
    >>> [needs_harm(row, harm)["verdict"] for harm in (True, False, None)]
    ['not reproduced', 'within noise', 'within noise']
    """
    return claim if harm else claim | {"verdict": NOISE, "to tell": NOTHING}


def least(margin: float, gap: float | None) -> float:
    """Smallest difference that refutes a claim when it is surely not reached, see `judged_better`."""
    return max(0.0, margin if gap is None else min(margin, gap))


def per_place(found: Estimate, bounds: Sequence[float], runs: Runs) -> str:
    """Say how many seeds in each place would tell a difference over these places from one of the bounds."""
    if len(runs) == 1:
        return to_tell(found, *bounds)
    words = to_tell(replace(found, runs=min(map(len, runs.values()))), *bounds)
    return f"{words} per place" if words.endswith("seeds") else words


def by_chance(claims: Sequence[Mapping[str, str]]) -> str:
    """Say how many verdicts a table has, and how many of them would say "reproduced" by chance.

    Examples
    --------
    >>> by_chance([claim_row("a", "within noise", "", "")] * 39 + [claim_row("b", "within noise", "", NOTHING)])[:74]
    'of 40 claims, 1 not judged (nothing to repair here); of the rest: 39 verdi'
    """
    judged = [claim for claim in claims if claim["to tell"] != NOTHING]
    left = len(claims) - len(judged)
    return f"of {len(claims)} claims, {left} not judged ({NOTHING}); of the rest: {multiplicity(judged, LEVEL)}"


def joined(*parts: str) -> str:
    """Join what there is to say."""
    return "; ".join(part for part in parts if part)
