"""S18: bias and error of the self-normalized estimate, bounded by d2/n, and what d2 itself is bounded by."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations_with_replacement
from math import factorial, inf, prod, sqrt
from typing import Any

import sympy as sp
import torch

from testbed.estimators import value
from testbed.estimators.value import self_normalized_value
from testbed.exact.moments import batch_statistic
from testbed.policies.schedule import one
from testbed.policies.tabular import TabularPolicy
from testbed.stats import weight_statistics
from testbed.stats.divergence import kl
from testbed.stats.weight_statistics import chi2, second_moment
from testbed.weighting.granularity import log_ratios
from theory.derivation import Derivation, Step
from theory.planting import planted
from theory.real_laws import M, P, R, is_real, real_laws, summand_derivation
from theory.response_weights import response_weight
from theory.small_worlds import small_worlds
from theory.symbols import symbolic_world
from theory.theorem import Claim, Mutant, Quantities, Theorem
from theory.worlds import World, world


@dataclass(frozen=True)
class Sample:
    """A world and the number n of independent responses drawn from it."""

    name: str
    world: World
    n: int


def measure(sample: Sample, drawn: int | None = None) -> Quantities:
    """Exact bias and mean squared error of the library's estimate over all batches, against multiples of d2/n.

    `drawn` is how many responses the batch really holds (default: n).
    """
    law, batch, n = sample.world.law, sample.world.batch, sample.n
    w, f = response_weight(batch), batch.reward
    d2, divergence = float(second_moment(w, probs=law.probs)), max(float(chi2(w, probs=law.probs)), 0.0)
    log_ratio = log_ratios(batch, "sequence_product")[:, 0]
    nats = kl(log_ratio, estimator="k1", direction="target_to_behavior", probs=law.probs)
    found: dict[str, Any] = {"d2": d2, "exp_kl": nats.exp()}
    if is_real(sample):
        return found | {"square": law.probs * w**2}
    exact = float(sample.world.target_law.expect(sample.world.target_law.batch.reward))
    estimate = batch_statistic(law, drawn or n, lambda index: self_normalized_value(w, f, index))
    bias = float(estimate.mean) - exact
    found |= {
        "bias": bias, "size": abs(bias), "mse": float(estimate.variance) + bias**2,
        "bias_bound": 12 * d2 / n, "sharper_bound": 2 * sqrt(d2 * divergence) / n, "mse_bound": 4 * d2 / n,
    }  # fmt: skip
    if n == 1:
        found |= {"mean_of_one": estimate.mean, "behavior_mean": law.expect(torch.where(w > 0, f, 0.0))}
    if sample.name in ("on_policy_2", "deterministic_target_3"):
        found["constant_on_support"] = d2
    if sample.name == "on_policy_2":
        found |= {"plain_mse": law.expect((f - exact) ** 2) / n, "zero": 0.0}
    return found


@lru_cache(maxsize=32)
def _derivation(shape: tuple[Any, ...], n: int, support: tuple[bool, ...]) -> Derivation:
    """Batches of n; `support` says which tokens the target can draw after which prefix."""
    w = symbolic_world(shape)
    able = dict(zip(w.parameters, support, strict=True))
    draws = [(p, w.weight(y, xi), w.reward(y)) for xi, y, p in w.draws()]
    alive = {
        id(d): all(able[h, a] for h, a, _ in w.path(y, xi)) for d, (xi, y, _) in zip(draws, w.draws(), strict=True)
    }
    d2 = sp.Add(*[p * v**2 for p, v, _ in draws])
    inserted = sp.Add(*[w.prior(xi) * w.prob_pi(y) * w.weight(y, xi) for xi, y, _ in w.draws()])
    geometric = sp.prod([w.weight(y, xi) ** (w.prior(xi) * w.prob_pi(y)) for xi, y, _ in w.draws()])
    jensen = [
        Step("definition", d2, "second moment under the sampler", quantity="d2", tex=r"d_2 = E_\mu[W^2]"),
        Step("change_of_measure", inserted, "mu W = pi", tex=r"E_\pi[W]"),
        Step("jensen", geometric, "arithmetic mean >= geometric mean, weights pi; equal iff W is constant where pi > 0",
             relation=">=", quantity="exp_kl", tex=r"\ge \exp E_\pi[\log W] = e^{KL(\pi\|\mu)}"),
    ]  # fmt: skip

    def point(rng: random.Random) -> Mapping[sp.Symbol, Any]:
        values = dict(w.point(rng))
        for h in w.prefixes if not all(support) else ():
            parts = [rng.randint(1, 12) * able[h, a] for a in range(w.vocab_size)]
            for a, part in enumerate(parts):
                values[w.pi(h, a)] = sp.Rational(part, sum(parts))
                values |= {w.rho(k, h, a): values[w.pi(h, a)] / values[w.mu(k, h, a)] for k in range(w.n_behaviors)}
        return values | {w.reward(y): values[w.reward(y)] / 3 for y in w.leaves}  # |f| <= 3/4

    def bind(sample: Sample) -> Mapping[sp.Symbol, float]:
        return w.bind(sample.world)

    exact = sp.Add(*[w.prob_pi(y) * w.reward(y) for y in w.leaves])
    batches = []  # probability, mean of W f, mean of W, their quotient: 0 where no response has weight
    for rows in combinations_with_replacement(draws, n):
        ways = sp.Rational(factorial(n), prod(factorial(c) for c in Counter(map(id, rows)).values()))
        x, y = sp.Add(*[v * f for _, v, f in rows]) / n, sp.Add(*[v for _, v, _ in rows]) / n
        quotient = x / y if any(alive[id(d)] for d in rows) else sp.Integer(0)
        batches.append((ways * sp.prod([p for p, _, _ in rows]), x, y, quotient))

    def mean(g: Callable[[Any, Any, Any], Any]) -> sp.Expr:
        return sp.Add(*[p * g(x, y, quotient) for p, x, y, quotient in batches])

    bias = [
        Step("definition", mean(lambda x, y, v: v) - exact, "all multisets of n responses; X, Y: batch means of W f and W",
             quantity="bias", tex=r"E[X/Y] - F, \quad F = E_\pi[f]"),
        Step("split", mean(lambda x, y, v: (v - exact) * (1 - y)), "X/Y - F = (X/Y - F)(1 - Y) + (X - F Y), and E X = F E Y",
             tex=r"E[(X/Y - F)(1 - Y)]"),
    ]  # fmt: skip
    spread = mean(lambda x, y, v: (1 - y) ** 2)
    error = mean(lambda x, y, v: (v - exact) ** 2)
    squared = [
        Step("square", bias[1].exprs ** 2, "square of the line above", tex=r"bias^2"),
        Step("cauchy_schwarz", error * spread, "Cauchy-Schwarz", relation="<=", tex=r"\le MSE \cdot E(1 - Y)^2"),
        Step("variance", error * (d2 - 1) / n, "Y is a mean of n independent weights of mean 1", tex=r"MSE \cdot \chi^2/n"),
        Step("mse", 4 * d2 * (d2 - 1) / n**2, "MSE <= 4 d2/n (next chain)", relation="<=", tex=r"\le 4 d_2 \chi^2/n^2"),
        Step("printed", 144 * d2**2 / n**2, "the printed constant is 12; 2 is enough, and d2 chi2 < d2^2", relation="<=",
             tex=r"\le (12\, d_2/n)^2"),
    ]  # fmt: skip
    moment = sp.Add(*[p * v**2 * f**2 for p, v, f in draws])
    mse = [
        Step("definition", error, "mean squared error over all batches", quantity="mse", tex=r"E(X/Y - F)^2"),
        Step("split", mean(lambda x, y, v: (v * (1 - y) + x - exact) ** 2), "X/Y - F = (X/Y)(1 - Y) + X - F",
             tex=r"E\big((X/Y)(1 - Y) + X - F\big)^2"),
        Step("two_squares", 2 * mean(lambda x, y, v: v**2 * (1 - y) ** 2) + 2 * mean(lambda x, y, v: (x - exact) ** 2),
             "(a + b)^2 <= 2 a^2 + 2 b^2", relation="<=", tex=r"\le 2 E[(X/Y)^2 (1-Y)^2] + 2 E(X - F)^2"),
        Step("bounded", 2 * (d2 - 1) / n + 2 * (moment - exact**2) / n, "|X/Y| <= max|f| <= 1; variances of means of n",
             relation="<=", tex=r"\le 2 \chi^2/n + 2 Var(W f)/n"),
        Step("printed", 4 * d2 / n, "|f| <= 1 and chi2 < d2", relation="<=", quantity="mse_bound", tex=r"\le 4 d_2/n"),
    ]  # fmt: skip
    return Derivation([jensen, bias, squared, mse], point, bind)


@lru_cache(maxsize=1)
def _summand() -> Derivation:
    chain = [
        Step("definition", M * R**2, "one word's share of d2", quantity="square", tex=r"\mu(y)\,\rho(y)^2"),
        Step("change_of_measure", P * R, "mu rho = pi; the sum over words is E_pi[rho]", tex=r"\pi(y)\,\rho(y)"),
    ]
    inner = summand_derivation(chain)
    return Derivation(inner.chains, inner.point, lambda sample: inner.bind(sample.world))


def derive(sample: Sample) -> Derivation:
    """Every batch in symbols; of a language model's laws one word's share."""
    if is_real(sample):
        return _summand()
    return _derivation(sample.world.shape, sample.n, tuple((sample.world.target.table > -inf).reshape(-1).tolist()))


def coin(name: str, target: list[float], behavior: list[float], rewards: list[float]) -> World:
    """One token of two with given laws."""
    pi, mu = (TabularPolicy.from_probs(torch.tensor([p], dtype=torch.float64)) for p in (target, behavior))
    return world(name, 2, 1, one(), target=pi, policies=(mu,), rewards=rewards)


def coins() -> list[Sample]:
    """Batches of 1 to 64 from two laws near each other, and from a behavior that hardly draws half of the target."""
    near = coin("coin", [0.3, 0.7], [0.6, 0.4], [1.0, -1.0])
    far = coin("rare", [0.5, 0.5], [0.02, 0.98], [1.0, -1.0])
    return [Sample(f"{w.name}_{n}", w, n) for w, sizes in ((near, (1, 2, 3, 64)), (far, (1, 4, 16, 64))) for n in sizes]


def instances() -> list[Sample]:
    """Coins, responses of up to two tokens, degenerate worlds; d2 and divergence of a language model's laws."""
    found = {w.name: w for w in small_worlds()}
    sizes = {"one_token": (2,), "two_segments": (1, 2, 4), "on_policy": (2,), "deterministic_target": (3,),
             "end_token": (3,), "random_behavior": (2,)}  # fmt: skip
    samples = [Sample(f"{name}_{n}", found[name], n) for name, ns in sizes.items() for n in ns]
    return [*coins(), *samples, *(Sample(w.name, w, 1) for w in real_laws())]


def unbounded() -> list[Sample]:
    """A reward of 40 on the response that is hardly ever drawn."""
    return [Sample("unbounded_16", coin("unbounded", [0.5, 0.5], [0.02, 0.98], [40.0, 0.0]), 16)]


def uncovered() -> list[Sample]:
    """A behavior that never draws what the target draws nine times in ten."""
    return [Sample("uncovered_2", coin("uncovered", [0.1, 0.9], [1.0, 0.0], [1.0, -1.0]), 2)]


def copies(sample: Sample) -> Quantities:
    """Mutated reading: n copies of one response count as n."""
    return measure(sample, drawn=1)


def weights_ignored(right: Any) -> Any:
    """Bug: the plain mean of f."""
    return lambda w, f, index=None: right(torch.ones_like(w), f, index)


def weights_squared(right: Any) -> Any:
    """Bug: the weight is applied twice."""
    return lambda w, f, index=None: right(w**2, f, index)


ALL = ("bias", "sharper", "mse")
THEOREM = Theorem(
    id="S18",
    kind="bound",
    title="the self-normalized estimate errs by d2/n, and d2 is at least the exponential of the divergence",
    hypotheses=(
        "|f| <= 1",
        "the n responses are independent draws from the behavior",
        "the behavior covers the target (E W = 1); a batch of zero weights gives 0",
    ),
    statement="|E sum W f/sum W - E_pi f| <= 12 d2/n, E(sum W f/sum W - E_pi f)^2 <= 4 d2/n; d2 >= exp KL(pi||mu)",
    source="literature (Agapiou et al. 2017, theorem 2.1); bias <= 2 sqrt(d2 chi2)/n: ours",
    references=("Agapiou, Papaspiliopoulos, Sanz-Alonso and Stuart, Importance sampling, Statistical Science 32 (2017) 405-431",),
    claims=(
        Claim("bias", "at_most", "size", "bias_bound", "|bias| <= 12 d2/n over all batches of n"),
        Claim("sharper", "at_most", "size", "sharper_bound", "|bias| <= 2 sqrt(d2 chi2)/n, which vanishes on-policy"),
        Claim("mse", "at_most", "mse", "mse_bound", "mean squared error <= 4 d2/n"),
        Claim("jensen", "at_most", "exp_kl", "d2", "d2 >= exp KL(pi||mu): few nats of divergence ask for many samples"),
        Claim("jensen_tight", "equal", "exp_kl", "constant_on_support", "equal where W is constant on the target's support"),
        Claim("group_of_one", "equal", "mean_of_one", "behavior_mean", "with n = 1 the weight cancels: nothing is corrected"),
        Claim("on_policy", "equal", "mse", "plain_mse", "with mu = pi it is the plain mean, of error Var f/n"),
        Claim("on_policy_unbiased", "equal", "size", "zero", "and unbiased"),
    ),
    instances=instances,
    measure=measure,
    derive=derive,
    outcome="Self-normalizing needs n well above d2, hence above exp KL; a group of one is not corrected at all.",
    mutants=(
        Mutant(name="f_unbounded", kind="hypothesis", breaks=ALL, instances=unbounded,
               why="the reward is 40 where the behavior hardly draws; both bounds scale with max|f|"),
        Mutant(name="support_violated", kind="hypothesis", breaks=(*ALL, "jensen"), instances=uncovered,
               why="what is never drawn is not estimated, and d2 does not see it"),
        Mutant(name="responses_copied", kind="hypothesis", breaks=ALL, measure=copies, instances=coins, on=("coin_64",),
               why="64 copies of one response are one sample: the weight cancels; needs n above 12 d2"),
        Mutant(name="weights_ignored", kind="bug", breaks=ALL, instances=coins, on=("coin_64",),
               plant=lambda: planted(value, "self_normalized_value", weights_ignored),
               why="the behavior's mean, which no n brings to the target's; needs n large enough to tell"),
        Mutant(name="weights_squared", kind="bug", breaks=ALL, instances=coins, on=("coin_64",),
               plant=lambda: planted(value, "self_normalized_value", weights_squared),
               why="converges to the mean under pi^2/mu, normalized; needs n large enough to tell"),
        Mutant(name="d2_of_the_square_root", kind="bug", breaks=(*ALL, "jensen", "jensen_tight"),
               on=("rare_64", "deterministic_target_3"),
               plant=lambda: planted(weight_statistics, "second_moment", lambda right: lambda w, **k: right(w.sqrt(), **k)),
               why="E W = 1 passed for E W^2: below exp KL whenever the policies differ"),
    ),
)  # fmt: skip
