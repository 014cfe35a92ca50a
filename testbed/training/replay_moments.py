"""What the best share of replay depends on, measured in a run: variances, bias and costs of fresh and replayed responses.

A response's term is its part of the gradient of the batch, under the weights of the moment and with the weights that the
rule gives it. Its variance is the trace of the covariance of such terms; the bias of replay is how far the mean of replayed
terms lies from that of fresh ones.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from testbed.core.errors import InputError
from testbed.estimators.mixing import ReplayShare, optimal_replay_share
from testbed.policies.base import Policy
from testbed.training.grpo import GRPORun
from testbed.training.grpo_config import GRPOConfig
from testbed.training.lab import run_of
from testbed.training.sources import Drawn, Source
from testbed.weighting.rules import weigh


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayMoments:
    """Moments of one batch.

    v_fresh, v_replay        trace of the covariance of a response's term
    bias_squared             |mean of replayed - mean of fresh|^2, less what noise adds to it: it may be negative
    cost_fresh, cost_replay  simulated seconds of one response: writing and training, training alone
    responses                of the batch
    """

    v_fresh: float
    v_replay: float
    bias_squared: float
    cost_fresh: float
    cost_replay: float
    responses: int


def response_terms(run: GRPORun, drawn: Drawn) -> Float[Tensor, "B P"]:
    """Gradient of A sum_t w_t log pi(y_t | h_t) for each response of a batch, before the update.

    Assumes   the run's next update is on this batch: replayed responses have the advantage of their first time
    """
    batch, _ = run._scored(drawn.batch)
    advantage = run._advantage(drawn)
    weights = weigh(run.config.rule, batch, advantage=advantage, **run.config.rule_params)
    coefficient = torch.where(batch.mask, weights.value.double() * advantage.double()[:, None], 0.0)
    return run.policy.at(batch.group).score_terms(batch.tokens, coefficient)


def moments_of(
    terms: Float[Tensor, "B P"], replayed: Bool[Tensor, " B"], engine_seconds: float, trainer_seconds: float
) -> ReplayMoments | None:
    """Moments of a batch's terms; None unless at least two responses are fresh and two are replayed.

        bias^2 = |m_r - m_f|^2 - v_r / n_r - v_f / n_f

    Gives   the square of the bias on average, if responses are independent (those of a group share a baseline)

    Examples
    --------
    >>> terms = torch.tensor([[4.0], [6.0], [-1.0], [1.0]], dtype=torch.float64)
    >>> found = moments_of(terms, torch.tensor([True, True, False, False]), engine_seconds=3.0, trainer_seconds=2.0)
    >>> found.v_fresh, found.v_replay, found.bias_squared, found.cost_fresh, found.cost_replay
    (2.0, 2.0, 23.0, 2.0, 0.5)
    """
    again, fresh = terms[replayed], terms[~replayed]
    if min(len(again), len(fresh)) < 2:
        return None
    v_fresh, v_replay = (float(rows.var(0).sum()) for rows in (fresh, again))
    gap = float((again.mean(0) - fresh.mean(0)).square().sum())
    training = trainer_seconds / len(terms)
    return ReplayMoments(
        v_fresh=v_fresh, v_replay=v_replay, bias_squared=gap - v_fresh / len(fresh) - v_replay / len(again),
        cost_fresh=training + engine_seconds / len(fresh), cost_replay=training, responses=len(terms),
    )  # fmt: skip


class Watched:
    """A run's source, which measures some of its batches as it hands them over."""

    def __init__(self, run: GRPORun, at: Collection[int]) -> None:
        self.run, self.at = run, at
        self.source: Source = run.source
        self.found: list[ReplayMoments] = []

    def next_batch(self) -> Drawn:
        """Hand the next batch over."""
        drawn = self.source.next_batch()
        if self.run.done in self.at:
            terms = response_terms(self.run, drawn)
            moments = moments_of(terms, drawn.replayed, drawn.engine_seconds, drawn.trainer_seconds)
            self.found += [] if moments is None else [moments]
        return drawn

    def updated(self, policy: Policy) -> None:
        """Pass it on."""
        self.source.updated(policy)

    def state(self) -> dict[str, Any]:
        """Return the source's."""
        return self.source.state()

    def restore(self, state: dict[str, Any], policy: Callable[[Any], Policy]) -> None:
        """Let the source go on from a state."""
        self.source.restore(state, policy)


def measured_moments(
    config: GRPOConfig, seed: int, at: Collection[int], *, cache: Path | None = None
) -> list[ReplayMoments]:
    """Run until the last of some updates, and measure the batch of each.

    Parameters
    ----------
    config : GRPOConfig   with a system that replays
    seed : int            of the run
    at : collection       updates, counted from 0
    cache : Path | None   folder of warm starts

    Raises
    ------
    InputError   a system that replays nothing
    """
    if not config.system_params.get("replay_share") and not config.system.startswith("replay"):
        raise InputError("moments of replay need a system that replays", found=repr(config.system))
    run = run_of(config, seed, cache=cache)
    run.source = watched = Watched(run, at)
    while run.done <= max(at) and run.advance():
        pass
    return watched.found


def predicted_share(moments: Sequence[ReplayMoments]) -> ReplayShare:
    """Share that minimizes the error of a batch's gradient at the cost of an all-fresh batch (K1), from mean moments.

    A mean of squared biases below 0 counts as 0.

    Raises
    ------
    InputError   no moments

    Examples
    --------
    >>> one = ReplayMoments(v_fresh=1.0, v_replay=1.25, bias_squared=0.0625, cost_fresh=1.0, cost_replay=0.25, responses=16)
    >>> predicted_share([one]).share
    0.3076923076923077
    """
    if not moments:
        raise InputError("a share is predicted from at least one batch's moments", found="none")

    def mean(name: str) -> float:
        return sum(getattr(one, name) for one in moments) / len(moments)

    return optimal_replay_share(
        v_fresh=mean("v_fresh"), v_replay=mean("v_replay"), bias=max(0.0, mean("bias_squared")) ** 0.5,
        cost_fresh=mean("cost_fresh"), cost_replay=mean("cost_replay"), budget=mean("responses") * mean("cost_fresh"),
    )  # fmt: skip
