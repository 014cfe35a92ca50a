"""Work without a peer here: weighting and loss against the plain passes that they cannot do without, and tabular sampling."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from paper_repro.peers.case import Arms, Case
from testbed.core.batch import SegmentedBatch
from testbed.core.choices import RandomChooser
from testbed.core.seeds import SeedTree
from testbed.environments.prefix_tree import PrefixTree
from testbed.estimators.loss import policy_loss
from testbed.policies.tabular import TabularPolicy
from testbed.rollout import rollout
from testbed.weighting import weigh

WEIGHED = ("tis", "icepop", "prefix", "sequence_product", "spire")
LOSSES = ("none", "tis", "ppo_clip")
OPTIONS: dict[str, dict[str, Any]] = {"tis": {"cap": 2.0}, "icepop": {"low": 0.5, "high": 2.0}}


def cases(smoke: bool) -> list[Case]:
    """Sizes of a training step; the aims are those of two cores."""
    weigh_shape, loss_shape, sampled = ((8, 32), (4, 16), (50, 3)) if smoke else ((512, 4096), (256, 1024), (50_000, 8))
    return [
        _case("weighting", weigh_shape, weighing),
        _case("loss and its gradient", loss_shape, losses),
        _case("tabular sampling with log-probs", sampled, sampling, ">= 5M tokens/s"),
    ]


def _case(name: str, shape: tuple[int, int], arms: Callable[[tuple[int, int]], Arms], target: str = "") -> Case:
    return Case(
        name=f"{name}, {shape[0]} x {shape[1]}",
        unit="tokens",
        amount=shape[0] * shape[1],
        arms=lambda: arms(shape),
        target=target,
    )


def dumped(shape: tuple[int, int], segments: int = 4) -> SegmentedBatch:
    """Log-probs of a run, float32, in a few segments, with log ratios of some hundredths."""
    generator = SeedTree("benchmark")["log-probs"].torch_generator()
    behavior = -torch.rand(shape, generator=generator)
    return SegmentedBatch(
        tokens=torch.zeros(shape, dtype=torch.int64),
        mask=torch.ones(shape, dtype=torch.bool),
        segment=(torch.arange(shape[1]) * segments // shape[1]).expand(shape),
        logp_target=(behavior + 0.02 * torch.randn(shape, generator=generator)).clamp(max=0.0),
        logp_behavior=behavior,
        reward=torch.rand(shape[0], generator=generator),
        group=torch.arange(shape[0]) // 4,
    )


def weighing(shape: tuple[int, int]) -> Arms:
    """A ratio of every token, then whole rules."""
    batch = dumped(shape)
    arms: dict[str, Callable[[], object]] = {"exp(a - b)": lambda: torch.exp(batch.logp_target - batch.logp_behavior)}
    return arms | {rule: partial(weigh, rule, batch, **OPTIONS.get(rule, {})) for rule in WEIGHED}


def losses(shape: tuple[int, int]) -> Arms:
    """The mean of ratio times advantage and its gradient, then whole losses."""
    batch, advantage = dumped(shape), torch.linspace(-1, 1, shape[0])
    logp = batch.logp_target.clone().requires_grad_(True)

    def derived(loss: Callable[[], Tensor]) -> None:
        torch.autograd.grad(loss(), logp)

    def plain() -> Tensor:
        return -(torch.exp(logp - batch.logp_behavior) * advantage[:, None]).mean()

    arms: dict[str, Callable[[], object]] = {"mean ratio x advantage": partial(derived, plain)}
    for rule in LOSSES:
        loss = partial(policy_loss, logp, batch, rule=rule, advantage=advantage, **OPTIONS.get(rule, {}))
        arms[rule] = partial(derived, loss)
    return arms


def sampling(shape: tuple[int, int]) -> Arms:
    """Responses of a random tabular policy over three tokens."""
    count, horizon = shape
    policy, env = TabularPolicy.random(3, horizon, seed=0), PrefixTree(3, horizon, rewards=torch.zeros(3**horizon))
    return {"rollout": lambda: rollout(env, policy, count, RandomChooser(0))}
