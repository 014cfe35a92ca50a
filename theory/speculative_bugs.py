"""Bugs of speculative engines: wrong versions of functions of ours, each planted by more than one theorem."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from testbed.policies.transformer import tree_decoder
from testbed.policies.transformer.cache import KeyValueCache
from testbed.rollout.speculative import engine, walk
from testbed.rollout.speculative.group_specimens import specimen_rollout
from testbed.rollout.speculative.tree import DraftTree
from testbed.rollout.speculative.walk import Draws, Run
from theory.planting import planted

Planted = Callable[[], AbstractContextManager[Any]]


def sibling_visible() -> AbstractContextManager[Any]:
    """Nodes of one depth see each other."""

    def make(right: Any) -> Any:
        def wrong(length: Tensor, sees: Tensor, used: int) -> Tensor:
            depth = sees.sum(-1)
            return right(length, sees | (depth[:, :, None] == depth[:, None]), used)

        return wrong

    return planted(tree_decoder, "visible_slots", make)


def depth_off_by_one() -> AbstractContextManager[Any]:
    """Candidates stand one position too far."""
    return planted(
        tree_decoder, "node_positions", lambda right: lambda length, depth: right(length, depth) + (depth > 0)
    )


def cache_not_compacted() -> AbstractContextManager[Any]:
    """Keys and values of a path stay where its nodes were."""
    return planted(KeyValueCache, "moved", lambda right: lambda self, source, slots: None)


def bonus_from_drafter() -> AbstractContextManager[Any]:
    """The token behind a leaf is drawn from a law of the drafter's (here: the uniform one)."""

    def make(right: Any) -> Any:
        def wrong(tree: DraftTree, log_probs: Tensor, draws: Draws) -> Run:
            if not tree.nodes:
                return right(tree, log_probs, draws)
            leaf = torch.ones(log_probs.shape[:2], dtype=torch.bool).scatter(1, tree.parent + 1, False)
            uniform = torch.full_like(log_probs, 1 / log_probs.shape[-1]).log()
            return right(tree, torch.where(leaf[:, :, None], uniform, log_probs), draws)

        return wrong

    return planted(walk, "membership_walk", make)


def redraw_after_miss() -> AbstractContextManager[Any]:
    """A draw that is no candidate is thrown away and drawn again, with other noise."""

    def make(right: Any) -> Any:
        def wrong(tree: DraftTree, log_probs: Tensor, draws: Draws) -> Run:
            run = right(tree, log_probs, draws)
            if not tree.nodes:
                return run
            missed = run.accepted == 0
            again = draws.token(log_probs[:, 0].exp(), 1000, missed)
            first = torch.where(missed, again, run.tokens[:, 0])
            tokens = torch.cat([first[:, None], run.tokens[:, 1:]], 1)
            return Run(tokens=tokens, path=run.path, accepted=run.accepted)

        return wrong

    return planted(walk, "membership_walk", make)


def shared_first_token() -> AbstractContextManager[Any]:
    """The engine draws the first token once per prompt."""
    return planted(engine, "speculative_rollout", lambda right: partial(specimen_rollout, "shared_first_token"))


def whole_batch_stop() -> AbstractContextManager[Any]:
    """The engine ends all responses as soon as one of them reaches its cap."""
    return planted(engine, "speculative_rollout", lambda right: partial(specimen_rollout, "whole_batch_stop"))
