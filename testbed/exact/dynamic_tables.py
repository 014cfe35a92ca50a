"""A Markov world read into tables, for the recursions over its states.

Environment, target and behaviors must share one deterministic transition table, and the schedule must change behavior
at positions fixed in advance (`cuts`): then every step is a small non-negative S-by-S kernel.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from testbed.core.errors import InputError
from testbed.environments.markov import MarkovEnvironment
from testbed.policies.base import Policy
from testbed.policies.markov import MarkovPolicy
from testbed.policies.schedule import PrefixSchedule, Schedule
from testbed.policies.truncated import Truncated


@dataclass(frozen=True, slots=True)
class MarkovTables:
    """A Markov world as tables: log-probabilities per state, the behavior of each position, rewards of each step.

    `rewards` [T, S, A] holds the reward of each step, the final state's reward added to the last one.
    """

    log_target: Float[Tensor, "S A"]
    log_behavior: Float[Tensor, "K S A"]
    segment: Int64[Tensor, " T"]
    rewards: Float[Tensor, "T S A"]
    transition: Int64[Tensor, "S A"]
    start: int

    def measure(self, name: str, segment: int) -> Float[Tensor, "S A"]:
        """Per-step measures: "mu", "pi" = mu rho and "tilt" = mu rho^2, all 0 where the behavior is 0.

        Raises
        ------
        InputError   if "tilt" overflows float64 (a drawn token with log ratio beyond about 350 nats)
        """
        drawn = self.log_behavior[segment] > float("-inf")
        log_mu = torch.where(drawn, self.log_behavior[segment], 0.0)
        power = {"mu": 0, "pi": 1, "tilt": 2}[name]
        log_ratio = self.log_target - log_mu
        value = torch.where(drawn, (log_mu + (power * log_ratio if power else 0.0)).exp(), 0.0)
        if not bool(torch.isfinite(value).all()):
            raise InputError(
                "the second moment of one step's ratio must fit float64", found=f"overflow in segment {segment}"
            )
        return value

    def at_start(self) -> Float[Tensor, " S"]:
        """Point mass on the start state."""
        law = torch.zeros(self.log_target.shape[0], dtype=torch.float64)
        law[self.start] = 1.0
        return law

    def kernel(self, measure: Float[Tensor, "S A"]) -> Float[Tensor, "S S"]:
        """State-to-state kernel of a per-step measure: sum over the tokens that lead from s to s'."""
        size = measure.shape[0]
        return torch.zeros(size, size, dtype=torch.float64).scatter_add_(1, self.transition, measure)


def markov_tables(env: MarkovEnvironment, target: Policy, schedule: Schedule | Policy) -> MarkovTables:
    """Read a Markov world into tables.

    Raises
    ------
    InputError   if a policy is not Markov over the environment's own states, or a boundary depends on the tokens
    """
    if isinstance(schedule, PrefixSchedule):
        policies, segment = schedule.policies, _segments(schedule, env)
    elif isinstance(schedule, Policy):
        policies, segment = (schedule,), torch.zeros(env.horizon, dtype=torch.int64)
    else:
        raise InputError(
            "a recursion needs one policy or a PrefixSchedule",
            found=type(schedule).__name__,
            hint="average over the branches of a random schedule yourself",
        )
    rewards = env.rewards.repeat(env.horizon, 1, 1)
    rewards[-1] += env.terminal_rewards[env.transition]
    return MarkovTables(
        log_target=_table(target, env),
        log_behavior=torch.stack([_table(p, env) for p in policies]),
        segment=segment,
        rewards=rewards,
        transition=env.transition,
        start=env.start,
    )


def _table(policy: Policy, env: MarkovEnvironment) -> Float[Tensor, "S A"]:
    if isinstance(policy, Truncated):
        return policy.filter(_table(policy.policy, env))
    if not isinstance(policy, MarkovPolicy):
        raise InputError("recursions need Markov policies", found=type(policy).__name__)
    if policy.start != env.start or not torch.equal(policy.transition, env.transition):
        raise InputError(
            "a Markov policy must follow the environment's own states", found="another transition table or start"
        )
    return policy.table.detach()


def _segments(schedule: PrefixSchedule, env: MarkovEnvironment) -> Int64[Tensor, " T"]:
    """Segment of each position; probes a response that cycles through the vocabulary and every constant response."""
    horizon, size = env.horizon, env.vocab_size
    labels = [schedule.segment((0,) * t) for t in range(horizon)]
    cycle = tuple(t % size for t in range(horizon))
    probes = [cycle[:t] for t in range(horizon)] + [(token,) * (horizon - 1) for token in range(size)]
    for probe in probes:
        if schedule.segment_of(probe) != labels[len(probe)]:
            raise InputError(
                "the recursion needs boundaries at positions fixed in advance",
                found=f"a segment at position {len(probe)} that depends on the tokens",
                hint="use cuts(positions)",
            )
    return torch.tensor(labels, dtype=torch.int64)
