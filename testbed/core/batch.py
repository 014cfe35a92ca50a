"""SegmentedBatch: responses whose tokens were drawn by several behavior policies, with what each policy recorded.

This is the one currency between rollouts, recorded dumps, weighting rules, estimators and theorems. Construction checks the
numerics contract once, at the door: everything downstream may rely on clean padding and on log-probabilities that are
log-probabilities.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from testbed.core.batch_checks import clean_log_prob, first_index, low_precision_grid
from testbed.core.errors import InputError, MissingField
from testbed.core.next_token import NextTokenLaws, clean_laws, stacked
from testbed.core.shapes import require_shape

LOG_PROBS = ("logp_target", "logp_behavior", "logp_proximal")
REPAIRED = (*LOG_PROBS, "next_token.logp_target", "next_token.logp_behavior")  # fields that facts are kept about
_TOKEN_FIELDS = ("tokens", "segment", *LOG_PROBS, "version", "engine", "token_reward", "action_value")


@dataclass(frozen=True, slots=True)
class BatchFacts:
    """What construction noticed and repaired or must report.

    clipped              per field: log-probs in (0, 1e-6] set to 0
    low_precision        per field: the rounding grid (nats, at the median magnitude) of 16-bit log-probs, even if since widened
    support_mismatches   tokens the sampler drew although the target gives them probability 0
    """

    clipped: dict[str, int] = field(default_factory=dict)
    low_precision: dict[str, float] = field(default_factory=dict)
    support_mismatches: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentedBatch:
    """B responses of up to T tokens, each token labeled with the segment (behavior policy) that drew it.

    Log-probs are in nats. Anything may stand in padding; it is replaced by 0 (segment, version, engine: -1).

    Raises
    ------
    InputError   NaN on a real token or reward; log-prob > 1e-6 or a behavior log-prob of -inf on a real token;
                 a segment that is negative or decreases along a response; a wrong shape; with `strict`, 16-bit log-probs

    Examples
    --------
    >>> batch = SegmentedBatch(
    ...     tokens=torch.tensor([[0, 1]]), mask=torch.tensor([[True, True]]), segment=torch.tensor([[0, 1]]),
    ...     logp_target=torch.log(torch.tensor([[0.5, 0.5]])), logp_behavior=torch.log(torch.tensor([[0.8, 0.7]])),
    ...     reward=torch.tensor([1.0]), group=torch.tensor([0]))
    >>> batch.n_segments, batch.lengths.tolist()
    (2, [2])
    """

    tokens: Int64[Tensor, "B T"]
    mask: Bool[Tensor, "B T"]
    segment: Int64[Tensor, "B T"]
    logp_target: Float[Tensor, "B T"]
    logp_behavior: Float[Tensor, "B T"]
    reward: Float[Tensor, " B"]
    group: Int64[Tensor, " B"]
    logp_proximal: Float[Tensor, "B T"] | None = None
    version: Int64[Tensor, "B T"] | None = None
    engine: Int64[Tensor, "B T"] | None = None
    token_reward: Float[Tensor, "B T"] | None = None
    action_value: Float[Tensor, "B T"] | None = None
    next_token: NextTokenLaws | None = None
    strict: bool = False
    facts: BatchFacts = field(init=False, default_factory=BatchFacts)

    def __post_init__(self) -> None:
        if self.mask.dim() != 2 or self.mask.dtype != torch.bool:
            raise InputError(
                "`mask` must be a boolean tensor [B, T]", found=f"{self.mask.dtype} {tuple(self.mask.shape)}"
            )
        shape = tuple(self.mask.shape)
        clipped: dict[str, int] = {}
        grids: dict[str, float] = {}
        for name in _TOKEN_FIELDS:
            value = getattr(self, name)
            if value is None:
                continue
            require_shape(name, value, shape)
            if name in ("tokens", "segment", "version", "engine"):
                value = _whole_numbers(name, value)
            if name in LOG_PROBS:
                grid = low_precision_grid(value, self.mask)
                if grid is not None:
                    grids[name] = grid
                value, count = clean_log_prob(name, value, self.mask)
                if count:
                    clipped[name] = count
            else:
                value = self._clean(name, value)
            object.__setattr__(self, name, value)
        if self.next_token is not None:
            laws, counts, coarse = clean_laws(self.next_token, self.mask)
            object.__setattr__(self, "next_token", laws)
            clipped.update(counts)
            grids.update(coarse)
        for name in ("reward", "group"):
            require_shape(name, getattr(self, name), shape[:1])
        object.__setattr__(self, "group", _whole_numbers("group", self.group))
        self._check_rewards()
        self._check_segments()
        if self.strict and grids:
            raise InputError(
                "strict batches take float32 or float64 log-probabilities",
                hint="record log-probs in float32",
                found="16-bit values in " + ", ".join(f"`{k}` (grid {g:g} nats)" for k, g in grids.items()),
            )
        unsupported = int((torch.isneginf(self.logp_target) & self.mask).sum())
        object.__setattr__(self, "facts", BatchFacts(clipped, grids, unsupported))

    def _clean(self, name: str, value: Tensor) -> Tensor:
        if value.is_floating_point():
            bad = value.isnan() & self.mask
            if bool(bad.any()):
                raise InputError(
                    f"`{name}` must not be NaN on a real token",
                    found=f"{int(bad.sum())} NaN, first at {first_index(bad)}",
                )
        fill = 0 if name in ("tokens", "token_reward", "action_value") else -1
        return torch.where(self.mask, value, torch.full((), fill, dtype=value.dtype, device=value.device))

    def _check_rewards(self) -> None:
        empty = ~self.mask.any(1)
        bad = ~torch.isfinite(self.reward) & ~empty
        if bool(bad.any()):
            raise InputError(
                "`reward` must be finite", found=f"{int(bad.sum())} non-finite, first at {first_index(bad)}"
            )
        zero = torch.zeros((), dtype=self.reward.dtype, device=self.reward.device)
        object.__setattr__(self, "reward", torch.where(empty, zero, self.reward))

    def _check_segments(self) -> None:
        low = (self.segment < 0) & self.mask
        if bool(low.any()):
            b, t = first_index(low)
            raise InputError("`segment` must be >= 0 on real tokens", found=f"{int(self.segment[b, t])} at ({b}, {t})")
        if self.segment.numel() == 0:
            return
        before = self.segment.cummax(1).values
        drop = (self.segment < before) & self.mask
        if bool(drop.any()):
            b, t = first_index(drop)
            raise InputError(
                "`segment` must not decrease along a response",
                hint="label segments in the order they were drawn",
                found=f"{int(self.segment[b, t])} after {int(before[b, t])} at ({b}, {t})",
            )

    @property
    def batch_size(self) -> int:
        """Number of responses B."""
        return self.mask.shape[0]

    @property
    def horizon(self) -> int:
        """Number of token positions T, padding included."""
        return self.mask.shape[1]

    @property
    def lengths(self) -> Int64[Tensor, " B"]:
        """Number of real tokens of each response."""
        return self.mask.sum(1)

    @property
    def n_tokens(self) -> int:
        """Number of real tokens."""
        return int(self.mask.sum())

    @property
    def n_segments(self) -> int:
        """Largest segment label plus one (0 for an all-masked batch); labels without tokens are empty segments."""
        return int(self.segment.max()) + 1 if self.segment.numel() else 0

    def require(self, name: str, rule: str) -> Any:
        """Return an optional field, or raise MissingField naming the rule that needs it."""
        value = getattr(self, name)
        if value is None:
            raise MissingField(
                f"rule `{rule}` needs `{name}`",
                found="a batch without it",
                hint=f"record `{name}` when the tokens are drawn",
            )
        return value

    def replaced(self, **changes: Any) -> SegmentedBatch:
        """Return a batch with some fields replaced (checked again); what was repaired in the others stays on record."""
        kept = [name for name in REPAIRED if name.split(".")[0] not in changes]
        return replace(self, **changes)._remembering([self], kept)

    def _remembering(self, sources: Sequence[SegmentedBatch], names: Sequence[str]) -> SegmentedBatch:
        """Add to the facts what was noticed about these fields when the sources were made: a repair is not seen twice."""
        clipped, grids = dict(self.facts.clipped), dict(self.facts.low_precision)
        for name in names:
            count = sum(s.facts.clipped.get(name, 0) for s in sources)
            if count:
                clipped[name] = count
            coarse = [s.facts.low_precision[name] for s in sources if name in s.facts.low_precision]
            if coarse:
                grids[name] = max(coarse)
        object.__setattr__(self, "facts", BatchFacts(clipped, grids, self.facts.support_mismatches))
        return self

    def select(self, rows: Tensor | Sequence[int]) -> SegmentedBatch:
        """Return the batch of these rows (indices or a boolean mask over responses), in that order."""
        index = torch.as_tensor(rows, device=self.mask.device)
        index = index.to(torch.int64) if index.numel() == 0 else index
        if (
            index.dtype != torch.bool
            and index.numel()
            and not -self.batch_size <= int(index.min()) <= int(index.max()) < self.batch_size
        ):
            raise InputError(
                f"`rows` must lie in 0..{self.batch_size - 1}", found=f"{int(index.min())}..{int(index.max())}"
            )
        picked = {f.name: value[index] for f in fields(self) if isinstance(value := getattr(self, f.name), Tensor)}
        laws = None if self.next_token is None else self.next_token.select(index)
        return replace(self, **picked, next_token=laws)._remembering([self], REPAIRED)

    @staticmethod
    def concatenated(batches: Sequence[SegmentedBatch]) -> SegmentedBatch:
        """Stack batches of one horizon row by row; optional fields are kept only if every batch has them.

        Next-token laws of different widths get unused slots.
        """
        if not batches:
            raise InputError("there must be a batch to concatenate", found="none")
        first = batches[0]
        for b in batches:
            require_shape("mask", b.mask, (b.batch_size, first.horizon))
        merged: dict[str, Any] = {}
        for f in fields(SegmentedBatch):
            values = [getattr(b, f.name) for b in batches]
            if all(isinstance(v, Tensor) for v in values):
                merged[f.name] = torch.cat(values)
        laws = [b.next_token for b in batches if b.next_token is not None]
        if len(laws) == len(batches):
            merged["next_token"] = stacked(laws)
        kept = [name for name in REPAIRED if name.split(".")[0] in merged]
        return SegmentedBatch(**merged, strict=first.strict)._remembering(batches, kept)


def _whole_numbers(name: str, value: Tensor) -> Tensor:
    """Return ids and labels as int64; a float or a boolean is another quantity."""
    if value.is_floating_point() or value.is_complex() or value.dtype == torch.bool:
        raise InputError(f"`{name}` must be whole numbers", found=value.dtype)
    return value.to(torch.int64)
