"""Responses of two words listed in plain arrays: what the panels on replay and on groups are checked against.

A policy is its table of probabilities: one row per prefix, shorter prefixes first, words in order. Nothing here calls the
library, so a number that agrees was found twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import inf
from typing import Any

import numpy as np

WEIGHTS = {  # name: weight of a response from the product w of its ratios, and a cap
    "product of ratios": lambda w, cap: w,
    "capped": np.minimum,
    "masked": lambda w, cap: np.where(w <= cap, w, 0.0),
    "no weight": lambda w, cap: np.ones_like(w),
}


@dataclass
class Listed:
    """All responses: their probability under the sampler, the product of their ratios, reward and score [prefix, word]."""

    chance: np.ndarray
    ratio: np.ndarray
    reward: np.ndarray
    score: np.ndarray

    def update(self, weight: np.ndarray) -> np.ndarray:
        """Mean of weight times score."""
        return np.einsum("i,i,ijk->jk", self.chance, weight, self.score)

    def level(self) -> float:
        """Mean reward of the sampler."""
        return float(self.chance @ self.reward)


def listed(target: Any, sampler: Any, ones: int) -> Listed:
    """List the responses of two policies [2^T - 1, 2]; the reward is one for at least so many times word 1."""
    pi, mu = (np.asarray(table, dtype=float) for table in (target, sampler))
    horizon, rows = (len(pi) + 1).bit_length() - 1, []
    for words in product((0, 1), repeat=horizon):
        chance, ratio, score, prefix = 1.0, 1.0, np.zeros_like(pi), 0
        for word in words:
            chance, ratio = chance * mu[prefix, word], ratio * pi[prefix, word] / mu[prefix, word]
            score[prefix] = np.eye(2)[word] - pi[prefix]  # gradient of the log-softmax
            prefix = 2 * prefix + 1 + word
        rows.append((chance, ratio, float(sum(words) >= ones), score))
    return Listed(*(np.array(column) for column in zip(*rows, strict=True)))


def bias_and_variance(target: Any, sampler: Any, ones: int, cap: float = inf) -> tuple[float, float]:
    """Bias and variance of one response's capped gradient term, in multiples of the gradient's length and its square."""
    gradient = on_policy(target, ones)
    them = listed(target, sampler, ones)
    terms = (np.minimum(them.ratio, cap) * them.reward)[:, None, None] * them.score / np.linalg.norm(gradient)
    mean = np.tensordot(them.chance, terms, 1)
    variance = float(them.chance @ ((terms - mean) ** 2).sum((1, 2)))
    return float(np.linalg.norm(mean - gradient / np.linalg.norm(gradient))), variance


def on_policy(target: Any, ones: int) -> np.ndarray:
    """Gradient of the success rate."""
    own = listed(target, target, ones)
    return own.update(own.reward)


def errors_with_stale_members(
    target: Any, sampler: Any, ones: int, size: int, stale: int, cap: float
) -> dict[str, tuple[float, float]]:
    """Error of the expected update of a mixed group, per weight: without a baseline, and with the mean of the others.

    A stale response contributes E[w (R - b) s], a fresh one the gradient; b is the mean reward of the other members.
    """
    gradient, own, old = on_policy(target, ones), listed(target, target, ones), listed(target, sampler, ones)
    others = ((stale - 1) * old.level() + (size - stale) * own.level()) / (size - 1)
    found = {}
    for name, weight in WEIGHTS.items():
        w = weight(old.ratio, cap)
        updates = (old.update(w * (old.reward - level)) for level in (0.0, others))
        lengths = [np.linalg.norm(stale / size * (update - gradient)) for update in updates]
        found[name] = tuple(float(length / np.linalg.norm(gradient)) for length in lengths)
    return found
