"""The law a cap is chosen for, sorted by weight, and the exact error of the capped estimator under it.

The estimator of E[W f] is the mean of min(W, c) f over n independent draws. A cap makes it smaller where W > c (bias)
and calmer (variance); everything about a cap is a statement about these two.

    bias(c) = -E[(W - c)+ f]           variance(c) = E |min(W, c) f - E min(W, c) f|^2           mse = |bias|^2 + variance / n

For signals f with several components squares are squared norms and the variance is the trace of the covariance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from testbed.core.errors import InputError
from testbed.stats.weight_sample import weight_sample
from testbed.weighting.limits import at_least
from testbed.weighting.weight_families import Finite, TwoPoint
from testbed.weighting.weight_family import WeightFamily

MEAN_TOLERANCE = 1e-9  # of an exact law in float64; laws given in single precision are rounded to 1e-7 each
SINGLE_TOLERANCE = 1e-5


@dataclass(frozen=True, slots=True)
class CapLaw:
    """A finite law of weights, ascending.

    Attributes
    ----------
    values : Float[ndarray, " N"]           weights >= 0, finite, ascending, ties allowed
    probs : Float[ndarray, " N"]            probabilities; 1/N each for a sample
    signal : Float[ndarray, "N D"] | None   f of each outcome; None is the constant 1
    sample : bool                           True for an empirical law, whose mean need not be 1
    """

    values: Float[np.ndarray, " N"]
    probs: Float[np.ndarray, " N"]
    signal: Float[np.ndarray, "N D"] | None
    sample: bool

    @property
    def second_moment(self) -> float:
        """Second moment d2 = E W^2."""
        with np.errstate(over="ignore"):
            return float(self.probs @ np.square(self.values))


@dataclass(frozen=True, slots=True)
class CappedError:
    """Bias of the capped mean, variance of one capped term, and the error of the mean of n of them.

    Attributes
    ----------
    bias : float or Float[Tensor, " D"]   E[min(W, c) f] - E[W f]; a vector for a vector signal
    variance : float                      of one term: trace of the covariance; divide by n for the mean's
    mse : float                           |bias|^2 + variance / n
    """

    bias: float | Float[Tensor, " D"]
    variance: float
    mse: float


def check_n(n: object) -> float:
    """Return the number of draws n >= 1 as a float (an effective sample size need not be whole)."""
    size = at_least("n", n, 1.0)
    if size == math.inf:
        raise InputError("`n` must be finite", found=n)
    return size


def cap_law(weights: Any, probs: Any = None, signal: Any = None) -> CapLaw:
    """Check a law and sort it.

    Parameters
    ----------
    weights : Float[Tensor, " N"], sequence, Finite or TwoPoint   weights >= 0
    probs : Float[Tensor, " N"] or None     exact probability of each weight; None: a sample, one row per response
    signal : Float[Tensor, "N"] or Float[Tensor, "N D"] or None   f of each outcome

    Raises
    ------
    InputError   no weight; a negative, NaN or infinite weight; probabilities that are no law; an exact law whose mean is
                 not 1; a signal of another length, or not finite

    Examples
    --------
    >>> law = cap_law([3.0, 0.5, 1.0], [0.125, 0.5, 0.375])
    >>> law.values.tolist(), law.probs.tolist(), law.second_moment
    ([0.5, 1.0, 3.0], [0.5, 0.375, 0.125], 1.625)
    """
    weights, probs = _atoms(weights, probs)
    single = any(isinstance(x, Tensor) and x.is_floating_point() and x.dtype != torch.float64 for x in (weights, probs))
    w = _double(weights).reshape(-1)
    tolerance = SINGLE_TOLERANCE if single else MEAN_TOLERANCE
    p = None if probs is None else _law(probs, w, tolerance)
    f = None if signal is None else _signal(signal, len(w))
    kept = slice(None) if p is None else p != 0
    w, f = w[kept], None if f is None else f[kept]
    sample = weight_sample(w)
    if sample.n == 0:
        raise InputError("`weights` must hold at least one weight", found="none")
    if bool(w.isinf().any()):
        raise InputError(
            "`weights` must be finite",
            found=f"{int(w.isinf().sum())} inf",
            hint="an overflowed product; cap or drop it by hand, its size is not known",
        )
    law = np.full(len(w), 1.0 / len(w)) if p is None else p[kept].numpy()
    values = w.numpy()
    mean = float(law @ values)
    if p is not None and not abs(mean - 1.0) <= tolerance:
        raise InputError(
            "the mean of the weights of an exact law must be 1",
            found=f"{mean:.12g}",
            hint="does the behavior cover the target? divide by the mean to self-normalize, leave out `probs` for a sample",
        )
    order = np.argsort(values, kind="stable")
    return CapLaw(values[order], law[order], None if f is None else f.numpy()[order], p is None)


def capped_error(
    weights: Any, probs: Any = None, *, cap: float | int, n: float | int, signal: Any = None
) -> CappedError:
    """Exact bias, variance and mean squared error of a capped weight times a signal.

    Parameters
    ----------
    weights, probs, signal   as in `cap_law`; also a LogNormal or UniformRatio with the constant signal
    cap : float              c >= 0; inf = no cap
    n : float                draws, >= 1

    Raises
    ------
    InputError   as `cap_law`; a cap below 0 or NaN; n below 1; a signal beside a continuous family
    Gives        bias -E[(W - c)+ f] (O7)

    Examples
    --------
    >>> capped_error([0.0, 2.0], [0.5, 0.5], cap=1.5, n=8)
    CappedError(bias=-0.25, variance=0.5625, mse=0.1328125)
    """
    c, size = at_least("cap", cap, 0.0), check_n(n)
    if is_continuous(weights):
        return family_error(_alone(weights, probs, signal), c, size)
    return law_error(cap_law(weights, probs, signal), c, size)


def law_error(law: CapLaw, cap: float, n: float | int) -> CappedError:
    """Error of a cap under a checked law; sums are centered, so nothing cancels."""
    cut = np.maximum(law.values - cap, 0.0) if cap < math.inf else np.zeros_like(law.values)
    f = np.ones((len(cut), 1)) if law.signal is None else law.signal
    bias = -(law.probs * cut) @ f
    terms = np.minimum(law.values, cap)[:, None] * f
    with np.errstate(over="ignore"):  # weights of 1e200 have a variance of infinity
        variance = float(law.probs @ np.square(terms - law.probs @ terms).sum(1))
        error = float(bias @ bias) + variance / n
    return CappedError(float(bias[0]) if len(bias) == 1 else torch.from_numpy(bias), variance, error)


def family_error(family: WeightFamily, cap: float, n: float | int) -> CappedError:
    """Error of a cap for a closed-form family and the constant signal."""
    bias = -family.excess(cap)
    second = family.capped_second_moment(cap)
    variance = max(second - family.capped_mean(cap) ** 2, 0.0)
    return CappedError(bias, variance, bias**2 + variance / n)


def is_continuous(weights: object) -> bool:
    """Whether the argument is a family without atoms to list."""
    return isinstance(weights, WeightFamily) and not isinstance(weights, Finite | TwoPoint)


def _alone(family: WeightFamily, probs: object, signal: object) -> WeightFamily:
    """Return the family; refuse what only a list of outcomes can carry."""
    if probs is not None or signal is not None:
        raise InputError(
            "a family has its own probabilities and the constant signal",
            found="`probs`" if probs is not None else "`signal`",
            hint="list the outcomes: weights and probs, one signal per outcome",
        )
    return family


def _atoms(weights: Any, probs: Any) -> tuple[Any, Any]:
    """Weights and probabilities; those of a family with finitely many values are its own."""
    if not isinstance(weights, WeightFamily):
        return weights, probs
    _alone(weights, probs, None)
    if isinstance(weights, Finite):
        return weights.values, weights.probs
    if isinstance(weights, TwoPoint):
        p = weights.probability
        ends, law = ([weights.low, weights.high], [1.0 - p, p]) if p > 0 else ([1.0], [1.0])
        return torch.tensor(ends, dtype=torch.float64), torch.tensor(law, dtype=torch.float64)
    raise InputError("this family has no list of outcomes", found=type(weights).__name__)


def _double(given: Any) -> Tensor:
    return torch.as_tensor(given, dtype=torch.float64).detach().cpu()


def _law(probs: Any, w: Float[Tensor, " N"], tolerance: float) -> Float[Tensor, " N"]:
    p = _double(probs).reshape(-1)
    if p.shape != w.shape:
        raise InputError("`probs` must have one entry per weight", found=f"{p.numel()} for {w.numel()} weights")
    total = float(p.sum())
    if not (abs(total - 1.0) <= tolerance and bool((p >= 0).all())):
        raise InputError(
            "`probs` must be a probability law (>= 0, total 1)",
            found=f"total {total:.12g}",
            hint="leave out `probs` for a sample",
        )
    return p


def _signal(signal: Any, count: int) -> Float[Tensor, "N D"]:
    f = _double(signal)
    if f.dim() not in (1, 2) or len(f) != count or f.numel() == 0:
        raise InputError(
            "`signal` must be one number or one vector per weight", found=f"{tuple(f.shape)}, {count} weights"
        )
    if not bool(f.isfinite().all()):
        raise InputError("`signal` must be finite", found=f"{int((~f.isfinite()).sum())} entries that are not")
    return f.reshape(count, -1)
