"""A gate on a whole law: are the counts of all cells those of the stated probabilities?

Each cell's count is binomial, exactly; the cells share alpha equally (Bonferroni), which is valid although the counts
depend on each other.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float, Int64
from scipy.stats import binom
from torch import Tensor

from testbed.core.errors import InputError
from testbed.stats.concentration import smallest_sample_size
from testbed.stats.ledger import GATE_ALPHA, GateLedger, GateResult, check_rates, check_size


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LawGate:
    """Test that n independent draws follow a law on finitely many cells.

        reject when some cell's count has a binomial tail (either side) of at most alpha / (2 cells)

    Attributes
    ----------
    name : str                             unique in the ledger
    probs : Float[Tensor, " cells"]        the law of correct code; a draw of a cell of probability 0 fails the gate
    alternative : Float[Tensor, " cells"]  a faulty law that must be found; the effect
    power, alpha : float                   probability of finding it; probability of a false alarm
    ledger : GateLedger or None            where the gate is declared
    n : int                                draws needed; computed, never given

    Raises
    ------
    InputError   not two different laws on the same cells; rates outside (0, 1)
    Assumes      independent draws
    Gives        false-alarm rate <= alpha exactly; power at least as declared (that of the best single cell, exactly)

    Examples
    --------
    >>> gate = LawGate(name="coin", probs=torch.tensor([0.5, 0.5]), alternative=torch.tensor([0.6, 0.4]), power=0.9)
    >>> gate.sample_size()
    1313
    >>> gate.decide(torch.arange(1313) % 2).passed
    True
    """

    name: str
    probs: Float[Tensor, " cells"]
    alternative: Float[Tensor, " cells"]
    power: float = 0.9
    alpha: float = GATE_ALPHA
    ledger: GateLedger | None = None
    n: int = field(init=False)

    def __post_init__(self) -> None:
        check_rates(self.alpha, self.power)
        stated, other = check_law("probs", self.probs), check_law("alternative", self.alternative)
        if stated.shape != other.shape or torch.equal(stated, other):
            raise InputError("`alternative` must be another law on the same cells", found="the same law or other cells")
        object.__setattr__(self, "probs", stated)
        object.__setattr__(self, "alternative", other)
        object.__setattr__(self, "n", self._smallest_n())
        if self.ledger is not None:
            self.ledger.register(self.name, self.alpha)

    @property
    def effect(self) -> float:
        """Total variation distance of the alternative from the law."""
        return float((self.probs - self.alternative).abs().sum()) / 2

    @property
    def share(self) -> float:
        """What one tail of one cell may spend."""
        return self.alpha / (2 * self.probs.numel())

    def critical_counts(self, n: int) -> tuple[Int64[np.ndarray, " cells"], Int64[np.ndarray, " cells"]]:
        """Return (l, u): counts of at most l or at least u fail the gate; l is -1 where no count is too low."""
        stated = self.probs.numpy()
        low = binom.ppf(self.share, n, stated).astype(np.int64) - 1
        high = binom.isf(self.share, n, stated).astype(np.int64) + 1
        low -= (
            binom.cdf(low, n, stated) > self.share
        )  # the quantiles are found in floating point: step back if off by one
        high += binom.sf(high - 1, n, stated) > self.share
        return low, high

    def rejection(self, n: int, law: Float[Tensor, " cells"]) -> Float[np.ndarray, " cells"]:
        """Exact probability, cell by cell, that draws from `law` fail the gate because of this cell."""
        low, high = self.critical_counts(n)
        true = law.double().numpy()
        return binom.cdf(low, n, true) + binom.sf(high - 1, n, true)

    def _smallest_n(self) -> int:
        """Return an n at which the best single cell finds the alternative with the declared power."""
        return smallest_sample_size(
            lambda n: self.rejection(n, self.alternative).max() >= self.power,
            what=f"the alternative of gate {self.name!r}",
        )

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
        n = cells.numel()
        check_size(n, self.n)
        counts = torch.bincount(cells, minlength=self.probs.numel()).numpy()
        stated = self.probs.numpy()
        tails = np.minimum(binom.cdf(counts, n, stated), binom.sf(counts - 1, n, stated))
        worst = int(tails.argmin())
        reason = f"{self.name}: cell {worst} drawn {counts[worst]} times, expected {n * stated[worst]:.6g}"
        return GateResult(
            bool(tails[worst] > self.share), float(tails[worst]), self.share, self.alpha, self.power, n, reason
        )


def check_law(name: str, probs: Tensor) -> Float[Tensor, " cells"]:
    """Return the probabilities in float64, scaled to total exactly 1 in rounding; refuse what is no law."""
    law = torch.as_tensor(probs).detach().double().cpu()
    mass = float(law.sum())
    if law.dim() != 1 or not abs(mass - 1) <= 1e-6 or bool((law < 0).any()):
        raise InputError(
            f"`{name}` must be a vector of probabilities with total 1",
            found=f"shape {tuple(law.shape)}, total {mass:.9g}",
        )
    return law / mass


def check_cells(sample: Tensor, cells: int) -> Int64[Tensor, " n"]:
    """Return the draws as a vector of cell numbers; refuse numbers out of range."""
    draws = torch.as_tensor(sample).detach().cpu().long().reshape(-1)
    if draws.numel() and (int(draws.min()) < 0 or int(draws.max()) >= cells):
        raise InputError(f"cell numbers must be in [0, {cells})", found=f"[{int(draws.min())}, {int(draws.max())}]")
    return draws
