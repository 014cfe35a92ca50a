"""C16: a truncated weight leaves a push that no reward asked for; centering the scores per prefix removes it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import sympy as sp
import torch

from testbed.estimators import gradient, score_centering
from testbed.estimators.gradient import gradient_terms
from testbed.estimators.score_centering import centered_terms
from testbed.exact.gradients import exact_gradient
from testbed.exact.moments import moments
from testbed.exact.next_token_laws import with_next_token_laws
from testbed.policies.schedule import PrefixSchedule, one
from testbed.policies.truncated import Truncated
from testbed.weighting.rules import weigh
from theory.derivation import Derivation, Step
from theory.mismatch_worlds import synthetic_mismatches
from theory.planting import planted
from theory.small_worlds import small_worlds
from theory.theorem import Claim, Mutant, Quantities, Theorem
from theory.worlds import World

RULES: dict[str, dict[str, Any]] = {
    "tis": {"cap": 1.2},
    "icepop": {"low": 0.5, "high": 2.0},
    "cis": {"lam": 0.4},
    "exact": {},
}
SHIFT = 2.0  # a constant added to every reward


@dataclass(frozen=True, kw_only=True)
class Centered:
    """A world and a rule on token ratios."""

    name: str
    world: World
    rule: str
    params: dict[str, Any]


def measure(instance: Centered) -> Quantities:
    """Mean of the terms with a constant advantage, and for one token the bias that centering leaves."""
    world, rule, params = instance.world, instance.rule, instance.params
    law, pi = world.law, world.target
    batch = with_next_token_laws(world.batch, pi, world.schedule)
    w = weigh(rule, batch, **params).value
    constant = torch.full((batch.batch_size,), SHIFT, dtype=torch.float64)
    drift = moments(law, gradient_terms(batch, w, pi, constant)).mean
    found: dict[str, Any] = {
        "centered_drift": moments(law, centered_terms(batch, rule, pi, constant, **params)).mean,
        "none": torch.zeros_like(drift),
    }  # fmt: skip
    if rule == "exact" and batch.horizon == 1:
        found |= {"exact_drift": drift}
    if batch.horizon > 1:
        return found
    a = batch.reward
    order = batch.tokens[:, 0].argsort()
    p = pi.table[0].exp()
    pushed = torch.zeros_like(p).index_copy(
        0, batch.tokens[order, 0], law.probs[order] * w[order, 0]
    )  # 0 if never drawn
    found |= {"any_drift": drift[0], "by_component": SHIFT * (pushed - p * pushed.sum())}
    mean = moments(law, centered_terms(batch, rule, pi, **params)).mean
    lost = weigh("exact", batch).value - w
    found |= {
        "mean": mean[0], "remaining": (mean - exact_gradient(world.env, pi))[0],
        "formula": -moments(law, gradient_terms(batch, lost, pi, a - law.expect(a))).mean[0],
        "shifted": moments(law, centered_terms(batch, rule, pi, a + SHIFT, **params)).mean[0],
    }  # fmt: skip
    if instance.name in ("strong_tis", "doubtful_sampler_tis", "doubtful_trainer_cis"):
        found |= {"drift": drift, "still": torch.zeros_like(drift)}
    return found


@lru_cache(maxsize=4)
def _derivation(size: int) -> Derivation:
    p, q, w, a = (sp.symbols(f"{x}1:{size + 1}", real=True) for x in "pqwa")

    def score(v: int) -> list[sp.Expr]:
        return [(1 if u == v else 0) - p[u] for u in range(size)]

    def mean(of: Any) -> list[sp.Expr]:
        return [sp.Add(*[q[v] * of(v) * score(v)[u] for v in range(size)]) for u in range(size)]

    average = sp.Add(*[q[v] * a[v] for v in range(size)])
    constant = sp.Symbol("A", real=True)
    weighted = mean(lambda v: w[v])[0]
    total = sp.Add(*[q[v] * w[v] for v in range(size)])
    chains = [
        [
            Step("drift", [constant * x for x in mean(lambda v: w[v])], "a constant advantage without centering, s_v = e_v - p",
                 quantity="any_drift", tex=r"A\,E_q[w s]"),
            Step("components", [constant * (q[u] * w[u] - p[u] * total) for u in range(size)], "collect each component: 0 in all "
                 "of them iff q w is proportional to p, that is w to k",
                 quantity="by_component", tex=r"A\,(q_u w_u - p_u\,E_q w)"),
        ],
        [
            Step("constant_advantage", constant * weighted - constant * weighted, "a constant advantage, any weight, any prefix: "
                 "the mean of w s against the center", tex=r"A\,E_q[w s] - A \sum_v q_v w_v s_v"),
            Step("no_drift", sp.Integer(0), "the center is that mean", quantity="centered_drift", tex="0"),
        ],
        [
            Step("centered", [x - average * y for x, y in zip(mean(lambda v: w[v] * a[v]), mean(lambda v: w[v]), strict=True)],
                 "mean of A (w s - sum q w s): the center is the same for every draw", quantity="mean",
                 tex=r"E_q[w s A] - E_q[A]\,E_q[w s]"),
            Step("about_mean", mean(lambda v: w[v] * (a[v] - average)), "so an advantage counts from its mean: a constant one "
                 "gives 0",
                 tex=r"E_q[w\,s\,(A - E_q A)]"),
        ],
        [
            Step("gradient", mean(lambda v: (p[v] / q[v]) * a[v]), "the exact ratio's mean: the gradient", tex=r"E_q[k s A]"),
            Step("about_mean", mean(lambda v: (p[v] / q[v]) * (a[v] - average)), "scores of the whole law average to 0 under "
                 "the trainer",
                 tex=r"E_q[k\,s\,(A - E_q A)]"),
        ],
        [
            Step("difference", [x - y for x, y in zip(mean(lambda v: w[v] * (a[v] - average)),
                                                      mean(lambda v: (p[v] / q[v]) * a[v]), strict=True)],
                 "centered mean minus gradient", quantity="remaining", tex=r"E_q[w s (A - E_q A)] - E_q[k s A]"),
            Step("remains", [-x for x in mean(lambda v: (p[v] / q[v] - w[v]) * (a[v] - average))], "what remains",
                 quantity="formula", tex=r"-E_q[(k - w)\,s\,(A - E_q A)]"),
        ],
    ]  # fmt: skip

    def point(rng: Any) -> dict[sp.Symbol, Any]:
        laws = []
        for _ in range(2):
            raw = [rng.randint(1, 20) for _ in p]
            laws.append([sp.Rational(n, sum(raw)) for n in raw])
        draw = lambda: sp.Rational(rng.randint(-9, 9), 4)  # noqa: E731
        numbers = {x: v for xs, vs in zip((p, q), laws, strict=True) for x, v in zip(xs, vs, strict=True)}
        return numbers | {x: draw() for x in (*w, *a, constant)}

    def bind(instance: Centered) -> dict[sp.Symbol, Any]:
        batch = instance.world.batch
        if batch.horizon > 1:
            return dict.fromkeys((*p, *q, *w, *a, constant), 1.0)
        order = batch.tokens[:, 0].argsort()
        weight = weigh(instance.rule, batch, **instance.params).value[order, 0].tolist()
        laws = [policy.table[0].exp().tolist() for policy in (instance.world.target, instance.world.behaviors[0])]
        values = [*laws, weight, batch.reward[order].tolist()]
        numbers = {x: v for xs, vs in zip((p, q, w, a), values, strict=True) for x, v in zip(xs, vs, strict=True)}
        return {**numbers, constant: SHIFT}

    return Derivation(chains, point, bind)


def instances() -> list[Centered]:
    """One token under four rules, and responses of two positions, stopping times and end tokens included."""
    worlds = [w for w in synthetic_mismatches() if w.name not in ("very_confident", "agreement")]
    more = [w for w in small_worlds() if w.name in ("two_segments", "end_token", "stopping_time", "three_tokens")]
    return [
        Centered(name=f"{world.name}_{rule}", world=world, rule=rule, params=params)
        for world in (*worlds, *more)
        for rule, params in RULES.items()
    ]


def head_only(right: Any) -> Any:
    """Bug: the sum runs over the likeliest tokens, and the tail is left out."""

    def wrong(batch: Any, q_times_w: Any, pi: Any, advantage: Any) -> Any:
        least = q_times_w.amin(-1, keepdim=True)
        return right(batch, torch.where(q_times_w > least, q_times_w, torch.zeros_like(q_times_w)), pi, advantage)

    return wrong


def uncentered(instance: Centered) -> Quantities:
    """Mutated reading: the weighted scores are taken to average to 0 as they are."""
    world, rule, params = instance.world, instance.rule, instance.params
    w = weigh(rule, world.batch, **params).value
    found = dict(measure(instance))
    constant = torch.full((world.batch.batch_size,), SHIFT, dtype=torch.float64)
    found["centered_drift"] = moments(world.law, gradient_terms(world.batch, w, world.target, constant)).mean
    return found


def exact_instead() -> list[Centered]:
    """Worlds in which a cap drifts, with the exact ratio."""
    return [
        replace(i, rule="exact", params={}) for i in instances() if i.name in ("strong_tis", "doubtful_sampler_tis")
    ]


def reward_for_advantage(right: Any) -> Any:
    """Bug: the advantage that is given is not used."""
    return lambda batch, w, pi, advantage=None: right(batch, w, pi)


def cut_off() -> list[Centered]:
    """The exact ratio against a sampler that draws the two likeliest tokens only."""
    world = next(w for w in synthetic_mismatches() if w.name == "mild")
    cut = replace(world, schedule=PrefixSchedule((Truncated(world.target, top_k=2),), one()))
    return [Centered(name="cut_off_exact", world=cut, rule="exact", params={})]


THEOREM = Theorem(
    id="C16",
    kind="counterexample",
    refutes="a truncated or masked weight only shrinks the update",
    title="it also pushes without any reward; centering the scores removes that push and leaves a bias in the advantage's spread",
    hypotheses=("tokens are drawn from q at every prefix, and q > 0 wherever p > 0; w depends on the token, its prefix and both "
    "laws there (tried: TIS, IcePop, the exact ratio, CIS in its odds reading)",
                "centering: over the whole vocabulary", "for what remains: one prefix, A a function of the token"),
    statement="tabular: E_q[w s] = q w - p E_q w, which is 0 iff w is k times a constant: else a reward-independent drift. "
    "E_q[A (w s - sum_v q_v w_v s_v)] = E_q[w s (A - E_q A)] per prefix: 0 for a constant advantage, unmoved by a constant added "
    "to A, and off the gradient by -E_q[(k-w) s (A - E_q A)]",
    source="literature: Score centering, arXiv 2609.20807; the remaining bias is ours",
    claims=(
        Claim("drifts", "differs", "drift", "still", "a constant advantage moves the parameters without centering", margin=0.02),
        Claim("drift_formula", "equal", "any_drift", "by_component", "its component of a token is A (q w - p E_q w)"),
        Claim("exact_does_not", "equal", "exact_drift", "none", "the exact ratio has no such drift"),
        Claim("centered", "equal", "centered_drift", "none", "centering removes it, for every rule and at every prefix"),
        Claim("invariant", "equal", "mean", "shifted", "a constant added to the reward then changes nothing"),
        Claim("remaining", "equal", "remaining", "formula", "what is left: -E_q[(k-w) s (A - E_q A)]"),
    ),
    instances=instances,
    measure=measure,
    derive=lambda instance: _derivation(instance.world.env.vocab_size),
    outcome="With a truncated weight subtract the weighted mean score, over the whole vocabulary; a baseline alone does not do "
    "it.",
    mutants=(
        Mutant(name="not_centered", kind="hypothesis", breaks=("centered",), measure=uncentered,
               on=("strong_tis", "doubtful_sampler_tis", "three_tokens_tis"), why="centering dropped; needs a weight that acts"),
        Mutant(name="lost_support", kind="hypothesis", breaks=("exact_does_not", "remaining"), instances=cut_off,
               why="a sampler that cuts tokens: the exact ratio's mean score is minus that of the tail (C15)"),
        Mutant(name="weight_proportional_to_k", kind="hypothesis", breaks=("drifts",), instances=exact_instead,
               why="the exact ratio: nothing drifts"),
        Mutant(name="advantage_forgotten", kind="bug", on=("strong_tis",),
               breaks=("drift_formula", "centered", "invariant", "remaining"),
               plant=lambda: planted(gradient, "gradient_terms", reward_for_advantage),
               why="the reward taken where an advantage is given"),
        Mutant(name="tail_left_out", kind="bug", breaks=("centered", "invariant", "remaining"),
               on=("strong_tis", "doubtful_sampler_tis"), plant=lambda: planted(score_centering, "center_terms", head_only),
               why="a sum over the likeliest tokens: the tail's scores do not average to 0"),
    ),
)  # fmt: skip
