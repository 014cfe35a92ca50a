"""The exact law of rollouts: every response with its probability, and what each behavior would have recorded."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from testbed.core.batch import SegmentedBatch
from testbed.core.errors import InputError, TooLarge
from testbed.core.prefix_order import all_responses, node_index
from testbed.environments.base import Environment
from testbed.policies.base import Policy
from testbed.policies.schedule import PrefixSchedule, Schedule, one

RESPONSE_LIMIT = 2**20
MASS_TOLERANCE = 1e-10


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactLaw:
    """All responses a sampler can produce, with their log-probabilities (nats).

    `branch` is the realization of the schedule's exogenous noise each row belongs to. Construction refuses a law whose total
    mass differs from 1 by more than 1e-10.

    Raises
    ------
    InputError   total mass is not 1
    """

    batch: SegmentedBatch
    log_prob: Float[Tensor, " N"]
    branch: Int64[Tensor, " N"]

    def __post_init__(self) -> None:
        mass = float(self.log_prob.exp().sum())
        if not abs(mass - 1) <= MASS_TOLERANCE:
            raise InputError(
                "the probabilities of a law must sum to 1",
                found=f"{mass:.12g}",
                hint="a behavior's rows do not sum to 1, or a branch was lost",
            )

    @property
    def probs(self) -> Float[Tensor, " N"]:
        """Probability of each row."""
        return self.log_prob.exp()

    def expect(self, values: Float[Tensor, "N ..."]) -> Float[Tensor, "..."]:
        """Exact expectation of per-response values."""
        return torch.tensordot(self.probs, values.double(), dims=1)


def require_enumerable(env: Environment) -> None:
    """Raise TooLarge, before anything is allocated, if an environment has more than 2^20 full-length responses."""
    count = env.vocab_size**env.horizon
    if count > RESPONSE_LIMIT:
        raise TooLarge(
            f"an environment can be enumerated up to {RESPONSE_LIMIT:,} responses",
            found=f"{env.vocab_size}^{env.horizon} = {_large(count)}",
            hint="use testbed.exact.dynamic for a Markov world, or sample with testbed.rollout",
        )


def response_table(env: Environment) -> tuple[Int64[Tensor, "N T"], Bool[Tensor, "N T"]]:
    """All responses of an environment in lexicographic order, with their masks.

    A response ends after `eos`; what follows is padding (token 0, mask False).

    Raises
    ------
    TooLarge   more than 2^20 full-length responses
    """
    require_enumerable(env)
    tokens = all_responses(env.vocab_size, env.horizon)
    if env.eos is None:
        return tokens, torch.ones_like(tokens, dtype=torch.bool)
    ended = (tokens == env.eos).cumsum(1)
    mask = (ended - (tokens == env.eos).long()) == 0
    whole = ((tokens == env.eos) | mask).all(1)  # of all paddings of one ended response keep the one made of eos
    tokens, mask = tokens[whole], mask[whole]
    return torch.where(mask, tokens, 0), mask


def _large(count: int) -> str:
    """Write a count in full, or as a power of ten beyond what floats hold."""
    return f"{count:,}" if count < 10**15 else f"about 10^{len(str(count)) - 1}"


def enumerate_law(env: Environment, target: Policy, schedule: Schedule | Policy, group: int = 0) -> ExactLaw:
    """Enumerate every response of the sampler to one prompt with its exact probability.

    P(xi, y) = P(xi) prod_t mu_{S_xi(h_t)}(y_t | h_t)

    Parameters
    ----------
    env : Environment        supplies the responses and their rewards (up to 2^20)
    target : Policy          scored on every response, `batch.logp_target`
    schedule : PrefixSchedule, ExogenousSchedule, or a Policy (one segment)
    group : int              the prompt, in 0..env.n_prompts - 1; policies with prompts are conditioned on it

    Returns
    -------
    ExactLaw   rows grouped by branch, then lexicographic; rows of probability zero are left out

    Raises
    ------
    TooLarge, InputError   too many responses; no such prompt; a schedule that breaks its rules; mass that is not 1

    Examples
    --------
    >>> from testbed import PrefixTree, TabularPolicy
    >>> tree = PrefixTree(2, 1, rewards=[0.0, 1.0])
    >>> law = enumerate_law(tree, TabularPolicy.random(2, 1, 0), TabularPolicy(torch.zeros(1, 2)))
    >>> float(law.expect(law.batch.reward))
    0.5
    """
    if isinstance(schedule, Policy):
        schedule = PrefixSchedule((schedule,), one())
    require_enumerable(env)
    if not 0 <= group < env.n_prompts:
        raise InputError(f"`group` must be a prompt in 0..{env.n_prompts - 1}", found=group)
    sizes = {target.vocab_size, env.vocab_size, *(p.vocab_size for _, s in schedule.branches() for p in s.policies)}
    if len(sizes) > 1:
        raise InputError("environment, target and behaviors must share one vocabulary", found=f"sizes {sorted(sizes)}")
    tokens, mask = response_table(env)
    nodes = node_index(tokens, env.vocab_size)
    zero = torch.zeros((), dtype=torch.float64)
    prompts = torch.full((tokens.shape[0],), group, dtype=torch.int64)
    with torch.no_grad():
        logp_target = torch.where(mask, target.at(prompts).score(tokens).double(), zero)
    batches, log_probs, branches = [], [], []
    for number, (prob, realized) in enumerate(schedule.branches()):
        table = realized.log_prob_table(env.vocab_size, env.horizon, group)
        segment = realized.segment_table(env.vocab_size, env.horizon)[nodes]
        logp_behavior = torch.where(mask, table[nodes, tokens], zero)
        log_prob = logp_behavior.sum(1) + torch.log(torch.tensor(prob, dtype=torch.float64))
        rows = torch.isfinite(log_prob)
        t, m, prompt = tokens[rows], mask[rows], prompts[rows]
        batches.append(
            SegmentedBatch(
                tokens=t,
                mask=m,
                segment=segment[rows],
                logp_target=logp_target[rows],
                logp_behavior=logp_behavior[rows],
                reward=env.reward(t, m, prompt),
                group=prompt,
                token_reward=env.token_reward(t, m, prompt),
            )
        )
        log_probs.append(log_prob[rows])
        branches.append(torch.full((int(rows.sum()),), number, dtype=torch.int64))
    return ExactLaw(
        batch=SegmentedBatch.concatenated(batches), log_prob=torch.cat(log_probs), branch=torch.cat(branches)
    )
