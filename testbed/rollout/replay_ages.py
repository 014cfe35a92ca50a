"""Laws of the age of a replayed item once the buffer has turned over, and what a variance that grows with age makes of them."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from testbed.core.errors import InputError
from testbed.rollout.replay import checked_eviction


def survival(capacity: int, stored: int) -> float:
    """Probability that an item outlives one step under random eviction, (1 - 1/capacity)^stored.

    Examples
    --------
    >>> survival(2, 1)
    0.5
    """
    if capacity < 1 or stored < 1:
        raise InputError("`capacity` and `stored` must be >= 1", found=f"{capacity} and {stored}")
    return (1 - 1 / capacity) ** stored


def age_law(eviction: str, capacity: int, stored: int, longest: int) -> Float[Tensor, " longest"]:
    """Probability that an item drawn from a full buffer is 1, ..., `longest` steps old.

        fifo:    uniform, stored / capacity each, while there are items that old (the last age may be rarer)
        random:  geometric, (1 - s) s^(age-1) with s = (1 - 1/capacity)^stored

    Parameters
    ----------
    eviction : "fifo" or "random"
    capacity : int                  items in the buffer
    stored : int                    items stored per step
    longest : int                   >= 1, the largest age asked for

    Returns
    -------
    Float64[Tensor, " longest"]     total 1 for fifo once `longest` >= capacity / stored, below 1 for random

    Raises
    ------
    InputError   another eviction; a number below 1

    Assumes      every step draws before it stores, and the buffer has turned over
    Gives        the exact stationary law (K5)

    Examples
    --------
    >>> age_law("fifo", 4, 2, 3).tolist(), age_law("random", 2, 1, 3).tolist()
    ([0.5, 0.5, 0.0], [0.5, 0.25, 0.125])
    """
    random = checked_eviction(eviction) == "random"
    if longest < 1:
        raise InputError("`longest` must be >= 1", found=longest)
    s = survival(capacity, stored)
    age = torch.arange(1, longest + 1, dtype=torch.float64)
    if random:
        return (1 - s) * s ** (age - 1)
    return (capacity - stored * (age - 1)).clamp(0, stored) / capacity


def mean_growth(eviction: str, capacity: int, stored: int, growth: float | int) -> float:
    """Mean of growth^age over replayed items: the factor on v_r when every step multiplies the variance by `growth`.

        random:  growth (1 - s) / (1 - growth s), infinite once growth >= 1/s

    Parameters
    ----------
    eviction, capacity, stored : as `age_law`
    growth : float             >= 0, for instance d2 of one update

    Returns
    -------
    float                      inf where the mean diverges: never under fifo

    Raises
    ------
    InputError   as `age_law`; a negative growth

    Examples
    --------
    >>> mean_growth("random", 2, 1, 1.5), mean_growth("random", 2, 1, 2.0), mean_growth("fifo", 2, 1, 2.0)
    (3.0, inf, 3.0)
    """
    if not growth >= 0:
        raise InputError("`growth` must be >= 0", found=growth)
    if checked_eviction(eviction) == "random":
        s = survival(capacity, stored)
        return growth * (1 - s) / (1 - growth * s) if growth * s < 1 else math.inf
    law = age_law(eviction, capacity, stored, math.ceil(capacity / stored))
    age = torch.arange(1, law.numel() + 1, dtype=torch.float64)
    return float((law * float(growth) ** age).sum())
