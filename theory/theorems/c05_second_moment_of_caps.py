"""C5: a cap bounds the second moment by its mean under the trainer; without one, heavy-tailed noise leaves it infinite."""

from __future__ import annotations

import random
from functools import lru_cache, partial
from typing import Any

import numpy as np
import sympy as sp
import torch

from testbed.policies.noise.laplace import Laplace
from testbed.policies.noise.law import MarginalLaw
from testbed.weighting import confidence
from testbed.weighting import truncate as truncation
from testbed.weighting.confidence import confidence_log_cap
from testbed.weighting.rules import weigh
from testbed.weighting.truncate import truncate
from theory.capped_tokens import capped_tokens
from theory.derivation import Derivation, Step
from theory.heavy_tails import Tail, exponential_moments, tail_derivation, tails
from theory.mismatch_worlds import K, P, Q, bind, point
from theory.noise_cases import NoiseCase, noise_cases, signs
from theory.planting import planted
from theory.theorem import Claim, Mutant, Quantities, Theorem

C = sp.Symbol("c", nonnegative=True)
SAME, UP, DOWN = sp.symbols("Sigma M_plus M_minus", positive=True)  # sum p^2, E e^delta, E e^-delta


def measure(instance: Any, sampled: bool = True) -> Quantities:
    """Second moments of capped weights, of exact ratios under noise, or exponential moments of a law of noise.

    Mutants take the expectation under the trainer's law.
    """
    if isinstance(instance, Tail):
        return exponential_moments(instance.law)
    if isinstance(instance, NoiseCase):
        return _noise(instance)
    world, caps = instance.world, instance.of_drawn(instance.caps)
    law = world.law if sampled else world.target_law
    ratio = weigh("exact", world.batch).value
    wild = caps * torch.linspace(0.2, 3.0, len(caps), dtype=torch.float64)
    log_p = world.target.table[0]
    under_p = world.batch.logp_target[:, 0].exp()
    form = {k: v for k, v in instance.params.items() if k != "cap"}
    library = confidence_log_cap(log_p, **form).exp() if form else torch.full_like(log_p, instance.params["cap"])
    return {
        "library_caps": library, "caps": instance.caps, "library_mean": (log_p.exp() * library).sum(),
        "second": law.expect(instance.weights**2), "mean_cap": (under_p * caps).sum(), "ceiling": instance.bound,
        "wild_second": law.expect(truncate(ratio.log(), wild[:, None])[:, 0] ** 2), "wild_mean": (under_p * wild).sum(),
        "tight_second": law.expect(truncate(ratio.log(), ratio.clamp(min=1e-300))[:, 0] ** 2),
        "tight_mean": (under_p * ratio[:, 0]).sum(),
        "summand": world.law.probs * ratio[:, 0] * caps,
    }  # fmt: skip


def _noise(case: NoiseCase) -> Quantities:
    """Mean second moment of the exact ratio over finite noise, against the moments of one logit's noise."""
    p = case.log_p.exp()
    one = case.shifts[:, 0].numpy()
    up, down = case.mean(np.exp(one)), case.mean(np.exp(-one))
    same = float((p**2).sum())
    values = {"noisy_second": case.law.expect(weigh("exact", case.law.batch).value[:, 0] ** 2), "same": same}
    return values | {"by_moments": same + (1 - same) * up * down, "up": up, "down": down}


@lru_cache(maxsize=3)
def _derivation(kind: str) -> Derivation:
    if kind == "cap":
        under = (K + C - sp.Abs(K - C)) / 2
        chain = [
            Step("summand", Q * under**2, "one token's share of E_q min(k,c)^2", tex=r"q\,\min(k,c)^2"),
            Step("both", Q * K * C, "min(k,c) is at most k, and at most c: one factor of each", "<=",
                 quantity="summand", tex=r"q\,k\,c"),
            Step("trainer", P * C, "q k = p: the cap's mean under the trainer's law", tex=r"p\,c"),
        ]  # fmt: skip
        draw = lambda rng: {**point(rng), C: sp.Rational(rng.randint(0, 30), 7)}  # noqa: E731
        return Derivation([chain], draw, lambda i: {**bind(i.world), C: i.caps})
    if kind == "noise":
        size = 3
        p, a, d = sp.symbols(f"p1:{size + 1}", positive=True), sp.Symbol("a"), sp.symbols("u v", positive=True)
        probabilities = (a, 1 - a)
        total = sp.Integer(0)
        for outcome in np.ndindex(*(2,) * size):
            m = [d[o] for o in outcome]
            z = sp.Add(*[x * y for x, y in zip(p, m, strict=True)])
            second = sp.Add(*[x**2 / (x * y / z) for x, y in zip(p, m, strict=True)])
            total += sp.Mul(*[probabilities[o] for o in outcome]) * second
        up, down = a * d[0] + (1 - a) * d[1], a / d[0] + (1 - a) / d[1]
        same = sp.Add(*[x**2 for x in p])
        chain = [
            Step("enumerated", total, "E_delta sum p^2/q, q = p e^delta/Z, for independent noise of two values on three logits",
                 tex=r"E_\delta\sum_j \frac{p_j^2}{q_j} = E_\delta\sum_{ij} p_i p_j\,e^{\delta_i - \delta_j}"),
            Step("independent", same + (sp.Add(*p) ** 2 - same) * up * down, "i = j gives 1, and i != j a product of two means",
                 tex=r"\sum p^2 + \big(1 - \sum p^2\big)\,E e^{\delta}\,E e^{-\delta}"),
        ]  # fmt: skip
        named = [
            Step("moments", SAME + (1 - SAME) * UP * DOWN, "nothing but Sigma = sum p^2, M(1) and M(-1) is left, whatever the "
                 "law of the noise", quantity="noisy_second", tex=r"\Sigma + (1-\Sigma)\,M(1)\,M(-1)"),
            Step("chi2", 1 + (1 - SAME) * (UP * DOWN - 1), "so chi2 is the noise's share times 1 - Sigma: small for a sure "
                 "trainer",
                 tex=r"1 + (1-\Sigma)\big(M(1)\,M(-1) - 1\big)"),
        ]  # fmt: skip

        def draw_noise(rng: random.Random) -> dict[sp.Symbol, Any]:
            raw = [rng.randint(1, 9) for _ in p]
            numbers = {x: sp.Rational(n, sum(raw)) for x, n in zip(p, raw, strict=True)}
            draw = lambda: sp.Rational(rng.randint(2, 30), 7)  # noqa: E731
            return numbers | {
                a: sp.Rational(rng.randint(1, 6), 7),
                d[0]: draw(),
                d[1]: draw(),
                SAME: draw(),
                UP: draw(),
                DOWN: draw(),
            }

        def bind_noise(case: NoiseCase) -> dict[sp.Symbol, Any]:
            found = _noise(case)
            return {SAME: found["same"], UP: found["up"], DOWN: found["down"]}

        return Derivation([chain, named], draw_noise, bind_noise)
    raise AssertionError(kind)


def derive(instance: Any) -> Derivation:
    """By kind of instance."""
    if isinstance(instance, Tail):
        return tail_derivation(instance.law)
    return _derivation("noise" if isinstance(instance, NoiseCase) else "cap")


def instances() -> list[Any]:
    """Every mismatch under every cap; independent noise of finite law; laws of noise with and without exponential moments."""
    independent = [
        case for case in noise_cases() if case.name in ("three_tokens", "two_tokens", "confident", "no_noise")
    ]
    return [*capped_tokens(), *independent, signs("loud", [0.5, 0.25, 0.25], 2.0), *tails()]


def common_noise() -> list[NoiseCase]:
    """Noise that all logits share."""
    return [case for case in noise_cases() if case.name == "common"]


def cap_for_its_log(right: Any) -> Any:
    """Bug: the cap returned where its logarithm is due."""
    return lambda logp_target, lam, floor, cap_form="odds": right(logp_target, lam, floor, cap_form).exp()


def finite_everywhere(right: Any) -> Any:
    """Bug: the closed form of the moment used where the integral diverges."""
    return lambda self, t: 1 / (1 - min(self.scale**2 * t * t, 0.999999))


def one_forgotten(right: Any) -> Any:
    """Bug: 1 + phi e^lambda."""

    def wrong(logp_target: Any, lam: float, floor: float, cap_form: str = "odds") -> Any:
        return torch.log1p((-torch.expm1(logp_target)).clamp(min=floor) * np.exp(lam))

    return wrong


def largest_cap(right: Any) -> Any:
    """Bug: one cap for the batch, the largest of those given."""
    return lambda log_ratio, cap: right(log_ratio, float(cap.max()) if isinstance(cap, torch.Tensor) else cap)


def same_token_forgotten(right: Any) -> Any:
    """Bug: M(1) M(-1) for every pair of tokens, a token with itself included."""
    return lambda self, probs: self.pair_moment()


THEOREM = Theorem(
    id="C5",
    kind="bound",
    title="a cap's mean under the trainer bounds the second moment; heavy-tailed noise leaves the exact ratio's infinite",
    hypotheses=(
        "tokens are drawn from q, k = p/q; the cap c >= 0 may depend on token and context; 0 <= kappa <= 1, lambda >= 0",
        "for the exact ratio: independent noise delta of one law on every logit, M(t) = E e^{t delta}",
    ),
    statement="E_q[min(k,c)^2] <= E_p[c]: odds CIS <= 1 + (e^lambda - 1) E_p[phi] <= e^lambda, linear <= 1 + lambda, loglinear "
    "<= e^lambda, TIS <= C; tight at c = k. Exact ratio: E_delta[1 + chi2] = sum p^2 + (1 - sum p^2) M(1) M(-1), infinite for "
    "Laplace noise of scale >= 1 and for every Student t",
    source="paper (CIS): 'a term bounded by a constant'; the bound for every cap and the noise identity are ours",
    reading=True,
    claims=(
        Claim("bound", "at_most", "second", "mean_cap", "E_q w^2 <= E_p[cap], for every rule with a cap"),
        Claim("caps", "equal", "library_caps", "caps", "the caps are C, 1 + (e^lambda - 1) phi, 1 + lambda phi, e^{lambda phi}"),
        Claim("ceiling", "at_most", "library_mean", "ceiling", "their mean under p is at most C, e^lambda, 1 + lambda, e^lambda"),
        Claim("any_cap", "at_most", "wild_second", "wild_mean", "also for caps that vary wildly from token to token"),
        Claim("tight", "equal", "tight_second", "tight_mean", "equality where the cap is the ratio itself"),
        Claim("noise", "equal", "noisy_second", "by_moments", "exact ratio: sum p^2 + (1 - sum p^2) M(1) M(-1)"),
        Claim("library", "equal", "library_second", "by_mgf", "which is what the noise laws report"),
        Claim("moments", "equal", "mgf", "expected_mgf", "M(1) of each law, infinite for Laplace >= 1 and Student t"),
        Claim("diverges", "at_most", "at_least", "integral", "there its integral up to N grows at least linearly in N"),
    ),
    instances=instances,
    measure=measure,
    derive=derive,
    outcome="Any cap bounds the second moment at any confidence. Without one, whether the variance is finite at all depends on "
    "the tails of the engines' logit noise, and no sample can show that it is.",
    mutants=(
        Mutant(name="drawn_from_the_trainer", kind="hypothesis", breaks=("bound", "tight"),
               on=("doubtful_sampler_tis",), measure=partial(measure, sampled=False),
               why="the expectation is the sampler's; needs tokens that the trainer favors"),
        Mutant(name="noise_shared_by_logits", kind="hypothesis", breaks=("noise",), instances=common_noise,
               why="shared noise changes no law: independence between logits is needed"),
        Mutant(name="cap_taken_for_its_log", kind="bug", breaks=("bound", "caps", "ceiling"), on=("doubtful_trainer_odds",),
               plant=lambda: planted(confidence, "confidence_log_cap", cap_for_its_log),
               why="the ratio may reach e^cap; needs ratios far beyond the cap"),
        Mutant(name="one_forgotten", kind="bug", breaks=("caps", "ceiling"), on=("doubtful_trainer_odds", "strong_odds"),
               plant=lambda: planted(confidence, "confidence_log_cap", one_forgotten),
               why="1 + phi e^lambda exceeds e^lambda for doubtful tokens; the weights still obey the caps they are given"),
        Mutant(name="one_cap_for_all", kind="bug", breaks=("any_cap",), on=("doubtful_trainer_tis", "strong_tis"),
               plant=lambda: planted(truncation, "truncate", largest_cap),
               why="the largest cap of the batch instead of each token's; needs caps that differ and bind"),
        Mutant(name="same_token_forgotten", kind="bug", breaks=("library",), on=("gaussian", "laplace"),
               plant=lambda: planted(MarginalLaw, "expected_second_moment", same_token_forgotten),
               why="i = j gives 1, not a product of two means"),
        Mutant(name="moment_beyond_its_domain", kind="bug", breaks=("moments",), on=("laplace_1", "laplace_1p5"),
               plant=lambda: planted(Laplace, "mgf", finite_everywhere),
               why="1/(1 - b^2) is no moment for b >= 1"),
    ),
)  # fmt: skip
