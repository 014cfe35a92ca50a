"""C15: against an unfiltered trainer, nucleus sampling scales every kept ratio by one number and loses the rest for good."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import sympy as sp
import torch

from testbed.environments.prefix_tree import PrefixTree
from testbed.estimators.gradient import gradient_terms
from testbed.policies import truncated
from testbed.policies.schedule import PrefixSchedule, one
from testbed.policies.tabular import TabularPolicy
from testbed.policies.truncated import Truncated
from testbed.weighting import granularity
from testbed.weighting.rules import weigh
from theory.derivation import Derivation, Step
from theory.planting import planted
from theory.theorem import Claim, Mutant, Quantities, Theorem
from theory.worlds import STREAM, World

KEPT, TAIL = 3, 2  # tokens in the derivation


def filtered(name: str, vocab_size: int, horizon: int, temperature: float = 1.0, **cut: Any) -> World:
    """Build a world whose sampler is the target seen through a filter; the reward is 1 on the token the target likes least."""
    target = TabularPolicy.random(vocab_size, horizon, STREAM[name]["target"], 1.5)
    worst = int(target.table[0].argmin())
    rewards = torch.zeros((vocab_size,) * horizon, dtype=torch.float64)
    rewards[worst] = 1.0
    env = PrefixTree(vocab_size, horizon, rewards.reshape(-1))
    return World(
        name=name, env=env, target=target, schedule=PrefixSchedule((Truncated(target, temperature, **cut),), one())
    )


def kept_tokens(instance: World) -> torch.Tensor:
    """Which tokens the filter keeps after the empty prefix."""
    return ~torch.isneginf(instance.behaviors[0].next_log_probs(torch.zeros(1, 0, dtype=torch.int64))[0])


def measure(instance: World) -> Quantities:
    """Ratios of kept tokens, what any weight estimates, and the mean score."""
    law, batch = instance.law, instance.law.batch
    sampler = instance.behaviors[0]
    ratio = weigh("exact", batch).value
    mass = torch.stack([sampler.surviving_mass(batch.tokens[:, :t]) for t in range(batch.horizon)], 1)
    first = instance.target.table[0].exp()
    keep = kept_tokens(instance)
    truth = instance.target_law.expect(instance.target_law.batch.reward)
    wild = torch.linspace(0.5, 7.0, batch.batch_size, dtype=torch.float64)
    found: dict[str, Any] = {
        "ratio": ratio, "mass": mass, "first_mass": mass[0, 0], "kept_mass": first[keep].sum(),
    }  # fmt: skip
    if batch.horizon == 1:
        ones = torch.ones(batch.batch_size, dtype=torch.float64)
        drift = law.expect(gradient_terms(batch, ratio, instance.target, ones))[0]
        scores = torch.eye(len(first), dtype=torch.float64) - first
        if not bool(keep.all()):
            found |= {"cut_drift": drift, "no_drift": torch.zeros_like(drift)}
        found |= {"drift": drift, "minus_tail": -(first[~keep, None] * scores[~keep]).sum(0)}
    if not bool(keep.all()):
        found |= {
            "any_weight": law.expect(wild * batch.reward),
            "nothing": 0.0,
            "corrected": law.expect(ratio.prod(1) * batch.reward),
        }
        found |= {"truth": truth}
    else:
        found |= {"uncut": ratio, "ones": torch.ones_like(ratio)}
    return found


@lru_cache(maxsize=8)
def _derivation(kept: int, tail: int) -> Derivation:
    p = sp.symbols(f"p1:{kept + tail + 1}", positive=True)
    mass = sp.Symbol("S", positive=True)
    total = sp.Add(*p[:kept])
    size = kept + tail

    def score(v: int) -> list[sp.Expr]:
        return [(1 if u == v else 0) - p[u] for u in range(size)]

    drift = [sp.Add(*[(p[v] / mass) * mass * score(v)[u] for v in range(kept)]) for u in range(size)]
    chains = [
        [
            Step("ratio", [p[v] / (p[v] / total) for v in range(kept)], "kept tokens share the trainer's logits: q = p/S",
                 tex=r"p_v \big/ (p_v/S)"),
            Step("mass", [total] * kept, "p cancels: one number for all kept tokens", tex=r"S = \sum_{\mathrm{kept}} p_v"),
        ],
        [
            Step("one_number", total, "the kept tokens' mass", quantity="first_mass", tex=r"S = \sum_{\mathrm{kept}} p_v"),
            Step("rest", 1 - sp.Add(*p[kept:]), "what the tail leaves", quantity="kept_mass",
                 tex=r"1 - \sum_{\mathrm{tail}} p_v"),
        ],
        [
            Step("kept_scores", drift, "mean of S times the score under q = p/S", tex=r"\sum_{\mathrm{kept}} "
                 r"\frac{p_v}{S}\,S\,s_v"),
            Step("plain", [sp.Add(*[p[v] * score(v)[u] for v in range(kept)]) for u in range(size)], "S cancels",
                 quantity="drift", tex=r"\sum_{\mathrm{kept}} p_v s_v"),
            Step("tail", [-sp.Add(*[p[v] * score(v)[u] for v in range(kept, size)]) for u in range(size)],
                 "the scores of a whole law average to 0", quantity="minus_tail", tex=r"-\sum_{\mathrm{tail}} p_v s_v"),
        ],
    ]  # fmt: skip

    def point(rng: Any) -> dict[sp.Symbol, Any]:
        raw = [rng.randint(1, 20) for _ in p]
        return {
            **{x: sp.Rational(n, sum(raw)) for x, n in zip(p, raw, strict=True)},
            mass: sp.Rational(rng.randint(1, 9), 10),
        }

    def bind(instance: World) -> dict[sp.Symbol, Any]:
        first, keep = instance.target.table[0].exp(), kept_tokens(instance)
        return {
            **dict(zip(p, [*first[keep].tolist(), *first[~keep].tolist()], strict=True)),
            mass: float(first[keep].sum()),
        }

    return Derivation(chains, point, bind)


def sorted_quantities(instance: World) -> Quantities:
    """The same with parameters in the derivation's order: kept tokens first."""
    found = dict(measure(instance))
    keep = kept_tokens(instance)
    for name in ("drift", "minus_tail", "cut_drift"):
        if name in found:
            found[name] = torch.cat([found[name][keep], found[name][~keep]])
    return found


def derive(instance: World) -> Derivation:
    """By how many tokens are kept and cut."""
    keep = int(kept_tokens(instance).sum())
    return _derivation(keep, instance.env.vocab_size - keep)


def instances() -> list[World]:
    """Nucleus, top-k, both, two positions, and a filter that cuts nothing."""
    return [
        filtered("nucleus", 5, 1, top_p=0.8),
        filtered("top_two", 4, 1, top_k=2),
        filtered("greedy", 3, 1, top_k=1),
        filtered("both", 6, 1, top_k=4, top_p=0.7),
        filtered("two_positions", 4, 2, top_p=0.8),
        filtered("uncut", 4, 1, top_p=1.0),
    ]


def other_temperature() -> list[World]:
    """A sampler whose logits are divided by a temperature that the trainer does not use, filtered and not."""
    return [filtered("nucleus", 5, 1, temperature=0.7, top_p=0.9), filtered("uncut", 4, 1, temperature=0.7, top_p=1.0)]


def rewards_on_kept_tokens() -> list[World]:
    """The reward is on the likeliest token, which no filter cuts."""
    world = filtered("nucleus", 5, 1, top_p=0.8)
    rewards = torch.zeros(5, dtype=torch.float64)
    rewards[int(world.target.table[0].argmax())] = 1.0
    return [replace(world, env=PrefixTree(5, 1, rewards))]


def at_other_temperature(instance: World) -> Quantities:
    """The claims about kept ratios, which are those that shared logits make."""
    found = sorted_quantities(instance)
    return {
        name: value
        for name, value in found.items()
        if name in ("ratio", "mass", "drift", "minus_tail", "uncut", "ones")
    }


def mass_of_the_cut(right: Any) -> Any:
    """Bug: the mass that was cut for the mass that survives."""
    return lambda self, prefix: 1 - right(self, prefix)


def inverted(right: Any) -> Any:
    """Bug: behavior over target."""
    return lambda batch, granularity="token", **kw: -right(batch, granularity, **kw)


THEOREM = Theorem(
    id="C15",
    kind="identity",
    title="top-p and top-k: every kept ratio is the surviving mass, and no weight brings back what was cut",
    hypotheses=("sampler = trainer's law at the same temperature, cut to some tokens and renormalized; the trainer scores the "
    "whole law",),
    statement="k = S on every kept token, S the kept tokens' mass under the trainer: at one prefix the exact ratio only scales "
    "the step. A function of the cut tokens has weighted mean 0 under every weight; the mean score E_q[S s] = -sum over the tail "
    "of p s is not 0: a drift without any reward",
    source="ours; seen in the field as ratios below 1 that do not vary",
    claims=(
        Claim("ratio", "equal", "ratio", "mass", "every kept token's ratio is the surviving mass of its prefix"),
        Claim("mass", "equal", "first_mass", "kept_mass", "which is the kept tokens' mass under the trainer"),
        Claim("any_weight", "equal", "any_weight", "nothing", "whatever the weight, a reward on cut tokens is never seen"),
        Claim("no_repair", "differs", "corrected", "truth", "so that correcting does not give its mean", margin=1e-3),
        Claim("drift", "equal", "drift", "minus_tail", "mean score -sum over the tail of p s"),
        Claim("drifts", "differs", "cut_drift", "no_drift", "which is not 0 where something is cut", margin=0.02),
        Claim("uncut", "equal", "uncut", "ones", "a filter that cuts nothing changes nothing"),
    ),
    instances=instances,
    measure=sorted_quantities,
    derive=derive,
    outcome="Record the sampler's filtered log-probs and score the trainer under the same filter, or do not filter: a constant "
    "ratio below 1 is the mark of the mistake.",
    mutants=(
        Mutant(name="another_temperature", kind="hypothesis", breaks=("ratio", "uncut"), instances=other_temperature,
               measure=at_other_temperature, why="one temperature dropped: ratios vary over the kept tokens"),
        Mutant(name="rewards_on_kept_tokens", kind="hypothesis", breaks=("any_weight", "no_repair"),
               instances=rewards_on_kept_tokens,
               why="a reward on a token that is drawn: weights count, and the exact one gives its mean"),
        Mutant(name="mass_of_the_cut", kind="bug", breaks=("ratio", "mass"), on=("nucleus", "top_two", "both"),
               plant=lambda: planted(truncated.Truncated, "surviving_mass", mass_of_the_cut),
               why="1 - S for S"),
        Mutant(name="ratio_inverted", kind="bug", breaks=("ratio", "drift"), on=("nucleus", "top_two", "both"),
               plant=lambda: planted(granularity, "log_ratios", inverted), why="1/S for S"),
    ),
)  # fmt: skip
