"""Small transformers with two tokens or three, the ways to speculate on them, and their prefixes as symbols."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import torch
from torch import Tensor

from testbed.core.choices import Chooser, ReplayChooser, inverse_cdf
from testbed.core.prefix_order import prefixes
from testbed.core.row_replay import walk_in_batches
from testbed.environments.prefix_tree import PrefixTree
from testbed.exact.law import enumerate_law
from testbed.policies.schedule import PrefixSchedule, one
from testbed.policies.tabular import TabularPolicy
from testbed.policies.transformer import Transformer, TransformerConfig, TransformerPolicy
from testbed.rollout.speculative import Drafter, FutureHeads, HeadDrafter, PromptLookup, speculative_rollout
from testbed.rollout.speculative.drafters import Frontier
from testbed.rollout.speculative.group_specimens import specimen_rollout
from testbed.rollout.speculative.tree import DraftTree
from testbed.rollout.speculative.verify.registry import VERIFIERS
from theory.worlds import STREAM, World

Prefix = tuple[int, ...]
Outcomes = list[tuple[tuple[Prefix, ...], float]]


@dataclass(frozen=True, kw_only=True)
class Speculation:
    """One instance: a policy over a few tokens, responses of at most `horizon` of them, `rows` at a time."""

    name: str
    horizon: int
    vocab_size: int = 2
    rows: int = 1
    eos: int | None = None
    sharpness: float = 2.0
    layers: int = 2

    @cached_property
    def env(self) -> PrefixTree:
        """Rewards that tell responses apart."""
        rewards = [float(i) for i in range(self.vocab_size**self.horizon)]
        return PrefixTree(self.vocab_size, self.horizon, rewards=rewards, eos=self.eos)

    @cached_property
    def policy(self) -> TransformerPolicy:
        """Transformer with random weights."""
        sizes = {"vocab_size": self.vocab_size, "layers": self.layers, "context": self.horizon + 1}
        config = TransformerConfig(width=8, heads=2, hidden=8, **sizes)
        return TransformerPolicy(Transformer.random(config, STREAM["speculation"][self.name], sharpness=self.sharpness))

    def heads(self, *fan_out: int) -> HeadDrafter:
        """Candidates of heads that know nothing beyond the model's own next-token law."""
        return HeadDrafter(FutureHeads.of(self.policy, len(fan_out)), fan_out)

    def prefixes(self) -> list[Prefix]:
        """Every unfinished prefix, short ones first."""
        every = (h for t in range(self.horizon) for h in product(range(self.vocab_size), repeat=t))
        return [h for h in every if self.eos is None or self.eos not in h]

    def responses(self) -> list[Prefix]:
        """Every response, in the order of the exact law."""
        return written(self.target.batch)

    @cached_property
    def target(self) -> Any:
        """Exact law of one response."""
        with torch.no_grad():
            return enumerate_law(self.env, self.policy, self.policy)

    @cached_property
    def laws(self) -> dict[Prefix, Tensor]:
        """Next-token law after every unfinished prefix, from a pass over it."""
        with torch.no_grad():
            return {h: self.policy.next_log_probs(torch.tensor([h]).long().reshape(1, -1))[0] for h in self.prefixes()}

    @cached_property
    def world(self) -> World:
        """The same laws in a table, on-policy: what symbols and gradients by logit are made for."""
        with torch.no_grad():
            laws = [self.policy.next_log_probs(torch.tensor([h]).long().reshape(1, -1)) for h in self.every_prefix()]
        table = TabularPolicy(torch.cat(laws))
        return World(name=self.name, env=self.env, target=table, schedule=PrefixSchedule((table,), one()))

    def every_prefix(self) -> list[Prefix]:
        """Prefixes in the order of a table's nodes, those behind an end token included."""
        return list(prefixes(self.vocab_size, self.horizon))

    def law(self, n: int = 1, **options: Any) -> dict[tuple[Prefix, ...], float]:
        """Law of what the engine writes, over every choice it makes; `drafter` is a function that makes one."""

        def run(chooser: Chooser) -> tuple[Prefix, ...]:
            return tuple(written(self.speculated(n, chooser, **options)))

        return summed(ReplayChooser.walk(run))

    def side_by_side(self, **options: Any) -> Outcomes:
        """Every branch of one response, many of them as rows of one batch."""

        def run(chooser: Chooser, n: int) -> list[tuple[Prefix, ...]]:
            return [(y,) for y in written(self.speculated(n, chooser, **options))]

        return walk_in_batches(run)

    def speculated(
        self,
        n: int,
        chooser: Chooser,
        drafter: Callable[[], Drafter] | None = None,
        specimen: str | None = None,
        **options: Any,
    ) -> Any:
        """What the engine writes, or one with a defect of `GROUP_SPECIMENS`."""
        made = None if drafter is None else drafter()
        if specimen is not None:
            return specimen_rollout(specimen, self.env, self.policy, n, chooser, drafter=made, **options)
        return speculative_rollout(self.env, self.policy, n, chooser, drafter=made, **options)


def summed(outcomes: Outcomes) -> dict[tuple[Prefix, ...], float]:
    """Law over what was written, whatever branch it was written on."""
    found: dict[tuple[Prefix, ...], float] = defaultdict(float)
    for result, probability in outcomes:
        found[result] += probability
    return found


def written(batch: Any) -> list[Prefix]:
    """Responses of a batch, as tuples of tokens."""
    return [tuple(row[:n]) for row, n in zip(batch.tokens.tolist(), batch.lengths.tolist(), strict=True)]


@dataclass(frozen=True, slots=True)
class Renumbered:
    """A chooser for a batch in another order: row i is response `ids[i]`."""

    chooser: Chooser
    ids: Tensor

    def choose(self, probs: Tensor, key: Tensor | None = None) -> Tensor:
        """Ask under the response's own number."""
        assert key is not None
        return self.chooser.choose(probs, torch.stack([self.ids[key[:, 0]], key[:, 1]], 1))


class CoinStream:
    """An ordinary stream of coins: every row of every request takes the next one, whatever its key."""

    def __init__(self, coins: tuple[float, ...]) -> None:
        self.coins, self.used = coins, 0

    def choose(self, probs: Tensor, key: Tensor | None = None) -> Tensor:
        """Draw by inverse CDF."""
        taken = self.coins[self.used : self.used + len(probs)]
        self.used += len(probs)
        return inverse_cdf(probs, torch.tensor(taken, dtype=torch.float64))


def streams(coins: int) -> Iterator[tuple[float, ...]]:
    """Every stream of fair coins."""
    return product((0.25, 0.75), repeat=coins)


class Peeking(Drafter):
    """Sees the coins to come: offers the token that will be drawn if the coin after it is the better one, else the other.

    An accepted draft is followed by the next coin; after a miss, that coin is spent on nothing and the one behind it counts.
    """

    def __init__(self, stream: CoinStream, case: Speculation) -> None:
        self.stream, self.case = stream, case

    def draft(self, frontier: Frontier, nodes: int) -> DraftTree:
        """One candidate."""
        ahead = self.stream.coins[self.stream.used :]
        so_far = frontier.context[:, 1 : 1 + int(frontier.position[0])]
        law = self.case.policy.next_log_probs(so_far).detach().exp()
        drawn = inverse_cdf(law, torch.tensor(ahead[:1], dtype=torch.float64))
        token = drawn if len(ahead) < 3 or ahead[1] >= ahead[2] else 1 - drawn
        one = torch.ones(1, 1, dtype=torch.int64)
        return DraftTree(tokens=token[:, None], parent=-one, depth=one, log_weight=one * 0.0, levels=1)


def drafters(case: Speculation) -> dict[str, dict[str, Any]]:
    """Ways to speculate on a case: how many candidates, of what kind."""
    v = case.vocab_size
    return {
        "heads": {"drafter": lambda: case.heads(2, 2), "nodes": 3},
        "full_tree": {"drafter": lambda: case.heads(v, v, v), "nodes": v + v**2 + v**3},
        "lookup": {"drafter": lambda: PromptLookup(match=1), "nodes": 2},
    }


def drawing(case: Speculation) -> dict[str, dict[str, Any]]:
    """Ways to ask every other verifier than membership: two candidates, in a chain where the rule asks for one, else siblings."""
    chain, siblings = (lambda: case.heads(1, 1)), (lambda: case.heads(2))
    return {
        name: {"drafter": chain if rule.drafts == "chain" else siblings, "nodes": 2, "verifier": name}
        for name, rule in VERIFIERS.items()
        if name != "membership"
    }
