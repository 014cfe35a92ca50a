"""Shape checks whose message names the field, the shape found and the shape expected (a [B,1] never broadcasts to [B,B])."""

from __future__ import annotations

from torch import Tensor

from testbed.core.errors import InputError


def require_shape(name: str, value: Tensor, expected: tuple[int, ...]) -> None:
    """Raise InputError unless `value` has exactly this shape.

    Examples
    --------
    >>> import torch
    >>> require_shape("advantage", torch.zeros(2, 1), (2,))
    Traceback (most recent call last):
    ...
    testbed.core.errors.InputError: `advantage` must have shape (2,); found (2, 1)
    """
    if tuple(value.shape) != expected:
        raise InputError(f"`{name}` must have shape {expected}", found=tuple(value.shape))


def rows_or_tokens(name: str, value: Tensor, batch_size: int, horizon: int) -> Tensor:
    """Return a [B] or [B, T] tensor as [B, T] (per-response values are repeated along time)."""
    if tuple(value.shape) == (batch_size,):
        return value[:, None].expand(batch_size, horizon)
    if tuple(value.shape) == (batch_size, horizon):
        return value
    raise InputError(
        f"`{name}` must have shape ({batch_size},) or ({batch_size}, {horizon})",
        found=tuple(value.shape),
        hint="one value per response, or one per token",
    )
