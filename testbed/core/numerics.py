"""Log-space arithmetic under the numerics contract: select before exponentiating, never multiply afterwards.

Every masked reduction in the library goes through this file, so that a NaN, an infinity or 1e30 on a padding position
can reach neither a value nor a gradient (`where` is applied to the *input* of `exp`, not to its output).
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from testbed.core.shapes import require_shape

LONG_SUM = 256  # sums over more terms than this are accumulated in float64


def upcast(x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Return x in at least float32 (bfloat16 and float16 are widened; float32 and float64 stay).

    Examples
    --------
    >>> upcast(torch.zeros(2, dtype=torch.bfloat16)).dtype
    torch.float32
    """
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def masked_sum(x: Float[Tensor, "..."], mask: Bool[Tensor, "..."], dim: int | None = None) -> Float[Tensor, "..."]:
    """Sum x where mask is True; 0 where nothing is selected. Keeps the graph, ignores whatever stands off the mask.

    The two must have one shape: [B, 1] against [B] would sum B * B terms.

    Examples
    --------
    >>> masked_sum(torch.tensor([1.0, float("nan")]), torch.tensor([True, False]))
    tensor(1.)
    """
    require_shape("mask", mask, tuple(x.shape))
    kept = torch.where(mask, x, torch.zeros((), dtype=x.dtype, device=x.device))
    length = x.numel() if dim is None else x.shape[dim]
    wide = torch.float64 if length > LONG_SUM and x.dtype == torch.float32 else x.dtype
    total = kept.sum(dtype=wide) if dim is None else kept.sum(dim, dtype=wide)
    return total.to(x.dtype)


def masked_mean(x: Float[Tensor, "..."], mask: Bool[Tensor, "..."], dim: int | None = None) -> Float[Tensor, "..."]:
    """Mean of x over the selected positions; 0 (connected to the graph) where nothing is selected.

    Examples
    --------
    >>> masked_mean(torch.tensor([[3.0, 3.0, 0.0], [-1.0, -1.0, -1.0]]), torch.tensor([[True, True, False], [True] * 3]))
    tensor(0.6000)
    """
    count = mask.sum() if dim is None else mask.sum(dim)
    return masked_sum(x, mask, dim) / count.clamp(min=1).to(x.dtype)


def safe_exp(log_w: Float[Tensor, "..."], mask: Bool[Tensor, "..."]) -> tuple[Float[Tensor, "..."], int]:
    """Exponentiate on the mask; exactly 0 off it. Infinities are kept, and counted.

    Returns
    -------
    (w, saturated)   w = exp(log_w) where mask, else 0; saturated = number of selected entries that overflowed

    Examples
    --------
    >>> safe_exp(torch.tensor([0.0, 1e4, 1e4]), torch.tensor([True, True, False]))
    (tensor([1., inf, 0.]), 1)
    """
    require_shape("mask", mask, tuple(log_w.shape))
    w = torch.where(mask, log_w, torch.full((), float("-inf"), dtype=log_w.dtype, device=log_w.device)).exp()
    return w, int(torch.isinf(w).sum())


def cumulative_sum(x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Running sum along the last dimension, accumulated in float64 when it is long.

    Examples
    --------
    >>> cumulative_sum(torch.tensor([1.0, 2.0, 3.0]))
    tensor([1., 3., 6.])
    """
    wide = torch.float64 if x.shape[-1] > LONG_SUM else x.dtype
    return x.cumsum(-1, dtype=wide).to(x.dtype)


def log1m_exp(logp: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """log(1 - p) from log p <= 0, stable at both ends; -inf at p = 1.

    Switches at log p = -ln 2 between log(-expm1(.)) and log1p(-exp(.)): each is exact to rounding on its own side.

    Examples
    --------
    >>> round(float(log1m_exp(torch.tensor(-1e-9, dtype=torch.float64))), 4)
    -20.7233
    """
    near_one = logp > -0.6931471805599453
    a = torch.where(near_one, logp, torch.full_like(logp, -1.0))
    b = torch.where(near_one, torch.full_like(logp, -1.0), logp)
    return torch.where(near_one, torch.log(-torch.expm1(a)), torch.log1p(-torch.exp(b)))
