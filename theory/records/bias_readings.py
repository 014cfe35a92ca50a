"""Bias of each reading of SPIRE's gradient, and of simpler weights, against the age of the oldest segment.

The world is tabular and the target was trained in it: exact gradient ascent leaves one checkpoint per update, and a
response is begun by an old checkpoint and handed over to ever younger ones, as in a partial rollout. The last segment is
stale as well, so that none of the readings is let off, and segments have two tokens, so that a product through the token
and one through the end of its segment are two things.
"""

from __future__ import annotations

from typing import Any

from testbed.environments.prefix_tree import PrefixTree
from testbed.estimators.gradient import gradient_terms
from testbed.exact.gradients import exact_gradient
from testbed.exact.law import enumerate_law
from testbed.exact.moments import moments
from testbed.exact.second_moments import segment_moments
from testbed.exact.values import action_values
from testbed.policies.families import steps_behind
from testbed.policies.schedule import PrefixSchedule, cuts
from testbed.policies.tabular import TabularPolicy
from testbed.weighting.rules import weigh
from theory.small_worlds import along
from theory.worlds import STREAM

SIZE, HORIZON, SEGMENTS = 2, 6, 3
UPDATES, RATE = 24, 3.0  # steps of exact gradient ascent, and their size
AGES = tuple(range(0, UPDATES + 1, SEGMENTS))  # updates between the oldest behavior and the target
READINGS = {  # reading -> (weighting rule, whether the target's critic replaces the reward)
    "full_product": ("sequence_product", False),
    "prefix_with_critic": ("prefix", True),
    "segment_end_with_critic": ("segment_prefix", True),
    "prefix_with_reward": ("prefix", False),
    "segment_end_with_reward": ("segment_prefix", False),
    "segment_only": ("segment", False),
    "token": ("exact", False),
    "none": ("none", False),
}


def checkpoints(env: PrefixTree) -> list[TabularPolicy]:
    """Policies of a run of exact gradient ascent, first to last."""
    found = [TabularPolicy.random(SIZE, HORIZON, STREAM["bias_readings"]["start"], 0.5)]
    for _ in range(UPDATES):
        found.append(TabularPolicy(found[-1].logits + RATE * exact_gradient(env, found[-1])))
    return found


def record() -> dict[str, Any]:
    """Return, for every age, the norm of the bias over the norm of the gradient, by reading.

    Returns
    -------
    dict   age [A] in updates, oldest segment; segment_ages [A][K]; second_moment [A] of the full product;
           relative_bias: reading -> [A]; plain and exact
    """
    env = PrefixTree.random(SIZE, HORIZON, STREAM["bias_readings"]["env"], None, False)
    history = checkpoints(env)
    target = steps_behind(history, 0)
    gradient, critic = exact_gradient(env, target), action_values(env, target)
    ages = [[age * (SEGMENTS - k) // SEGMENTS for k in range(SEGMENTS)] for age in AGES]
    bias: dict[str, list[float]] = {reading: [] for reading in READINGS}
    second = []
    for row in ages:
        schedule = PrefixSchedule(tuple(steps_behind(history, age) for age in row), cuts((2, 4)))
        law = enumerate_law(env, target, schedule)
        second.append(float(segment_moments(law, env, target, schedule).second[-1]))
        for reading, (rule, use_critic) in READINGS.items():
            advantage = along(law.batch, critic) if use_critic else None
            terms = gradient_terms(law.batch, weigh(rule, law.batch), target, advantage)
            bias[reading].append(float((moments(law, terms).mean - gradient).norm() / gradient.norm()))
    return {"age": list(AGES), "segment_ages": ages, "second_moment": second, "relative_bias": bias}
