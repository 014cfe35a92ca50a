"""Samplers that do what a boundary must not do, recorded as if nothing had happened: controls of studies of partial rollouts.

A response is drafted to its end by an earlier policy and checked. If it failed, what stands behind a fixed position is written
again by the newest policy, and what is handed to the trainer looks like any response of two segments. Which responses have
a boundary then depends on how they ended, and no recorded ratio shows it: even the full product is biased (S6). The innocent
twin, `blind`, does the same work and judges the kept prefix by another draft, which leaves the full product unbiased.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from testbed.core.batch import SegmentedBatch
from testbed.core.choices import Chooser, RandomChooser
from testbed.core.errors import InputError
from testbed.core.seeds import SeedTree
from testbed.environments.base import Environment
from testbed.policies.base import Policy
from testbed.rollout.clockwork.snapshots import restored_policy, saved_policy
from testbed.rollout.delivery import ENGINE, runs
from testbed.rollout.engine import rollout
from testbed.rollout.systems import find_system
from testbed.training.grpo_config import GRPOConfig
from testbed.training.sources import Drawn


def redrafted(
    env: Environment,
    first: Policy,
    second: Policy,
    control: str,
    keep: int,
    chooser: Chooser,
    group: Int64[Tensor, " B"],
    versions: tuple[int, int] = (0, 1),
) -> SegmentedBatch:
    """Draft responses, and write the end of those again that are judged to have failed.

    Parameters
    ----------
    env : Environment            a response with a reward of 0 or less has failed
    first, second : Policy       who drafts, and who writes the end again
    control : str                what decides, and what is recorded, one of `grpo_config.CONTROLS`:
                                 post_hoc: the finished draft decides; every token has the log-prob of who wrote it
                                 post_hoc_overwritten: the same, but a token written again keeps the log-prob that was
                                 recorded for the token in its place, as far as there was one
                                 post_hoc_rescored: the same, but the response counts as the second policy's from its first
                                 token on, with its log-probs
                                 blind: another draft from the kept prefix decides, and is thrown away
    keep : int                   tokens before the boundary; a draft that is no longer has none
    chooser : Chooser            the only source of randomness; keys are (response, position), the end written again counts
                                 as response B + i, the other draft as 2 B + i
    group : Int64[Tensor, " B"]  prompt of each response
    versions : (int, int)        of the two policies

    Returns
    -------
    SegmentedBatch   with `version`, target = behavior

    Gives            the law of S6: `blind` leaves the mean of the full product alone, the others do not

    Examples
    --------
    >>> from testbed import PrefixTree, TabularPolicy
    >>> env, mu = PrefixTree(2, 2, rewards=[1.0, 0.0, 0.0, 0.0]), TabularPolicy(torch.zeros(3, 2))
    >>> batch = redrafted(env, mu, mu, "post_hoc", 1, RandomChooser(0), torch.zeros(400, dtype=torch.int64))
    >>> whole = batch.segment.amax(1) == 0  # what passed was kept
    >>> batch.reward[whole].unique().tolist(), batch.reward[~whole].unique().tolist()
    ([1.0], [0.0, 1.0])
    """
    draft = rollout(env, first, len(group), chooser, group=group)
    again = torch.nonzero((draft.lengths > keep) & _failed(env, first, control, keep, chooser, draft))[:, 0]
    tokens, mask, recorded = draft.tokens.clone(), draft.mask.clone(), draft.logp_behavior.clone()
    version = torch.where(mask, versions[0], -1)
    if len(again):
        new, written, logp = continued(
            env, second, draft.tokens[again, :keep], group[again], chooser, again + len(group)
        )
        behind = written & (torch.arange(env.horizon) >= keep)
        tokens[again], mask[again] = new, written
        if control == "post_hoc_rescored":
            with torch.no_grad():
                score = second.at(group[again]).score(new).to(recorded)
            recorded[again] = torch.where(written, score, 0.0)
            version[again] = torch.where(written, versions[1], -1)
        else:
            kept = written & ~behind
            if control == "post_hoc_overwritten":
                kept = written & draft.mask[again]
            recorded[again] = torch.where(kept, draft.logp_behavior[again], torch.where(behind, logp, 0.0))
            version[again] = torch.where(behind, versions[1], torch.where(written, versions[0], -1))
    return SegmentedBatch(
        tokens=tokens,
        mask=mask,
        segment=runs(version, mask),
        logp_target=recorded,
        logp_behavior=recorded,
        reward=env.reward(tokens, mask, group),
        group=group,
        version=version,
        engine=torch.where(mask, ENGINE, -1),
        token_reward=env.token_reward(tokens, mask, group),
    )


def continued(
    env: Environment,
    policy: Policy,
    prefix: Int64[Tensor, "B k"],
    group: Int64[Tensor, " B"],
    chooser: Chooser,
    numbers: Int64[Tensor, " B"],
) -> tuple[Int64[Tensor, "B T"], Bool[Tensor, "B T"], Float[Tensor, "B T"]]:
    """Write unfinished responses to their end: tokens, mask, and log-probs of what was written (0 on the prefix).

    Parameters
    ----------
    prefix : Int64[Tensor, "B k"]   none of which has ended, k < horizon
    numbers : Int64[Tensor, " B"]   what the chooser knows the responses by
    """
    n, start = prefix.shape
    tokens = torch.nn.functional.pad(prefix, (0, env.horizon - start))
    mask = (torch.arange(env.horizon) < start).repeat(n, 1)
    logp = torch.zeros(n, env.horizon, dtype=torch.float64)
    decoder, rows = policy.decoder(group), torch.arange(n)
    for t in range(start, env.horizon):
        with torch.no_grad():
            laws = decoder.next_log_probs(tokens[rows, :t], rows)
        drawn = chooser.choose(laws.exp(), torch.stack([numbers[rows], torch.full_like(rows, t)], 1))
        tokens[rows, t], mask[rows, t] = drawn, True
        logp[rows, t] = laws.gather(1, drawn[:, None])[:, 0].double()
        if env.eos is not None:
            rows = rows[drawn != env.eos]
        if rows.numel() == 0:
            break
    return tokens, mask, logp


def _failed(
    env: Environment, first: Policy, control: str, keep: int, chooser: Chooser, draft: SegmentedBatch
) -> Bool[Tensor, " B"]:
    """Whether each response is judged to have failed: by itself, or by another draft from its first tokens."""
    if control != "blind":
        return draft.reward <= 0
    failed, rows = torch.zeros(draft.batch_size, dtype=torch.bool), torch.nonzero(draft.lengths > keep)[:, 0]
    if len(rows):
        group, numbers = draft.group[rows], rows + 2 * draft.batch_size
        tokens, mask, _ = continued(env, first, draft.tokens[rows, :keep], group, chooser, numbers)
        failed[rows] = env.reward(tokens, mask, group) <= 0
    return failed


def kept_of(config: GRPOConfig, env: Environment) -> int:
    """Tokens of a draft before the boundary: what `keep` says, or half of the longest response.

    Raises
    ------
    InputError   a `keep` that leaves nothing to write again

    Examples
    --------
    >>> from testbed import ArithmeticTask
    >>> kept_of(GRPOConfig(control="blind", system="steps_off", keep=2), ArithmeticTask(9))
    2
    """
    if config.keep is None:
        return env.horizon // 2
    if config.keep >= env.horizon:
        raise InputError(f"`keep` must be < {env.horizon}, the longest response", found=config.keep)
    return config.keep


class ControlSource:
    """Batches of a control: drafts of the policy that was newest `ahead` updates ago, ends of the newest.

    Parameters
    ----------
    config : GRPOConfig             `control` and its `keep`, and system "steps_off" with its `ahead`
    env, policy, prompts, seed      as `testbed.training.sources.OnPolicySource`

    Raises
    ------
    InputError   a `keep` that leaves nothing to write again
    """

    def __init__(
        self, config: GRPOConfig, env: Environment, policy: Policy, prompts: Int64[Tensor, " n"], seed: SeedTree
    ) -> None:
        self.config, self.env, self.prompts, self.seed = config, env, prompts, seed
        ahead = find_system(config.system, **config.system_params).ahead or 0
        self.policies: deque[Policy] = deque([policy], maxlen=ahead + 1)  # the newest last
        self.version = 0
        self.keep = kept_of(config, env)

    def next_batch(self) -> Drawn:
        """Draw prompts, and a group of responses to each."""
        seed, n = self.seed["update"][self.version], self.config.batch
        asked = torch.randint(len(self.prompts), (self.config.prompts,), generator=seed["prompts"].torch_generator())
        group = self.prompts[asked].repeat_interleave(self.config.responses)
        versions = (self.version - len(self.policies) + 1, self.version)
        batch = redrafted(
            self.env, self.policies[0], self.policies[-1], self.config.control, self.keep,
            RandomChooser(seed["draws"]), group, versions,
        )  # fmt: skip
        response = self.version * n + torch.arange(n)
        fresh = torch.zeros(n, dtype=torch.bool)
        return Drawn(batch=batch, number=response // self.config.responses, response=response, replayed=fresh)

    def updated(self, policy: Policy) -> None:
        """Let the new weights write the ends."""
        self.policies.append(policy)
        self.version += 1

    def state(self) -> dict[str, Any]:
        """Weights of every policy that is still to draft, and the version."""
        return {"version": self.version, "policies": [saved_policy(policy) for policy in self.policies]}

    def restore(self, state: dict[str, Any], policy: Callable[[Any], Policy]) -> None:
        """Go on from a state."""
        kind, self.version = policy(None), state["version"]
        self.policies.clear()
        self.policies.extend(restored_policy(kind, saved) for saved in state["policies"])
