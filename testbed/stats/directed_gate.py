"""A gate against one named fault: the log-likelihood ratio of the drawn cells, faulty law over stated law.

It sees a fault that a gate on all cells misses at the same n, because it knows where to look.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from testbed.core.errors import InputError
from testbed.stats.concentration import bennett_deviation, smallest_sample_size
from testbed.stats.law_gate import check_cells, check_law
from testbed.stats.ledger import GATE_ALPHA, GateLedger, GateResult, check_rates, check_size


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DirectedGate:
    """One-sided test of a law against a named mutant of it.

        l(x) = clamp(log mutant(x) / probs(x), -bound, bound);   reject when mean l >= E_probs[l] + t

    Attributes
    ----------
    name : str                        unique in the ledger
    probs : Float[Tensor, " cells"]   the law that correct code has
    mutant : Float[Tensor, " cells"]  the law that the fault has; the effect to be found
    power, alpha : float              probability of finding it; probability of a false alarm
    bound : float                     nats; smaller bounds the range, at some loss of information
    ledger : GateLedger or None       where the gate is declared
    n : int                           draws needed; computed, never given

    Raises
    ------
    InputError   not two laws on the same cells; the same law twice; rates outside (0, 1)
    Assumes      independent draws
    Gives        false-alarm rate <= alpha and power as declared (Bennett, exact moments of either law). A drawn cell of
                 probability 0 fails the gate at once

    Examples
    --------
    >>> fair, loaded = torch.tensor([0.5, 0.5]), torch.tensor([0.55, 0.45])
    >>> gate = DirectedGate(name="coin", probs=fair, mutant=loaded)
    >>> gate.sample_size()
    8629
    >>> gate.decide(torch.arange(8629) % 2).passed
    True
    """

    name: str
    probs: Float[Tensor, " cells"]
    mutant: Float[Tensor, " cells"]
    power: float = 0.99
    alpha: float = GATE_ALPHA
    bound: float = 20.0
    ledger: GateLedger | None = None
    n: int = field(init=False)

    def __post_init__(self) -> None:
        check_rates(self.alpha, self.power)
        if not self.bound > 0:
            raise InputError("`bound` must be > 0", found=self.bound)
        stated, faulty = check_law("probs", self.probs), check_law("mutant", self.mutant)
        if stated.shape != faulty.shape or torch.equal(stated, faulty):
            raise InputError("`mutant` must be another law on the same cells", found="the same law or other cells")
        object.__setattr__(self, "probs", stated)
        object.__setattr__(self, "mutant", faulty)
        object.__setattr__(self, "n", self._smallest_n())
        if self.ledger is not None:
            self.ledger.register(self.name, self.alpha)

    @property
    def effect(self) -> float:
        """Difference of the mean statistic between the two laws; both KL divergences added, when nothing is clamped."""
        return self._moments(self.mutant, 1)[0] - self._moments(self.probs, 1)[0]

    def log_likelihood_ratio(self) -> Float[Tensor, " cells"]:
        """Return the statistic of each cell, in nats; 0 on cells neither law can emit."""
        ratio = self.mutant.log() - self.probs.log()
        return torch.where((self.mutant == 0) & (self.probs == 0), 0.0, ratio).clamp(-self.bound, self.bound)

    def _moments(self, law: Tensor, side: int) -> tuple[float, float, float]:
        """Return (mean, variance, most by which the statistic can exceed its mean on this side) under a law."""
        ratio = self.log_likelihood_ratio()
        mean = float((law * ratio).sum())
        return mean, float((law * (ratio - mean).square()).sum()), float((side * (ratio[law > 0] - mean)).max())

    def threshold(self, n: int) -> float:
        """Largest mean log-likelihood ratio that passes at sample size n."""
        mean, variance, most = self._moments(self.probs, 1)
        return mean + (bennett_deviation(n, variance=variance, bound=most, alpha=self.alpha) if variance > 0 else 0.0)

    def _smallest_n(self) -> int:
        """Smallest n at which the mutant is found with the declared power."""
        mean, variance, most = self._moments(self.mutant, -1)

        def enough(n: int) -> bool:
            slip = bennett_deviation(n, variance=variance, bound=most, alpha=1 - self.power) if variance > 0 else 0.0
            return self.threshold(n) < mean - slip

        return smallest_sample_size(enough, what=f"the mutant of gate {self.name!r}")

    def sample_size(self) -> int:
        """Return the number of draws that `decide` takes."""
        return self.n

    def decide(self, sample: Int64[Tensor, " n"]) -> GateResult:
        """Decide on exactly `sample_size()` independent draws, given as cell numbers.

        Raises
        ------
        InputError   another number of draws; a cell number out of range
        """
        cells = check_cells(sample, self.probs.numel())
        check_size(cells.numel(), self.n)
        statistic, limit = float(self.log_likelihood_ratio()[cells].mean()), self.threshold(cells.numel())
        impossible = int((self.probs[cells] == 0).sum())
        passed = impossible == 0 and statistic <= limit + 1e-12 * self.bound
        reason = (
            f"{self.name}: {impossible} draws of probability 0" if impossible else f"{self.name}: {statistic:.6g} nats"
        )
        return GateResult(
            passed, math.inf if impossible else statistic, limit, self.alpha, self.power, cells.numel(), reason
        )
