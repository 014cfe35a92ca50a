"""V6: the N largest path weights are the best draft tree, and how large N should be is read off the times of passes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import combinations
from typing import Any

import sympy as sp
import torch
from torch import Tensor

from testbed.rollout.speculative import tree as trees
from testbed.rollout.speculative.budget import MarginalBudget
from testbed.rollout.speculative.tree import DraftTree, RankPaths
from theory.derivation import Derivation, Step
from theory.planting import planted
from theory.theorem import Claim, Mutant, Quantities, Theorem
from theory.worlds import STREAM

FAN_OUT = (2, 2)
PAIRS = 15  # sets of two among the six candidates
A, B, C, GAIN, W, TIME, MORE = sp.symbols("a b c F w T D", positive=True)
CONVEX = (1.0, 1.05, 1.2, 1.45, 1.8, 2.25, 2.8)
STAIRCASE = (1.0, 1.7, 1.7, 1.7, 1.7, 3.0, 3.0)


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """Two rows of candidates with product weights, and the times of passes over 1, 2, ... tokens."""

    name: str
    scale: float
    seconds: tuple[float, ...] = CONVEX

    @cached_property
    def laws(self) -> Tensor:
        """Log-laws of the depths, [2, 2, 3]."""
        noise = torch.randn(2, 2, 3, generator=STREAM["candidates"][self.name].torch_generator(), dtype=torch.float64)
        return (self.scale * noise).log_softmax(-1)

    @property
    def whole(self) -> DraftTree:
        """All six candidates of each row."""
        return RankPaths.product(FAN_OUT).drafted(self.laws)


def best_sum(weights: list[float], count: int) -> float:
    """Largest sum over all sets of `count` nodes, trees or not."""
    return max(sum(some) for some in combinations(weights, count))


def total(tree: DraftTree) -> Tensor:
    """Sum of the weights of a row's nodes."""
    return torch.where(tree.tokens >= 0, tree.log_weight.exp(), 0.0).sum(1)


def measure(case: Candidates) -> Quantities:
    """Greedy sums against all sets, for each row and pooled; the scan of the times against all N."""
    whole = case.whole
    weights = whole.log_weight.exp()
    counts = range(whole.nodes + 1)
    chosen = [trees.largest(whole, n) for n in counts]
    pooled = [trees.largest_of_all(whole, n) for n in counts]
    gains = weights[0].sort(descending=True).values.cumsum(0).tolist()
    picked = MarginalBudget(seconds={1: case.seconds}).nodes(1, gains)
    below = [0.0, *gains]
    rates = [(1 + f) / t for f, t in zip(below, case.seconds, strict=True)]
    pays = [w > (case.seconds[n + 1] - case.seconds[n]) * rates[n] for n, w in enumerate(chosen_weights(gains))]
    found = {
        "greedy": torch.stack([total(tree) for tree in chosen]),
        "best": [[best_sum(row, n) for row in weights.tolist()] for n in counts],
        "pooled": torch.stack([total(tree).sum() for tree in pooled]),
        "pooled_best": [best_sum(weights.flatten().tolist(), n) for n in counts],
        "closed": [float(tree.problem() == "") for tree in (*chosen, *pooled)],
        "always": 1.0,
        "rate": rates[picked],
        "best_rate": max(rates),
        "two_best": total(trees.largest(whole, 2))[0].expand(PAIRS),
        "first_gain": rates[1] - rates[0],
    }
    if case.seconds == CONVEX:
        found |= {"picked": float(picked), "marginal": float(pays.index(False) if False in pays else len(pays))}
    return found


def chosen_weights(gains: list[float]) -> list[float]:
    """The weights, largest first."""
    return [b - a for a, b in zip([0.0, *gains], gains, strict=False)]


@lru_cache(maxsize=1)
def _derivation() -> Derivation:
    largest = lambda x, y: (x + y + sp.Abs(x - y)) / 2  # noqa: E731
    least = lambda x, y: (x + y - sp.Abs(x - y)) / 2  # noqa: E731
    low = sp.Symbol("e", positive=True)
    nodes = [A, B, A * C, A * low, B * C, B * low]
    sums = [x + y for x, y in combinations(nodes, 2)]
    sets = [
        Step("any_two", sums, "all sets of two among candidates a >= b of depth 1 and their children, c >= e of depth 2",
             tex=r"w(u) + w(v)"),
        Step("exchange", [largest(x, y) + least(x, y) for x, y in combinations(nodes, 2)], "the larger and the smaller one",
             tex=r"\max + \min"),
        Step("greedy", [A + largest(B, A * C)] * len(sums),
             "the larger is at most a, the largest weight of all; the smaller at most the second largest, which is b or the "
             "best child of a: children weigh no more than their parents",
             relation="<=", quantity="two_best", tex=r"\le a + \max(b, ac)"),
    ]  # fmt: skip
    marginal = [
        Step("rates", (1 + GAIN + W) / (TIME + MORE) - (1 + GAIN) / TIME, "one node more: w more tokens, D more seconds",
             tex=r"\frac{1+F+w}{T+D} - \frac{1+F}{T}"),
        Step("pays", (W - MORE * (1 + GAIN) / TIME) / (TIME + MORE),
             "it pays iff w > D (1 + F)/T; w falls and, with convex times, D (1 + F)/T rises once the rate has: one optimum",
             quantity="first_gain", tex=r"\frac{w - D\,(1+F)/T}{T+D}"),
    ]  # fmt: skip

    def point(rng: Any) -> dict[sp.Symbol, Any]:
        draw = lambda: sp.Rational(rng.randint(1, 9), 10)  # noqa: E731
        a, c = draw(), draw()
        return {A: a, B: a * draw(), C: c, low: c * draw(), GAIN: draw(), W: draw(), TIME: 1 + draw(), MORE: draw()}

    def bind(case: Candidates) -> dict[sp.Symbol, float]:
        first, second = (row.exp().sort(descending=True).values.tolist() for row in case.laws[0])
        weight = case.whole.log_weight[0].exp().max().item()
        time, more = case.seconds[0], case.seconds[1] - case.seconds[0]
        return {A: first[0], B: first[1], C: second[0], low: second[1], GAIN: 0.0, W: weight, TIME: time, MORE: more}

    return Derivation([sets, marginal], point, bind)


def instances() -> list[Candidates]:
    """Sharp, flat and saturated laws, the last with ties between parent and child; convex times and a staircase."""
    return [
        Candidates(name="sharp", scale=2.0),
        Candidates(name="flat", scale=0.5),
        Candidates(name="saturated", scale=2000.0),
        Candidates(name="staircase", scale=0.3, seconds=STAIRCASE),
    ]


def with_penalty(right: Any) -> Any:
    """Scores that fall with the rank among siblings: a child may score higher than its parent."""

    def wrong(tree: DraftTree) -> Tensor:
        score = tree.log_weight.clone()
        score[:, 0] -= 3.0
        return torch.sort(score, dim=1, descending=True, stable=True).indices

    return wrong


def deepest_first(right: Any) -> Any:
    """Bug: ties go to the later place."""

    def wrong(tree: DraftTree) -> Tensor:
        order = torch.sort(tree.log_weight.flip(1), dim=1, descending=True, stable=True).indices
        return tree.nodes - 1 - order

    return wrong


def one_step(right: Any) -> Any:
    """Bug: the scan stops at the first node that does not pay."""

    def wrong(self: MarginalBudget, active: int, gains: Any) -> int:
        times = self.times(active)
        rates = [(1 + f) / t for f, t in zip([0.0, *gains], times, strict=False)]
        return next((n for n in range(len(rates) - 1) if rates[n + 1] <= rates[n]), len(rates) - 1)

    return wrong


THEOREM = Theorem(
    id="V6",
    kind="optimum",
    title="the N largest path weights, ties toward the root, and the N that pays",
    hypotheses=(
        "weights >= 0 that do not grow along a path: products of probabilities",
        "ties go to the earlier place, parents before children",
        "for the marginal rule: pass times convex in N; otherwise all N are compared, 0 included",
    ),
    statement="the N largest weights form a tree and maximize sum w over all sets of N nodes, for a row and pooled over rows; "
    "(1 + F(N))/T(N) has its optimum at the first N with w_(N+1) <= [T(N+1) - T(N)] (1 + F(N))/T(N) if T is convex",
    source="ours",
    claims=(
        Claim("optimal", "equal", "greedy", "best", "no set of N nodes of a row weighs more"),
        Claim("pooled", "equal", "pooled", "pooled_best", "nor any set of N nodes of all rows together"),
        Claim("closed", "equal", "closed", "always", "what is chosen is a tree, ties included", tolerance=0.0),
        Claim("scan", "equal", "rate", "best_rate", "the scan finds the best rate, staircase or not"),
        Claim("rule", "equal", "picked", "marginal", "with convex times it stops where one more does not pay", tolerance=0.0),
    ),
    instances=instances,
    measure=measure,
    derive=lambda case: _derivation(),
    outcome="Draft the N largest products, break ties toward the root, and look N up in measured times, 0 included.",
    mutants=(
        Mutant(name="diversity_penalty", kind="hypothesis", breaks=("optimal", "closed"), on=("sharp",),
               plant=lambda: planted(trees, "order_of_weights", with_penalty),
               why="scores that grow from parent to child choose children without their parents"),
        Mutant(name="ties_toward_depth", kind="bug", breaks=("closed",), on=("saturated",),
               plant=lambda: planted(trees, "order_of_weights", deepest_first),
               why="a child whose weight equals its parent's is kept without it"),
        Mutant(name="stops_at_the_first_step", kind="bug", breaks=("scan",), on=("staircase",),
               plant=lambda: planted(MarginalBudget, "nodes", one_step),
               why="the marginal rule on times that are not convex: it never climbs the first stair"),
    ),
)  # fmt: skip
