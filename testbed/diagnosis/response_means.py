"""Means over tokens whose uncertainty is that of responses: tokens of one response are not independent, responses are.

Also a test that needs neither many responses nor a light tail. If the recorded behavior drew the tokens, each ratio has
conditional mean 1, so for every share s in (0, 1] of the ratio

    E = prod_t (1 - s + s rho_t)   over all tokens of all responses

has mean 1, and by Markov's inequality exceeds 1/alpha with probability at most alpha. A mixture over s is such a
product's average, an *e-value*. It has power against behaviors whose true mean ratio is above 1; against means below 1
no test is valid without a bound on the ratio.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from testbed.core.seeds import SeedTree
from testbed.stats.intervals import self_normalized_interval

LEVEL = 0.95
RESAMPLES = 1000
FEWEST = 20  # responses; the bootstrap of fewer says more about the bootstrap than about the mean
SHARES = tuple(2.0**-k for k in range(7))  # 1, 1/2, ..., 1/64


def token_mean_interval(
    values: Float[Tensor, "B T"],
    selected: Bool[Tensor, "B T"],
    seeds: SeedTree,
    *,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
) -> dict[str, Any] | None:
    """Percentile bootstrap over responses of the mean over selected tokens.

        sum_i (sum of response i) / sum_i (tokens of response i), drawn anew together

    Returns
    -------
    dict   low, high, level, method; None with selected tokens in fewer than 20 responses, or a value that is not finite
    """
    counts = selected.sum(1)
    rows = counts > 0
    totals = torch.where(selected, values, 0.0).sum(1)[rows]
    if int(rows.sum()) < FEWEST or not bool(totals.isfinite().all()):
        return None
    counts = counts[rows].double()
    found = self_normalized_interval(counts, totals / counts, seeds=seeds, level=level, resamples=resamples)
    return asdict(found) | {"method": "bootstrap over responses"}


def token_mean_score(values: Float[Tensor, "B T"], selected: Bool[Tensor, "B T"], null: float) -> float | None:
    """Distance of the mean over selected tokens from a null value, in standard errors with responses as units.

        sum_i (t_i - null n_i) / sqrt(B/(B-1) sum_i (t_i - m n_i)^2),   t_i, n_i sum and number of response i's tokens, m the mean

    Returns
    -------
    float   +-inf where the mean is off and no response differs; None with fewer than 20 responses, or a value not finite

    Examples
    --------
    >>> values = torch.ones(20, 2, dtype=torch.float64) * 0.8
    >>> token_mean_score(values, values > 0, 0.8), token_mean_score(values, values > 0, 1.0)
    (0.0, -inf)
    """
    counts = selected.sum(1)
    rows = counts > 0
    totals = torch.where(selected, values, 0.0).double().sum(1)[rows]
    counts, n = counts[rows].double(), int(rows.sum())
    if n < FEWEST or not bool(totals.isfinite().all()):
        return None
    mean = totals.sum() / counts.sum()
    spread = float((totals - mean * counts).square().sum().mul(n / (n - 1)).sqrt())
    off = float((totals - null * counts).sum())
    if spread <= 1e-9 * float(counts.sum()):
        return 0.0 if abs(off) <= 1e-6 * float(counts.sum()) else math.copysign(math.inf, off)
    return off / spread


def response_mean_interval(
    values: Float[Tensor, " B"], seeds: SeedTree, *, level: float = LEVEL
) -> dict[str, Any] | None:
    """Percentile bootstrap of a mean of one value per response."""
    column = values.double()[:, None]
    return token_mean_interval(column, torch.ones_like(column, dtype=torch.bool), seeds, level=level)


def log_e_value(log_ratio: Float[Tensor, "B T"], selected: Bool[Tensor, "B T"]) -> float:
    """Natural logarithm of the mixture e-value against "the recorded behavior drew these tokens".

        log mean_s prod_t (1 - s + s rho_t)

    Parameters
    ----------
    log_ratio : Float[Tensor, "B T"]   another policy minus the behavior that is claimed to have drawn the tokens, nats
    selected : Bool[Tensor, "B T"]     which tokens; the choice must not depend on the ratios

    Returns
    -------
    float   above log(1/alpha) with probability at most alpha if the claim is true, for every n
    Assumes    the other policy's law depends on the prefix only; responses are independent or drawn in turn
    References   Grunwald, de Heide and Koolen (2024), Safe testing, JRSS B 86(5)

    Examples
    --------
    >>> round(log_e_value(torch.tensor([[1.0, 1.0], [0.0, 0.0]]), torch.ones(2, 2, dtype=torch.bool)), 3)
    0.931
    """
    values = log_ratio[selected].double()
    totals = [
        values.sum()
        if share == 1
        else torch.logaddexp(values + math.log(share), values.new_tensor(math.log1p(-share))).sum()
        for share in SHARES
    ]
    return float(torch.logsumexp(torch.stack(totals), 0)) - math.log(len(SHARES))
