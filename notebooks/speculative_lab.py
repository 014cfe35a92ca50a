"""What the notebook on speculative rollouts asks of the library, in words of its own: trees, costs of rules, budgets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

import testbed
from testbed.core.choices import Chooser, ReplayChooser
from testbed.environments.base import Environment
from testbed.policies.transformer import Numerics, Transformer, TransformerConfig, TransformerPolicy
from testbed.rollout.speculative import (
    ConcurrencyBudget,
    Drafter,
    DraftTree,
    FutureHeads,
    MarginalBudget,
    Round,
    speculative_rollout,
)
from testbed.rollout.speculative.specimens import redraw_after_miss, spec_rl, spec_rl_repaired
from testbed.rollout.speculative.tree import order_of_weights
from testbed.rollout.speculative.verify.enumeration import all_drafts, one_draft, round_law
from testbed.rollout.speculative.verify.protocol import Verifier
from theory.speculative_worlds import Speculation

Path = tuple[int, ...]
TOY = (0.4, 0.3, 0.2, 0.1)  # a policy of four words; the earlier policy is this one backwards, or a mixture of both


class Words(Environment):
    """Sequences of words without an end; the reward does not matter here."""

    def __init__(self, vocab_size: int, horizon: int) -> None:
        self.vocab_size, self.horizon = vocab_size, horizon

    def reward(self, tokens: Any, mask: Any, group: Any) -> Any:
        """Zero."""
        return torch.zeros(len(tokens), dtype=torch.float64)


def law_of(policy: TransformerPolicy) -> Callable[[Path], list[float]]:
    """Next-token law after a prefix, by a pass over it; asked twice, it is computed once."""

    @cache
    def law(prefix: Path) -> list[float]:
        with torch.no_grad():
            return policy.next_log_probs(torch.tensor([prefix], dtype=torch.int64)).exp()[0].tolist()

    return law


def timed_policy() -> TransformerPolicy:
    """A transformer in float32 that is large enough for its passes to be timed."""
    config = TransformerConfig(vocab_size=64, width=128, layers=4, heads=4, hidden=256, context=32)
    return TransformerPolicy(
        Transformer.random(config, seed=1, dtype=torch.float32), numerics=Numerics(dtype="float32")
    )


def guesses(policy: TransformerPolicy, heads: FutureHeads, tokens: Tensor) -> list[list[list[list[float]]]]:
    """Law of every head at every position of the responses: [row][position][head]."""
    with torch.no_grad():
        return heads.log_laws(policy.hidden_states(tokens), policy.weights()).exp().tolist()


def speculate(
    env: Environment, policy: TransformerPolicy, rows: int, chooser: Chooser, drafter: Drafter | None, nodes: int
) -> tuple[testbed.SegmentedBatch, list[Round]]:
    """Write responses with drafts, if there is a drafter; return the batch and a record of every round."""
    seen: list[Round] = []
    count = 0 if drafter is None else nodes
    return speculative_rollout(env, policy, rows, chooser, drafter=drafter, nodes=count, watch=seen.append), seen


# ------------------------------------------------------------------------------------------------ trees
def paths_of(tree: DraftTree, row: int = 0) -> list[Path]:
    """Nodes of a row's tree as the tokens from the root on, in the order of their places; empty places are left out."""
    out: list[Path] = []
    for token, parent in zip(tree.tokens[row].tolist(), tree.parent[row].tolist(), strict=True):
        if token >= 0:
            out.append((*(out[parent] if parent >= 0 else ()), token))
    return out


def in_order(paths: Sequence[Path]) -> list[Path]:
    """Short ones first, then by token."""
    return sorted(paths, key=lambda h: (len(h), h))


def recorded_chances(r: Round) -> dict[Path, float]:
    """Target's probability of every node of response 0's tree, from the laws that the round recorded."""
    found: dict[Path, float] = {}
    for h, parent in zip(paths_of(r.tree), r.tree.parent[0].tolist(), strict=False):
        found[h] = float(r.log_probs[0, parent + 1, h[-1]].exp()) * found.get(h[:-1], 1.0)
    return {h: found[h] for h in in_order(list(found))}


def below_root(r: Round) -> float:
    """Target's mass on the children of the root in response 0's tree."""
    return sum(p for h, p in recorded_chances(r).items() if len(h) == 1)


def least_certain(rounds: Sequence[Round], accepted: int) -> Round:
    """Of the rounds in which response 0 had so many drafts accepted, the one whose tree covers least below its root."""
    fitting = [r for r in rounds if int(r.frontier.rows[0]) == 0 and int(r.run.accepted[0]) == accepted]
    return min(fitting, key=below_root)


def places(rounds: Sequence[Round]) -> list[tuple[int, int]]:
    """Response and position of every draft."""
    found = [(r.frontier.rows.tolist(), r.frontier.position.tolist()) for r in rounds]
    return [place for rows, at in found for place in zip(rows, at, strict=True)]


def reach(policy: TransformerPolicy, past: Path, paths: Sequence[Path]) -> dict[Path, float]:
    """Target's probability of each path behind `past`, from the policy's scores of whole responses."""
    with torch.no_grad():
        return {h: float(policy.score(torch.tensor([past + h]))[0, len(past) :].sum().exp()) for h in in_order(paths)}


def walk(paths: Sequence[Path], ahead: Path) -> tuple[Path, int]:
    """Candidates that a response runs through, and its token after them."""
    depth = next(k for k in range(len(ahead)) if ahead[: k + 1] not in paths)
    return ahead[:depth], ahead[depth]


def mean_gains(rounds: Sequence[Round]) -> list[float]:
    """Expected accepted drafts of the 1, 2, ... candidates of largest weight, a mean over all trees of full size."""
    found = []
    for r in rounds:
        parent, chance = r.tree.parent, torch.zeros(r.tree.tokens.shape, dtype=torch.float64)
        rows = torch.arange(len(parent))
        for k in range(r.tree.nodes):
            above = torch.where(parent[:, k] >= 0, chance.gather(1, parent[:, k : k + 1].clamp(min=0))[:, 0], 1.0)
            chance[:, k] = above * r.log_probs[rows, parent[:, k] + 1, r.tree.tokens[:, k]].exp()
        found.append(chance.gather(1, order_of_weights(r.tree)).cumsum(1))
    return torch.cat(found).mean(0).tolist()


# ------------------------------------------------------------------------------------------------ wrong rules, other laws
def earlier(shift: float) -> list[float]:
    """Law of the earlier policy: the current one, mixed with itself backwards."""
    return [(1 - shift) * a + shift * b for a, b in zip(TOY, TOY[::-1], strict=True)]


def _always(probs: Sequence[float]) -> testbed.TabularPolicy:
    return testbed.TabularPolicy.from_probs(torch.tensor([probs] * 5, dtype=torch.float64))


def reused(shift: float, rule: Verifier = spec_rl) -> float:
    """Total variation of one token that was kept from the earlier policy, or replaced as the rule says."""
    return round_law(rule, all_drafts(_always(TOY), _always(earlier(shift)), (1,))).distance(_always(TOY), 1)


def repaired(shift: float) -> float:
    """Total variation of one token if a rejected one is replaced from the residual."""
    return reused(shift, spec_rl_repaired)


def redrawn(candidates: Path) -> float:
    """Total variation of one token if a draw that is no candidate is drawn again."""
    draft = one_draft(_always(TOY), list(candidates), [-1] * len(candidates))
    return round_law(redraw_after_miss, draft).distance(_always(TOY), 1)


@dataclass(frozen=True)
class Written:
    """Everything an engine can write as one response, with its probability and what it records."""

    batch: testbed.SegmentedBatch
    probs: Tensor

    def error(self, rule: str, case: Speculation) -> float:
        """Error of the mean update under a weighting rule, in multiples of the gradient's length."""
        pi = case.world.target
        gradient = testbed.exact_gradient(case.env, pi)
        terms = testbed.gradient_terms(self.batch, testbed.weigh(rule, self.batch), pi)
        return float((torch.tensordot(self.probs, terms, 1) - gradient).norm() / gradient.norm())


def written_at(case: Speculation, temperature: float) -> Written:
    """Walk the engine at another temperature, with one draft per round; the plain policy scores what it writes."""
    sampler = testbed.Truncated(case.policy, temperature=temperature)

    def run(chooser: Chooser) -> testbed.SegmentedBatch:
        drafter: Drafter = case.heads(1)
        return speculative_rollout(case.env, sampler, 1, chooser, drafter=drafter, nodes=1, target=case.policy)

    found = ReplayChooser.walk(run)
    batch = testbed.SegmentedBatch.concatenated([batch for batch, _ in found])
    return Written(batch, torch.tensor([p for _, p in found], dtype=torch.float64))


# ------------------------------------------------------------------------------------------------ budgets
def budget_lines(
    active: Sequence[int], gains: Sequence[float], peak: int
) -> tuple[dict[str, list[float]], dict[str, list[int]]]:
    """Speed over that without drafts, and candidates, of three budgets, if a pass takes max(1, tokens / peak)."""
    counts: dict[str, list[int]] = {"fixed": [], "by concurrency": [], "best": []}
    faster: dict[str, list[float]] = {name: [] for name in counts}
    for b in active:
        times = [max(1.0, n * b / peak) for n in range(1, len(gains) + 2)]
        shared = ConcurrencyBudget(peak=peak, most=len(gains)).nodes(b, gains)
        best = MarginalBudget(seconds={b: times}).nodes(b, gains)
        for name, n in zip(counts, (len(gains), shared, best), strict=True):
            counts[name].append(n)
            faster[name].append((1 + (gains[n - 1] if n else 0)) * times[0] / times[n])
    return faster, counts
