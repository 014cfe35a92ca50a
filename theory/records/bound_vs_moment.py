"""S10's bound, the product of averages and the exact second moment, against the divergence of the behaviors.

In both worlds the behavior moves away from the target as a knob turns. In the first the target prefers histories after
which the behavior is worse, and the product of averages falls below the truth; in the second, random one it happens to
lie above. Only the product of the largest divergences is a bound, and a loose one where they are rarely met.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from testbed.environments.prefix_tree import PrefixTree
from testbed.exact.divergence_profile import divergence_profile
from testbed.exact.law import enumerate_law
from testbed.exact.second_moments import segment_moments
from testbed.policies.base import Policy
from testbed.policies.families import logit_noise, mixture
from testbed.policies.schedule import PrefixSchedule, cuts
from testbed.policies.tabular import TabularPolicy
from theory.worlds import STREAM

KNOBS = tuple(k / 16 for k in range(17))
NOISE = 1.5  # nats of logit noise at knob 1

World = tuple[TabularPolicy, Callable[[float], Policy], int]


def worlds() -> dict[str, World]:
    """Name -> target, behavior of a knob, number of tokens (each token is a segment)."""
    coin = TabularPolicy.from_probs(torch.tensor([[0.1, 0.9], [0.5, 0.5], [0.9, 0.1]], dtype=torch.float64))
    far = TabularPolicy.from_probs(torch.tensor([[0.5, 0.5], [0.5, 0.5], [0.1, 0.9]], dtype=torch.float64))
    pi = TabularPolicy.random(3, 3, STREAM["bound_vs_moment"]["target"])
    return {
        "worse_where_the_target_goes": (coin, lambda knob: mixture(coin, far, knob), 2),
        "random_logit_noise": (pi, lambda knob: logit_noise(pi, NOISE * knob, STREAM["bound_vs_moment"]["noise"]), 3),
    }


def record() -> dict[str, Any]:
    """Return, for every world and knob, three numbers that are meant to bound one second moment.

    Returns
    -------
    dict   world -> knob, response_kl (nats), second_moment, product_of_largest, product_of_averages: lists [knobs]
    """
    found = {}
    for name, (target, family, horizon) in worlds().items():
        env = PrefixTree(target.vocab_size, horizon, torch.ones(target.vocab_size**horizon))
        rows: dict[str, list[float]] = {"knob": list(KNOBS)}
        rows["response_kl"] = [row.response_kl for row in divergence_profile(env, target, family, KNOBS)]
        for key in ("second_moment", "product_of_largest", "product_of_averages"):
            rows[key] = []
        for knob in KNOBS:
            schedule = PrefixSchedule((family(knob),) * horizon, cuts(tuple(range(1, horizon))))
            moment = segment_moments(enumerate_law(env, target, schedule), env, target, schedule)
            rows["second_moment"].append(float(moment.second[-1]))
            rows["product_of_largest"].append(float(moment.largest.prod()))
            rows["product_of_averages"].append(float(moment.average.prod()))
        found[name] = rows
    return found
