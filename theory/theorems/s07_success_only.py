"""S7: replaying successes only: the direction over prompts changes, unless all successes share one buffer."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from random import Random
from typing import Any

import sympy as sp
import torch
from torch import Tensor

from testbed.core.batch import SegmentedBatch
from testbed.estimators import advantage
from testbed.exact import values
from testbed.exact.law import ExactLaw
from testbed.exact.selection import conditioned, pooled
from testbed.policies.schedule import cuts
from testbed.policies.tabular import TabularPolicy
from theory import bugs
from theory.derivation import Derivation, Step
from theory.planting import planted
from theory.prompts import Prompts, SymbolicPrompts, full_product_update
from theory.symbols import SymbolicWorld
from theory.theorem import Claim, Mutant, Quantities, Theorem
from theory.worlds import STREAM, world


def succeeded(law: ExactLaw) -> Tensor:
    """Which responses have reward 1."""
    return law.batch.reward == 1


def centered(batch: SegmentedBatch) -> list[float]:
    """All advantages of all groups, under both baselines, with and without division by the spread."""
    found = [
        advantage.group_advantage(batch, baseline, scale)
        for baseline in ("group_mean", "leave_one_out")
        for scale in ("none", "std")
    ]
    return torch.cat(found).tolist()


def measure(
    prompts: Prompts, repair: str = "behavior", balanced: bool = False, baseline: bool = False, failures: bool = False
) -> Quantities:
    """Expected updates of success-only data. The arguments are the mutants' ways to leave the hypotheses.

    `repair`: whose success rate the repairing weight is; `balanced`: the buffer holds each prompt's share, whatever it
    succeeds; `baseline`: each prompt's success rate is subtracted; `failures`: groups keep failures.
    """
    kept = [conditioned(law, succeeded(law)) for law in prompts.laws]
    stratified = pooled([law for law, _ in kept], prompts.shares)
    buffer, total = conditioned(whole := pooled(prompts.laws, prompts.shares), succeeded(whole))
    rate = torch.tensor([p for _, p in kept], dtype=torch.float64)
    goal = torch.stack([values.state_values(w.env, w.target)[0] for w in prompts.worlds])  # success rate of the target
    share = torch.tensor(prompts.shares, dtype=torch.float64)[:, None, None]
    gradient = prompts.gradient

    def update(law: ExactLaw, factor: Tensor | None = None) -> Tensor:
        centre = goal[law.batch.group] if baseline else 0.0
        return full_product_update(prompts, law, factor, law.batch.reward - centre)

    found: dict[str, Any] = {
        "per_prompt": update(stratified) / share,
        "prompt_gradient_over_rate": gradient / share / rate[:, None, None],
        "repaired": update(stratified, rate if repair == "behavior" else goal),
        "gradient": gradient,
        "pooled": update(stratified if balanced else buffer),
        "gradient_over_total": gradient / total,
        "advantage": centered((whole if failures else stratified).batch),
        "zero": 0.0,
    }
    if prompts.name.startswith("uneven"):
        direction = update(stratified)
        found |= {
            "stratified_direction": direction / direction.norm(),
            "gradient_direction": gradient / gradient.norm(),
        }
    return found


@lru_cache(maxsize=32)
def _derivation(shape: tuple[Any, ...]) -> Derivation:
    prompts = SymbolicPrompts(shape)
    stated, squared, plain, truth, rates = [], [], [], [], []

    for x, w in enumerate(prompts.worlds):

        def total(power: int, on_policy: bool, w: SymbolicWorld = w) -> list[sp.Expr]:
            """Sum over draws of probability x weight x R^power x score, in all parameters."""
            draws = (
                [(y, w.prob_pi(y)) for y in w.leaves]
                if on_policy
                else [(y, p * w.weight(y, b)) for b, y, p in w.draws()]
            )
            return [
                sp.Add(
                    *[
                        p * w.reward(y) ** power * sp.Add(*[w.score(y, t, h, a) for t in range(len(y))])
                        for y, p in draws
                    ]
                )
                for h, a in w.parameters
            ]

        rates += prompts.own(x, [sp.Add(*[p * w.reward(y) for _, y, p in w.draws()])])
        stated.append(prompts.own(x, total(2, on_policy=False)))
        squared.append(prompts.own(x, total(2, on_policy=True)))
        plain.append(prompts.own(x, total(1, on_policy=True)))
        truth.append(prompts.own(x, w.gradient()))

    shares = prompts.shares
    total_rate = sp.Add(*[d * q for d, q in zip(shares, rates, strict=True)])

    def blocks(update: list[list[sp.Expr]], factor: list[sp.Expr]) -> list[sp.Expr]:
        return [e * f for block, f in zip(update, factor, strict=True) for e in block]

    each = [1 / q for q in rates]
    even = [d / q for d, q in zip(shares, rates, strict=True)]
    pool = [d / total_rate for d in shares]
    ones = {sp.Symbol(f"S_{i}"): sp.Integer(1) for i in range(3)}  # rewards of a success-only group
    per_prompt = [
        Step(
            "definition",
            blocks(stated, each),
            "law given success: mu(y) R(y) / mu(R=1); then weight, reward, scores",
            quantity="per_prompt",
            tex=r"E_{\mu_x}[W R \sum_t s_t \mid R = 1] = \sum_y \tfrac{\mu(y) R(y)}{\mu_x(R=1)} W R \sum_t s_t",
        ),
        Step("ratios", blocks(squared, each), "mu W = pi", tex=r"\sum_y \pi(y) R(y)^2 \sum_t s_t / \mu_x(R=1)"),
        Step(
            "binary", blocks(plain, each), "R^2 = R for R in {0, 1}", tex=r"\sum_y \pi(y) R(y) \sum_t s_t / \mu_x(R=1)"
        ),
        Step(
            "log_derivative",
            blocks(truth, each),
            "G_x by differentiating J_x",
            quantity="prompt_gradient_over_rate",
            tex=r"G_x / \mu_x(R=1)",
        ),
    ]
    repaired = [
        Step(
            "stratified",
            blocks(stated, [e * q for e, q in zip(even, rates, strict=True)]),
            "prompt x has share d_x of the data whatever it succeeds; weight mu_x(R=1)",
            quantity="repaired",
            tex=r"\sum_x d_x \mu_x(R=1) E_{\mu_x}[W R \sum_t s_t \mid R = 1]",
        ),
        Step(
            "gradient",
            blocks(truth, shares),
            "the rate cancels prompt by prompt",
            quantity="gradient",
            tex=r"\sum_x d_x G_x",
        ),
    ]
    buffer = [
        Step(
            "pooled",
            blocks(stated, pool),
            "one buffer of all successes: prompt x has share d_x mu_x(R=1) / sum of these",
            quantity="pooled",
            tex=r"\sum_{x,y} \tfrac{d_x \mu_x(y) R(y)}{\sum_z d_z \mu_z(R=1)} W R \sum_t s_t",
        ),
        Step(
            "gradient",
            [e / total_rate for e in blocks(truth, shares)],
            "one rate for all prompts",
            quantity="gradient_over_total",
            tex=r"G / \sum_x d_x \mu_x(R=1)",
        ),
    ]
    group = [
        Step(
            "definition",
            next(iter(ones)) - sp.Add(*ones) / len(ones),
            "reward minus the group's mean; every reward is 1",
            tex=r"A_i = R_i - \tfrac1M \sum_j R_j, \quad R_j = 1",
        ),
        Step("zero", sp.Integer(0), "the mean of ones is one", quantity="advantage", tex="0"),
    ]

    def binary(w: SymbolicWorld, rng: Random) -> Mapping[Any, Any]:
        sure = rng.choice(w.leaves)
        return {w.reward(y): sp.Integer(1 if y == sure else rng.randint(0, 1)) for y in w.leaves}

    draw = prompts.point(binary)
    return Derivation([per_prompt, repaired, buffer, group], lambda rng: {**draw(rng), **ones}, prompts.bind)


def build(name: str, rewards: tuple[tuple[float, ...], ...], shares: tuple[float, ...] = (), **options: Any) -> Prompts:
    """Build prompts of two tokens in two segments, with these rewards."""
    worlds = [
        world(f"{name}_{x}", 2, 2, cuts((1,)), rewards=[float(v) for v in r], **options) for x, r in enumerate(rewards)
    ]
    return Prompts(name=name, worlds=tuple(worlds), shares=shares or (1 / len(worlds),) * len(worlds))


def instances() -> list[Prompts]:
    """Uneven prompts, among them groups of one and a prompt that always succeeds; equal rates, one prompt, on-policy."""
    mu = TabularPolicy.random(2, 2, STREAM["s07 on-policy"])
    same = tuple(TabularPolicy.random(2, 2, STREAM[f"s07 behavior {k}"]) for k in range(2))
    return [
        build("uneven_two", ((0, 1, 1, 0), (1, 0, 0, 0))),
        build("uneven_shares", ((1, 0, 1, 1), (0, 0, 1, 0), (1, 1, 1, 1)), (0.5, 0.3, 0.2)),
        build("uneven_on_policy", ((1, 0, 1, 1), (0, 0, 0, 1)), target=mu, policies=(mu, mu)),
        build("equal_rates", ((0, 1, 1, 0), (0, 1, 1, 0)), policies=same),
        build("one_prompt", ((0, 1, 1, 1),)),
    ]


def graded() -> list[Prompts]:
    """Failures that cost something: rewards in {-1, 0, 1}."""
    return [build("uneven_graded", ((-1, 1, 1, 0), (1, 0, -1, 0)))]


def mean_over_the_drawn(right: Any) -> Any:
    """Bug: the group's mean divides by the number that was drawn, one more than is left after filtering."""

    def wrong(batch: SegmentedBatch, baseline: str = "group_mean", scale: str = "none", **options: Any) -> Tensor:
        size = (batch.group[:, None] == batch.group).sum(1)
        return right(batch, "none", "none") - (size / (size + 1)).double()

    return wrong


UPDATES = ("per_prompt", "repaired", "pooled")
THEOREM = Theorem(
    id="S7",
    kind="identity",
    title="success-only replay: stratified by prompt the direction changes, from one buffer of all successes only the scale",
    hypotheses=(
        "R in {0, 1}; only responses with R = 1 are replayed, each prompt has some",
        "full product of recorded ratios, behaviors that support the target, no baseline",
        "stratified: prompt x contributes its share d_x (1/X each, say); pooled: all successes count alike, prompts drawn by d_x",
    ),
    statement="E[W R sum_t s_t | x, R=1] = G_x/mu_x(R=1); stratified sum_x d_x G_x/mu_x(R=1), weights mu_x(R=1) turn it into G; "
    "pooled G / sum_x d_x mu_x(R=1); the centered advantage of a success-only group is 0",
    source="ours",
    claims=(
        Claim(
            "per_prompt",
            "equal",
            "per_prompt",
            "prompt_gradient_over_rate",
            "per prompt: its gradient over its success rate",
        ),
        Claim(
            "direction",
            "differs",
            "stratified_direction",
            "gradient_direction",
            "stratified: another direction",
            margin=1e-2,
        ),
        Claim("repaired", "equal", "repaired", "gradient", "stratified with weight mu_x(R=1): grad J"),
        Claim("pooled", "equal", "pooled", "gradient_over_total", "pooled: grad J up to one factor"),
        Claim(
            "centered",
            "equal",
            "advantage",
            "zero",
            "centered advantages of successes are 0, whatever the group's size",
        ),
    ),
    instances=instances,
    measure=measure,
    derive=lambda p: _derivation(p.shape),
    outcome="Pool all successes, or weigh each prompt by the sampler's success rate; centring within the group leaves nothing.",
    mutants=(
        Mutant(
            name="graded_rewards",
            kind="hypothesis",
            breaks=UPDATES,
            instances=graded,
            why="what is left out had rewards below 0, and their part of the gradient is lost",
        ),
        Mutant(
            name="baseline_per_prompt",
            kind="hypothesis",
            breaks=UPDATES,
            on=("uneven_two", "uneven_shares"),
            measure=lambda p: measure(p, baseline=True),
            why="successes keep 1 - b_x of their update, and the failures that would balance it are gone; needs b_x != 0",
        ),
        Mutant(
            name="weighted_by_target_rate",
            kind="hypothesis",
            breaks=("repaired",),
            on=("uneven_two",),
            measure=lambda p: measure(p, repair="target"),
            why="pi_x(R=1) is not the rate at which the buffer was filled",
        ),
        Mutant(
            name="buffer_balanced_by_prompt",
            kind="hypothesis",
            breaks=("pooled",),
            on=("uneven_two", "uneven_on_policy"),
            measure=lambda p: measure(p, balanced=True),
            why="a buffer that holds each prompt's share is the stratified one",
        ),
        Mutant(
            name="failures_in_the_group",
            kind="hypothesis",
            breaks=("centered",),
            on=("uneven_two", "equal_rates"),
            measure=lambda p: measure(p, failures=True),
            why="one failure gives the successes of its group an advantage",
        ),
        Mutant(
            name="last_segment_only",
            kind="bug",
            breaks=UPDATES,
            on=("uneven_two", "uneven_shares"),
            plant=bugs.last_segment_only,
            why="the first segment goes uncorrected; needs mu != pi there",
        ),
        Mutant(
            name="mean_over_the_drawn",
            kind="bug",
            breaks=("centered",),
            on=("uneven_two",),
            plant=lambda: planted(advantage, "group_advantage", mean_over_the_drawn),
            why="filtered responses still count in the denominator of the group's mean",
        ),
    ),
)
