"""C5: a cap bounds the second moment by its mean under the trainer; without one, heavy-tailed noise leaves it infinite."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
import sympy as sp
import torch
from scipy import stats
from scipy.integrate import quad

from testbed.policies.noise.gaussian import Gaussian
from testbed.policies.noise.laplace import Laplace
from testbed.policies.noise.law import MarginalLaw
from testbed.policies.noise.student import StudentT
from testbed.weighting import confidence
from testbed.weighting.rules import weigh
from testbed.weighting.truncate import truncate
from theory.capped_tokens import capped_tokens
from theory.derivation import Derivation, Step
from theory.mismatch_worlds import K, P, Q, bind, point
from theory.noise_cases import NoiseCase, noise_cases, signs
from theory.planting import planted
from theory.theorem import Claim, Mutant, Quantities, Theorem

C = sp.Symbol("c", nonnegative=True)
SAME, UP, DOWN = sp.symbols("Sigma M_plus M_minus", positive=True)  # sum p^2, E e^delta, E e^-delta
X, B, NU, N, CONST = sp.symbols("x b nu N a", positive=True)
LINE = sp.Symbol("y", real=True)
FAR = (4.0, 8.0, 16.0)  # where integrals of e^x over a tail stop


@dataclass(frozen=True, kw_only=True)
class Tail:
    """A law of the noise of one logit."""

    name: str
    law: MarginalLaw


def measure(instance: Any, sampled: bool = True) -> Quantities:
    """Second moments of capped weights, of exact ratios under noise, or exponential moments of a law of noise.

    Mutants take the expectation under the trainer's law.
    """
    if isinstance(instance, Tail):
        return _tail(instance.law)
    if isinstance(instance, NoiseCase):
        return _noise(instance)
    world, caps = instance.world, instance.of_drawn(instance.caps)
    law = world.law if sampled else world.target_law
    ratio = weigh("exact", world.batch).value
    wild = caps * torch.linspace(0.2, 3.0, len(caps), dtype=torch.float64)
    return {
        "second": law.expect(instance.weights**2), "mean_cap": world.target_law.expect(caps), "ceiling": instance.bound,
        "wild_second": law.expect(truncate(ratio.log(), wild[:, None])[:, 0] ** 2), "wild_mean": world.target_law.expect(wild),
        "tight_second": law.expect(truncate(ratio.log(), ratio)[:, 0] ** 2), "tight_mean": world.target_law.expect(ratio[:, 0]),
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


def _tail(law: MarginalLaw) -> Quantities:
    """E e^delta from the library; where it is infinite, what its integral up to some point is at least."""
    found: dict[str, Any] = {"mgf": law.mgf(1.0)}
    laws = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    found |= {"library_second": law.expected_second_moment(laws), "by_mgf": 0.38 + 0.62 * law.mgf(1.0) * law.mgf(-1.0)}
    if isinstance(law, Gaussian):
        found["expected_mgf"] = quad(lambda x: np.exp(x - x * x / (2 * law.sigma**2)), -40, 40)[0] / (
            law.sigma * np.sqrt(2 * np.pi)
        )
    elif isinstance(law, Laplace):
        found["expected_mgf"] = 1 / (1 - law.scale**2) if law.scale < 1 else np.inf
        if law.scale >= 1:
            found |= {"at_least": np.array(FAR) / (2 * law.scale)}
            found |= {
                "integral": [quad(lambda x: np.exp(x - x / law.scale) / (2 * law.scale), 0, far)[0] for far in FAR]
            }
    elif isinstance(law, StudentT):
        density = lambda x: stats.t.pdf(x / law.scale, law.df) / law.scale  # noqa: E731
        order = int(law.df) + 1
        edge = float(density(1.0))  # x^(nu+1) times the density rises in x: on [1, inf) it is at least its value at 1
        found |= {"expected_mgf": np.inf, "at_least": edge * (np.array(FAR) - 1) / float(sp.factorial(order))}
        found |= {"integral": [quad(lambda x: np.exp(x) * density(x), 1, far)[0] for far in FAR]}
    return found


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
        named = [Step("moments", SAME + (1 - SAME) * UP * DOWN, "the same for any law of the noise", quantity="noisy_second",
                      tex=r"\Sigma + (1-\Sigma)\,M(1)\,M(-1)")]  # fmt: skip

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


@lru_cache(maxsize=8)
def _tails(law: MarginalLaw) -> Derivation:
    laplace = sp.exp(-sp.Abs(X) / B) / (2 * B)
    if isinstance(law, Gaussian):
        density = sp.exp(-(X**2) / (2 * B**2)) / (B * sp.sqrt(2 * sp.pi))
        chain = [
            Step("integral", sp.integrate(sp.exp(LINE) * density.xreplace({X: LINE}), (LINE, -sp.oo, sp.oo)),
                 "M(1) of Gaussian noise",
                 tex=r"\int e^x\,\frac{e^{-x^2/2\sigma^2}}{\sigma\sqrt{2\pi}}\,dx"),
            Step("closed", sp.exp(B**2 / 2), "complete the square", quantity="mgf", tex=r"e^{\sigma^2/2}"),
        ]  # fmt: skip
    elif isinstance(law, Laplace) and law.scale < 1:
        sides = [sp.integrate(sp.exp(sign * X - X / B) / (2 * B), (X, 0, sp.oo), conds="none") for sign in (1, -1)]
        chain = [
            Step("sides", sp.Add(*sides), "M(1) of Laplace noise, right and left of 0, for b < 1",
                 tex=r"\int_0^\infty \frac{e^{x-x/b} + e^{-x-x/b}}{2b}\,dx"),
            Step("closed", 1 / (1 - B**2), "add the two", quantity="mgf", tex=r"\frac{1}{1-b^2}"),
        ]  # fmt: skip
    elif isinstance(law, Laplace):
        finite = sp.integrate(sp.exp(X) * laplace.subs(sp.Abs(X), X), (X, 0, N), conds="none")
        chain = [
            Step("integral", finite, "Laplace noise of scale b: E[e^delta; 0 < delta < N]", tex=r"\int_0^N \frac{e^{x - "
                 r"x/b}}{2b}\,dx"),
            Step("closed", (sp.exp(N * (1 - 1 / B)) - 1) / (2 * (B - 1)), "grows without bound in N iff b > 1",
                 tex=r"\frac{e^{N(1-1/b)} - 1}{2(b-1)}"),
            Step("linear", N / (2 * B), "e^x >= 1 + x: at least N/(2b), also in the limit b = 1", ">=", quantity="at_least",
                 tex=r"\frac{N}{2b}"),
        ]  # fmt: skip
    else:
        chain = [
            Step("integrand", CONST * sp.exp(X) * X ** (-NU - 1), "Student t: for x >= 1 its density is at least a x^-(nu+1)",
                 tex=r"e^x\,a\,x^{-(\nu+1)}"),
            Step("one_term", CONST * X ** (NU + 1) / sp.factorial(NU + 1) * X ** (-NU - 1), "one term of the series of e^x", ">=",
                 tex=r"a\,\frac{x^{\nu+1}}{(\nu+1)!}\,x^{-(\nu+1)}"),
            Step("constant", CONST / sp.factorial(NU + 1), "a constant", tex=r"\frac{a}{(\nu+1)!}"),
        ]  # fmt: skip
        height = CONST / sp.factorial(NU + 1)
        whole = [
            Step("integrated", sp.integrate(height, (X, 1, N)), "integrate it from 1 to N", tex=r"\int_1^N "
                 r"\frac{a}{(\nu+1)!}\,dx"),
            Step("linear", height * (N - 1), "infinite as N grows, for every nu", quantity="at_least",
                 tex=r"\frac{a\,(N-1)}{(\nu+1)!}"),
        ]  # fmt: skip
        return Derivation([chain, whole], _tail_point, lambda i: _tail_numbers(i.law))
    return Derivation([chain], _tail_point, lambda i: _tail_numbers(i.law))


def _tail_point(rng: random.Random) -> dict[sp.Symbol, Any]:
    numbers = {B: 1 + sp.Rational(rng.randint(1, 9), 4), N: rng.randint(1, 5), NU: sp.Integer(rng.randint(1, 6))}
    return numbers | {X: sp.Integer(rng.randint(1, 9)), CONST: sp.Rational(1, 7)}


def _tail_numbers(law: MarginalLaw) -> dict[sp.Symbol, Any]:
    if isinstance(law, StudentT):
        edge = float(stats.t.pdf(1 / law.scale, law.df) / law.scale)
        return {NU: float(law.df), CONST: edge, N: np.array(FAR)}
    scale = law.sigma if isinstance(law, Gaussian) else law.scale if isinstance(law, Laplace) else 1.0
    return {B: scale, N: np.array(FAR)}


def derive(instance: Any) -> Derivation:
    """By kind of instance."""
    if isinstance(instance, Tail):
        return _tails(instance.law)
    return _derivation("noise" if isinstance(instance, NoiseCase) else "cap")


def instances() -> list[Any]:
    """Every mismatch under every cap; independent noise of finite law; laws of noise with and without exponential moments."""
    tails = {"gaussian": Gaussian(0.5), "laplace": Laplace(0.5), "laplace_1": Laplace(1.0), "laplace_1p5": Laplace(1.5),
             "student_2": StudentT(0.1, 2.0), "student_5": StudentT(1.0, 5.0)}  # fmt: skip
    independent = [
        case for case in noise_cases() if case.name in ("three_tokens", "two_tokens", "confident", "no_noise")
    ]
    return [
        *capped_tokens(), *independent, signs("loud", [0.5, 0.25, 0.25], 2.0),
        *(Tail(name=name, law=law) for name, law in tails.items()),
    ]  # fmt: skip


def common_noise() -> list[NoiseCase]:
    """Noise that all logits share."""
    return [case for case in noise_cases() if case.name == "common"]


def cap_for_its_log(right: Any) -> Any:
    """Bug: the cap returned where its logarithm is due."""
    return lambda logp_target, lam, floor, cap_form: right(logp_target, lam, floor, cap_form).exp()


def finite_everywhere(right: Any) -> Any:
    """Bug: the closed form of the moment used where the integral diverges."""
    return lambda self, t: 1 / (1 - min(self.scale**2 * t * t, 0.999999))


THEOREM = Theorem(
    id="C5",
    kind="bound",
    title="a cap's mean under the trainer bounds the second moment; heavy-tailed noise leaves the exact ratio's infinite",
    hypotheses=(
        "tokens are drawn from q, k = p/q; the cap c >= 0 may depend on token and context; 0 <= kappa <= 1, lambda >= 0",
        "for the exact ratio: independent noise delta of one law on every logit, M(t) = E e^{t delta}",
    ),
    statement="E_q[min(k,c)^2] <= E_p[c]: odds CIS <= 1 + (e^lambda - 1) E_p[phi] <= e^lambda, linear <= 1 + lambda, TIS <= C; "
    "tight at "
    "c = k. Exact ratio: E_delta[1 + chi2] = sum p^2 + (1 - sum p^2) M(1) M(-1), infinite for Laplace noise of scale >= 1 and "
    "for "
    "every Student t",
    source="paper (CIS): 'a term bounded by a constant'; the bound for every cap and the noise identity are ours",
    reading=True,
    claims=(
        Claim("bound", "at_most", "second", "mean_cap", "E_q w^2 <= E_p[cap], for every rule with a cap"),
        Claim("ceiling", "at_most", "mean_cap", "ceiling", "which is at most e^lambda, 1 + lambda or C"),
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
    "the "
    "tails of the engines' logit noise, and no sample can show that it is.",
    mutants=(
        Mutant(name="drawn_from_the_trainer", kind="hypothesis", breaks=("bound", "tight"),
               on=("doubtful_sampler_tis",), measure=partial(measure, sampled=False),
               why="the expectation is the sampler's; needs tokens that the trainer favors"),
        Mutant(name="noise_shared_by_logits", kind="hypothesis", breaks=("noise",), instances=common_noise,
               why="shared noise changes no law: independence between logits is needed"),
        Mutant(name="cap_taken_for_its_log", kind="bug", breaks=("bound",), on=("doubtful_trainer_odds",),
               plant=lambda: planted(confidence, "confidence_log_cap", cap_for_its_log),
               why="the ratio may reach e^cap; needs ratios far beyond the cap"),
        Mutant(name="moment_beyond_its_domain", kind="bug", breaks=("moments",), on=("laplace_1", "laplace_1p5"),
               plant=lambda: planted(Laplace, "mgf", finite_everywhere),
               why="1/(1 - b^2) is no moment for b >= 1"),
    ),
)  # fmt: skip
