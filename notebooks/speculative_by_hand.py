"""What the notebook on speculative rollouts prints, found again with lists and loops; nothing here calls the engine."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, product
from math import prod
from typing import Any

Path = tuple[int, ...]
Law = Callable[[Path], Sequence[float]]  # next-token law after a prefix


# ------------------------------------------------------------------------------------------------ trees
def ranked_paths(laws: Sequence[Sequence[float]], fan_out: Sequence[int], nodes: int) -> list[Path]:
    """Candidates of largest weight: the `fan_out[k]` likeliest tokens of each law, weights multiplied along a path."""
    found: list[tuple[float, Path]] = []
    level: list[tuple[float, Path]] = [(1.0, ())]
    for law, width in zip(laws, fan_out, strict=True):
        best = sorted(range(len(law)), key=lambda x: -law[x])[:width]
        level = [(w * law[x], (*h, x)) for w, h in level for x in best]
        found += level
    return [h for _, h in sorted(found, key=lambda item: -item[0])[:nodes]]


def looked_up(past: Path, match: int, longest: int) -> list[Path]:
    """What followed the latest earlier occurrence of the last `match` tokens, or of fewer."""
    for length in range(min(match, len(past) - 1), 0, -1):
        for start in range(len(past) - 1, length - 1, -1):
            if past[start - length : start] == past[-length:]:
                chain = past[start : start + longest]
                return [chain[: k + 1] for k in range(len(chain))]
    return []


def accepted_by_listing(law: Law, past: Path, tree: Iterable[Path], depth: int) -> float:
    """Expected accepted candidates: every continuation, its probability, and how far down the tree it stays."""
    nodes, total = set(tree), 0.0
    for y in product(range(len(law(past))), repeat=depth):
        chance = prod(law((*past, *y[:k]))[y[k]] for k in range(depth))
        total += chance * next((k for k in range(depth) if y[: k + 1] not in nodes), depth)
    return total


def passes(response: Path, propose: Callable[[int], Iterable[Path]]) -> int:
    """Passes after the one over the prompt, until the response is written; `propose(t)` gives the candidates at position t."""
    place, count = 1, 0
    while place < len(response):
        tree = set(propose(place))
        accepted = 0
        while place + accepted < len(response) and response[place : place + accepted + 1] in tree:
            accepted += 1
        place, count = place + accepted + 1, count + 1
    return count


def proposals(response: Path, laws: Sequence[Sequence[Sequence[float]]] | None, fan_out: Sequence[int], nodes: int,
              start: int) -> Callable[[int], list[Path]]:  # fmt: skip
    """Candidates at each position: of heads with these laws [position][head], or of prompt lookup (None)."""
    if laws is None:
        return lambda t: looked_up((start, *response[:t]), 2, 3)
    return lambda t: ranked_paths(laws[t - 1], fan_out, nodes)


def gains(law: Law, past: Path, paths: Sequence[Path]) -> list[float]:
    """Expected accepted drafts of the first 1, 2, ... of these paths."""
    return list(accumulate(prod(law(past + h[:k])[h[k]] for k in range(len(h))) for h in paths))


# ------------------------------------------------------------------------------------------------ groups of two
def responses_of(law: Law, horizon: int) -> dict[Path, float]:
    """Probability of every response of `horizon` tokens."""
    tokens = range(len(law(())))
    return {y: prod(law(y[:t])[y[t]] for t in range(horizon)) for y in product(tokens, repeat=horizon)}


def independent(law: Law, horizon: int) -> dict[tuple[Path, Path], float]:
    """Two responses, each drawn by itself."""
    one = responses_of(law, horizon)
    return {(y, z): p * q for y, p in one.items() for z, q in one.items()}


def one_first_token(law: Law, horizon: int) -> dict[tuple[Path, Path], float]:
    """Two responses that share the draw of the first token."""
    pairs = independent(law, horizon).items()
    return {(y, z): p / law(())[y[0]] for (y, z), p in pairs if y[0] == z[0]}


def stopped_together(law: Law, horizon: int) -> dict[tuple[Path, Path], float]:
    """Two responses, one draft per round, both cut after the round in which one is done."""
    found: dict[tuple[Path, Path], float] = defaultdict(float)
    for (y, z), p in independent(law, horizon).items():
        ends = [tuple(tokens_after(law, x, k) for x in (y, z)) for k in range(1, horizon + 1)]
        a, b = next(pair for pair in ends if horizon in pair)
        found[y[:a], z[:b]] += p
    return dict(found)


def tokens_after(law: Law, y: Path, passes: int) -> int:
    """Tokens of a response after so many passes, if the likeliest next token is the one candidate of every round."""
    place = 1
    for _ in range(passes - 1):
        hit = place < len(y) and law(y[:place])[y[place]] == max(law(y[:place]))
        place = min(place + 1 + hit, len(y))
    return place


def distance(a: Mapping[Any, float], b: Mapping[Any, float]) -> float:
    """Total variation."""
    return sum(abs(a.get(x, 0.0) - b.get(x, 0.0)) for x in {*a, *b}) / 2


def of_one(pairs: Mapping[tuple[Path, Path], float]) -> dict[Path, float]:
    """Law of the first of two."""
    found: dict[Path, float] = defaultdict(float)
    for (y, _), p in pairs.items():
        found[y] += p
    return dict(found)


def update_lengths(law: Law, pairs: Mapping[tuple[Path, Path], float], horizon: int) -> tuple[float, float]:
    """Length of the mean update by the first token, and by the later ones; the reward of a response is its number in binary."""
    parts: list[dict[tuple[Path, int], float]] = [defaultdict(float), defaultdict(float)]
    for pair, p in pairs.items():
        rewards = [float(sum(x << (horizon - 1 - t) for t, x in enumerate(y))) for y in pair]
        for y, reward in zip(pair, rewards, strict=True):
            for t, x in enumerate(y):
                for b, chance in enumerate(law(y[:t])):
                    parts[t > 0][y[:t], b] += p * (reward - sum(rewards) / 2) / 2 * ((x == b) - chance)
    first, later = (sum(v * v for v in part.values()) ** 0.5 for part in parts)
    return first, later


def cooled_errors(law: Law, horizon: int, temperature: float) -> tuple[float, float]:
    """Error of the mean update R sum_t s_t over responses drawn at a temperature, over the gradient: bare, and weighted."""

    def cooled(prefix: Path) -> list[float]:
        powers = [x ** (1 / temperature) for x in law(prefix)]
        return [x / sum(powers) for x in powers]

    target, sampler = responses_of(law, horizon), responses_of(cooled, horizon)
    sums: dict[str, dict[tuple[Path, int], float]] = {
        name: defaultdict(float) for name in ("gradient", "bare", "weighted")
    }
    for y, p in target.items():
        reward, q = float(sum(x << (horizon - 1 - t) for t, x in enumerate(y))), sampler[y]
        for t, x in enumerate(y):
            for b, chance in enumerate(law(y[:t])):
                score = reward * ((x == b) - chance)
                for name, factor in (("gradient", p), ("bare", q), ("weighted", q * (p / q))):
                    sums[name][y[:t], b] += factor * score
    gradient = sums["gradient"]
    size = sum(v * v for v in gradient.values()) ** 0.5
    bare, weighted = (
        sum((sums[n][k] - v) ** 2 for k, v in gradient.items()) ** 0.5 / size for n in ("bare", "weighted")
    )
    return bare, weighted


def kept(law: Law, horizon: int, passes: int) -> tuple[float, float]:
    """Distance from the target of the first of two responses to be done, and of those that are done after so many passes."""
    one = responses_of(law, horizon)
    taken = {y: next(k for k in range(1, horizon + 1) if tokens_after(law, y, k) == horizon) for y in one}
    first: dict[Path, float] = defaultdict(float)
    for (y, z), p in independent(law, horizon).items():
        share = 0.5 if taken[y] == taken[z] else float(taken[y] < taken[z])
        first[y] += p * share
        first[z] += p * (1 - share)
    done = sum(p for y, p in one.items() if taken[y] <= passes)
    in_time = {y: p / done for y, p in one.items() if taken[y] <= passes}
    return distance(first, one), distance(in_time, one)


# ------------------------------------------------------------------------------------------------ rules and budgets
def reuse_distance(p: Sequence[float], q: Sequence[float]) -> float:
    """Distance of one token's law from p, if a rejected token is replaced by a draw from p."""
    alpha = sum(map(min, p, q))
    return sum(abs(min(a, b) - alpha * a) for a, b in zip(p, q, strict=True)) / 2


def roofline_speed(active: int, count: int, gains: Sequence[float], peak: int) -> float:
    """Tokens per second with so many candidates over those without, if passes up to the peak cost the same."""
    return (1 + (gains[count - 1] if count else 0)) * max(1, active / peak) / max(1, active * (count + 1) / peak)


def roofline_counts(active: int, gains: Sequence[float], peak: int) -> dict[str, int]:
    """Candidates per response: all, the peak shared evenly, the best of all numbers."""
    speeds = [roofline_speed(active, n, gains, peak) for n in range(len(gains) + 1)]
    shared = min(max(peak // active - 1, 0), len(gains))
    return {"fixed": len(gains), "by concurrency": shared, "best": speeds.index(max(speeds))}
