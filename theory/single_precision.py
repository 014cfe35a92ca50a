"""What float32 arithmetic makes of a gate on the binary divergence, as one framework computes it."""

from __future__ import annotations

from typing import Any

import numpy as np

CLIP = np.float32(1e-8)


def kept_in_single_precision(p: Any, q: Any, phi: float) -> np.ndarray:
    """Gate of KPop with probabilities clipped to [1e-8, 1 - 1e-8] in float32, where 1 - 1e-8 is 1.

    Examples
    --------
    >>> kept_in_single_precision([0.9, 1.0], [0.9, 1.0], 2.0).tolist()  # 0 log(0/0) is NaN, and NaN <= phi is False
    [True, False]
    """
    one = np.float32(1.0)
    p, q = (np.clip(np.asarray(x, dtype=np.float32), CLIP, one - CLIP) for x in (p, q))

    def divergence(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return a * np.log(a / b) + (one - a) * np.log((one - a) / (one - b))

    with np.errstate(all="ignore"):
        return (divergence(p, q) <= phi) & (divergence(q, p) <= phi)
