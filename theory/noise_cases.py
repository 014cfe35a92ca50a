"""Samplers whose logits carry noise of a finite law, so that expectations over the noise are sums.

The noise is drawn before the token and independently of everything else: an exogenous schedule with one branch per outcome.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from testbed.environments.prefix_tree import PrefixTree
from testbed.exact.law import ExactLaw, enumerate_law
from testbed.policies.schedule import ExogenousSchedule, PrefixSchedule, one
from testbed.policies.tabular import TabularPolicy
from theory.real_laws import real_law

OUTCOMES = 8  # most outcomes of a noise law here


@dataclass(frozen=True, kw_only=True)
class NoiseCase:
    """Trainer's law of one token and a finite law of logit noise: outcome d adds shifts[d] with probability chances[d]."""

    name: str
    log_p: Tensor
    shifts: Tensor
    chances: tuple[float, ...]

    @property
    def vocab_size(self) -> int:
        """Number of tokens."""
        return self.log_p.shape[-1]

    @cached_property
    def target(self) -> TabularPolicy:
        """Trainer."""
        return TabularPolicy(self.log_p[None])

    @cached_property
    def samplers(self) -> list[TabularPolicy]:
        """The sampler under each outcome of the noise."""
        return [TabularPolicy((self.log_p + shift)[None]) for shift in self.shifts]

    @cached_property
    def law(self) -> ExactLaw:
        """Joint law of noise and token, as the sampler draws them."""
        branches = [
            (chance, PrefixSchedule((mu,), one())) for chance, mu in zip(self.chances, self.samplers, strict=True)
        ]
        env = PrefixTree(self.vocab_size, 1, [0.0] * self.vocab_size)
        return enumerate_law(env, self.target, ExogenousSchedule(branches))

    def scaled(self, factor: float) -> NoiseCase:
        """The same noise, scaled."""
        return NoiseCase(name=self.name, log_p=self.log_p, shifts=self.shifts * factor, chances=self.chances)

    def moved(self, p: float) -> NoiseCase:
        """Token 0 gets probability p, and the others keep their proportions."""
        rest = self.log_p[1:] - torch.logsumexp(self.log_p[1:], 0) + np.log1p(-p)
        log_p = torch.cat([torch.tensor([np.log(p)], dtype=torch.float64), rest])
        return NoiseCase(name=self.name, log_p=log_p, shifts=self.shifts, chances=self.chances)

    def mean(self, values: Any) -> np.ndarray:
        """Expectation over the noise, of values [D, V] or [D]."""
        return np.tensordot(np.asarray(self.chances), np.asarray(values), 1)


def noise_case(name: str, p: Sequence[float], shifts: Sequence[Sequence[float]], chances: Sequence[float]) -> NoiseCase:
    """Build a case from probabilities.

    Examples
    --------
    >>> case = noise_case("example", [0.5, 0.5], [[0.0, 0.0], [1.0, 0.0]], [0.5, 0.5])
    >>> case.law.batch.batch_size, round(float(case.law.probs.sum()), 12)
    (4, 1.0)
    """
    law = torch.tensor(p, dtype=torch.float64)
    return NoiseCase(
        name=name,
        log_p=(law / law.sum()).log(),
        shifts=torch.tensor(shifts, dtype=torch.float64),
        chances=tuple(chances),
    )


def signs(name: str, p: Sequence[float], sigma: float) -> NoiseCase:
    """Independent noise of +sigma or -sigma on every logit."""
    shifts = [[sigma * s for s in row] for row in product((1.0, -1.0), repeat=len(p))]
    return noise_case(name, p, shifts, [1 / len(shifts)] * len(shifts))


def noise_cases() -> list[NoiseCase]:
    """Independent, one-sided and common noise; doubtful and confident tokens; a recorded engine."""
    recorded = real_law(6, "v0_bf16")
    return [
        signs("three_tokens", [0.5, 0.3, 0.2], 0.4),
        signs("two_tokens", [0.7, 0.3], 0.8),
        signs("confident", [0.99, 0.007, 0.003], 0.5),
        signs("very_confident", [1 - 2.0**-12, 2.0**-13, 2.0**-13], 0.3),
        noise_case("one_sided", [0.2, 0.5, 0.3], [[0, 0, 0], [0, 1.5, 0], [-1, 0, 0.5]], [0.5, 0.3, 0.2]),
        noise_case("common", [0.4, 0.35, 0.25], [[1, 1, 1], [-0.5, -0.5, -0.5]], [0.4, 0.6]),
        noise_case("no_noise", [0.4, 0.6], [[0, 0]], [1.0]),
        NoiseCase(
            name="recorded", log_p=recorded.target.table[0], chances=(0.25, 0.75),
            shifts=torch.stack([recorded.behaviors[0].table[0] - recorded.target.table[0], 0 * recorded.target.table[0]]),
        ),
    ]  # fmt: skip
