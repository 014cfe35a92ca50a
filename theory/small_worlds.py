"""Instances of two or three positions, small enough that a derivation over symbols closes in hundredths of a second.

They cover what `theory.worlds.standard_worlds` covers, degenerate cases included, at T = 2 wherever two positions can tell.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from testbed.core.batch import SegmentedBatch
from testbed.core.prefix_order import node_index
from testbed.policies.schedule import ExogenousSchedule, PrefixSchedule, after_token, cuts, one
from testbed.policies.tabular import TabularPolicy
from theory.worlds import STREAM, World, one_hot_policy, standard_worlds, world


def small_worlds(tag: str = "", **options: bool) -> list[World]:
    """Build the shared small instances; `options` as for `world`, `tag` is put before every name.

    Examples
    --------
    >>> [w.name for w in small_worlds()][:3]
    ['two_segments', 'three_tokens', 'end_token']
    """
    mu = TabularPolicy.random(2, 2, STREAM["small on_policy"]["target"])
    found = [
        world("two_segments", 2, 2, cuts((1,)), **options),
        world("three_tokens", 3, 2, cuts((1,)), **options),
        world("end_token", 2, 2, cuts((1,)), eos=1, **options),
        world("stopping_time", 2, 2, after_token(1), **options),
        random_behavior(**options),
        world("one_token", 3, 1, one(), behaviors=1, **options),
        world("on_policy", 2, 2, cuts((1,)), target=mu, policies=(mu, mu), **options),
        world("deterministic_target", 2, 2, cuts((1,)), target=one_hot_policy(2, 2, "small deterministic"), **options),
        world("empty_segment", 2, 2, lambda prefix: 2 * (len(prefix) >= 1), behaviors=3, **options),
    ]
    return [replace(w, name=tag + w.name) for w in found]


def long_worlds(tag: str = "long_", **options: bool) -> list[World]:
    """Those of `standard_worlds` that have three positions.

    Examples
    --------
    >>> len(long_worlds())
    8
    """
    return [replace(w, name=tag + w.name) for w in standard_worlds(**options) if w.env.horizon == 3]


def random_behavior(**options: bool) -> World:
    """Exogenous noise that matters from the first token on: one of two behaviors writes the whole response."""
    base = world("random_behavior", 2, 2, one(), **options)
    branches = [(0.4, PrefixSchedule(base.behaviors, one())), (0.6, PrefixSchedule(base.behaviors, lambda prefix: 1))]
    return replace(base, schedule=ExogenousSchedule(branches))


def uncovered_world(tag: str = "", **options: bool) -> World:
    """A first behavior that never draws token 0, although the target does."""
    base = world("uncovered", 2, 2, cuts((1,)), **options)
    blind = TabularPolicy.from_probs(torch.tensor([[0.0, 1.0]] * 3))
    schedule = PrefixSchedule((blind, base.behaviors[1]), cuts((1,)))
    return replace(base, name=tag + base.name, schedule=schedule)


def along(batch: SegmentedBatch, table: Tensor) -> Tensor:
    """Values [B, T] that a table over (prefix, token) [N, V] gives along each response."""
    return table[node_index(batch.tokens, table.shape[1]), batch.tokens]
