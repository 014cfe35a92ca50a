"""`optimal_cap`: where to truncate importance weights, n of which are averaged, and what the cap costs and saves.

One door for the exact answer (O1 for the constant signal, O2 for any signal) and for the closed forms that know the
second moment only (O3, O4, O9).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from testbed.core.errors import InputError
from testbed.core.seeds import SeedTree
from testbed.stats.bootstrap import bootstrap_interval
from testbed.stats.interval import Interval
from testbed.weighting.cap_bounds import chi2_cap, d2_cap, segment_caps, sharp_cap
from testbed.weighting.cap_exact import family_cap, finite_cap
from testbed.weighting.cap_law import (
    CapLaw,
    CappedError,
    cap_law,
    capped_error,
    check_n,
    family_error,
    is_continuous,
    law_error,
)
from testbed.weighting.cap_signal import error_slopes, local_minima, signal_cap
from testbed.weighting.limits import nearest
from testbed.weighting.weight_family import WeightFamily

__all__ = [
    "CapResult", "CappedError", "capped_error", "error_slopes", "local_minima", "optimal_cap", "segment_caps",
]  # fmt: skip

THEOREMS = {"exact": "O1", "d2": "O3", "chi2": "O4", "sharp": "O9"}


class CapResult(float):
    """A cap (inf = no cap) together with the error it leaves under the law it was chosen for.

    Attributes
    ----------
    cap : float                           the number itself
    bias : float or Float[Tensor, " D"]   E[min(W, cap) f] - E[W f]
    variance : float                      of one term; trace of the covariance for a vector signal
    mse : float                           |bias|^2 + variance / n
    n : float                             draws averaged
    method, theorem : str                 how it was chosen, and the catalogue entry that says what it optimizes
    interval : Interval or None           bootstrap interval of the cap over the sample

    Examples
    --------
    >>> cap = optimal_cap([0.0, 2.0], [0.5, 0.5], n=8)
    >>> cap, cap > 1.5, cap.theorem
    (CapResult(1.77778, method='exact', theorem='O1', n=8, mse=0.111111), True, 'O1')
    """

    bias: float | Float[Tensor, " D"]
    variance: float
    mse: float
    n: float
    method: str
    theorem: str
    interval: Interval | None

    def __new__(  # noqa: D102
        cls, cap: float, error: CappedError, *, n: float, method: str, theorem: str, interval: Interval | None = None
    ) -> CapResult:
        number = super().__new__(cls, cap)
        number.bias, number.variance, number.mse = error.bias, error.variance, error.mse
        number.n, number.method, number.theorem, number.interval = n, method, theorem, interval
        return number

    @property
    def cap(self) -> float:
        """The cap as a plain float."""
        return float(self)

    def __repr__(self) -> str:
        return (
            f"CapResult({float(self):.6g}, method={self.method!r}, theorem={self.theorem!r}, "
            f"n={self.n:g}, mse={self.mse:.6g})"
        )

    def __getnewargs_ex__(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        error = CappedError(self.bias, self.variance, self.mse)
        said = {"n": self.n, "method": self.method, "theorem": self.theorem, "interval": self.interval}
        return (float(self), error), said


def optimal_cap(
    weights: Float[Tensor, "..."] | WeightFamily | Any,
    probs: Float[Tensor, "..."] | Any = None,
    n: float | int | None = None,
    method: str = "exact",
    signal: Float[Tensor, "N ..."] | Any = None,
    *,
    interval: bool = False,
    level: float = 0.95,
    seeds: SeedTree | None = None,
    resamples: int = 2000,
) -> CapResult:
    """Cap for a mean of n terms min(W, c) f.

        exact, f constant   root of c = 1 + (n-1) E(W - c)+                      O1
        exact, any f        best of all stationary points, weights, 0 and inf    O2
        d2                  (n d2^2 / 8)^(1/3)                                   O3
        chi2                1 + (n chi2^2 / 8)^(1/3)                             O4
        sharp               1 + (n-1) sqrt(chi2) / (2 sqrt n)                    O9

    Parameters
    ----------
    weights : Float[Tensor, " N"]   weights >= 0, finite: support of an exact law, or a sample; or a weight family
    probs : Float[Tensor, " N"]     probabilities of an exact law of mean 1; None = a sample (or a family)
    n : float                       draws that are averaged, >= 1; default for a sample: its size
    method : str                    exact, d2, chi2 or sharp
    signal : Float[Tensor, "N"] or Float[Tensor, "N D"]   what the weight multiplies, per outcome; None = constant
    interval : bool                 for a sample: percentile bootstrap interval of the cap, whole rows drawn
    level, seeds, resamples         of that interval; seeds default to a fixed stream

    Returns
    -------
    CapResult   a float; bias, variance and mse are exact under the law given, at this cap, for this signal

    Raises
    ------
    InputError   no weight; an infinite, NaN or negative one; an exact law whose mean is not 1; an unknown method; n below 1
                 or missing; a signal or an interval for a family
    Assumes      E W = 1. For a sample with the constant signal this is used: B is the sample's, the mean is known to be 1,
                 so the cap is never below 1. With a signal the sample is taken as the law
    Gives        exact: no cap has a smaller error under the law; 1 for n = 1; nondecreasing in n (O5). When all weights
                 are equal, no cap acts. The closed forms look at d2 only and do not depend on the signal
    Numerics     finite laws: a quotient on the sorted support, no iteration; families: bracketed root, 1e-12
    References   Ionides 2008, J. Comput. Graph. Stat. 17:295, for caps of order sqrt n

    Examples
    --------
    >>> import torch
    >>> from testbed.weighting.weight_families import LogNormal
    >>> [round(float(optimal_cap(LogNormal(1.2), n=n)), 2) for n in (1, 16, 64, 256)]
    [1.0, 3.39, 5.93, 9.94]
    >>> sample = torch.tensor([0.2, 0.5, 0.7, 2.6])
    >>> round(float(optimal_cap(sample)), 6), round(float(optimal_cap(sample, method="d2")), 6)
    (1.685714, 1.211149)
    """
    if method not in THEOREMS:
        raise InputError("`method` is unknown", found=repr(method), hint=nearest(method, THEOREMS))
    if isinstance(weights, WeightFamily) and is_continuous(weights):
        return _for_family(weights, probs, n, method, signal, interval)
    law = cap_law(weights, probs, signal)
    if n is None and not law.sample:
        raise InputError("`n` is needed with an exact law", found="None", hint="how many draws are averaged?")
    size = check_n(len(law.values) if n is None else n)
    cap = _cap(law, size, method)
    around = None
    if interval:
        if not law.sample:
            raise InputError("an interval is for a sample", found="`probs`", hint="the cap of an exact law is exact")
        around = _interval(law, size, method, level, seeds or SeedTree("optimal_cap"), resamples)
    theorem = "O2" if method == "exact" and signal is not None else THEOREMS[method]
    return CapResult(cap, law_error(law, cap, size), n=size, method=method, theorem=theorem, interval=around)


def _cap(law: CapLaw, n: float, method: str) -> float:
    if method == "exact":
        return finite_cap(law, n) if law.signal is None else signal_cap(law, n)
    return _from_second_moment(law.second_moment, n, method)


def _from_second_moment(d2: float, n: float, method: str) -> float:
    if method == "d2":
        return d2_cap(d2, n)
    chi2 = max(d2 - 1.0, 0.0)  # a sample's d2 can fall below 1
    return chi2_cap(chi2, n) if method == "chi2" else sharp_cap(chi2, n)


def _for_family(
    family: WeightFamily, probs: object, n: float | int | None, method: str, signal: object, interval: bool
) -> CapResult:
    for name, given in (("probs", probs is not None), ("signal", signal is not None), ("interval", interval)):
        if given:
            raise InputError(f"`{name}` does not go with a weight family", found=type(family).__name__)
    if n is None:
        raise InputError("`n` is needed with a weight family", found="None", hint="how many draws are averaged?")
    size = check_n(n)
    cap = family_cap(family, size) if method == "exact" else _from_second_moment(family.second_moment, size, method)
    return CapResult(cap, family_error(family, cap, size), n=size, method=method, theorem=THEOREMS[method])


def _interval(law: CapLaw, n: float, method: str, level: float, seeds: SeedTree, resamples: int) -> Interval:
    """Bootstrap the cap; where no cap is best, the largest weight of the sample stands for it."""
    columns = [torch.from_numpy(law.values)[:, None]]
    if law.signal is not None:
        columns.append(torch.from_numpy(law.signal))

    def cap_of(rows: Tensor) -> float:
        drawn = cap_law(rows[:, 0], None, rows[:, 1:] if law.signal is not None else None)
        cap = _cap(drawn, n, method)
        return cap if cap < math.inf else float(law.values[-1])

    return bootstrap_interval(torch.cat(columns, 1), cap_of, seeds=seeds, level=level, resamples=resamples)
