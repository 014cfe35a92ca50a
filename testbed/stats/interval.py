"""The interval type, and the checks every interval makes of its input."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from testbed.core.errors import InputError


@dataclass(frozen=True, slots=True)
class Interval:
    """A closed interval, the coverage it declares, and the method that gives it.

    Examples
    --------
    >>> 0.5 in Interval(0.0, 1.0, 0.95, "clopper_pearson")
    True
    """

    low: float
    high: float
    level: float
    method: str

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    @property
    def width(self) -> float:
        """Distance between the ends."""
        return self.high - self.low


def check_level(level: float) -> float:
    """Return 1 - level; raise InputError unless level is inside (0, 1)."""
    if not 0 < level < 1:
        raise InputError("`level` must be in (0, 1)", found=level, hint="0.95 means 95 %")
    return 1.0 - level


def finite_rows(name: str, values: Tensor) -> Tensor:
    """Return the values in float64 on the CPU, detached; raise InputError when there is none or one is not finite."""
    rows = torch.as_tensor(values).detach().double().cpu()
    if rows.dim() == 0 or len(rows) == 0 or not bool(rows.isfinite().all()):
        raise InputError(
            f"`{name}` must hold at least one row, all finite",
            found=f"shape {tuple(rows.shape)}, {int((~rows.isfinite()).sum())} not finite",
            hint="cap or select the rows first",
        )
    return rows
