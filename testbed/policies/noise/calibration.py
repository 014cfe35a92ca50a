"""Noise calibrated on the reported mismatch of a dense model and of a mixture of experts: every constant in one place.

`fitting` derives the constants from `reported`, and a test holds them to it; `fit_report` says how near the laws come and
what they cannot reproduce. The derivation, in its order:

1. Expert model, routing: a beta-binomial on 0..24 layers fitted to Table 4's shares says how a bin's share is spread in
   the bin; the bins keep their shares.
2. Expert model, per logit: Var(delta | N) = base + linear N + quadratic N^2 and one number of degrees of freedom, by least
   squares of the 15 relative errors of Table 4, an error of the sd counted three times (a tail reacts about threefold).
3. Dense model: calm, rough and rare prefixes solve sd, q99 and both tails of Tables 3 and 5 exactly. The tail beyond 1 is
   one or two entries of the 1.5 million measured; the rare prefixes' own sd of 1 is a choice.
4. The runner-up's share m makes sd(eps) of the dense model right (Table 6) with uncorrelated logits. It is the least
   possible: any correlation asks for more.
5. The correlation r of the expert model makes its sd(eps) right with the same m.
6. Optional: the scale's dependence on confidence, by least squares of Table 7's widths q95 - q05.
"""

from __future__ import annotations

from dataclasses import dataclass

from testbed.policies.noise.confidence import ConfidenceScaled
from testbed.policies.noise.flips import RoutingFlips, flip_shares
from testbed.policies.noise.reported import CONFIDENCE_NAMES, FLIP_BINS, FLIP_NAMES, reported
from testbed.policies.noise.scale_mixture import ScaleMixture

LAYERS = FLIP_BINS[-1][1]
FLIP_A, FLIP_B = 2.493499, 14.028011
MOE_BASE, MOE_LINEAR, MOE_QUADRATIC, MOE_DF = 0.0594769, 0.0116734, 0.000650666, 3.705357
MOE_CORRELATION = 0.498752
DENSE_CALM, DENSE_ROUGH, DENSE_RARE = 0.0630116, 0.1329637, 1.0
DENSE_ROUGH_SHARE, DENSE_RARE_SHARE = 0.165396, 3.151487e-06
RUNNER_UP = 0.771642
CONFIDENCE_EXPONENT, CONFIDENCE_FLOOR = 0.07832, 0.0019812


@dataclass(frozen=True, slots=True)
class ConfidenceProfile:
    """Where drawn tokens lie: shares of Table 7's ranges of p, and one typical 1 - p in each.

    The typical value is MAD(log k) / MAD(eps), which lies between the range's least and largest 1 - p (C3).
    """

    shares: tuple[float, ...]
    uncertainty: tuple[float, ...]


def confidence_profile() -> ConfidenceProfile:
    """Return the profile of the expert model's tokens.

    Examples
    --------
    >>> [round(u, 5) for u in confidence_profile().uncertainty]
    [0.73718, 0.22629, 0.03457, 0.00334, 4e-05]
    """
    tokens = [reported(7, name, "Tokens").value for name in CONFIDENCE_NAMES]
    log_k, eps = (
        [reported(7, name, f"MAD({what})").value for name in CONFIDENCE_NAMES] for what in ("log k", "epsilon")
    )
    return ConfidenceProfile(
        tuple(n / sum(tokens) for n in tokens), tuple(a / b for a, b in zip(log_k, eps, strict=True))
    )


def flip_law() -> tuple[float, ...]:
    """Probabilities of 0..24 layers with routing disagreement.

    Examples
    --------
    >>> law = flip_law()
    >>> round(law[0], 6), round(sum(law[2:4]), 6)
    (0.08, 0.331)
    """
    return flip_shares(LAYERS, FLIP_A, FLIP_B, FLIP_BINS, reported_flip_shares())


def reported_flip_shares() -> tuple[float, ...]:
    """Table 4's shares of positions."""
    return tuple(reported(4, "Positions (%)", name).value for name in FLIP_NAMES)


def moe_noise(correlation: float = MOE_CORRELATION) -> RoutingFlips:
    """Noise of the mixture of experts, Tables 3 to 6.

    Parameters
    ----------
    correlation : float   of two logits of a prefix. A common part moves no law: the policy is that of uncorrelated
                          logits with a scale smaller by sqrt(1 - r)

    Examples
    --------
    >>> round(moe_noise().sd, 3)
    0.339
    """
    return RoutingFlips(flip_law(), MOE_BASE, MOE_LINEAR, MOE_QUADRATIC, MOE_DF, correlation)


def confident_moe_noise() -> ConfidenceScaled:
    """Noise of the mixture of experts with the confidence dependence of Table 7; average variance as `moe_noise`.

    Examples
    --------
    >>> confident_moe_noise().law == moe_noise()
    True
    """
    return ConfidenceScaled(moe_noise(), CONFIDENCE_EXPONENT, CONFIDENCE_FLOOR, _factor())


def dense_noise() -> ScaleMixture:
    """Noise of the dense model, Tables 3 and 5.

    Examples
    --------
    >>> round(dense_noise().sd, 4), round(dense_noise().quantile(0.99), 4)
    (0.079, 0.25)
    """
    shares = (1 - DENSE_ROUGH_SHARE - DENSE_RARE_SHARE, DENSE_ROUGH_SHARE, DENSE_RARE_SHARE)
    return ScaleMixture((DENSE_CALM, DENSE_ROUGH, DENSE_RARE), shares)


def confidence_stretch(exponent: float, floor: float) -> tuple[float, ...]:
    """Factor of each range of confidence, of mean square 1 over the profile."""
    profile = confidence_profile()
    raw = [max(u, floor) ** -exponent for u in profile.uncertainty]
    factor = sum(share * x * x for share, x in zip(profile.shares, raw, strict=True)) ** -0.5
    return tuple(factor * x for x in raw)


def _factor() -> float:
    profile = confidence_profile()
    first = max(profile.uncertainty[0], CONFIDENCE_FLOOR) ** -CONFIDENCE_EXPONENT
    return confidence_stretch(CONFIDENCE_EXPONENT, CONFIDENCE_FLOOR)[0] / first
