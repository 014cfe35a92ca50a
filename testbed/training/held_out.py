"""Problems that training never sees, and the share of them a policy answers exactly."""

from __future__ import annotations

from jaxtyping import Int64
from torch import Tensor, randperm

from testbed.core.choices import RandomChooser
from testbed.core.errors import InputError
from testbed.core.seeds import SeedTree
from testbed.environments.base import Environment
from testbed.policies.base import Policy
from testbed.policies.truncated import Truncated
from testbed.rollout.engine import rollout


def split_prompts(
    env: Environment, held_out: int = 500, seed: SeedTree | int = 0
) -> tuple[Int64[Tensor, " train"], Int64[Tensor, " held"]]:
    """Split the prompts into those to train on and those to be judged by, each in increasing order.

    Parameters
    ----------
    env : Environment
    held_out : int            how many are kept from training, 1 <= held_out < env.n_prompts
    seed : SeedTree | int     address of the split; apart from the seed of training, so that runs share their problems

    Raises
    ------
    InputError   `held_out` out of range

    Examples
    --------
    >>> from testbed import ArithmeticTask
    >>> train, held = split_prompts(ArithmeticTask(), held_out=20)
    >>> len(train), len(held), sorted([*train.tolist(), *held.tolist()]) == list(range(100))
    (80, 20, True)
    """
    if not 1 <= held_out < env.n_prompts:
        raise InputError(f"`held_out` must lie in 1..{env.n_prompts - 1}, below the number of prompts", found=held_out)
    tree = SeedTree(seed) if isinstance(seed, int) else seed
    order = randperm(env.n_prompts, generator=tree["held_out"].torch_generator())
    return order[held_out:].sort().values, order[:held_out].sort().values


def exact_match(env: Environment, policy: Policy, prompts: Int64[Tensor, " n"]) -> float:
    """Share of the prompts whose greedy response, drawn by the rollout engine, earns the whole reward of 1.

    Parameters
    ----------
    env : Environment               rewards 1 for a right response
    policy : Policy                 conditioned on prompts by `at`; of equal probabilities the lower token is taken
    prompts : Int64[Tensor, " n"]   prompt numbers

    Examples
    --------
    >>> import torch
    >>> from testbed import PrefixTree, TabularPolicy
    >>> knows = TabularPolicy.from_probs(torch.tensor([[0.4, 0.6]]))
    >>> exact_match(PrefixTree(2, 1, rewards=[0.0, 1.0]), knows, torch.zeros(3, dtype=torch.int64))
    1.0
    """
    greedy = Truncated(policy, top_k=1)  # a law with one token: nothing is left to chance
    batch = rollout(env, greedy, len(prompts), RandomChooser(0), group=prompts)
    return float((batch.reward == 1).double().mean())
