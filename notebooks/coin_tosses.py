"""Responses of independent tokens, by the library: the sampler tosses a fair coin, the target's coin favors word 1.

A weight depends only on the number of ones, so thousands of tokens are as exact as two.
"""

from __future__ import annotations

from functools import lru_cache
from math import exp

import torch
from torch import Tensor

import testbed
from testbed.exact.iid_weights import iid_weight_law, lower_median
from testbed.exact.law import ExactLaw
from testbed.exact.ratio_moments import ratio_moment
from testbed.weighting.weight_families import Finite


def coin(p: float) -> Tensor:
    """Law of one toss: word 1 with probability p."""
    return torch.tensor([1 - p, p], dtype=torch.float64)


@lru_cache
def one_token(p: float, power: float = 2.0) -> float:
    """Moment of one toss's ratio: d2, or BC at power 1/2."""
    return float(ratio_moment(coin(p).log(), coin(0.5).log(), power))


@lru_cache
def coin_weights(p: float, length: int) -> tuple[Tensor, Tensor]:
    """Log-weights, evenly spaced and falling, and their probabilities."""
    return iid_weight_law(coin(p), coin(0.5), length)


@lru_cache
def coin_law(p: float, length: int) -> ExactLaw:
    """The same as a law of responses: a world of one token, with a word per number of ones."""
    log_weight, probs = coin_weights(p, length)
    world = testbed.PrefixTree(len(probs), 1, rewards=[0.0] * len(probs))
    pi, mu = (testbed.TabularPolicy.from_probs(x[None]) for x in (probs * log_weight.exp(), probs))
    return testbed.enumerate_law(world, pi, mu)


def kept(p: float, length: int, cap: float) -> float:
    """Mean weight after a cap."""
    log_weight, probs = coin_weights(p, length)
    return Finite(log_weight.exp(), probs).capped_mean(cap)


def reached(p: float, length: int, share: float) -> float:
    """Largest weight that a `share` of the responses still reaches."""
    log_weight, probs = coin_weights(p, length)
    falling = log_weight.argsort(descending=True)
    return float(log_weight[falling][int((probs[falling].cumsum(0) < share).sum())].exp())


@lru_cache
def summary(p: float, length: int, cap: float) -> tuple[float, float, float, float]:
    """Second moment, weight that one response in a thousand reaches, mean after the cap, median."""
    median = exp(lower_median(*coin_weights(p, length)))
    return one_token(p) ** length, reached(p, length, 1e-3), kept(p, length, cap), median


def half_of_the_mean(p: float, length: int) -> float:
    """Share of the responses on which the upper half of the mean weight rests."""
    log_weight, probs = coin_weights(p, length)
    least = -lower_median(-log_weight, probs * log_weight.exp())
    return float(probs[log_weight >= least - 1e-9].sum())
