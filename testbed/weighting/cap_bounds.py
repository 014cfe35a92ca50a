"""Caps that need the second moment of the weights only, and the bounds they minimize.

| cap | from | minimizes or bounds | theorem |
|---|---|---|---|
| `d2_cap` | (W - c)+ <= W^2 / (4c), min(W, c)^2 <= c W | MSE <= d2^2/(16 c^2) + c/n for every signal in [-1, 1] | O3 |
| `chi2_cap` | (W - c)+ <= (W - 1)^2 / (4(c - 1)) | bias^2 + (c - 1)/n, constant signal | O4 |
| `segment_caps` | the first, once per segment | (sum_k D_k/(4 c_k))^2 + prod c_k / n | O8 |
| `sharp_cap` | B(c) <= (sqrt(chi2 + (c-1)^2) - (c-1))/2 | an upper bound of the exact cap of O1 | O9 |

They are blind to everything about the law but d2: none can follow the exact cap, which is not monotone in d2 (O5), and
where n is small beside d2 they certify less than no cap at all does (O10).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from testbed.core.errors import InputError
from testbed.weighting.cap_law import check_n
from testbed.weighting.limits import above, at_least, positive

ROUNDING = 1e-9  # a second moment is a sum of rounded terms: it may fall this far below its least value


def _second(d2: object, name: str = "d2") -> float:
    return max(at_least(name, d2, 0.0), 0.0)


def _chi2(chi2: object) -> float:
    return max(at_least("chi2", chi2, -ROUNDING), 0.0)


def d2_cap(d2: float | int, n: float | int) -> float:
    """Minimizer of `d2_bound`: c = (n d2^2 / 8)^(1/3) (O3). Below 1 for n < 8 / d2^2: it then acts on on-policy data.

    Examples
    --------
    >>> d2_cap(8.0, 64)
    8.0
    """
    return float(math.cbrt(check_n(n) * _second(d2) ** 2 / 8.0))


def d2_bound(d2: float | int, n: float | int, cap: float | int) -> float:
    """Bound d2^2 / (16 c^2) + c / n on the mean squared error of a cap c, for every signal in [-1, 1] (O3).

    Examples
    --------
    >>> d2_bound(8.0, 64, 8.0) == 1.5 * 8.0 / 64
    True
    """
    c = positive("cap", cap)
    return (_second(d2) / (4.0 * c)) ** 2 + c / check_n(n)


def chi2_cap(chi2: float | int, n: float | int) -> float:
    """Minimizer of `chi2_bound`: c = 1 + (n chi2^2 / 8)^(1/3) (O4); 1 where the policies agree.

    Examples
    --------
    >>> chi2_cap(8.0, 64), chi2_cap(0.0, 64)
    (9.0, 1.0)
    """
    return 1.0 + float(math.cbrt(check_n(n) * _chi2(chi2) ** 2 / 8.0))


def chi2_bound(chi2: float | int, n: float | int, cap: float | int) -> float:
    """Bound chi2^2 / (16 (c-1)^2) + (c-1) / n on the mean squared error of a cap c > 1, constant signal (O4).

    Its variance part is rigorous for c >= 2; below, it is a proxy.

    Examples
    --------
    >>> chi2_bound(8.0, 64, 9.0) == 1.5 * 8.0 / 64
    True
    """
    room = above("cap", cap, 1.0) - 1.0
    return (_chi2(chi2) / (4.0 * room)) ** 2 + room / check_n(n)


def sharp_excess(chi2: float | int, cap: float | int) -> float:
    """Largest B(c) = E(W - c)+ that a mean-one weight of this chi2 can have where c >= d2/2 (an upper bound elsewhere).

        B(c) <= (sqrt(chi2 + (c-1)^2) - (c-1)) / 2        (O9)

    Examples
    --------
    >>> sharp_excess(3.0, 2.0)  # W in {0, 4}: B(2) = 2/4
    0.5
    """
    room, x = at_least("cap", cap, 0.0) - 1.0, _chi2(chi2)
    root = math.hypot(math.sqrt(x), room)
    if room > 0 and root < math.inf:
        return x / (2.0 * (root + room))  # the same number without cancellation
    return 0.0 if room == math.inf else (root - room) / 2.0


def sharp_cap(chi2: float | int, n: float | int) -> float:
    """Upper bound 1 + (n-1) sqrt(chi2) / (2 sqrt n) of the exact cap of every mean-one weight of this chi2 (O9).

    Examples
    --------
    >>> sharp_cap(4.0, 4)
    2.5
    """
    size = check_n(n)
    return 1.0 + (size - 1.0) * math.sqrt(_chi2(chi2)) / (2.0 * math.sqrt(size))


def segment_caps(d2_per_segment: Sequence[float] | Float[Tensor, " K"], n: float | int) -> Float[Tensor, " K"]:
    """Caps of the factors of a product over segments that minimize `segment_bound`.

        c_k = D_k / (4 s),   s = (prod_k D_k / (2 K n 4^K))^(1 / (K+2))

    Parameters
    ----------
    d2_per_segment : Float[Tensor, " K"]   D_k: largest second moment of segment k's factor over histories, > 0
    n : float                              draws, >= 1

    Returns
    -------
    Float[Tensor, " K"]   float64; proportional to D_k, equal iff all D_k are; `d2_cap` for K = 1

    Raises
    ------
    InputError   no segment; a D_k that is not finite and > 0; n below 1
    Gives        O8

    Examples
    --------
    >>> segment_caps([8.0], 64).tolist(), segment_caps([2.0, 2.0, 8.0], 64).round(decimals=4).tolist()
    ([8.0], [1.8882, 1.8882, 7.5527])
    """
    d = _segments(d2_per_segment)
    count, size = len(d), check_n(n)
    log_s = float(d.log().sum()) - math.log(2.0 * count * size) - count * math.log(4.0)
    return torch.tensor([x / 4.0 * math.exp(-log_s / (count + 2)) for x in d.tolist()], dtype=torch.float64)


def segment_bound(
    d2_per_segment: Sequence[float] | Float[Tensor, " K"],
    n: float | int,
    caps: Sequence[float] | Float[Tensor, " K"],
) -> float:
    """Bound (sum_k D_k / (4 c_k))^2 + prod_k c_k / n on the mean squared error of a product of capped factors (O8).

    Examples
    --------
    >>> segment_bound([8.0], 64, [8.0]) == d2_bound(8.0, 64, 8.0)
    True
    """
    d, c = _segments(d2_per_segment), torch.as_tensor(caps, dtype=torch.float64)
    if c.shape != d.shape or not bool((c > 0).all()):
        raise InputError("`caps` must be > 0, one per segment", found=c.tolist())
    return float((d / (4.0 * c)).sum() ** 2 + c.prod() / check_n(n))


def _segments(d2_per_segment: Sequence[float] | Float[Tensor, " K"]) -> Float[Tensor, " K"]:
    d = torch.as_tensor(d2_per_segment, dtype=torch.float64).detach().cpu()
    if d.dim() != 1 or len(d) == 0 or not bool((d.isfinite() & (d > 0)).all()):
        raise InputError("`d2_per_segment` must be finite and > 0, one per segment", found=d.tolist())
    return d
