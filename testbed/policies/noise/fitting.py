"""Derives the constants of `calibration` from the reported numbers: deterministic, seconds, so not done at import."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.optimize import brentq, least_squares, minimize
from scipy.stats import betabinom

from testbed.policies.noise.calibration import (
    DENSE_RARE,
    LAYERS,
    confidence_profile,
    confidence_stretch,
    flip_shares,
    reported_flip_shares,
)
from testbed.policies.noise.displacement import GridLaw, displacement_law, pooled
from testbed.policies.noise.flips import RoutingFlips
from testbed.policies.noise.reported import CONFIDENCE_NAMES, FLIP_BINS, FLIP_NAMES, reported
from testbed.policies.noise.scale_mixture import ScaleMixture

SD_WEIGHT = 3.0  # a tail's relative error is about three times that of the scale behind it


def fit_flips() -> tuple[float, float]:
    """Return (a, b) of the beta-binomial nearest to Table 4's shares in Kullback-Leibler divergence."""
    shares, count = np.array(reported_flip_shares()), np.arange(LAYERS + 1)

    def divergence(log_ab: np.ndarray) -> float:
        law = betabinom.pmf(count, LAYERS, *np.exp(log_ab))
        binned = np.array([law[low : high + 1].sum() for low, high in FLIP_BINS])
        return float((shares * np.log(shares / binned)).sum())

    start = np.log([2.0, 12.0])
    found = minimize(divergence, start, method="Nelder-Mead", options={"xatol": 1e-10, "fatol": 1e-15, "maxiter": 4000})
    return float(np.exp(found.x[0])), float(np.exp(found.x[1]))


def fit_moe(a: float, b: float) -> tuple[float, float, float, float]:
    """Return (base, linear, quadratic, df) by least squares of the relative errors of Table 4."""
    shares = flip_shares(LAYERS, a, b, FLIP_BINS, reported_flip_shares())
    rows = ("sd(delta)", "Pr(|delta|>0.5) (%)", "Pr(|delta|>1) (%)")
    goal = np.array([[reported(4, row, name).value for row in rows] for name in FLIP_NAMES])

    def errors(log_parameters: np.ndarray) -> np.ndarray:
        base, linear, quadratic, above_two = np.exp(log_parameters)
        law = RoutingFlips(shares, base, linear, quadratic, 2 + above_two, 0.0)
        levels = [law.given(low, high) for low, high in FLIP_BINS]
        made = np.array([[level.sd, level.tail(0.5), level.tail(1.0)] for level in levels])
        return (np.log(made / goal) * [SD_WEIGHT, 1.0, 1.0]).ravel()

    found = least_squares(errors, np.log([0.0576, 0.013, 0.0003, 2.0]), xtol=1e-14, ftol=1e-14, gtol=1e-14)
    base, linear, quadratic, above_two = np.exp(found.x)
    return float(base), float(linear), float(quadratic), float(2 + above_two)


def fit_dense() -> tuple[float, float, float, float]:
    """Return (calm, rough, share of rough, share of rare), which solve the dense model's sd, q99 and two tails."""
    goal = np.log(
        [
            reported(3, "sd(delta)", "Dense").value,
            reported(3, "q99(|delta|)", "Dense").value,
            reported(5, "Dense", "Pr(|delta|>0.5)").value,
            reported(5, "Dense", "Pr(|delta|>1)").value,
        ]
    )

    def errors(log_parameters: np.ndarray) -> np.ndarray:
        calm, rough, rough_share, rare_share = (float(x) for x in np.exp(log_parameters))
        law = ScaleMixture((calm, rough, DENSE_RARE), (1 - rough_share - rare_share, rough_share, rare_share))
        return np.log([law.sd, law.quantile(0.99), law.tail(0.5), law.tail(1.0)]) - goal

    found = least_squares(errors, np.log([0.06, 0.13, 0.17, 3e-6]), xtol=1e-14, ftol=1e-14, gtol=1e-14)
    calm, rough, rough_share, rare_share = np.exp(found.x)
    return float(calm), float(rough), float(rough_share), float(rare_share)


def profile_laws(
    noise: ScaleMixture, runner_up: float, stretch: tuple[float, ...] | None = None
) -> tuple[list[GridLaw], GridLaw]:
    """Displacement laws of drawn tokens in each range of confidence, and of all tokens together."""
    profile = confidence_profile()
    factors = stretch or (1.0,) * len(profile.shares)
    laws = [
        displacement_law(noise, u, runner_up, stretch=factor)
        for u, factor in zip(profile.uncertainty, factors, strict=True)
    ]
    return laws, pooled(laws, profile.shares)


def fit_runner_up(dense: ScaleMixture) -> float:
    """Return the m at which uncorrelated noise of this law has the dense model's sd(eps)."""
    goal = reported(6, "sd(epsilon)", "Dense").value
    return _root(lambda m: profile_laws(dense, m)[1].sd - goal, 0.0, 1.0)


def fit_correlation(moe: RoutingFlips, runner_up: float) -> float:
    """Return the r at which this noise has the expert model's sd(eps)."""
    goal, mixture = reported(6, "sd(epsilon)", "MoE").value, moe.mixture

    def excess(r: float) -> float:
        return profile_laws(ScaleMixture(mixture.sds, mixture.shares, mixture.df, r), runner_up)[1].sd - goal

    return _root(excess, 0.0, 0.9)


def fit_confidence(moe: RoutingFlips, runner_up: float) -> tuple[float, float]:
    """Return (exponent, floor) by least squares of the relative errors of Table 7's widths q95 - q05."""
    widths = np.array(
        [reported(7, name, "q95(epsilon)").value - reported(7, name, "q05(epsilon)").value for name in CONFIDENCE_NAMES]
    )

    def errors(parameters: np.ndarray) -> np.ndarray:
        laws, _ = profile_laws(moe.mixture, runner_up, confidence_stretch(parameters[0], math.exp(parameters[1])))
        return np.log([law.quantile(0.95) - law.quantile(0.05) for law in laws]) - np.log(widths)

    found = least_squares(errors, [0.08, math.log(0.002)], diff_step=1e-4, xtol=1e-10, ftol=1e-10)
    return float(found.x[0]), math.exp(float(found.x[1]))


def _root(excess: Callable[[float], float], low: float, high: float) -> float:
    return float(brentq(excess, low, high, xtol=1e-7))  # pyright: ignore[reportArgumentType]
