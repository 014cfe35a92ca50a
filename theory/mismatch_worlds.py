"""One token drawn by a sampler whose law is not quite the trainer's: the instances of the theorems about mismatch.

Trainer = target, sampler = the only behavior. Derivations speak of one token in the symbols below and are evaluated for all
tokens of a vocabulary at once; 1 - p and 1 - q are symbols of their own, so that nothing cancels where p is nearly 1.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import sympy as sp
import torch

from testbed.environments.prefix_tree import PrefixTree
from testbed.policies.schedule import PrefixSchedule, one
from testbed.policies.tabular import TabularPolicy
from theory.real_laws import real_laws
from theory.worlds import STREAM, World, world

P, Q = sp.symbols("p q", positive=True)  # trainer's and sampler's probability of a token
PC, QC = sp.symbols("pbar qbar", positive=True)  # 1 - p, 1 - q
K = sp.Symbol("k", positive=True)  # their ratio
F = sp.Symbol("f", real=True)  # what is averaged

COMPLEMENTS = {PC: 1 - P, QC: 1 - Q}


def mismatch(name: str, p: Sequence[float], q: Sequence[float], rewards: Sequence[float] | None = None) -> World:
    """Build a world of one token from the two laws.

    Examples
    --------
    >>> w = mismatch("example", [0.9, 0.1], [0.4, 0.6])
    >>> w.target.table.exp()
    tensor([[0.9000, 0.1000]], dtype=torch.float64)
    """
    target, sampler = (TabularPolicy.from_probs(torch.tensor([law], dtype=torch.float64)) for law in (p, q))
    values = rewards if rewards is not None else [float(j % 3) - 0.5 for j in range(len(p))]
    return World(
        name=name,
        env=PrefixTree(len(p), 1, values),
        target=target,
        schedule=PrefixSchedule((sampler,), one()),
    )


def noisy(name: str, vocab_size: int, sigma: float, scale: float = 1.5) -> World:
    """A random target, and a sampler with Gaussian noise on its logits."""
    stream = STREAM[name]
    target = TabularPolicy.random(vocab_size, 1, stream["target"], scale)
    noise = TabularPolicy.random(vocab_size, 1, stream["noise"], sigma).logits
    sampler = TabularPolicy(target.table + noise)
    return replace(world(name, vocab_size, 1, behaviors=1, target=target), schedule=PrefixSchedule((sampler,), one()))


def synthetic_mismatches() -> list[World]:
    """Two to five tokens: mild and strong mismatch, confident tokens on either side, none at all.

    Examples
    --------
    >>> all(bool((w.target.table < 0).all()) for w in synthetic_mismatches())
    True
    """
    return [
        noisy("mild", 5, 0.3),
        noisy("strong", 4, 1.5),
        mismatch("two_tokens", [0.7, 0.3], [0.45, 0.55]),
        mismatch("doubtful_sampler", [0.9, 0.06, 0.04], [0.4, 0.35, 0.25]),
        mismatch("doubtful_trainer", [0.2, 0.5, 0.3], [0.8, 0.15, 0.05]),
        mismatch("confident", [0.999, 0.0006, 0.0004], [0.99, 0.004, 0.006]),
        mismatch("very_confident", [1 - 2.0**-40, 2.0**-41, 2.0**-41], [1 - 2.0**-37, 2.0**-38, 2.0**-38]),
        mismatch("rare_word", [0.5, 0.499, 0.001], [0.5, 0.49999, 0.00001]),
        mismatch("agreement", [0.6, 0.3, 0.1], [0.6, 0.3, 0.1]),
    ]


def mismatches() -> list[World]:
    """Those, and recorded next-token laws of a language model on two engines."""
    return [*synthetic_mismatches(), *real_laws()]


def probabilities(instance: World) -> dict[str, np.ndarray]:
    """p, q and their complements, token by token, from log-probabilities without cancellation."""
    logs = {"p": instance.target.table[0].numpy(), "q": instance.behaviors[0].table[0].numpy()}
    found = {name: np.exp(value) for name, value in logs.items()}
    return found | {name + "bar": -np.expm1(value) for name, value in logs.items()}


def bind(instance: World) -> dict[sp.Symbol, Any]:
    """Numbers of the symbols above, one per token."""
    values = probabilities(instance)
    numbers = {P: values["p"], Q: values["q"], PC: values["pbar"], QC: values["qbar"], K: values["p"] / values["q"]}
    return numbers | {F: instance.env.rewards.numpy()}


def point(rng: random.Random) -> Mapping[sp.Symbol, sp.Rational]:
    """A random token: both probabilities rational in (0, 1)."""
    p, q = (sp.Rational(rng.randint(1, 28), 29) for _ in range(2))
    return {P: p, Q: q, PC: 1 - p, QC: 1 - q, K: p / q, F: sp.Rational(rng.randint(-9, 9), 4)}
