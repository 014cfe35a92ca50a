"""A gate on a mean: does a sampler or an estimator have the expectation that enumeration says it has?

The expectation, the variance and the range are exact (from an enumerated law), the threshold is Bennett's, so the
declared error rate holds at every sample size and for every skewness. See `concentration.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from testbed.core.errors import InputError
from testbed.stats.concentration import bennett_deviation, smallest_sample_size
from testbed.stats.ledger import GATE_ALPHA, GateLedger, GateResult, check_rates, check_size

ROUNDING = 1e-12  # relative to the range: a mean is not known better in float64


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanGate:
    """Two-sided test that n independent terms have the stated mean.

        reject when mean(sample) - mean is above t_up or below -t_down, each exceeded with probability <= alpha / 2

    Attributes
    ----------
    name : str           unique in the ledger
    mean : float         exact expectation of one term
    variance : float     exact variance of one term, > 0 unless the term is constant
    low, high : float    exact range of one term; a value outside fails the gate at once
    effect : float       > 0, the shift of the mean that must be found, units of the term
    power : float        probability of finding it
    alpha : float        probability of a false alarm
    ledger : GateLedger or None   where the gate is declared
    n : int              draws needed; computed, never given

    Raises
    ------
    InputError   a range that does not hold the mean; a variance impossible on the range; a shift that leaves the range
                 both ways; rates outside (0, 1)
    Assumes      independent terms; for the power, that the faulty sampler keeps the range and has no larger variance
    Gives        false-alarm rate <= alpha at every n (Bennett)

    Examples
    --------
    >>> gate = MeanGate(name="coin", mean=0.5, variance=0.25, low=0.0, high=1.0, effect=0.05)
    >>> gate.sample_size()
    8867
    >>> gate.decide(torch.arange(8867) % 2 * 1.0).passed
    True
    """

    name: str
    mean: float
    variance: float
    low: float
    high: float
    effect: float
    power: float = 0.99
    alpha: float = GATE_ALPHA
    ledger: GateLedger | None = None
    n: int = field(init=False)

    def __post_init__(self) -> None:
        check_rates(self.alpha, self.power)
        if not self.low <= self.mean <= self.high:
            raise InputError("`mean` must lie in [low, high]", found=f"{self.mean} in [{self.low}, {self.high}]")
        largest = (self.high - self.mean) * (self.mean - self.low)
        if not 0 <= self.variance <= largest * (1 + 1e-9):
            raise InputError(f"`variance` must be in [0, {largest:.6g}] for this mean and range", found=self.variance)
        if not self.effect > 0:
            raise InputError("`effect` must be > 0", found=self.effect)
        if not self._shifts():
            raise InputError("`effect` must keep the shifted mean inside [low, high] on one side", found=self.effect)
        object.__setattr__(self, "n", self._smallest_n())
        if self.ledger is not None:
            self.ledger.register(self.name, self.alpha)

    def _shifts(self) -> list[float]:
        """Signed shifts a faulty sampler with this range can have."""
        return [s for s in (self.effect, -self.effect) if self.low <= self.mean + s <= self.high]

    def thresholds(self, n: int) -> tuple[float, float]:
        """Return (t_down, t_up): deviations below and above the mean that fail the gate at sample size n."""
        if self.low == self.high or self.variance == 0:
            return 0.0, 0.0
        half, slack = self.alpha / 2, ROUNDING * max(abs(self.low), abs(self.high))
        down = bennett_deviation(n, variance=self.variance, bound=self.mean - self.low, alpha=half)
        return down + slack, bennett_deviation(
            n, variance=self.variance, bound=self.high - self.mean, alpha=half
        ) + slack

    def _smallest_n(self) -> int:
        """Smallest n at which every possible shift of size `effect` is found with the declared power."""
        if self.variance == 0:
            return 1
        return smallest_sample_size(self._finds_effect, what=f"the effect of gate {self.name!r}")

    def _finds_effect(self, n: int) -> bool:
        down, up = self.thresholds(n)
        for shift in self._shifts():
            bound = self.mean + shift - self.low if shift > 0 else self.high - self.mean - shift
            slip = bennett_deviation(n, variance=self.variance, bound=bound, alpha=1 - self.power)
            if (up if shift > 0 else down) + slip > self.effect:
                return False
        return True

    def sample_size(self) -> int:
        """Return the number of draws that `decide` takes."""
        return self.n

    def decide(self, sample: Float[Tensor, " n"]) -> GateResult:
        """Decide on exactly `sample_size()` independent terms.

        Raises
        ------
        InputError   another number of terms; NaN
        """
        values = torch.as_tensor(sample).detach().double()
        check_size(values.numel(), self.n)
        if bool(values.isnan().any()):
            raise InputError("a gate's sample must hold no NaN", found=int(values.isnan().sum()))
        n, slack = values.numel(), 1e-9 * max(abs(self.low), abs(self.high), self.high - self.low)
        outside = int(((values < self.low - slack) | (values > self.high + slack)).sum())
        deviation = float(values.mean()) - self.mean
        down, up = self.thresholds(n)
        limit = up if deviation > 0 else down
        if self.variance == 0:
            limit = slack
        passed = outside == 0 and abs(deviation) <= limit
        where = f"{outside} terms outside [{self.low:.6g}, {self.high:.6g}]" if outside else f"shift {deviation:.6g}"
        return GateResult(
            passed, abs(deviation), limit, self.alpha, self.power, n, f"{self.name}: {where}, limit {limit:.6g}"
        )
