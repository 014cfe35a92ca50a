"""Where a trainer's batches come from: responses of the weights of the moment, or whatever an asynchronous system delivers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from testbed.core.batch import SegmentedBatch
from testbed.core.choices import RandomChooser
from testbed.core.seeds import SeedTree
from testbed.environments.base import Environment
from testbed.policies.base import Policy
from testbed.policies.transformer.policy import TransformerPolicy
from testbed.policies.truncated import Truncated
from testbed.rollout.clock import Clock
from testbed.rollout.delivery import Delivery
from testbed.rollout.engine import rollout
from testbed.rollout.speculative.drafters import HeadDrafter
from testbed.rollout.speculative.engine import speculative_rollout
from testbed.rollout.speculative.heads import FutureHeads
from testbed.rollout.systems import find_system
from testbed.training.grpo_config import GRPOConfig


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Drawn:
    """A batch, and which of its responses belong together.

    Attributes
    ----------
    batch : SegmentedBatch           with `version`; its `group` is the prompt
    number : Int64[Tensor, " B"]     of the group that a response was drawn in: the same prompt may be asked again
    response : Int64[Tensor, " B"]   of the response, over the whole run
    replayed : Bool[Tensor, " B"]    which responses have been trained on before
    engine_seconds, trainer_seconds : float   simulated seconds that the engine was busy since the last batch, and that the
                                     trainer is with this one; 0 where no clock runs
    """

    batch: SegmentedBatch
    number: Int64[Tensor, " B"]
    response: Int64[Tensor, " B"]
    replayed: Bool[Tensor, " B"]
    engine_seconds: float = 0.0
    trainer_seconds: float = 0.0


@runtime_checkable
class Source(Protocol):
    """What hands batches to a trainer."""

    def next_batch(self) -> Drawn:
        """Return the next batch."""
        ...

    def updated(self, policy: Policy) -> None:
        """Take note that the trainer has made an update, and of the sampler's policy with the new weights."""
        ...

    def state(self) -> dict[str, Any]:
        """Everything a later run needs to go on: tensors and plain values."""
        ...

    def restore(self, state: dict[str, Any], policy: Callable[[Any], Policy]) -> None:
        """Go on from a state; `policy` makes a sampler of kept weights."""
        ...


class OnPolicySource:
    """Every batch is written by the weights of the moment; a batch is a function of seed, version and weights.

    Parameters
    ----------
    config : GRPOConfig
    env : Environment               a task with prompts
    policy : Policy                 sampler of version 0
    prompts : Int64[Tensor, " n"]   prompts to draw from
    seed : SeedTree                 address of prompts and draws
    """

    def __init__(
        self, config: GRPOConfig, env: Environment, policy: Policy, prompts: Int64[Tensor, " n"], seed: SeedTree
    ) -> None:
        self.config, self.env, self.policy, self.prompts, self.seed = config, env, policy, prompts, seed
        self.version = 0

    def next_batch(self) -> Drawn:
        """Draw prompts, and a group of responses to each."""
        seed, n = self.seed["update"][self.version], self.config.batch
        asked = torch.randint(len(self.prompts), (self.config.prompts,), generator=seed["prompts"].torch_generator())
        group = self.prompts[asked].repeat_interleave(self.config.responses)
        chooser = RandomChooser(seed["draws"])
        if self.config.engine == "plain":
            batch = rollout(self.env, self.policy, n, chooser, group=group)
        else:
            drafter = HeadDrafter(FutureHeads.of(_transformer(self.policy))) if self.config.nodes else None
            nodes = self.config.nodes
            batch = speculative_rollout(self.env, self.policy, n, chooser, drafter=drafter, nodes=nodes, group=group)
        response = self.version * n + torch.arange(n)
        return Drawn(
            batch=batch.replaced(version=torch.where(batch.mask, self.version, -1)),
            number=response // self.config.responses,
            response=response,
            replayed=torch.zeros(n, dtype=torch.bool),
        )

    def updated(self, policy: Policy) -> None:
        """Write the next batch with the new weights."""
        self.policy, self.version = policy, self.version + 1

    def state(self) -> dict[str, Any]:
        """The version: weights are the trainer's own."""
        return {"version": self.version}

    def restore(self, state: dict[str, Any], policy: Callable[[Any], Policy]) -> None:
        """Go on from a version, with the trainer's weights."""
        self.version, self.policy = state["version"], policy(None)


class ClockSource:
    """Batches of an asynchronous system.

    Parameters
    ----------
    config, env, policy, prompts, seed   as `OnPolicySource`

    Attributes
    ----------
    delivery : Delivery | None    the last one
    """

    def __init__(
        self, config: GRPOConfig, env: Environment, policy: Policy, prompts: Int64[Tensor, " n"], seed: SeedTree
    ) -> None:
        self.prompts, self.seed = prompts, seed
        system = find_system(config.system, **config.system_params)
        chooser = RandomChooser(seed["draws"])
        self.clock = Clock(system, env, policy, self._prompt, chooser, groups=config.prompts, size=config.responses)
        self.delivery: Delivery | None = None

    def _prompt(self, number: int) -> int:
        """Prompt of a group: drawn at random, the same whenever it is asked for."""
        drawn = torch.randint(len(self.prompts), (1,), generator=self.seed["prompt"][number].torch_generator())
        return int(self.prompts[drawn])

    def next_batch(self) -> Drawn:
        """Let the system run until the trainer can take a batch."""
        self.delivery = found = self.clock.next_batch()
        return Drawn(
            batch=found.batch,
            number=found.response // self.clock.size,
            response=found.response,
            replayed=found.replayed,
            engine_seconds=float(found.log["engine_busy"]),
            trainer_seconds=self.clock.system.update_seconds + self.clock.system.push_seconds,
        )

    def updated(self, policy: Policy) -> None:
        """Push new weights, as fast as the system can."""
        self.clock.updated(policy)

    def state(self) -> dict[str, Any]:
        """Everything under way."""
        return self.clock.state()

    def restore(self, state: dict[str, Any], policy: Callable[[Any], Policy]) -> None:
        """Go on from a state."""
        self.clock.restore(state, policy(None))


def _transformer(policy: Policy) -> TransformerPolicy:
    """Weights behind a sampler, which may be seen through a temperature or a top-p."""
    inner = policy.policy if isinstance(policy, Truncated) else policy
    assert isinstance(inner, TransformerPolicy)  # the settings refuse noise
    return inner
