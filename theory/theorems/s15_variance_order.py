"""S15: when prefix products have lower variance than the full product, and when they have not."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from itertools import product
from typing import Any

import sympy as sp
import torch
from torch import Tensor

from testbed.core.batch import SegmentedBatch
from testbed.environments.prefix_tree import PrefixTree
from testbed.estimators.gradient import gradient_terms
from testbed.exact.gradients import exact_gradient
from testbed.exact.moments import moments
from testbed.exact.values import action_values
from testbed.policies.schedule import PrefixSchedule, one
from testbed.policies.tabular import TabularPolicy
from testbed.weighting import granularity
from testbed.weighting.rules import weigh
from theory.derivation import Derivation, Step
from theory.planting import planted
from theory.shared_worlds import SharedWorld, independent_tokens
from theory.small_worlds import along, long_worlds, small_worlds
from theory.symbols import Prefix, SymbolicWorld, symbolic_world
from theory.theorem import Claim, Mutant, Quantities, Theorem
from theory.worlds import World

PRINTED = {"prefix_reward": 0.2068, "full": 0.1208, "prefix_critic": 0.1126}
ROUNDING = 4.5e-4  # half a unit in the last printed digit, relative to the smallest of the three
LAST = [0.0, 1.0, 0.0, 1.0]  # R = 1{y_2 = 1}


def rare_reward(name: str, p: float = 0.2, m: float = 0.5) -> World:
    """Independent tokens, P(1) = p under the target and m under the behavior, reward for a 1 at the end; tabular."""
    pi, mu = (TabularPolicy.from_probs(torch.tensor([[1 - q, q]] * 3).double()) for q in (p, m))
    return World(name=name, env=PrefixTree(2, 2, LAST), target=pi, schedule=PrefixSchedule((mu,), one()))


def rare_reward_shared() -> SharedWorld:
    """The catalogue's instance with one softmax for all prefixes."""
    twin = rare_reward("twin")
    return SharedWorld(
        name="shared_softmax", env=twin.env, target=independent_tokens([0.8, 0.2]), schedule=twin.schedule
    )


def instances() -> list[Any]:
    """Worlds shared with other theorems, the catalogue's numbers, and their twin with shared parameters."""
    return [*small_worlds(), *long_worlds(), rare_reward("printed"), rare_reward_shared()]


def variances(instance: World | SharedWorld, rule: str, advantage: Tensor | None) -> tuple[Tensor, Tensor]:
    """Variance of every summand [T, *parameters], and of their sum [*parameters]."""
    batch, pi = instance.batch, instance.target
    value = weigh(rule, batch).value
    one_at_a_time = torch.eye(batch.horizon, dtype=torch.float64)
    terms = [moments(instance.law, gradient_terms(batch, value * row, pi, advantage)).variance for row in one_at_a_time]
    return torch.stack(terms), moments(instance.law, gradient_terms(batch, value, pi, advantage)).variance


def measure(instance: World | SharedWorld, critic: str = "target", unshared: bool = False) -> Quantities:
    """Variances of the full product and of the two prefix readings; the arguments are the mutants' readings."""
    batch, env, pi = instance.batch, instance.env, instance.target
    sources = {"target": pi, "behavior": instance.schedule.branches()[0][1]}
    advantage = along(batch, action_values(env, sources[critic])) if critic in sources else None
    full_terms, full = variances(instance, "sequence_product", None)
    critic_terms, with_critic = variances(instance, "prefix", advantage)
    reward = variances(instance, "prefix", None)[1]
    traces = torch.stack([reward.sum(), full.sum(), with_critic.sum()])
    found: dict[str, Any] = {"full_terms": full_terms, "critic_terms": critic_terms}
    if isinstance(instance, SharedWorld):
        found |= {"traces": traces, "shared_full": full.sum(), "shared_critic": with_critic.sum()}
        return found | {"full_sum": full, "critic_sum": with_critic} if unshared else found
    found |= {"full_sum": full, "critic_sum": with_critic}
    if instance.name == "printed":
        mean = moments(instance.law, gradient_terms(batch, weigh("prefix", batch), pi)).mean
        found |= {"traces": traces, "prefix_reward_mean": mean, "gradient": exact_gradient(env, instance.target)}
        for name, trace in zip(PRINTED, traces, strict=True):
            found |= {name: trace, f"{name}_printed": PRINTED[name]}
    return found


@lru_cache(maxsize=32)
def _derivation(shape: tuple[Any, ...]) -> Derivation:
    w = symbolic_world(shape)
    return Derivation([_termwise_chain(w)], w.point, w.bind)


def _termwise_chain(w: SymbolicWorld) -> list[Step]:
    """Total variance, given the noise, the prefix and the token (tabular: the logit of (h, c) sees one position only)."""

    def second(values: Callable[[int, Prefix, int], sp.Expr]) -> list[sp.Expr]:
        """E_mu[(s_t X)^2] in every logit, X a function of noise, response and position."""
        return [
            sp.Add(
                *[
                    p * (w.score(y, len(h), h, c) * values(xi, y, len(h))) ** 2
                    for xi, y, p in w.draws()
                    if y[: len(h)] == h and len(y) > len(h)
                ]
            )
            for h, c in w.parameters
        ]

    def whole(xi: int, y: Prefix, t: int) -> sp.Expr:
        return w.weight(y, xi) * w.total_return(y)

    def known(xi: int, y: Prefix, t: int) -> sp.Expr:
        return w.weight(y, xi, t + 1) * w.action_value(y[:t], y[t])

    def surprise(xi: int, y: Prefix, t: int) -> sp.Expr:
        return whole(xi, y, t) - known(xi, y, t)

    squared = [g**2 for g in w.gradient()]
    critic = [s - g for s, g in zip(second(known), squared, strict=True)]
    return [
        Step(
            "full",
            [s - g for s, g in zip(second(whole), squared, strict=True)],
            "second moment minus squared mean (S2)",
            quantity="full_sum",
            tex=r"\mathrm{Var}(W_T s_t R) = E_\mu[(W_T s_t R)^2] - (\nabla J)^2",
        ),
        Step(
            "total_variance",
            [c + s for c, s in zip(critic, second(surprise), strict=True)],
            "E_mu[W_T R | xi, h_t, y_t] = W_t Q^pi: the cross term vanishes",
            tex=r"\mathrm{Var}(W_t s_t Q^\pi) + E_\mu[s_t^2 (W_T R - W_t Q^\pi)^2]",
        ),
        Step(
            "prefix_critic",
            critic,
            "a mean of squares is not negative",
            relation=">=",
            quantity="critic_sum",
            tex=r"\ge \mathrm{Var}(W_t s_t Q^\pi)",
        ),
    ]


@lru_cache(maxsize=2)
def _closed_forms(shared: bool) -> Derivation:
    """Traces for T = 2 independent tokens and R = 1{y_2 = 1}, by enumeration and in closed form in p and m."""
    p, m = sp.Symbol("p", positive=True), sp.Symbol("m", positive=True)
    pi, mu = (1 - p, p), (1 - m, m)

    def trace(value: Callable[[int, int, int], sp.Expr]) -> sp.Expr:
        """Trace of the covariance of sum_t value_t s_t: two opposite logits per softmax, hence the factor 2."""
        total: list[sp.Expr] = []
        means: dict[Any, list[sp.Expr]] = {}
        for a, b in product((0, 1), repeat=2):
            one_logit: dict[Any, sp.Expr] = {}
            for t, (key, token) in enumerate((((), a), ((a,), b))):
                key = "all" if shared else key
                one_logit[key] = one_logit.get(key, 0) + value(t, a, b) * (token - p)
            total.append(mu[a] * mu[b] * sp.Add(*[x**2 for x in one_logit.values()]))
            for key, x in one_logit.items():
                means.setdefault(key, []).append(mu[a] * mu[b] * x)
        return 2 * (sp.Add(*total) - sp.Add(*[sp.Add(*x) ** 2 for x in means.values()]))

    def rho(a: int) -> sp.Expr:
        return pi[a] / mu[a]

    enumerated = [
        trace(lambda t, a, b: (rho(a) if t == 0 else rho(a) * rho(b)) * b),
        trace(lambda t, a, b: rho(a) * rho(b) * b),
        trace(lambda t, a, b: rho(a) * p if t == 0 else rho(a) * rho(b) * b),
    ]
    first = p**2 * (1 - p) ** 2 * (1 / m + 1 / (1 - m))
    second = (p**2 / m + (1 - p) ** 2 / (1 - m)) * (1 - p) ** 2 * p**2 / m
    mean = p**2 * (1 - p) ** 2 * (1 if shared else p**2 + (1 - p) ** 2)
    tilt = (
        p * (1 - p) * (p / m - (1 - p) / (1 - m)) if shared else sp.Integer(0)
    )  # E_mu[rho^2 s]: couples the positions
    closed = [
        2 * (first * factor + second + 2 * tilt * coupling - mean)
        for factor, coupling in ((m, p * (1 - p)), (p**2 / m, (1 - p) * p**2 / m), (p**2, (1 - p) * p**2))
    ]
    chain = [
        Step(
            "enumerated",
            enumerated,
            "four responses; prefix with reward, full product, prefix with critic",
            quantity="traces",
            tex=r"\mathrm{tr\,Cov}\Big(\sum_t w_t s_t X_t\Big)",
        ),
        Step(
            "closed",
            closed,
            "the second position is common; the first has E R^2 = m, E[rho^2 R] = p^2/m or Q^2 = p^2"
            + ("; positions couple through E[rho^2 s]" if shared else ": prefix with reward exceeds full iff m > p"),
            tex=r"2\big(A\{m,\ p^2/m,\ p^2\} + B + 2 C\{p(1-p),\ (1-p)p^2/m,\ (1-p)p^2\} - g^2\big)",
        ),
    ]

    def point(rng: random.Random) -> Mapping[sp.Symbol, Any]:
        return {s: sp.Rational(rng.randint(1, 11), 12) for s in (p, m)}

    def bind(instance: World | SharedWorld) -> Mapping[sp.Symbol, float]:
        behavior = instance.schedule.branches()[0][1].log_prob_table(2, 2)
        return {p: float(instance.target.table[0, 1].exp()), m: float(behavior[0, 1].exp())}

    return Derivation([chain], point, bind)


def derive(instance: World | SharedWorld) -> Derivation:
    """Closed forms for the two independent-token worlds, total variance over symbols for the tabular ones."""
    if isinstance(instance, SharedWorld) or instance.name == "printed":
        return _closed_forms(isinstance(instance, SharedWorld))
    return _derivation(instance.shape)


def geometric_mean(right: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Bug: the geometric mean is returned where the product was asked for."""

    def wrong(batch: SegmentedBatch, granularity: str = "token", **kw: Any) -> Tensor:
        return right(batch, "sequence_geomean" if granularity == "sequence_product" else granularity, **kw)

    return wrong


ORDERED = ("termwise", "ordered_when_unshared")
THEOREM = Theorem(
    id="S15",
    kind="counterexample",
    refutes="prefix weights have lower variance than the full product",
    title="prefix products have lower variance term by term with the target's critic, and not otherwise",
    hypotheses=(
        "prefix-measurable or exogenous boundaries; every behavior supports the target",
        "termwise: Q is the critic of the target",
        "sums are ordered for tabular targets, where no two positions share a parameter",
    ),
    statement=(
        "Var(W_t s_t Q^pi) <= Var(W_T s_t R) for every t and parameter. Not ordered: sums over t with shared parameters; prefix "
        "products times R. tr Cov at pi=(.8,.2), mu=(.5,.5), T=2, R=1{y_2=1}, tabular: "
        "prefix.R .2068 > full .1208 > prefix.Q .1126"
    ),
    source="ours; the termwise part is Rao-Blackwell",
    claims=(
        Claim(
            "prefix_reward_not_lower",
            "differs",
            "prefix_reward",
            "full",
            "unbiased here, and far above full",
            margin=0.3,
        ),
        Claim(
            "prefix_reward_above_full",
            "at_most",
            "full",
            "prefix_reward",
            "full product below prefix product times reward",
        ),
        Claim("prefix_reward_unbiased", "equal", "prefix_reward_mean", "gradient", "unbiased in this comparison"),
        *(Claim(f"printed_{n}", "equal", n, f"{n}_printed", "catalogue's digits", tolerance=ROUNDING) for n in PRINTED),
        Claim("termwise", "at_most", "critic_terms", "full_terms", "Var(W_t s_t Q^pi) <= Var(W_T s_t R)"),
        Claim("ordered_when_unshared", "at_most", "critic_sum", "full_sum", "tabular: the sums are ordered too"),
        Claim("shared_order_reversed", "at_most", "shared_full", "shared_critic", "one softmax: full product below"),
        Claim("shared_order_differs", "differs", "shared_full", "shared_critic", "and by a margin", margin=0.1),
    ),
    instances=instances,
    measure=measure,
    derive=derive,
    outcome=(
        "'Prefix weights have lower variance' holds term by term with the target's critic (and for sums if positions share no "
        "parameter); it fails for the bare reward, and for shared parameters even with the critic."
    ),
    mutants=(
        Mutant(
            name="critic_of_the_behavior",
            kind="hypothesis",
            breaks=ORDERED,
            instances=lambda: [rare_reward("more_often_drawn")],
            measure=partial(measure, critic="behavior"),
            why="Q^mu is larger than Q^pi where the behavior earns the reward more often",
        ),
        Mutant(
            name="reward_in_place_of_the_critic",
            kind="hypothesis",
            breaks=ORDERED,
            instances=lambda: [rare_reward("more_often_drawn")],
            measure=partial(measure, critic="none"),
            why="W_t R is no conditional mean of W_T R; m > p tells",
        ),
        Mutant(
            name="shared_parameters",
            kind="hypothesis",
            breaks=("ordered_when_unshared",),
            on=("shared_softmax",),
            measure=partial(measure, unshared=True),
            why="positions are correlated through E[rho^2 s] and the sum's order turns round",
        ),
        Mutant(
            name="geometric_mean_for_product",
            kind="bug",
            breaks=ORDERED,
            on=("long_one_segment", "long_three_segments"),
            plant=lambda: planted(granularity, "log_ratios", geometric_mean),
            why="the geometric mean of the ratios under the product's name has too little variance; needs two tokens",
        ),
    ),
)
