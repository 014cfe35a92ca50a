"""Instances from the bundled next-token laws: one token, 4,096 outcomes, probabilities a language model really had.

As worlds they run through the same measures as the symbolic ones. A symbol per outcome would be no proof anyone reads, so
their derivations are about one summand, in the three symbols below, and are evaluated for all outcomes at once.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import sympy as sp
import torch

from testbed.core.errors import InputError
from testbed.environments.prefix_tree import PrefixTree
from testbed.policies.schedule import PrefixSchedule, one
from testbed.policies.tabular import TabularPolicy
from testbed.sample_data import BEHAVIORS, RecordedLaws, next_token_laws
from theory.derivation import Derivation, Step
from theory.worlds import World

P = sp.Symbol("p", positive=True)  # target's probability of a word
M = sp.Symbol("m", positive=True)  # behavior's
R = sp.Symbol("r", positive=True)  # their ratio
PREFIX = "smollm2_"
CHOICE = ((11, "v1_int8w"), (6, "v0_bf16"), (2, "v1_int8_dynamic"))  # nearly on-policy, stale, heavy-tailed


@lru_cache(maxsize=1)
def _laws() -> RecordedLaws:
    return next_token_laws()


def real_law(position: int, behavior: str) -> World:
    """Build the one-token world of a recorded position (0 to 11): reward 1 for the word the target finds likeliest.

    Raises
    ------
    InputError   a position or behavior that was not recorded

    Examples
    --------
    >>> w = real_law(6, "v0_bf16")
    >>> w.name, w.env.vocab_size, w.env.horizon
    ('smollm2_06_v0_bf16', 4096, 1)
    """
    laws = _laws()
    if behavior not in BEHAVIORS or not 0 <= position < len(laws.position):
        raise InputError(
            f"recorded are positions 0 to {len(laws.position) - 1} of {', '.join(BEHAVIORS)}",
            found=f"{position}, {behavior}",
        )
    rewards = torch.zeros(laws.logp_target.shape[1], dtype=torch.float64)
    rewards[0] = 1.0
    mu = TabularPolicy(laws.logp_behavior[behavior][position][None])
    return World(
        name=f"{PREFIX}{position:02d}_{behavior}",
        env=PrefixTree(len(rewards), 1, rewards),
        target=TabularPolicy(laws.logp_target[position][None]),
        schedule=PrefixSchedule((mu,), one()),
    )


def real_laws(choice: Sequence[tuple[int, str]] = CHOICE) -> list[World]:
    """Build several recorded positions: by default from nearly on-policy to a ratio that explodes."""
    return [real_law(position, behavior) for position, behavior in choice]


def is_real(instance: Any) -> bool:
    """Tell whether an instance is a recorded law."""
    return instance.name.startswith(PREFIX)


def summand_derivation(*chains: Sequence[Step]) -> Derivation:
    """Build a derivation about one outcome's summand, in P, M and R; bound to all outcomes of a recorded law at once."""
    return Derivation(chains, _point, _bind)


def _point(rng: random.Random) -> Mapping[sp.Symbol, sp.Rational]:
    p, m = (sp.Rational(rng.randint(1, 11), 12) for _ in range(2))
    return {P: p, M: m, R: p / m}


def _bind(instance: World) -> Mapping[sp.Symbol, Any]:
    p, m = (policy.table[0].exp().numpy() for policy in (instance.target, instance.behaviors[0]))
    return {P: p, M: m, R: p / m}
