"""C14: the geometric mean of a response's ratios lies below 1 on average, and a window around 1 is off its center."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
import sympy as sp
import torch

from testbed.core.batch import SegmentedBatch
from testbed.environments.prefix_tree import PrefixTree
from testbed.exact.next_token_laws import with_next_token_laws
from testbed.policies.schedule import PrefixSchedule, cuts, one
from testbed.policies.tabular import TabularPolicy
from testbed.policies.truncated import Truncated
from testbed.weighting import granularity
from testbed.weighting.granularity import log_ratios
from testbed.weighting.rules import weigh
from theory import bugs
from theory.derivation import Derivation, Step
from theory.planting import planted
from theory.real_laws import real_laws
from theory.theorem import Claim, Mutant, Quantities, Theorem
from theory.worlds import World, standard_worlds, world

Q, T_ROOT, K = sp.symbols("q t K", positive=True)  # sampler's probability of a response; root and product of its ratios
T = sp.Symbol("T", integer=True, positive=True)  # its length
MORE = 0.05  # share of responses
WINDOW = 0.05  # half-width in log space: wide against float rounding, narrow against the mismatch


def measure(instance: World, one_length: bool = True) -> Quantities:
    """Means over responses of the product's root and logarithm. Mutants claim for any lengths what holds for one."""
    law, batch = instance.law, instance.law.batch
    log_root, log_product = (of_response(batch, name) for name in ("sequence_geomean", "sequence_product"))
    root, product, length = log_root.exp(), log_product.exp(), batch.mask.sum(1).double()
    under_p = instance.target_law
    inverse_p = under_p.expect(1 / under_p.batch.mask.sum(1).double())
    found: dict[str, Any] = {
        "mean_root": law.expect(root), "room": 1 + inverse_p - law.expect(1 / length), "summand": law.probs * root,
        "rooted": law.expect(product ** (1 / length)), "upper": law.probs * (1 + (product - 1) / length),
        "one": 1.0,
    }  # fmt: skip
    same = float(length.min()) == float(length.max())
    if same or not one_length:
        found["fixed_length_root"] = found["mean_root"]
    if bool((product > 0).all()):
        kl = float(divergence(instance))
        found |= {"mean_log": law.expect(log_product), "minus_kl": -kl, "zero": 0.0}
        found["log_summand"] = law.probs * log_product
        if same:
            found |= {"center": law.expect(log_root), "minus_kl_per_token": -kl / float(length[0])}
    if instance.name == "long":
        found |= {"off_by": found["center"], "one_in_logs": 0.0}
        shares = [law.expect(_kept(batch, center).double()) for center in (float(found["center"]), 0.0)]
        found |= {"kept_around_center": shares[0], "kept_around_one": shares[1] + MORE}
    if instance.name == "on_policy":
        found |= {"equality": found["mean_root"]}
    return found


def of_response(batch: SegmentedBatch, granularity: str) -> torch.Tensor:
    """One log ratio per response: all its tokens carry the same."""
    first = batch.mask.int().argmax(1)
    return log_ratios(batch, granularity).gather(1, first[:, None])[:, 0]


def divergence(instance: World) -> torch.Tensor:
    """KL(q||p) of whole responses, summed over prefixes from both policies' next-token laws: no recorded ratio enters."""
    alone = instance.batch.horizon == 1  # every response then has the same prefix, the empty one
    batch = instance.batch.select(torch.tensor([0])) if alone else instance.batch
    batch = with_next_token_laws(batch, instance.target, instance.schedule)
    laws = batch.require("next_token", "the chain rule")
    q = laws.logp_behavior.exp()
    terms = torch.where(q > 0, q * (laws.logp_behavior - laws.logp_target), torch.zeros_like(q)).sum(-1)
    per_response = (terms * batch.mask).sum(1)
    return per_response[0] if alone else instance.law.expect(per_response)


def _kept(batch: SegmentedBatch, center: float) -> torch.Tensor:
    """Which responses `geo_mask` keeps within WINDOW of a center, in logs."""
    return weigh("geo_mask", batch, low=math.exp(center - WINDOW), high=math.exp(center + WINDOW)).gate.any(1)


@lru_cache(maxsize=1)
def _derivation() -> Derivation:
    chains = [
        [
            Step("root", Q * T_ROOT, "one response's share of the mean root, K = t^T", quantity="summand", tex=
                 r"q\,K^{1/T} = q\,t"),
            Step("bernoulli", Q * (1 + (T_ROOT**T - 1) / T), "t^T >= 1 + T(t-1): a power lies above its tangent at 1", "<=",
                 quantity="upper", tex=r"q\,\big(1 + \tfrac{K-1}{T}\big)"),
            Step("three_sums", Q + Q * T_ROOT**T / T - Q / T, "summed over responses: 1 + E_p[1/T] - E_q[1/T] as q K = p; for "
                 "one T that is 1", tex=r"q + \frac{qK}{T} - \frac{q}{T}"),
        ],
        [
            Step("log", Q * sp.log(K), "one response's share of the mean log", quantity="log_summand", tex=r"q\,\log K"),
            Step("divergence", -Q * sp.log(Q / (K * Q)), "p = q K: minus its share of KL(q||p)", tex=r"-q\log\frac{q}{p}"),
            Step("negative", Q * (K - 1), "log K <= K - 1: summed over responses at most 1 - 1 = 0", "<=", tex=r"q\,(K - 1)"),
        ],
    ]  # fmt: skip

    def point(rng: Any) -> dict[sp.Symbol, Any]:
        draw = lambda: sp.Rational(rng.randint(1, 25), rng.randint(6, 11))  # noqa: E731
        return {Q: sp.Rational(rng.randint(1, 12), 13), T_ROOT: draw(), K: draw(), T: rng.randint(1, 7)}

    def bind(instance: World) -> dict[sp.Symbol, Any]:
        batch = instance.batch
        root, product = (of_response(batch, name).exp().numpy() for name in ("sequence_geomean", "sequence_product"))
        positive = np.where(product > 0, product, 1.0)  # where one is 0 there is no mean log to compare
        return {Q: instance.law.probs.numpy(), T_ROOT: root, K: positive, T: batch.mask.sum(1).double().numpy()}

    return Derivation(chains, point, bind)


def long_world() -> World:
    """Eight tokens drawn independently from a sampler that is a little off."""
    return world("long", 2, 8, one(), behaviors=1, target=_repeated(0.7, 8), policies=(_repeated(0.5, 8),))


def _repeated(p: float, horizon: int) -> TabularPolicy:
    return TabularPolicy.from_probs(torch.tensor([[p, 1 - p]] * (2**horizon - 1), dtype=torch.float64))


def instances() -> list[World]:
    """Responses of one length and of several, a long one, a cut-off sampler, recorded laws of one token."""
    base = world("cut_off", 3, 2, one(), behaviors=1)
    cut = replace(base, schedule=PrefixSchedule((Truncated(base.target, top_p=0.6),), one()))
    return [*standard_worlds(), *lengths_vary(), long_world(), cut, *real_laws()]


def lengths_vary() -> list[World]:
    """The trainer ends at once, the sampler goes on: short responses have large ratios, long ones roots near 1."""
    mu, pi = ([[p, 1 - p]] * 31 for p in (0.5, 0.1))
    policies = [TabularPolicy.from_probs(torch.tensor(x, dtype=torch.float64)) for x in (mu, pi)]
    base = world("lengths_vary", 2, 5, cuts((1,)), eos=1, target=policies[1], policies=(policies[0], policies[0]))
    return [replace(base, schedule=PrefixSchedule((policies[0],), one()), env=PrefixTree(2, 5, base.env.rewards, 1))]


def sum_for_mean(right: Any) -> Any:
    """Bug: the product where the geometric mean is asked for."""

    def wrong(batch: Any, granularity: str = "token", **kw: Any) -> Any:
        return right(batch, "sequence_product" if granularity == "sequence_geomean" else granularity, **kw)

    return wrong


THEOREM = Theorem(
    id="C14",
    kind="bound",
    title="the geometric mean of the ratios has mean at most 1, and a window around 1 is off-center",
    hypotheses=("responses are drawn from q; K = product of the T ratios of a response", "for the bound by 1: all have one "
    "length T",
                "for the mean log: p > 0 wherever q > 0"),
    statement="E_q[K^(1/T)] <= 1, with equality on policy; E_q log K = -KL(q||p) <= 0, so the center of log K^(1/T) is -KL/T and "
    "a window symmetric about 1 is off-center. With lengths that vary the bound is 1 + E_p[1/T] - E_q[1/T], which may exceed 1",
    source="literature (Jensen); the bound for varying length is ours: it is usually stated without fixing T",
    claims=(
        Claim("root", "at_most", "fixed_length_root", "one", "E_q[K^(1/T)] <= 1 for one length"),
        Claim("any_length", "at_most", "mean_root", "room", "for any lengths: <= 1 + E_p[1/T] - E_q[1/T]"),
        Claim("definition", "equal", "mean_root", "rooted", "the library's geometric mean is the length-th root of its product"),
        Claim("tight", "equal", "equality", "one", "equality on policy"),
        Claim("log", "equal", "mean_log", "minus_kl", "E_q log K = -KL(q||p)"),
        Claim("negative", "at_most", "mean_log", "zero", "which is never above 0"),
        Claim("center", "equal", "center", "minus_kl_per_token", "one length: the mean log of the root is -KL/T"),
        Claim("off_center", "differs", "off_by", "one_in_logs", "which is not 0", margin=0.05),
        Claim("window", "at_most", "kept_around_one", "kept_around_center",
"eight tokens: a window about e^{-KL/T} keeps 5 % more of all responses than one of the same width about 1"),
    ),
    instances=instances,
    measure=measure,
    derive=lambda instance: _derivation(),
    outcome="Center a geometric gate at e^{-KL/T} measured on the batch, not at 1, and do not read its mean as a check that "
    "importance weights average to 1.",
    mutants=(
        Mutant(name="lengths_vary", kind="hypothesis", breaks=("root",), instances=lengths_vary,
               measure=partial(measure, one_length=False),
               why="one length dropped: the mean root exceeds 1 where the trainer prefers short responses"),
        Mutant(name="product_for_mean", kind="bug", breaks=("definition", "center"), on=("long", "two_segments"),
               plant=lambda: planted(granularity, "log_ratios", sum_for_mean),
               why="the product, T times as far from 1 in logs"),
        Mutant(name="ratio_inverted", kind="bug", on=("one_segment", "three_tokens"), plant=bugs.ratio_inverted,
               breaks=("root", "any_length", "log", "negative", "center"),
               why="q/p for p/q: by Jensen its roots average to at least 1, and the log to +KL"),
    ),
)  # fmt: skip
