"""Schedules: which behavior policy writes the next token, decided from the prefix and from nothing else.

A schedule is handed the prefix, so prefix-measurability holds by construction; schedules that violate it live with the
counterexamples that need them. Randomness of a schedule is exogenous: `ExogenousSchedule` lists its branches with their
probabilities (independent of the tokens), so that laws can be enumerated over the noise too.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from testbed.core.errors import InputError, TooLarge
from testbed.core.prefix_order import all_responses, leaf_index, node_count, prefixes
from testbed.core.seeds import SeedTree
from testbed.policies.base import Policy

MOST_BOUNDARIES = 16
SMALL = 4096  # prefixes of one length up to which their segments are tabulated
SegmentOf = Callable[[tuple[int, ...]], int]


@dataclass(frozen=True, slots=True)
class ByLength:
    """A segment rule that reads only the prefix's length, so that all responses of a length share one answer.

    Examples
    --------
    >>> ByLength(lambda t: t // 2)((0, 1, 1))
    1
    """

    segment_at: Callable[[int], int]

    def __call__(self, prefix: tuple[int, ...]) -> int:
        """Return the segment of the token after this prefix."""
        return self.segment_at(len(prefix))


def one() -> SegmentOf:
    """One segment: the first behavior writes everything.

    Examples
    --------
    >>> one()((0, 1))
    0
    """
    return ByLength(lambda t: 0)


def cuts(positions: Sequence[int]) -> SegmentOf:
    """Boundaries before these positions: the segment of token t is the number of positions <= t.

    Examples
    --------
    >>> [cuts((1, 3))((0,) * t) for t in range(4)]
    [0, 1, 1, 2]
    """
    if any(not isinstance(p, int) or p < 0 for p in positions):
        raise InputError("`positions` must be integers >= 0", found=list(positions))
    ordered = sorted(positions)
    return ByLength(lambda t: sum(t >= p for p in ordered))


def after_token(token: int) -> SegmentOf:
    """One boundary after the first occurrence of `token`: a stopping time of the response.

    Examples
    --------
    >>> after_token(1)((0, 0)), after_token(1)((0, 1))
    (0, 1)
    """
    if not isinstance(token, int) or token < 0:
        raise InputError("`token` must be an integer >= 0", found=repr(token))
    return lambda prefix: int(token in prefix)


def hazard(rate: float, seed: int, last: int = 1) -> SegmentOf:
    """Boundaries that fall before each position t >= 1 with probability `rate`, from noise keyed by (seed, t) only.

    One realization of an exogenous schedule; the label never exceeds `last`.
    """
    if not 0 <= rate <= 1:
        raise InputError("`rate` must lie in [0, 1]", found=rate)
    stream = SeedTree(seed)["hazard"]

    def segment_at(length: int) -> int:
        fired = sum(stream[t].integer() / 2.0**63 < rate for t in range(1, length + 1))
        return min(fired, last)

    return ByLength(segment_at)


class PrefixSchedule:
    """Behavior policies and the rule that picks one from the prefix.

    Parameters
    ----------
    policies : sequence of Policy      behaviors mu_0, mu_1, ...
    segment_of : tuple[int, ...] -> int   segment of the *next* token given the tokens so far

    Raises
    ------
    InputError   when asked for a prefix whose segment is no integer, negative, beyond the policies, or below the
                 segment of a shorter prefix of the same response

    Examples
    --------
    >>> from testbed.policies.tabular import TabularPolicy
    >>> mu = TabularPolicy(torch.zeros(3, 2))
    >>> PrefixSchedule((mu, mu), after_token(1)).segment_table(2, 2).tolist()
    [0, 0, 1]
    """

    def __init__(self, policies: Sequence[Policy], segment_of: SegmentOf) -> None:
        if not policies:
            raise InputError("a schedule needs at least one behavior policy", found="none")
        if not callable(segment_of):
            raise InputError(
                "`segment_of` must be a function of the prefix", found=repr(segment_of), hint="one(), cuts(...), ..."
            )
        self.policies = tuple(policies)
        self.segment_of = segment_of
        self.vocab_size = self.policies[0].vocab_size
        if any(p.vocab_size != self.vocab_size for p in self.policies):
            raise InputError(
                "all policies of a schedule must share one vocabulary", found=[p.vocab_size for p in self.policies]
            )
        self._known: dict[tuple[int, ...], int] = {}
        self._tables: dict[int, Tensor] = {}

    def segment(self, prefix: tuple[int, ...]) -> int:
        """Return the checked segment of the token after this prefix."""
        if prefix in self._known:
            return self._known[prefix]
        answer = self.segment_of(prefix)
        try:
            label = operator.index(answer)
        except TypeError:
            raise InputError("`segment_of` must return an integer", found=f"{answer!r} after {prefix}") from None
        if label < 0 or label >= len(self.policies):
            raise InputError(
                f"`segment_of` must return 0 <= segment < {len(self.policies)} (the number of policies)",
                found=f"{label} after prefix {prefix}",
            )
        if prefix and (before := self.segment(prefix[:-1])) > label:
            raise InputError(
                "segments must not decrease along a response",
                found=f"{label} after prefix {prefix}, {before} before it",
                hint="a resumed response belongs to a later segment",
            )
        self._known[prefix] = label
        return label

    def segments(self, prefix: Int64[Tensor, "B t"]) -> Int64[Tensor, " B"]:
        """Return the segment of the next token after each prefix row."""
        batch, t = prefix.shape
        if t == 0 or isinstance(self.segment_of, ByLength):
            return torch.full((batch,), self.segment((0,) * t), dtype=torch.int64)
        count = self.vocab_size**t
        if count <= SMALL and batch >= count:  # one look-up per response, in a table of all prefixes of this length
            if t not in self._tables:
                every = all_responses(self.vocab_size, t).tolist()
                self._tables[t] = torch.tensor([self.segment(tuple(p)) for p in every], dtype=torch.int64)
            return self._tables[t][leaf_index(prefix, self.vocab_size)]
        distinct, row = torch.unique(prefix, dim=0, return_inverse=True)  # ask once per prefix, not once per response
        return torch.tensor([self.segment(tuple(p)) for p in distinct.tolist()], dtype=torch.int64)[row]

    def segment_table(self, vocab_size: int, horizon: int) -> Int64[Tensor, " N"]:
        """Return the segment of the next token after every prefix, in node order."""
        return torch.tensor([self.segment(p) for p in prefixes(vocab_size, horizon)], dtype=torch.int64)

    def log_prob_table(self, vocab_size: int, horizon: int, group: int = 0) -> Float[Tensor, "N V"]:
        """Next-token law actually used after every prefix of one prompt: the composite behavior, in node order."""
        segment = self.segment_table(vocab_size, horizon)
        out = torch.empty(node_count(vocab_size, horizon), vocab_size, dtype=torch.float64)
        for t in range(horizon):
            rows = slice(node_count(vocab_size, t), node_count(vocab_size, t + 1))
            at_t = torch.tensor(prefixes(vocab_size, horizon)[rows], dtype=torch.int64).reshape(vocab_size**t, t)
            for k in segment[rows].unique().tolist():
                here = segment[rows] == k
                policy = self.policies[k].at(torch.full((int(here.sum()),), group, dtype=torch.int64))
                out[rows][here] = policy.next_log_probs(at_t[here]).detach().double()
        return out

    def branches(self) -> list[tuple[float, PrefixSchedule]]:
        """Return the realizations of the exogenous noise with their probabilities: here there is none."""
        return [(1.0, self)]


class ExogenousSchedule:
    """A random schedule whose noise xi is independent of the tokens: its realizations with their probabilities.

    Raises
    ------
    InputError   if the probabilities are negative or do not sum to 1 (tolerance 1e-9)
    """

    def __init__(self, branches: Sequence[tuple[float, PrefixSchedule]]) -> None:
        probs = [p for p, _ in branches]
        if not probs or min(probs) < 0 or abs(sum(probs) - 1) > 1e-9:
            raise InputError("branch probabilities must be >= 0 and sum to 1", found=probs)
        self._branches = [(p, s) for p, s in branches if p > 0]
        self.vocab_size = self._branches[0][1].vocab_size

    def branches(self) -> list[tuple[float, PrefixSchedule]]:
        """Return the realizations of the exogenous noise with their probabilities."""
        return list(self._branches)


Schedule = PrefixSchedule | ExogenousSchedule  # anything with enumerable exogenous branches


def exogenous_hazard(policies: Sequence[Policy], rate: float, horizon: int) -> ExogenousSchedule:
    """One boundary at a geometric time: before each position t >= 1 the next policy takes over with probability `rate`.

    Every subset of boundary positions in 1..horizon-1 is one branch; labels stop at the last policy.

    Examples
    --------
    >>> from testbed.policies.tabular import TabularPolicy
    >>> mu = TabularPolicy(torch.zeros(3, 2))
    >>> [p for p, _ in exogenous_hazard((mu, mu), 0.25, 2).branches()]
    [0.75, 0.25]
    """
    if not 0 <= rate <= 1:
        raise InputError("`rate` must lie in [0, 1]", found=rate)
    if horizon > MOST_BOUNDARIES:
        raise TooLarge(
            f"boundaries of up to {MOST_BOUNDARIES} positions can be listed",
            found=f"2^{horizon - 1} of {horizon} positions",
            hint="draw one realization at a time with `hazard`",
        )
    last = len(policies) - 1
    branches = []
    for code in range(2 ** (horizon - 1)):
        fired = [t for t in range(1, horizon) if code >> (t - 1) & 1]
        prob = rate ** len(fired) * (1 - rate) ** (horizon - 1 - len(fired))
        if prob > 0:
            branches.append((prob, PrefixSchedule(policies, _capped(cuts(fired), last))))
    return ExogenousSchedule(branches)


def _capped(segment_of: SegmentOf, last: int) -> SegmentOf:
    if isinstance(segment_of, ByLength):
        return ByLength(lambda t: min(segment_of.segment_at(t), last))
    return lambda prefix: min(segment_of(prefix), last)
