"""C14: the geometric mean of a response's ratios lies below 1 on average, and a window around 1 is off its center."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import sympy as sp
import torch

from testbed.environments.prefix_tree import PrefixTree
from testbed.policies.schedule import PrefixSchedule, cuts, one
from testbed.policies.tabular import TabularPolicy
from testbed.weighting import granularity
from testbed.weighting.granularity import log_ratios
from testbed.weighting.rules import weigh
from theory.derivation import Derivation, Step
from theory.planting import planted
from theory.real_laws import real_laws
from theory.theorem import Claim, Mutant, Quantities, Theorem
from theory.worlds import World, standard_worlds, world

Q, T_ROOT, K = sp.symbols(
    "q t k", positive=True
)  # sampler's probability of a response, its geometric mean, its product
WINDOW = 0.05  # half-width in log space: wide against float rounding, narrow against the mismatch


def measure(instance: World) -> Quantities:
    """Means over responses of the product's root and logarithm."""
    law, batch = instance.law, instance.law.batch
    logs = {name: log_ratios(batch, name).amax(1) for name in ("sequence_geomean", "sequence_product")}
    logs = {
        name: torch.where(batch.mask.any(1), _of_response(batch, value, name), value) for name, value in logs.items()
    }
    root, product = logs["sequence_geomean"].exp(), logs["sequence_product"].exp()
    length = batch.mask.sum(1).double()
    inverse_p, inverse_q = law.expect(product / length), law.expect(1 / length)
    found: dict[str, Any] = {
        "mean_root": law.expect(root), "room": 1 + inverse_p - inverse_q, "summand": law.probs * root,
        "rooted": law.expect(product ** (1 / length)), "upper": law.probs * (1 + (product - 1) / length),
        "product": law.expect(product), "one": 1.0,
    }  # fmt: skip
    if float(length.min()) == float(length.max()):
        found |= {"fixed_length_root": found["mean_root"]}
    if bool((product > 0).all()):
        divergence = law.expect(law.probs.log() - (law.probs * product).log())
        found |= {"mean_log": law.expect(logs["sequence_product"]), "minus_kl": -divergence}
        found |= {"log_summand": law.probs * logs["sequence_product"], "zero": 0.0}
    if instance.name == "long":
        found |= {"center": law.expect(logs["sequence_geomean"]), "one_in_logs": 0.0}
        kept = [weigh("geo_mask", batch, low=float(torch.tensor(c - WINDOW).exp()), high=float(torch.tensor(c + WINDOW).exp()))
                for c in (float(found["center"]), 0.0)]  # fmt: skip
        shares = [law.expect(w.gate.any(1).double()) for w in kept]
        found |= {"kept_around_center": shares[0], "kept_around_one": shares[1]}
    if instance.name == "on_policy":
        found |= {"equality": found["mean_root"]}
    return found


def _of_response(batch: Any, largest: torch.Tensor, name: str) -> torch.Tensor:
    """One number per response: all its tokens carry the same."""
    values = log_ratios(batch, name)
    first = batch.mask.int().argmax(1)
    return values.gather(1, first[:, None])[:, 0] + 0 * largest.clamp(-1, 1)


@lru_cache(maxsize=4)
def _derivation(length: int) -> Derivation:
    chains = [
        [
            Step("root", Q * T_ROOT, "one response's share of the mean root, k = t^T", quantity="summand", tex=r"q\,k^{1/T}"),
            Step("bernoulli", Q * (1 + (T_ROOT**length - 1) / length), "t^T >= 1 + T(t-1), the tangent at 1", "<=",
                 quantity="upper", tex=r"q\,\big(1 + \tfrac{k-1}{T}\big)"),
        ],
        [
            Step("log", Q * sp.log(K), "one response's share of the mean log", quantity="log_summand", tex=r"q\,\log k"),
            Step("divergence", -Q * sp.log(Q / (K * Q)), "p = q k: minus its share of KL(q||p), which is never negative",
                 tex=r"-q\log\frac{q}{p}"),
        ],
    ]  # fmt: skip

    def point(rng: Any) -> dict[sp.Symbol, Any]:
        draw = lambda: sp.Rational(rng.randint(1, 25), rng.randint(6, 11))  # noqa: E731
        return {Q: sp.Rational(rng.randint(1, 12), 13), T_ROOT: draw(), K: draw()}

    def bind(instance: World) -> dict[sp.Symbol, Any]:
        law = instance.law
        root = _of_response(law.batch, torch.zeros(law.batch.batch_size), "sequence_geomean").exp()
        product = _of_response(law.batch, torch.zeros(law.batch.batch_size), "sequence_product").exp()
        return {Q: law.probs.numpy(), T_ROOT: root.numpy(), K: product.numpy()}

    return Derivation(chains, point, bind)


def long_world() -> World:
    """Twelve tokens drawn independently from a sampler that is a little off."""
    return world("long", 2, 8, one(), behaviors=1, target=_repeated(0.7, 8), policies=(_repeated(0.5, 8),))


def _repeated(p: float, horizon: int) -> TabularPolicy:
    return TabularPolicy.from_probs(torch.tensor([[p, 1 - p]] * (2**horizon - 1), dtype=torch.float64))


def instances() -> list[World]:
    """Responses of one length: the shared worlds, a long one, recorded laws of one token."""
    fixed = [w for w in standard_worlds() if w.env.eos is None and w.name != "deterministic_target"]
    return [*fixed, long_world(), *real_laws()]


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
    hypotheses=("responses are drawn from q, which supports p, and all have the same length T", "K = product of the T ratios"),
    statement="E_q[K^(1/T)] <= 1, with equality on policy; E_q log K = -KL(q||p) <= 0, so a window symmetric about 1 in log "
    "space is "
    "off-center by KL/T per token. With lengths that vary the bound is 1 + E_p[1/T] - E_q[1/T], which may exceed 1",
    source="literature (Jensen); the bound for varying length is ours: it is usually stated without fixing T",
    claims=(
        Claim("root", "at_most", "fixed_length_root", "one", "E_q[K^(1/T)] <= 1 for one length"),
        Claim("any_length", "at_most", "mean_root", "room", "for any lengths: <= 1 + E_p[1/T] - E_q[1/T]"),
        Claim("definition", "equal", "mean_root", "rooted", "the library's geometric mean is the length-th root of its product"),
        Claim("tight", "equal", "equality", "one", "equality on policy"),
        Claim("log", "equal", "mean_log", "minus_kl", "E_q log K = -KL(q||p)"),
        Claim("negative", "at_most", "mean_log", "zero", "which is never above 0"),
        Claim("off_center", "differs", "center", "one_in_logs", "the mean log of the root is not 0", margin=0.05),
        Claim("window", "at_most", "kept_around_one", "kept_around_center", "a window of one width keeps more there"),
    ),
    instances=instances,
    measure=measure,
    derive=lambda instance: _derivation(instance.env.horizon),
    outcome="Center a geometric gate at e^{-KL/T} measured on the batch, not at 1, and do not read its mean as a check that "
    "importance weights average to 1.",
    mutants=(
        Mutant(name="lengths_vary", kind="hypothesis", breaks=("root",), instances=lengths_vary,
               measure=lambda i: {**measure(i), "fixed_length_root": measure(i)["mean_root"]},
               why="one length dropped: the mean root exceeds 1 where the trainer prefers short responses"),
        Mutant(name="product_for_mean", kind="bug", breaks=("definition",), on=("long", "two_segments"),
               plant=lambda: planted(granularity, "log_ratios", sum_for_mean),
               why="the product, T times as far from 1 in logs"),
    ),
)  # fmt: skip
