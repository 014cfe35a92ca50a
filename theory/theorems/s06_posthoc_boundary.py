"""S6: a boundary chosen after the draft is finished biases even the full product of recorded ratios."""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import sympy as sp
import torch
from torch import Tensor

from testbed.core.prefix_order import node_index
from testbed.environments.prefix_tree import PrefixTree
from testbed.estimators.gradient import gradient_terms
from testbed.exact import values
from testbed.exact.gradients import exact_gradient
from testbed.exact.law import ExactLaw
from testbed.exact.moments import moments
from testbed.policies.schedule import after_token, cuts, one
from testbed.policies.tabular import TabularPolicy
from testbed.weighting.granularity import log_ratios
from testbed.weighting.rules import weigh
from theory import bugs
from theory.derivation import Derivation, Step
from theory.planting import planted
from theory.regeneration import Decision, another_draft_failed, finished_draft_failed, kept_length, regenerated_law
from theory.symbols import Prefix, symbolic_world
from theory.theorem import Claim, Mutant, Quantities, Theorem
from theory.worlds import STREAM, World, world


def selection_bias(w: World) -> Tensor:
    """E_pi[(q(h) - 1{y fails}) R sum s]: h the kept prefix of y, q the first behavior's failure rate after it."""
    law, env = w.target_law, w.env
    failure = PrefixTree(env.vocab_size, env.horizon, (env.rewards == 0).double(), env.eos)
    q = values.state_values(failure, w.behaviors[0])
    rows = zip(law.batch.tokens.tolist(), law.batch.lengths.tolist(), strict=True)
    kept = torch.tensor([kept_length(w, tuple(y[:n])) for y, n in rows])
    fails = (law.batch.reward == 0).double()
    after = q[node_index(law.batch.tokens, env.vocab_size).gather(1, kept.clamp(max=env.horizon - 1)[:, None])[:, 0]]
    surplus = torch.where(kept < law.batch.lengths, after, fails) - fails
    return law.expect(gradient_terms(law.batch, surplus[:, None].expand(-1, env.horizon), w.target))


def measure(w: World, decide: Decision = finished_draft_failed, repair: Decision = another_draft_failed) -> Quantities:
    """Full-product estimator under the post-hoc and the repaired sampler, against grad J."""

    def estimate(law: ExactLaw) -> Tensor:
        return moments(law, gradient_terms(law.batch, weigh("sequence_product", law.batch), w.target)).mean

    law = regenerated_law(w, decide)
    gradient, estimator = exact_gradient(w.env, w.target), estimate(law)
    found: dict[str, Any] = {
        "estimator": estimator,
        "gradient_plus_selection": gradient + selection_bias(w),
        "repaired": estimate(regenerated_law(w, repair)),
        "gradient": gradient,
    }
    if w.name != "all_kept":
        found["post_hoc"] = estimator
    if w.name == "on_policy":
        found |= {"log_ratios": log_ratios(law.batch, "sequence_product"), "zero": 0.0}
    return found


@lru_cache(maxsize=32)
def _derivation(shape: tuple[Any, ...]) -> Derivation:
    w = symbolic_world(shape)
    table = w.branches[0]
    fails = {y: sp.Symbol(f"F_{'_'.join(map(str, y))}") for y in w.leaves}

    def kept(y: Prefix) -> Prefix:
        return next((y[:t] for t in range(len(y)) if table[y[:t]] == 1), y)

    chance = {
        kept(y): sp.Symbol(f"c_{'_'.join(map(str, kept(y)))}") for y in w.leaves
    }  # restart, given the kept prefix

    def prob(k: int, y: Prefix, start: int, stop: int) -> sp.Expr:
        return sp.prod([w.mu(k, y[:t], y[t]) for t in range(start, stop)])

    def ratio(k: int, y: Prefix, start: int, stop: int) -> sp.Expr:
        return sp.prod([w.rho(k, y[:t], y[t]) for t in range(start, stop)])

    def whole(y: Prefix) -> sp.Expr:  # the draft is kept: probability times recorded product
        return prob(0, y, 0, len(y)) * ratio(0, y, 0, len(y))

    def mixed(y: Prefix, restart: sp.Expr) -> sp.Expr:  # prefix kept, suffix regenerated
        n = len(kept(y))
        return prob(0, y, 0, n) * restart * prob(1, y, n, len(y)) * ratio(0, y, 0, n) * ratio(1, y, n, len(y))

    same = {y: [d for d in w.leaves if kept(d) == kept(y)] for y in w.leaves}
    q = {y: sp.Add(*[prob(0, d, len(kept(d)), len(d)) * fails[d] for d in same[y]]) for y in w.leaves}

    def score(y: Prefix, h: Prefix, b: int) -> sp.Expr:
        return sp.Add(*[w.score(y, t, h, b) for t in range(len(y))])

    def expected(weights: Mapping[Prefix, sp.Expr]) -> list[sp.Expr]:
        return [sp.Add(*[weights[y] * w.reward(y) * score(y, h, b) for y in w.leaves]) for h, b in w.parameters]

    post_hoc = {y: (1 - fails[y]) * whole(y) + mixed(y, q[y]) for y in w.leaves}
    repaired = {y: (1 - chance[kept(y)]) * whole(y) + mixed(y, chance[kept(y)]) for y in w.leaves}
    define = w.rho_definition()
    gradient = w.gradient()
    surplus = expected({y: w.prob_pi(y) * (q[y] - fails[y]) for y in w.leaves})
    chain = [
        Step(
            "definition",
            expected(post_hoc),
            "a draft that passes is kept whole; all failed drafts of a prefix (q of them) get a new suffix",
            tex=r"\sum_y [1_{ok}(y) \mu_0(y) \prod \rho^0 + "
            r"\mu_0(h) q(h) \mu_1(y|h) \prod \rho^0 \prod \rho^1] R \sum_t s_t",
        ),
        Step(
            "ratios",
            expected({y: e.xreplace(define) for y, e in post_hoc.items()}),
            "every recorded probability cancels",
            tex=r"\sum_y \pi(y) [1_{ok}(y) + q(h)] R \sum_t s_t",
        ),
        Step(
            "log_derivative",
            [g + s for g, s in zip(gradient, surplus, strict=True)],
            "1_ok = 1 - 1_fail; the 1 gives grad J, by differentiating J",
            quantity="estimator",
            tex=r"\nabla J + E_\pi[(q(h) - 1_{fail}(y)) R \sum_t s_t]",
        ),
    ]
    repair = [
        Step(
            "definition",
            expected(repaired),
            "the restart has a probability c(h) of its own, whatever the draft became",
            tex=r"\sum_y [(1-c(h)) \mu_0(y) \prod \rho^0 + \mu_0(h) c(h) \mu_1(y|h) \prod \rho^0 \prod \rho^1] R \sum_t s_t",
        ),
        Step(
            "ratios",
            expected({y: e.xreplace(define) for y, e in repaired.items()}),
            "every recorded probability cancels",
            tex=r"\sum_y \pi(y) [1 - c(h) + c(h)] R \sum_t s_t",
        ),
        Step("log_derivative", gradient, "grad J, by differentiating J", quantity="repaired", tex=r"\nabla J"),
    ]

    def point(rng: random.Random) -> Mapping[sp.Symbol, Any]:
        values = dict(w.point(rng))
        values |= {f: sp.Integer(rng.randint(0, 1)) for f in fails.values()}
        return values | {c: sp.Rational(rng.randint(0, 8), 8) for c in chance.values()}

    def bind(instance: World) -> dict[sp.Symbol, float]:
        numbers = w.bind(instance)
        return numbers | {f: float(numbers[w.reward(y)] == 0) for y, f in fails.items()}

    return Derivation([chain, repair], point, bind)


def instances() -> list[World]:
    """One token kept, nothing kept, all kept, a stopping time, early ends, and a sampler that is the target throughout."""
    mu = TabularPolicy.random(2, 2, STREAM["s06 on-policy"])
    coin = [1.0, 0.0, 0.0, 1.0]
    return [
        world("one_token_kept", 2, 2, cuts((1,)), rewards=coin),
        world("nothing_kept", 2, 2, cuts((0,)), rewards=coin),
        world("all_kept", 2, 2, one(), rewards=coin),
        world("stopping_time", 2, 3, after_token(1), rewards=[1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0]),
        world("end_token", 2, 3, cuts((1,)), rewards=[1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0], eos=1),
        world("on_policy", 2, 2, cuts((1,)), rewards=coin, target=mu, policies=(mu, mu)),
    ]


THEOREM = Theorem(
    id="S6",
    kind="counterexample",
    refutes="the full product is unbiased wherever the draft is cut",
    title="regenerating the suffix because the finished draft failed biases even the full product",
    hypotheses=(
        "a first behavior drafts to the end; the tokens before a prefix-measurable boundary are kept",
        "the rest is regenerated by a second behavior iff the finished draft failed",
        "each token's ratio uses the behavior that drew it; both behaviors support the target",
    ),
    statement="E[W R sum_t s_t] = G + E_pi[(q(h) - 1{y fails}) R sum_t s_t], q(h) = mu_0(draft fails | h), h the kept prefix; "
    "= G if the restart is independent of the draft's outcome given h",
    source="ours",
    claims=(
        Claim("biased", "differs", "post_hoc", "gradient", "the full product misses grad J", margin=1e-2),
        Claim(
            "selection",
            "equal",
            "estimator",
            "gradient_plus_selection",
            "by the covariance with failing, given the prefix",
        ),
        Claim(
            "silent", "equal", "log_ratios", "zero", "with every policy equal to the target all recorded ratios are 1"
        ),
        Claim("repaired", "equal", "repaired", "gradient", "judging the prefix by another draft is unbiased again"),
    ),
    instances=instances,
    measure=measure,
    derive=lambda instance: _derivation(instance.shape),
    outcome="Never resume only the responses that failed: decide on a resumption before, or without, seeing how the draft ends.",
    mutants=(
        Mutant(
            name="restart_independent_of_outcome",
            kind="hypothesis",
            breaks=("biased", "selection"),
            measure=lambda w: measure(w, decide=another_draft_failed),
            on=("one_token_kept", "nothing_kept", "end_token"),
            why="restarts equally often after every prefix, but on another draft's failure: the bias is gone",
        ),
        Mutant(
            name="repair_sees_the_outcome",
            kind="hypothesis",
            breaks=("repaired",),
            measure=lambda w: measure(w, repair=finished_draft_failed),
            on=("one_token_kept", "nothing_kept", "end_token"),
            why="the draft that is kept or thrown away is the one that decides; needs failing to depend on the suffix",
        ),
        Mutant(
            name="newest_segment_only",
            kind="bug",
            breaks=("selection", "repaired"),
            on=("one_token_kept", "end_token"),
            plant=bugs.last_segment_only,
            why="the kept prefix goes uncorrected where the suffix was regenerated; needs mu_0 != pi on the prefix",
        ),
        Mutant(
            name="failure_rate_from_the_start",
            kind="bug",
            breaks=("selection",),
            on=("one_token_kept", "end_token"),
            plant=lambda: planted(values, "state_values", lambda right: lambda *a: right(*a)[:1].expand_as(right(*a))),
            why="q of the empty prefix stands for q(h); needs a failure rate that the kept tokens change",
        ),
    ),
)
