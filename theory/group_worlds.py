"""Groups: a world and how many responses to its prompt are drawn together, and the update the library expects of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from testbed.estimators.group_gradient import group_coefficients
from testbed.exact.group_updates import GroupCompositions, expected_group_update, group_compositions
from testbed.exact.law import ExactLaw
from testbed.policies.base import Policy
from theory.transformer_worlds import TransformerWorld
from theory.worlds import World


@dataclass(frozen=True)
class Group:
    """M responses to one prompt."""

    name: str
    world: World | TransformerWorld
    size: int


def groups_of(worlds: Sequence[World | TransformerWorld], sizes: Sequence[int]) -> list[Group]:
    """Every world with every size, named after both."""
    return [Group(f"{w.name}_{size}", w, size) for w in worlds for size in sizes]


def update_of(groups: GroupCompositions, pi: Policy, baseline: str, scale: str = "none", **how: Any) -> Tensor:
    """Expected update, by default divided by the number M of responses: the plain mean over a group."""
    if "normalizer" not in how:
        how |= {"normalizer": "constant", "constant": float(groups.index.shape[1])}
    return expected_group_update(groups, pi, group_coefficients(groups.batch, baseline, scale, **how))


def group_update(law: ExactLaw, pi: Policy, size: int, baseline: str, scale: str = "none", **how: Any) -> Tensor:
    """Expected update of `size` independent responses of one law.

    Examples
    --------
    >>> from theory.small_worlds import small_worlds
    >>> w = small_worlds()[0]
    >>> half, whole = (group_update(w.target_law, w.target, 2, b) for b in ("group_mean", "leave_one_out"))
    >>> bool((2 * half - whole).abs().max() < 1e-14)
    True
    """
    return update_of(group_compositions([(law, size)]), pi, baseline, scale, **how)


def direction(update: Tensor) -> Tensor:
    """Divide by the length (a zero update keeps its zeros)."""
    length = update.norm()
    return update / length if length > 0 else update


def cosine(a: Tensor, b: Tensor) -> float:
    """Cosine of the angle between two updates."""
    return float((direction(a) * direction(b)).sum())
