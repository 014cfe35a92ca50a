"""Sampled checks: the real sampler, driven by random choices, against the exact answer at a declared false-alarm rate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from testbed.core.choices import RandomChooser
from testbed.core.seeds import SeedTree
from testbed.estimators.value import value_terms
from testbed.rollout.engine import rollout
from testbed.stats.gates import MeanGate
from theory.worlds import World

SEED = SeedTree("theory sampled")


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledOutcome:
    """What a sampled check found."""

    passed: bool
    statistic: float
    threshold: float
    n: int
    alpha: float
    power: float
    effect: float
    what: str

    def record(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {name: getattr(self, name) for name in self.__slots__}  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanCheck:
    """A Bennett gate on the mean of terms that a sampler produces.

    Parameters
    ----------
    name : str
    gate : MeanGate              exact mean, variance and range of one term; effect and power fix n
    draw : (n, chooser) -> Tensor   n terms from the real sampler
    what : str                   what is compared, in words
    """

    name: str
    gate: MeanGate
    draw: Callable[[int, RandomChooser], Tensor]
    what: str

    @staticmethod
    def of_weighted_reward(name: str, instance: World, effect: float) -> MeanCheck:
        """Mean of W_T R over sampled responses against E_pi[R]; `effect` in standard deviations of W_T R."""
        law = instance.law
        terms = value_terms(law.batch)
        exact = float(instance.target_law.expect(instance.target_law.batch.reward))
        variance = float(law.expect((terms - exact) ** 2))
        gate = MeanGate(
            name=name,
            mean=exact,
            variance=variance,
            low=float(terms.min()),
            high=float(terms.max()),
            effect=effect * variance**0.5,
        )

        def draw(n: int, chooser: RandomChooser) -> Tensor:
            return value_terms(rollout(instance.env, instance.schedule, n, chooser, target=instance.target))

        return MeanCheck(name=name, gate=gate, draw=draw, what="mean of W_T R over sampled responses against E_pi[R]")

    def run(self, seed: SeedTree = SEED) -> SampledOutcome:
        """Draw the declared number of terms and decide."""
        n = self.gate.sample_size()
        result = self.gate.decide(self.draw(n, RandomChooser(seed[self.name])))
        return SampledOutcome(
            passed=result.passed,
            statistic=result.statistic,
            threshold=result.threshold,
            n=n,
            alpha=result.alpha,
            power=result.power,
            effect=self.gate.effect,
            what=self.what,
        )


SampledCheck = MeanCheck
