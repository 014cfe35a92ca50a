"""Tokens under noise, for the notebook on mismatch: all numbers come from the library, by exact sums over the noise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import product
from math import exp, sqrt
from typing import Any

import numpy as np
import torch
from scipy.optimize import brentq

import testbed
from testbed.weighting.confidence import confidence_log_cap, displacement, kpop_gate
from theory.calibrated_tokens import moe_tokens, one_segment
from theory.noise_cases import NoiseCase, noise_case
from theory.recorded_mismatch import EDGES, ENGINES, mad, recorded

THREE = {-sqrt(3): 1 / 6, 0.0: 2 / 3, sqrt(3): 1 / 6}  # noise of one logit over sigma: its chances; mean 0, variance 1
FORMS = {"odds": "CIS, odds", "linear": "linear", "loglinear": "log-linear"}
LEAST, FARTHEST = -2.0, 7.0  # logs of the constant caps looked for


def with_noise(probs: Sequence[float], sigma: float) -> NoiseCase:
    """A law of tokens, and every outcome of independent three-point noise on its logits."""
    outcomes = list(product(THREE.items(), repeat=len(probs)))
    shifts = [[sigma * x for x, _ in outcome] for outcome in outcomes]
    return noise_case("noisy", probs, shifts, [float(np.prod([c for _, c in outcome])) for outcome in outcomes])


def deviation(chances: np.ndarray, values: np.ndarray) -> float:
    """Standard deviation under chances that need not sum to 1."""
    mean = chances @ values / chances.sum()
    return sqrt(chances @ (values - mean) ** 2 / chances.sum())


@lru_cache
def first_token(sigma: float, p: float, share: float) -> dict[str, Any]:
    """The first of three tokens, of probability p; the others have share and 1 - share of the rest.

    Returns
    -------
    dict   eps: its displacement in every outcome; fixed, drawn: chance of each outcome for a token chosen beforehand, and
           for one that the sampler drew; moments of both
    """
    case = with_noise([p, (1 - p) * share, (1 - p) * (1 - share)], sigma)
    log_p, log_q = case.log_p[0], torch.log_softmax(case.log_p + case.shifts, -1)[:, 0]
    eps, log_ratio = displacement(log_p.expand_as(log_q), log_q).numpy(), (log_p - log_q).numpy()
    fixed = np.asarray(case.chances)
    tilted = fixed * np.exp(-log_ratio)
    first = case.law.batch.tokens[:, 0] == 0  # by listing noise and token: those outcomes in which it was drawn
    there = case.law.probs * first / (case.law.probs * first).sum()
    return {
        "eps": eps, "fixed": fixed, "drawn": tilted / tilted.sum(), "sd": deviation(fixed, eps),
        "first order": sigma * sqrt(1 + share**2 + (1 - share) ** 2), "mean fixed": float(fixed @ eps),
        "mean drawn": float(there @ torch.from_numpy(eps)[case.law.branch]), "tilt": -(1 - p) * deviation(fixed, eps) ** 2,
        "sd drawn": deviation(tilted, eps), "sd log k": deviation(tilted, log_ratio),
    }  # fmt: skip


def cis_caps(doubts: Sequence[float], lam: float, floor: float) -> dict[str, list[float]]:
    """Caps of the three readings at each of the doubts 1 - p."""
    log_p = torch.log1p(-torch.tensor(doubts, dtype=torch.float64))
    return {name: confidence_log_cap(log_p, lam, floor, form).exp().tolist() for form, name in FORMS.items()}


def cap_words(lam: float, floor: float, cap: float) -> str:
    """Where CIS and a constant cap cut, at two confidences: as ratios and as displacements."""
    words = []
    for p in (0.9, 0.999):
        odds, linear, log_linear = (bound[0] for bound in cis_caps([1 - p], lam, floor).values())
        cis, constant = (edges([1 - p], [bound])[0] for bound in (odds, cap))
        words.append(
            f"p = {p:g}: CIS cuts at k = <b>{odds:.4f}</b> (linear {linear:.4f}, log-linear {log_linear:.4f}), a "
            f"displacement of {cis:.3f}; the constant cap at {constant:.3f}"
        )
    return "; ".join(words)


def edges(doubts: Sequence[float], bounds: Sequence[float]) -> list[float]:
    """Displacement of the token whose ratio is the bound, at each of the doubts."""
    log_p = torch.log1p(-torch.tensor(doubts, dtype=torch.float64))
    return displacement(log_p, log_p - torch.tensor(bounds, dtype=torch.float64).log()).tolist()


@lru_cache(maxsize=4096)
def cost(rule: str, bound: float, score: bool, floor: float = 5e-3) -> dict[str, Any]:
    """What a rule takes from tokens drawn under the calibrated noise of a mixture of experts.

    Parameters
    ----------
    rule : "cis", "tis" or "mis"   with its threshold lambda, or its cap
    score : bool                   test function f = 1 - p instead of 1

    Returns
    -------
    dict   acted: share of tokens; bias: mean of (k - w) f; second: of (w f)^2; by range: the bias in each range of
           confidence; ceiling: mean of k times the cap, C5's bound on the second moment of w; weights [5, E]
    """
    tokens = moe_tokens()
    ratio = testbed.weigh("exact", tokens.batch).value
    w = testbed.weigh(rule, tokens.batch, **({"lam": bound, "floor": floor} if rule == "cis" else {"cap": bound}))
    log_p = tokens.batch.logp_target
    f = -torch.expm1(log_p) if score else torch.ones_like(log_p)
    cap = confidence_log_cap(log_p, bound, floor).exp() if rule == "cis" else torch.full_like(log_p, bound)
    cut = (ratio - w.value) * f
    return {
        "acted": tokens.overall(w.acted.to(torch.float64)), "bias": tokens.overall(cut),
        "second": tokens.overall((w.value * f) ** 2), "by range": tokens.by_row(cut).tolist(),
        "ceiling": tokens.overall(ratio * cap), "weights": w.value,
    }  # fmt: skip


@lru_cache(maxsize=64)
def equal(what: str, lam: float, score: bool) -> float:
    """Constant cap whose "acted", "ceiling" or "bias" is that of CIS.

    The share of tokens on a grid moves in steps: the cap touches no more tokens than CIS.
    """
    goal = cost("cis", lam, score)[what]
    found = _root(lambda log_cap: cost("tis", exp(log_cap), score)[what] - goal)
    return exp(found) * (1 + 1e-9 * (what == "acted"))


def _root(gap: Callable[[float], float]) -> float:
    return float(brentq(gap, LEAST, FARTHEST, xtol=1e-13))  # pyright: ignore[reportArgumentType]


def compare(lam: float, what: str, score: bool) -> tuple[float, dict[str, dict[str, Any]]]:
    """CIS, and a constant cap and a mask at the one bound that `equal` finds."""
    bound = equal(what, lam, score)
    return bound, {rule: cost(rule, x, score) for rule, x in (("cis", lam), ("tis", bound), ("mis", bound))}


def excess(rule: str, bound: float, score: bool) -> tuple[float, float]:
    """Bias of a rule, and its second moment above that of the constant cap of the same bias."""
    found = cost(rule, bound, score)
    if rule == "tis":
        return found["bias"], 0.0
    log_cap = _root(lambda x: cost("tis", exp(x), score)["bias"] - found["bias"])
    return found["bias"], found["second"] - cost("tis", exp(log_cap), score)["second"]


@lru_cache
def path(rule: str, bounds: tuple[float, ...], score: bool) -> tuple[list[float], list[float]]:
    """Biases of a rule along its bound, and the excess of its second moment at each."""
    found = [excess(rule, bound, score) for bound in bounds]
    return [bias for bias, _ in found], [more for _, more in found]


def token_by_token(pairs: Sequence[tuple[float, float]], rules: Sequence[str]) -> list[list[str]]:
    """p, q, their ratio and what each rule makes of it; bold where that is not the ratio."""
    p, q = (torch.tensor([[pair[k]] for pair in pairs], dtype=torch.float64) for k in (0, 1))
    batch = one_segment(p.log(), q.log())
    weights = [testbed.weigh(rule, batch) for rule in rules]
    mark = ["**" if acted else "" for w in weights for acted in w.acted[:, 0].tolist()]
    return [
        [f"{a:g}", f"{b:g}", f"{a / b:.3f}"]
        + [f"{m}{w.value[i, 0]:.3f}{m}" for w, m in zip(weights, mark[i :: len(pairs)], strict=True)]
        for i, (a, b) in enumerate(pairs)
    ]


def added_to_mean_weight() -> dict[str, float]:
    """Mean of w - k under the calibrated noise: of a clamp to [.5, 5], of the ratio raised to (1 + p) / 2, and of CIS."""
    tokens = moe_tokens()
    ratio, p = testbed.weigh("exact", tokens.batch).value, tokens.batch.logp_target.exp()
    weights = {
        "clamp": testbed.weigh("band", tokens.batch).value, "raised": torch.maximum(ratio, (1 + p) / 2),
        "CIS": testbed.weigh("cis", tokens.batch).value,
    }  # fmt: skip
    return {name: tokens.overall(w - ratio) for name, w in weights.items()}


def floor_row(floor: float) -> list[str]:
    """Floor of CIS, share of tokens touched, bias, and the largest change of a weight against no floor."""
    found, bare = cost("cis", 2.3, False, floor), cost("cis", 2.3, False, 0.0)
    change = float((found["weights"] / bare["weights"]).max()) - 1
    return [f"{floor:g}", f"{found['acted']:.3e}", f"{found['bias']:.3e}", f"{change:.4%}"]


def acting_lines() -> tuple[list[float], dict[str, list[float]]]:
    """Doubts, and by rule the displacement at each beyond which it acts."""
    doubts = (10.0 ** np.linspace(-4, -0.001, 60)).tolist()
    bounds = {"CIS": cis_caps(doubts, 2.3, 5e-3)["CIS, odds"]} | {f"constant cap {c:g}": [c] * 60 for c in (2.0, 1.13)}
    return doubts, {name: edges(doubts, bound) for name, bound in bounds.items()}


def largest_kept(p: float) -> float:
    """Largest ratio that KPop's gate keeps at phi = 2: halve an interval of its logarithm."""
    log_p, low, high = torch.tensor([p], dtype=torch.float64).log(), 0.0, 200.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if bool(kpop_gate(log_p, log_p - middle, 2.0)) else (low, middle)
    return exp(low)


def recorded_spreads() -> list[list[Any]]:
    """Range of p, engine, tokens, MAD of displacement and of log ratio, their quotient: of the bundled rollouts."""
    rows: list[list[Any]] = []
    for name, (low, high) in EDGES.items():
        for engine in ENGINES:
            found = recorded(engine)
            inside = found.within(low, high)
            spreads = mad(found.eps[inside]), mad(found.log_ratio[inside])
            rows.append([name, engine, int(inside.sum()), *(f"{x:.3g}" for x in (*spreads, spreads[1] / spreads[0]))])
    return rows


def recorded_touched() -> list[list[Any]]:
    """Rule, and how many recorded tokens of each engine it changes."""
    arms = {
        "constant cap 2": ("tis", {}),
        "constant cap 1.13": ("tis", {"cap": 1.13}),
        "CIS": ("cis", {}),
        "KPop": ("kpop", {}),
    }
    counts: list[list[Any]] = []
    for name, (rule, params) in arms.items():
        row: list[Any] = [name]
        for engine in ENGINES:
            log_p, log_ratio = (
                torch.from_numpy(x)[None] for x in (np.log(recorded(engine).p), recorded(engine).log_ratio)
            )
            row.append(int(testbed.weigh(rule, one_segment(log_p, log_p - log_ratio), **params).acted.sum()))
        counts.append(row)
    return counts
