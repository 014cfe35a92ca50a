"""What the notebook on stale training asks of the library: runs that are watched while they train, and frozen moments.

A run is watched through its own loss: whatever is trained on is kept, so that every number in the log can be found again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import comb
from typing import Any

import torch
from classroom import fast
from torch import Tensor

import testbed
from testbed.core.seeds import SeedTree
from testbed.policies.transformer import Transformer, TransformerPolicy
from testbed.rollout import rollout
from testbed.rollout.delivery import Delivery
from testbed.stats.runs import Estimate, difference_by_seed, estimate
from testbed.training.grpo import GRPORun
from testbed.training.grpo_config import GRPOConfig
from testbed.training.lab import run_of
from testbed.training.run_result import run_result

BASE = {  # one-digit additions; half of the warm start's demonstrations were wrong
    "task": "addition", "task_params": {"max_operand": 9}, "prompts": 8, "responses": 8, "rate": 3e-3,
    "updates": 16 if fast() else 80, "evaluate_every": 8 if fast() else 10,
}  # fmt: skip
SEEDS = SeedTree("stale training")
ROWS = 256  # responses whose gradients are held at once
Arms = Mapping[str, Mapping[str, Any]]


@dataclass
class Seen:
    """A batch as it was trained on: with the trainer's log-probs before the update, advantages, and how it came."""

    batch: testbed.SegmentedBatch
    advantage: Tensor
    delivery: Delivery


@dataclass
class Watched:
    """A run with all its batches, and copies of its weights after some numbers of updates."""

    run: GRPORun
    seen: list[Seen] = field(default_factory=list)
    kept: dict[int, Transformer] = field(default_factory=dict)

    @property
    def result(self) -> dict[str, Any]:
        """Judgment and curves."""
        return run_result(self.run)

    def policy(self, updates: int) -> TransformerPolicy:
        """Policy with the weights of a kept moment, in float64."""
        prompts = self.run.env.prompts()  # type: ignore[attr-defined]
        tokens, lengths = self.run.env.prompt_tokens(prompts), self.run.env.prompt_lengths(prompts)  # type: ignore[attr-defined]
        weights = {name: w.detach().double() for name, w in self.kept[updates].weights.items()}
        return TransformerPolicy(Transformer(self.kept[updates].config, weights), tokens, lengths)


def watched(changes: Mapping[str, Any], seed: int, keep: Sequence[int] = (), look: Callable[[], None] | None = None,
            entered: Callable[[Watched], None] | None = None) -> Watched:  # fmt: skip
    """Train to the end; `entered` is told of the run before it starts, `look` is called after every update."""
    found = Watched(run_of(GRPOConfig.of({**BASE, **changes}), seed))
    run, loss = found.run, found.run.loss

    def noting(batch: testbed.SegmentedBatch, advantage: Tensor) -> Tensor:
        found.seen.append(Seen(batch, advantage, run.source.delivery))  # type: ignore[attr-defined]
        return loss(batch, advantage)

    run.loss = noting  # type: ignore[method-assign]
    if entered is not None:
        entered(found)
    going = True
    while going:
        if run.done in keep:
            found.kept[run.done] = run.model.copy()
        going = run.advance()
        if look is not None:
            look()
    return found


class Race:
    """Arms that are trained with the same seeds, one seed after the other, and what is known of them so far."""

    def __init__(self, updates: int = 0) -> None:
        self.runs: dict[str, list[Watched]] = {}
        self.updates = updates or BASE["updates"]

    def run(self, arms: Arms, seeds: int, look: Callable[[], None], keep: Sequence[int] = ()) -> None:
        """Train every arm with seeds 0, 1, ...; `look` is called after every update."""
        for seed in range(seeds):
            for name, changes in arms.items():
                watched(changes, seed, keep, look, self.runs.setdefault(name, []).append)

    def rewards(self, name: str) -> dict[int, list[float]]:
        """Evaluations of an arm: updates done -> one for each seed that got there."""
        out: dict[int, list[float]] = {}
        for found in self.runs.get(name, []):
            for done, reward in found.run.evaluations:
                out.setdefault(done, []).append(reward)
        return out

    def curve(self, name: str, what: str) -> list[float]:
        """Mean over seeds of one number of the log, by update; as far as all seeds have come."""
        curves = [found.run.curve[what] for found in self.runs.get(name, [])]
        return [sum(column) / len(column) for column in zip(*curves, strict=False)]

    def finals(self, name: str) -> list[float]:
        """Final reward of each seed: the mean of the last three evaluations."""
        return [found.result["final"] for found in self.runs[name]]

    def judged(self, name: str) -> Estimate:
        """Interquartile mean of the final rewards, with its interval."""
        return estimate([self.finals(name)], seeds=SEEDS[name]["final"])

    def gain(self, name: str, other: str) -> Estimate:
        """How much more an arm ends with than another, over the seeds that both have."""
        pairs = list(zip(self.finals(name), self.finals(other), strict=False))
        return difference_by_seed([a for a, _ in pairs], [b for _, b in pairs], seeds=SEEDS[name][other])

    def best(self, name: str) -> str:
        """Interquartile mean of the best evaluations."""
        return f"{estimate([[found.result['best'] for found in self.runs[name]]], seeds=SEEDS[name]['best']).value:.3f}"

    def acted(self, name: str, after: int) -> float:
        """Share of the tokens that the rule acted on, mean over updates from `after` on."""
        return sum(kept := self.curve(name, "acted")[after:]) / len(kept)

    def push(self, name: str, where: Callable[[Tensor, Tensor], Tensor]) -> list[float]:
        """Share of the push on some tokens, by update: mean over seeds."""
        each = [push_share(found, where) for found in self.runs[name]]
        return [sum(column) / len(column) for column in zip(*each, strict=False)]

    def advantage(self, name: str, replayed: bool) -> float:
        """Mean advantage of all fresh, or of all replayed, responses of an arm."""
        seen = [seen for found in self.runs[name] for seen in found.seen]
        return float(torch.cat([s.advantage[s.delivery.replayed == replayed] for s in seen]).double().mean())


def words_of(task: Any, prompt: int) -> str:
    """Prompt of this number as it is read."""
    return task.decode(task.prompt_tokens(torch.tensor([prompt]))[0])


# ------------------------------------------------------------------------------------------------ where the push goes
def push_share(found: Watched, where: Callable[[Tensor, Tensor], Tensor]) -> list[float]:
    """Share of sum |w A| that falls on tokens for which `where(ratio, advantage)` holds, by update; 0 without any push."""
    rule, out = found.run.config.rule, []
    for seen in found.seen:
        weight = testbed.weigh(rule, seen.batch, advantage=seen.advantage, **found.run.config.rule_params)
        push = (weight.value.double() * seen.advantage[:, None].double()).abs() * seen.batch.mask
        ratio = testbed.weigh("exact", seen.batch).value.double()
        total = float(push.sum())
        out.append(float((push * where(ratio, seen.advantage[:, None])).sum()) / total if total > 0 else 0.0)
    return out


def left_behind(ratio: Tensor, advantage: Tensor) -> Tensor:
    """Tokens with at most half of the probability they were drawn with, that are pushed down still further."""
    return (ratio < 0.5) & (advantage < 0)


def now_likelier(ratio: Tensor, advantage: Tensor) -> Tensor:
    """Tokens with more than twice the probability they were drawn with."""
    return (ratio > 2) & (advantage == advantage)


def groups_of_a_success(p: float, size: int) -> list[tuple[float, float]]:
    """Groups that a stored success of a prompt may come from: (probability of so many right ones, its advantage there)."""
    out = []
    for right in range(1, size + 1):
        one = torch.ones(size, 1)
        reward = (torch.arange(size) < right).double()
        batch = testbed.SegmentedBatch(tokens=one.long(), mask=one.bool(), segment=0 * one.long(), logp_target=-one,
                                       logp_behavior=-one, reward=reward, group=torch.zeros(size, dtype=torch.int64))  # fmt: skip
        among = comb(size - 1, right - 1) * p ** (right - 1) * (1 - p) ** (size - right)  # the others' right answers
        out.append((among, float(testbed.group_advantage(batch, "group_mean", "std")[0])))
    return out


# ------------------------------------------------------------------------------------------------ a frozen moment
@dataclass
class Moment:
    """One prompt, the trainer's policy and the stale one that wrote, and every response with its probability.

    `level` is the mean reward of the stale policy: what a large group subtracts.
    """

    env: Any
    pi: TransformerPolicy
    mu: TransformerPolicy
    batch: testbed.SegmentedBatch
    probs: Tensor
    gradient: Tensor
    level: float

    @property
    def advantage(self) -> Tensor:
        """Reward minus the level."""
        return self.batch.reward - self.level

    def exact(self, rules: Sequence[str]) -> dict[str, tuple[Tensor, float]]:
        """Mean of each estimator's term, and the total variance of one term: sums over all responses."""
        batch, steps = self.batch, torch.arange(self.batch.horizon)
        mean = {rule: torch.zeros_like(self.gradient) for rule in rules}
        square = dict.fromkeys(rules, 0.0)
        weight = {r: testbed.weigh(r, batch, advantage=self.advantage, **params_of(r)).value for r in rules}
        push = {rule: w.double() * self.advantage[:, None] * batch.mask for rule, w in weight.items()}
        for start in range(0, len(self.probs), ROWS):
            part = torch.arange(start, min(start + ROWS, len(self.probs)))
            few, ones = batch.select(part), torch.ones(len(part), dtype=torch.float64)
            single = [(steps == t).double().expand(len(part), -1) for t in steps]
            score = torch.stack([testbed.gradient_terms(few, only, self.pi, ones) for only in single], 1)
            gram, p = score @ score.mT, self.probs[part]  # any estimator is a combination of the tokens' scores
            for rule in rules:
                c = push[rule][part]
                mean[rule] += torch.einsum("b,bt,btp->p", p, c, score)
                square[rule] += float((p * torch.einsum("bs,bst,bt->b", c, gram, c)).sum())
        return {rule: (mean[rule], square[rule] - float(mean[rule].square().sum())) for rule in rules}

    def measured(self, rules: Sequence[str], n: int) -> dict[str, Tensor]:
        """What the trainer's own loss makes of n responses that the stale policy writes."""
        group = self.batch.group[:1].expand(n)
        drawn = rollout(self.env, self.mu, n, testbed.RandomChooser(SEEDS["moment"]), group=group)
        out = {}
        for rule in rules:
            logp = torch.where(drawn.mask, self.pi.at(drawn.group).score(drawn.tokens), 0.0)
            batch = drawn.replaced(logp_target=logp.detach(), logp_proximal=logp.detach())
            a, params = drawn.reward - self.level, params_of(rule)
            loss = testbed.policy_loss(logp, batch, rule, a, "constant", constant=float(n), **params)
            gradient = torch.autograd.grad(-loss, self.pi.parameters())
            out[rule] = torch.cat([part.reshape(-1) for part in gradient]).double()
        return out

    def rows(self, rules: Sequence[str], batch: int, drawn: int) -> tuple[dict[str, list[float]], dict[str, Tensor]]:
        """Bias, noise of a batch, expected and found distance from the mean, distance from the gradient; what was measured."""
        measured, unit, out = self.measured(rules, drawn), float(self.gradient.norm()), {}
        for rule, (mean, variance) in self.exact(rules).items():
            noise = max(variance, 0.0) ** 0.5
            off = [float((measured[rule] - x).norm()) for x in (mean, self.gradient)]
            found = [float((mean - self.gradient).norm()), noise / batch**0.5, noise / drawn**0.5, *off]
            out[rule] = [x / unit for x in found]
        return out, measured


def params_of(rule: str) -> dict[str, Any]:
    """Give spire a cap of 2: its own is that of a sample, and an enumerated law is none."""
    return {"cap": 2.0} if rule == "spire" else {}


def moment(found: Watched, now: int, then: int, group: int, least: float = 0.0) -> Moment:
    """Freeze a run after `now` updates, beside its policy of `then`; responses rarer than `least` under both are left out."""
    env, pi, mu = found.run.env, found.policy(now), found.policy(then)
    law = testbed.enumerate_law(env, pi, mu, group=group)
    likely = torch.maximum(law.probs, law.batch.logp_target.sum(1).exp()) >= least
    level = float(law.expect(law.batch.reward))
    gradient = testbed.exact_gradient(env, pi, group=group)
    return Moment(env, pi, mu, law.batch.select(likely), law.probs[likely], gradient, level)
