"""What is known of the whole next-token law at each position, for rules that look beyond the drawn token.

An engine records the likeliest tokens and the mass of all others; an enumerable world has the whole vocabulary and no
remainder. A slot that is not used has id -1 and log-probabilities of -inf.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from testbed.core.batch_checks import POSITIVE_TOLERANCE, first_index, low_precision_grid
from testbed.core.errors import InputError
from testbed.core.numerics import upcast
from testbed.core.shapes import require_shape

MASS_TOLERANCE = 1e-2  # a law recorded in 16 bits misses 1 by up to half a percent; a forgotten token by more


@dataclass(frozen=True, slots=True, kw_only=True)
class NextTokenLaws:
    """The head of the next-token laws at each position: the top k ids and the mass of everything else.

    Shapes: ids and log-probs [B, T, k]; remaining mass [B, T], dimensionless. A batch checks them when it is made.

    Examples
    --------
    >>> laws = NextTokenLaws(
    ...     ids=torch.tensor([[[3, 1]]]), logp_target=torch.log(torch.tensor([[[0.5, 0.25]]])),
    ...     logp_behavior=torch.log(torch.tensor([[[0.25, 0.5]]])), remaining_target=torch.tensor([[0.25]]),
    ...     remaining_behavior=torch.tensor([[0.25]]))
    >>> laws.width
    2
    """

    ids: Int64[Tensor, "B T k"]
    logp_target: Float[Tensor, "B T k"]
    logp_behavior: Float[Tensor, "B T k"]
    remaining_target: Float[Tensor, "B T"]
    remaining_behavior: Float[Tensor, "B T"]

    @property
    def width(self) -> int:
        """Number of slots k."""
        return self.ids.shape[-1]

    def select(self, index: Tensor) -> NextTokenLaws:
        """Return the laws of these rows."""
        return NextTokenLaws(**{f.name: getattr(self, f.name)[index] for f in fields(self)})

    def widened(self, width: int) -> NextTokenLaws:
        """Return the same laws with unused slots added."""
        room = (0, width - self.width)
        return NextTokenLaws(
            ids=torch.nn.functional.pad(self.ids, room, value=-1),
            logp_target=torch.nn.functional.pad(self.logp_target, room, value=-torch.inf),
            logp_behavior=torch.nn.functional.pad(self.logp_behavior, room, value=-torch.inf),
            remaining_target=self.remaining_target,
            remaining_behavior=self.remaining_behavior,
        )


def stacked(laws: Sequence[NextTokenLaws]) -> NextTokenLaws:
    """Stack laws row by row; narrower ones get unused slots."""
    wide = [one.widened(max(other.width for other in laws)) for one in laws]
    return NextTokenLaws(**{f.name: torch.cat([getattr(one, f.name) for one in wide]) for f in fields(NextTokenLaws)})


def clean_laws(
    laws: NextTokenLaws, mask: Bool[Tensor, "B T"]
) -> tuple[NextTokenLaws, dict[str, int], dict[str, float]]:
    """Return (checked laws, log-probs clipped to 0, rounding grids of 16-bit log-probs), by field; unused slots in padding.

    Raises
    ------
    InputError   wrong shapes; NaN, a log-prob above 1e-6, an id that occurs twice or a remaining mass outside [0, 1] at a
                 real position; a head and a remainder that do not sum to 1
    """
    if laws.ids.dim() != 3 or laws.ids.is_floating_point():
        raise InputError(
            "`next_token.ids` must be whole numbers [B, T, k]", found=f"{laws.ids.dtype} {tuple(laws.ids.shape)}"
        )
    shape = (*mask.shape, laws.width)
    require_shape("next_token.ids", laws.ids, shape)
    slots = mask[..., None].expand(shape)
    ids = torch.where(slots, laws.ids.to(torch.int64), -1)
    used = ids >= 0
    ordered = torch.where(used, ids, -1 - torch.arange(laws.width, device=ids.device)).sort(-1).values
    twice = (ordered.diff(dim=-1) == 0).any(-1)
    if bool(twice.any()):
        raise InputError(
            "`next_token.ids` must be distinct at each position", found=f"one twice at {first_index(twice)}"
        )
    clipped: dict[str, int] = {}
    grids: dict[str, float] = {}
    cleaned: dict[str, Tensor] = {"ids": torch.where(used, ids, -1)}
    for policy in ("target", "behavior"):
        name = f"next_token.logp_{policy}"
        given = getattr(laws, f"logp_{policy}")
        require_shape(name, given, shape)
        grid = low_precision_grid(given.flatten(1), used.flatten(1))
        if grid is not None:
            grids[name] = grid
        logp, count = _log_probs(name, upcast(given), used)
        if count:
            clipped[name] = count
        rest = _remainder(f"next_token.remaining_{policy}", getattr(laws, f"remaining_{policy}"), mask)
        total = logp.detach().double().exp().sum(-1) + rest.detach().double()
        wrong = mask & ((total - 1.0).abs() > MASS_TOLERANCE)
        if bool(wrong.any()):
            raise InputError(
                f"`{name}` and its remaining mass must sum to 1",
                found=f"{float(total[wrong][0]):.6g} at {first_index(wrong)}",
                hint="the remaining mass is 1 minus the probabilities of the recorded tokens",
            )
        cleaned[f"logp_{policy}"], cleaned[f"remaining_{policy}"] = logp, rest
    return NextTokenLaws(**cleaned), clipped, grids


def _log_probs(name: str, value: Tensor, used: Tensor) -> tuple[Tensor, int]:
    value = torch.where(used, value, torch.full((), -torch.inf, dtype=value.dtype, device=value.device))
    bad = value.isnan() | (value > POSITIVE_TOLERANCE)
    if bool(bad.any()):
        where = first_index(bad)
        raise InputError(
            f"`{name}` must be log-probabilities <= 0",
            found=f"{int(bad.sum())} that are not, first {float(value[where]):.6g} at {where}",
            hint="did you pass a probability or a logit?",
        )
    return value.clamp(max=0.0), int((value > 0).sum())


def _remainder(name: str, value: Tensor, mask: Tensor) -> Tensor:
    require_shape(name, value, tuple(mask.shape))
    value = torch.where(mask, upcast(value), torch.zeros((), dtype=upcast(value).dtype, device=value.device))
    bad = ~((value >= -POSITIVE_TOLERANCE) & (value <= 1.0 + POSITIVE_TOLERANCE))
    if bool(bad.any()):
        where = first_index(bad)
        raise InputError(f"`{name}` must lie in [0, 1]", found=f"{float(value[where]):.6g} at {where}")
    return value.clamp(0.0, 1.0)
