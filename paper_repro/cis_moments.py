"""Figure 3 of the CIS paper: moments of e^eps and of (1 - p) e^eps, the random part of the ratio.

    k = p + (1 - p) e^eps,   left axis E[e^(alpha eps)],   right axis E[((1 - p) e^eps)^alpha],   tokens drawn from q

The paper shows them for a trained mixture of experts, and prints no number. A moment estimated from a sample is only worth
something while no single token makes it up: the largest token's share is recorded beside it.
"""

from __future__ import annotations

import numpy as np

from paper_repro.comparison import Check
from paper_repro.mismatch_samples import Array, TokenSample
from paper_repro.study import Finding, Setting, reasons

ORDERS = np.arange(0.0, 6.01, 0.25)
ONE_TOKEN = 0.1  # a moment is not to be trusted if one token makes up this much of it


def powers(sample: TokenSample) -> tuple[Array, Array]:
    """Return the logarithms of e^eps and of (1 - p) e^eps of the finite tokens."""
    epsilon, doubt = sample.epsilon[sample.finite], sample.doubt[sample.finite]
    return epsilon, np.log(doubt) + epsilon


def moments(sample: TokenSample) -> dict[str, float]:
    """Return "left alpha" and "right alpha" -> moment."""
    left, right = powers(sample)
    return {f"left {a}": float(np.exp(a * left).mean()) for a in ORDERS} | {
        f"right {a}": float(np.exp(a * right).mean()) for a in ORDERS
    }


def figure3(setting: Setting) -> Finding:
    """Both moments over a range of orders, with intervals."""
    finding = Finding(remarks=reasons(setting))
    finding.remarks.append(
        "the paper's curves are those of its mixture of experts after training; neither scale has one"
    )
    for sample in setting.tokens():
        found = setting.measure(sample, moments)
        logs = dict(zip(("left", "right"), powers(sample), strict=True))
        curve: dict[str, object] = {"model": sample.model, "orders": ORDERS}
        for side, log_values in logs.items():
            value, low, high = np.array([found[f"{side} {a}"] for a in ORDERS]).T
            share = np.array([_largest_share(a * log_values) for a in ORDERS])
            curve |= {side: value, f"{side} low": low, f"{side} high": high, f"{side} largest share": share}
        finding.sources[sample.name] = f"{int(sample.finite.sum()):,} finite tokens, {sample.model}"
        finding.curves[sample.name] = curve
        finding.checks.append(_order(sample.name, curve))
    return finding


def _largest_share(log_values: Array) -> float:
    scaled = np.exp(log_values - log_values.max())
    return float(1 / scaled.sum())


def _order(name: str, curve: dict[str, object]) -> Check:
    trusted = (np.asarray(curve["left largest share"]) < ONE_TOKEN) & (ORDERS > 0)
    left, right = np.asarray(curve["left"])[trusted], np.asarray(curve["right"])[trusted]
    last = ORDERS[trusted][-1]
    return Check(
        statement=f"{name}: the factor 1 - p keeps the moments of the ratio's random part below those of e^eps",
        holds=bool((right < left).all()),
        found=f"at alpha = {last:g}: E[e^(alpha eps)] = {left[-1]:.4g}, E[((1-p)e^eps)^alpha] = {right[-1]:.4g}; beyond, one "
        f"token makes up {ONE_TOKEN:.0%} of the first or more",
    )
