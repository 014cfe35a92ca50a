"""What a laboratory table could have told: seeds that would tell, verdicts that chance makes, and what pairing by seed buys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from testbed.stats.runs import Estimate, runs_to_tell, runs_to_tell_rate

UNSEEN = 10**5  # runs from which on nothing would be told
TOLD, HOPELESS = "told apart", "no difference seen"
OURS = "ours: "  # what a claim begins with that the paper does not make


def to_tell(found: Estimate, *bounds: float) -> str:
    """Say with how many seeds an interval would leave the nearest bound out, nine times in ten, were the estimate the truth.

    Parameters
    ----------
    found : Estimate   a difference, one number per seed
    bounds             that a verdict needs outside the interval: one of them is enough

    Examples
    --------
    >>> from testbed.stats.interval import Interval
    >>> found = Estimate(value=0.04, interval=Interval(-0.06, 0.14, 0.95, ""), runs=10)
    >>> to_tell(found, 0.0), to_tell(found, 0.0, 0.2), to_tell(found, -0.05, 0.13), to_tell(found, 0.2)
    ('about 171 seeds', 'told apart', 'about 34 seeds', 'told apart')
    """
    if any(not found.interval.low <= bound <= found.interval.high for bound in bounds):
        return TOLD
    needed = min(runs_to_tell(found, bound) for bound in bounds)
    return HOPELESS if needed >= UNSEEN else f"about {max(found.runs + 1, needed):,} seeds"


def rate_to_tell(flags: Sequence[float], bound: float, level: float = 0.95) -> str:
    """Say with how many seeds the exact interval of a rate would leave a bound out, nine times in ten.

    Examples
    --------
    >>> rate_to_tell([1, 1, 0, 0, 0, 0, 0, 0, 0, 0], 0.5), rate_to_tell([0, 1], 0.5)
    ('about 28 seeds', 'no difference seen')
    """
    needed = runs_to_tell_rate(sum(bool(flag) for flag in flags), len(flags), bound, level=level)
    return HOPELESS if needed >= UNSEEN else f"about {max(len(flags) + 1, needed):,} seeds"


def multiplicity(claims: Sequence[Mapping[str, str]], level: float = 0.95) -> str:
    """Say how many verdicts a table holds, and how many of them chance alone would call reproduced.

    Examples
    --------
    >>> multiplicity([{"claim": "a"}] * 40)[:75]
    '40 verdicts, each from intervals at 95%; nothing corrects for their number '
    """
    chance = (1 - level) / 2 * len(claims)
    return (
        f"{len(claims)} verdicts, each from intervals at {level:.0%}; nothing corrects for their number except inside a verdict "
        f"that says so. If arms did not differ, a claim that one is ahead would be called reproduced once in "
        f"{2 / (1 - level):.0f}: {chance:.1f} of {len(claims)}, and several of these verdicts share runs, so that they "
        "err together. A claim that nothing is lost is called reproduced as often only where exactly its margin is lost, and "
        "surely where nothing is"
    )


def pairing(arms: Sequence[Sequence[float]]) -> tuple[float, int]:
    """Mean correlation by seed between two arms, and the number of arms that vary at all.

    Differences by seed have variance 2 (1 - r) times that of one arm: above 0, pairing by seed pays.

    Examples
    --------
    >>> value, count = pairing([[0.1, 0.2, 0.3], [0.2, 0.3, 0.4], [0.9, 0.9, 0.9]])
    >>> round(value, 6), count
    (1.0, 2)
    """
    varied = [list(arm) for arm in arms if max(arm) - min(arm) > 1e-12]
    if len(varied) < 2:
        return 0.0, len(varied)
    r = np.corrcoef(np.array(varied, dtype=float))
    return float(r[np.triu_indices(len(r), 1)].mean()), len(r)


def pairing_in_words(groups: Mapping[str, Sequence[Sequence[float]]]) -> str:
    """Print the correlation by seed between the arms of each group.

    Examples
    --------
    >>> pairing_in_words({"age 4": [[0.1, 0.2, 0.3], [0.2, 0.3, 0.4]]})
    'correlation by seed between two arms (above 0, comparing by seed pays): age 4 +1.00 (2 arms)'
    """
    found = {name: pairing(arms) for name, arms in groups.items()}
    words = ", ".join(f"{name} {value:+.2f} ({count} arms)" for name, (value, count) in found.items())
    return f"correlation by seed between two arms (above 0, comparing by seed pays): {words}"
