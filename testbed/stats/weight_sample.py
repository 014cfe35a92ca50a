"""What every statistic of weights starts from: the real weights of a batch, checked, and a number that says what it is.

A statistic of *raw* weights describes how far target and behavior are apart; the same statistic of *applied* weights
(after a cap or a mask) describes the estimator's noise and flatters the data: capping can only raise the effective
sample size. The two are therefore never reported under one name: `WeightStatistic` carries `which`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from testbed.core.errors import InputError

WHICH = ("raw", "applied")
MASS_TOLERANCE = 1e-9  # a law's probabilities are sums of exponentials of summed log-probs


class WeightStatistic(float):
    """A number together with what it is a statistic of.

    Attributes
    ----------
    name : str     the statistic, e.g. "ess"
    which : str    "raw" (before any operator) or "applied" (after the cap or mask)
    n : int        weights counted (support points when the statistic is of an exact law)

    Examples
    --------
    >>> value = WeightStatistic(3.5, name="ess", which="applied", n=4)
    >>> value, value + 1.0
    (ess(applied weights, n=4) = 3.5, 4.5)
    """

    name: str
    which: str
    n: int

    def __new__(cls, value: float, *, name: str, which: str, n: int) -> WeightStatistic:  # noqa: D102
        if which not in WHICH:
            raise InputError(
                f"`which` must be one of {WHICH}", found=repr(which), hint="are the weights capped or masked?"
            )
        number = super().__new__(cls, value)
        number.name, number.which, number.n = name, which, n
        return number

    def __repr__(self) -> str:
        return f"{self.name}({self.which} weights, n={self.n}) = {float(self):.6g}"

    def __getnewargs_ex__(self) -> tuple[tuple[float], dict[str, Any]]:
        return (float(self),), {"name": self.name, "which": self.which, "n": self.n}


@dataclass(frozen=True, slots=True)
class WeightSample:
    """The real entries of a tensor (one dimension, float64, detached) and their probabilities (None: equal ones)."""

    values: Float[Tensor, " n"]
    probs: Float[Tensor, " n"] | None

    @property
    def n(self) -> int:
        """How many entries are counted."""
        return self.values.numel()

    def mean(self, values: Float[Tensor, " n"]) -> float:
        """Average of any function of the entries (one number per entry); 0 when there is none."""
        if self.n == 0:
            return 0.0
        return float(values.mean() if self.probs is None else (self.probs * values).sum())


def weight_sample(
    weights: Float[Tensor, "..."],
    mask: Bool[Tensor, "..."] | None = None,
    probs: Float[Tensor, "..."] | None = None,
    *,
    log: bool = False,
) -> WeightSample:
    """Select the real weights (or log-weights) and check them; whatever stands on padding is never looked at.

    Parameters
    ----------
    weights : Float[Tensor, "..."]          weights >= 0, or log-weights in nats when `log`
    mask : Bool[Tensor, "..."] or None      True on real entries; None counts all
    probs : Float[Tensor, "..."] or None    exact probability of each entry; entries of probability 0 are left out

    Raises
    ------
    InputError   NaN or a negative weight on a real entry; shapes that differ; probabilities that are no law

    Examples
    --------
    >>> weight_sample(torch.tensor([1.0, float("nan")]), torch.tensor([True, False])).values
    tensor([1.], dtype=torch.float64)
    """
    label = "log_weights" if log else "weights"
    values = torch.as_tensor(weights).detach()
    keep = None if mask is None else _same_shape("mask", torch.as_tensor(mask), values)
    if keep is not None and keep.dtype != torch.bool:
        raise InputError(
            "`mask` must be boolean", found=keep.dtype, hint="an integer mask would be read as positions: mask.bool()"
        )
    law = None if probs is None else _same_shape("probs", torch.as_tensor(probs).detach(), values).double()
    if law is not None:
        keep = law != 0 if keep is None else keep & (law != 0)
    if keep is None or bool(keep.all()):
        values = values.reshape(-1).double()
    else:
        values, law = values[keep].double(), None if law is None else law[keep]
    if bool(values.isnan().any()):
        count, first = int(values.isnan().sum()), int(values.isnan().nonzero()[0])
        raise InputError(
            f"`{label}` must not be NaN on a real entry",
            found=f"{count} NaN, first at real entry {first}",
            hint="mask the entry; a missing weight is not 0",
        )
    if not log and bool((values < 0).any()):
        raise InputError(
            "`weights` must be >= 0",
            found=f"{float(values.min()):.6g}",
            hint="did you pass log-weights? use the _from_log form",
        )
    return WeightSample(values, None if law is None else _checked_law(law.reshape(-1)))


def relative_to_largest(sample: WeightSample) -> tuple[float, Float[Tensor, " n"]]:
    """Return (largest weight, weights divided by it); an infinite one counts as 1, and the finite beside it as 0."""
    top = float(sample.values.max()) if sample.n else 0.0
    if top == math.inf:
        return top, sample.values.isinf().double()
    return top, sample.values / top if top > 0 else torch.zeros_like(sample.values)


def kish_fraction(sample: WeightSample) -> float:
    """(E w)^2 / E[w^2] in [0, 1]: the effective share of the sample."""
    top, scaled = relative_to_largest(sample)
    if top == 0.0:
        return 0.0
    if top == math.inf:  # order among the infinite weights is lost: the worst case, a single one that dominates
        return 1.0 / sample.n if sample.probs is None else float(sample.probs[sample.values.isinf()].min())
    return min(sample.mean(scaled) ** 2 / sample.mean(scaled.square()), 1.0)


def _same_shape(name: str, other: Tensor, values: Tensor) -> Tensor:
    if other.shape != values.shape:
        raise InputError(
            f"`{name}` must have the shape of the weights, {tuple(values.shape)}", found=tuple(other.shape)
        )
    return other


def _checked_law(law: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    mass = float(law.sum())
    if not abs(mass - 1.0) <= MASS_TOLERANCE or bool((law < 0).any()):
        raise InputError(
            "`probs` must be a probability law over the real entries (>= 0, total 1)",
            found=f"total {mass:.12g}, smallest {float(law.min()) if law.numel() else 0.0:.6g}",
            hint="an empirical sample needs no probs",
        )
    return law
