"""O7: what a cap costs in bias is the mean of what it cuts off, times the signal; a larger cap can cost more."""

from __future__ import annotations

import random
from functools import lru_cache, partial
from typing import Any

import numpy as np
import sympy as sp
import torch
from torch import Tensor

from testbed.estimators.gradient import gradient_terms
from testbed.exact.gradients import exact_gradient
from testbed.policies.schedule import one
from testbed.policies.tabular import TabularPolicy
from testbed.weighting import cap_law, truncate
from testbed.weighting.cap_law import CappedError
from testbed.weighting.optimal_cap import capped_error
from testbed.weighting.rules import weigh
from theory import bugs
from theory.cap_cases import above, below
from theory.derivation import Derivation, Step
from theory.planting import planted
from theory.real_laws import M, P, R, is_real, real_laws, summand_derivation
from theory.response_weights import response_weight
from theory.small_worlds import small_worlds, uncovered_world
from theory.symbols import symbolic_world
from theory.theorem import Claim, Mutant, Quantities, Theorem
from theory.worlds import World, world

CAPS = (0.3, 0.8, 1.0, 1.6, 3.0, 10.0)
FIXED = sp.Rational(4, 5)  # cap of the update
C = sp.Symbol("c", positive=True)


def measure(instance: World, absolute: bool = True) -> Quantities:
    """Bias of the capped estimators of E_pi[R] and of its gradient, from their means, against what the cap cuts off.

    `absolute` is whether the order of biases is asked of |R| (mutants ask it of R).
    """
    law, batch, pi = instance.law, instance.batch, instance.target
    truth = instance.target_law.expect(instance.target_law.batch.reward)
    w = response_weight(batch)
    kept = torch.stack([response_weight(batch, "seq_tis", cap=c) for c in CAPS])
    cut = w - kept
    found: dict[str, Any] = {
        "bias": torch.stack([law.expect(v * batch.reward) - truth for v in kept]),
        "cut_off": torch.stack([-law.expect(v * batch.reward) for v in cut]),
    }  # fmt: skip
    if abs(float(law.expect(w)) - 1.0) < 1e-9:  # the library refuses an exact law of another mean
        found |= {"library_bias": [capped_error(w, law.probs, cap=c, n=2, signal=batch.reward).bias for c in CAPS]}
        found |= {"library_cut_off": found["cut_off"]}
    found |= _order(instance, cut, batch.reward.abs() if absolute else batch.reward)
    if is_real(instance):
        return found | {"share": law.probs * cut[3]}
    capped, exact = weigh("seq_tis", batch, cap=float(FIXED)), weigh("sequence_product", batch)
    found["gradient_bias"] = law.expect(gradient_terms(batch, capped, pi)) - exact_gradient(instance.env, pi)
    found["gradient_cut_off"] = -law.expect(gradient_terms(batch, exact.value - capped.value, pi))
    return found


def _order(instance: World, cut: Tensor, signal: Tensor) -> dict[str, Any]:
    """Sizes of the bias for rising caps; the kept instance where they rise."""
    size = np.abs([float(instance.law.expect(v * signal)) for v in cut])
    found: dict[str, Any] = {"smaller_cap": size[:-1], "larger_cap": size[1:]}
    if instance.name == "signs_alternate":
        signed = np.abs([float(instance.law.expect(v * instance.batch.reward)) for v in cut])
        found |= {"at_one": signed[2], "at_more": signed[3], "at_one_exact": 0.075, "at_more_exact": 0.18}
    return found


def signs_alternate() -> World:
    """Weights 0, 2 and 4 with probabilities .6, .3 and .1, rewards 0, 1 and -1.25: what is cut off nearly cancels at cap 1."""
    pi, mu = (
        TabularPolicy.from_probs(torch.tensor([p], dtype=torch.float64)) for p in ([0.0, 0.6, 0.4], [0.6, 0.3, 0.1])
    )
    return world("signs_alternate", 3, 1, one(), target=pi, policies=(mu,), rewards=[0.0, 1.0, -1.25])


def instances() -> list[World]:
    """Shared small worlds, the one where a larger cap biases more, recorded next-token laws."""
    kept = (
        "two_segments",
        "end_token",
        "random_behavior",
        "one_token",
        "on_policy",
        "deterministic_target",
        "empty_segment",
    )
    return [*(w for w in small_worlds() if w.name in kept), signs_alternate(), *real_laws()]


@lru_cache(maxsize=32)
def _derivation(shape: tuple[Any, ...], with_gradient: bool) -> Derivation:
    w = symbolic_world(shape)
    ratio = w.rho_definition()
    draws = [(y, p, w.weight(y, b).xreplace(ratio)) for b, y, p in w.draws()]

    def value(of: Any) -> sp.Expr:
        return sp.Add(*[p * of(v) * w.reward(y) for y, p, v in draws])

    chains = [[
        Step("bias", value(lambda v: below(v, C)) - w.objective(), "mean of the capped estimator minus J = E_pi[R]",
             tex=r"E_\mu[\min(W,c) R] - E_\pi[R]"),
        Step("one_law", value(lambda v: below(v, C) - v), "E_pi[R] = E_mu[W R]: mu covers pi", tex=r"E_\mu[(\min(W,c) - W) R]"),
        Step("cut_off", -value(lambda v: above(v, C)), "w - min(w, c) = (w - c)+", quantity="bias", tex=r"-E_\mu[(W-c)_+ R]"),
    ]]  # fmt: skip
    if with_gradient:

        def update(of: Any, h: Any, k: int) -> sp.Expr:
            scores = [sp.Add(*[w.score(y, t, h, k) for t in range(len(y))]) for y, _, _ in draws]
            return sp.Add(*[p * of(v) * w.reward(y) * s for (y, p, v), s in zip(draws, scores, strict=True)])

        def all_logits(of: Any) -> list[sp.Expr]:
            return [update(of, h, k) for h, k in w.parameters]

        capped, gradient = all_logits(lambda v: below(v, FIXED)), w.gradient()
        chains.append([
            Step("bias", [a - b for a, b in zip(capped, gradient, strict=True)], "J differentiated",
                 tex=r"E_\mu[\min(W,c) R\, s] - \nabla J"),
            Step("cut_off", [-x for x in all_logits(lambda v: above(v, FIXED))], "grad J = E_mu[W R s] (S2)",
                 quantity="gradient_bias", tex=r"-E_\mu[(W-c)_+ R\, s]"),
        ])  # fmt: skip

    def point(rng: random.Random) -> dict[sp.Symbol, Any]:
        return {**w.point(rng), C: sp.Rational(rng.randint(1, 20), 8)}

    return Derivation(chains, point, lambda instance: {**w.bind(instance), C: np.array(CAPS)})


@lru_cache(maxsize=1)
def _summand() -> Derivation:
    cap = sp.Rational(8, 5)
    return summand_derivation([
        Step("definition", M * above(R, cap), "one word's part of what cap 1.6 cuts off", quantity="share",
             tex=r"\mu(y)(\rho(y) - c)_+"),
        Step("ratio", above(P, cap * M), "rho = pi/mu: the target's probability in excess of c times the behavior's",
             tex=r"(\pi(y) - c\,\mu(y))_+"),
    ])  # fmt: skip


def derive(instance: World) -> Derivation:
    """Derivation of the instance's shape; of one summand for a recorded law."""
    return (
        _summand() if is_real(instance) else _derivation(instance.shape, instance.name in ("two_segments", "one_token"))
    )


def mask_for_cap(right: Any) -> Any:
    """Bug: what exceeds the cap is dropped."""
    return lambda log_ratio, cap: torch.where(log_ratio.exp() > cap, 0.0, log_ratio.exp())


def means_multiplied(right: Any) -> Any:
    """Bug: the mean of what is cut off times the mean signal."""

    def wrong(law: Any, cap: float, n: float) -> CappedError:
        found = right(law, cap, n)
        cut = float(law.probs @ np.maximum(law.values - cap, 0.0))
        return CappedError(-cut * float(law.probs @ law.signal[:, 0]), found.variance, found.mse)

    return wrong


def only(*names: str) -> list[World]:
    """Instances of these names."""
    return [w for w in instances() if w.name in names]


THEOREM = Theorem(
    id="O7",
    kind="identity",
    title="truncation bias is minus the mean of what the cap cuts off, times the signal",
    hypotheses=(
        "W is the full product of recorded ratios and the behaviors cover the target: E_mu[W f] = E_pi[f]",
        "the cap c is fixed, not computed from the responses it is used on",
        "for a bias that falls with the cap: f does not change sign",
    ),
    statement="E_mu[min(W,c) f] - E_pi[f] = -E_mu[(W-c)+ f] for every f: a value, an update. For f of one sign its size is "
    "nonincreasing in c; with signed f a larger cap can bias more: W in {0, 2, 4}, f = (0, 1, -1.25): .075 at c = 1, .18 at 1.6",
    source="literature",
    references=("Ionides, Truncated importance sampling, J. Comput. Graph. Stat. 17 (2008) 295-311",),
    claims=(
        Claim("value", "equal", "bias", "cut_off", "bias of the capped value estimate"),
        Claim("gradient", "equal", "gradient_bias", "gradient_cut_off", "bias of the capped update"),
        Claim("library", "equal", "library_bias", "library_cut_off", "and what `capped_error` reports"),
        Claim("one_sign", "at_most", "larger_cap", "smaller_cap", "with |f|, a larger cap biases no more"),
        Claim("at_one", "equal", "at_one", "at_one_exact", "signed f: .075 at cap 1"),
        Claim("at_more", "equal", "at_more", "at_more_exact", ".18 at cap 1.6"),
        Claim("not_monotone", "at_most", "at_one", "at_more", "the larger cap biases more"),
        Claim("by_a_margin", "differs", "at_one", "at_more", "by a factor above two", margin=0.5),
    ),
    instances=instances,
    measure=measure,
    derive=derive,
    outcome="Raising a cap is no sure way to less bias when rewards or advantages have both signs; the excess (W-c)+ f tells.",
    mutants=(
        Mutant(name="support_violated", kind="hypothesis", breaks=("value", "gradient"), instances=lambda: [uncovered_world()],
               why="what the behavior never draws is lost under any cap; needs a token of the target outside its support"),
        Mutant(name="signed_signal", kind="hypothesis", breaks=("one_sign",), instances=lambda: only("signs_alternate"),
               measure=partial(measure, absolute=False), why="rewards of both signs: what is cut off cancels at a smaller cap"),
        Mutant(name="mask_for_cap", kind="bug", breaks=("library",), instances=lambda: only("two_segments"),
               plant=lambda: planted(truncate, "truncate", mask_for_cap),
               why="a mask loses the capped part, too; needs a weight above a cap"),
        Mutant(name="means_multiplied", kind="bug", breaks=("library",), instances=lambda: only("two_segments", "one_token"),
               plant=lambda: planted(cap_law, "law_error", means_multiplied),
               why="E(W-c)+ E f in place of E[(W-c)+ f]; needs a signal that goes with the weight"),
        Mutant(name="ratio_inverted", kind="bug", breaks=("value", "gradient"), instances=lambda: only("one_token"),
               plant=bugs.ratio_inverted, why="behavior over target is no weight: E_mu[W f] is not E_pi[f]"),
    ),
)  # fmt: skip
