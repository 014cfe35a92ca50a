"""Figure 5 of the CIS paper: where the ratio's variance lies, and what each operator pays in bias and in variance.

    (a) share of Var(k) on each side of log k = 0      (b) E[w - k] in each range of the trainer's confidence
    (c) |E w - E k| / E k                               (d) Var(w), the weight 1 of no correction having none

All of the weights alone, that is for the test function 1: the paper's axes are not explained in the text we had, and with
advantages and scores as test functions other numbers come out.
"""

from __future__ import annotations

import numpy as np

from paper_repro.comparison import Check
from paper_repro.mismatch_samples import BINS, Array, TokenSample
from paper_repro.mismatch_weights import ARMS, weights_of
from paper_repro.study import Finding, Found, Setting, reasons

TOKEN_ARMS = [name for name in ARMS if not name.startswith("Seq")]
ROUNDING = 1e-12  # of a mean of weights
FORMS = [name for name in ARMS if name.startswith("CIS")]


class WeightedSample:
    """A sample with the weights of every arm, resampled together: a token-level weight belongs to its token."""

    def __init__(self, sample: TokenSample, weights: dict[str, Array] | None = None) -> None:
        self.sample, self.response, self.name = sample, sample.response, sample.name
        self.weights = weights or {arm: weights_of(sample, ARMS[arm][0], **ARMS[arm][1]) for arm in TOKEN_ARMS}

    def of(self, index: Array) -> WeightedSample:
        """Return the tokens at these positions."""
        return WeightedSample(self.sample.of(index), {arm: w[index] for arm, w in self.weights.items()})


def bias_and_variance(weighted: WeightedSample) -> dict[str, float]:
    """Return the numbers of all four panels, named "arm: what"."""
    k, bins = np.exp(weighted.sample.log_k), weighted.sample.bin
    spread = (k - k.mean()) ** 2
    found = {"share of Var(k) above": float(spread[k > 1].sum() / spread.sum())}
    for arm, w in weighted.weights.items():
        for number, name in enumerate(BINS):
            inside = bins == number
            bias = float((w - k)[inside].mean()) if inside.any() else float("nan")
            found[f"{arm}: {name}"] = 0.0 if abs(bias) < ROUNDING else bias
        found[f"{arm}: bias"] = abs(float(w.mean() - k.mean())) / float(k.mean())
        found[f"{arm}: variance"] = float(w.var())
    return found


def figure5(setting: Setting) -> Finding:
    """Variance and bias of the operators on every source."""
    finding = Finding(remarks=[*reasons(setting), READING])
    for sample in setting.tokens():
        weighted = WeightedSample(sample)
        found = setting.measure(weighted, bias_and_variance)
        finding.sources[sample.name] = (
            f"{len(sample):,} tokens, {sample.model}; {int((sample.log_k > np.log(2)).sum())} with k > 2"
        )
        finding.curves[sample.name] = {
            "model": sample.model,
            "ranges": BINS,
            "arms": TOKEN_ARMS,
            "share above": found["share of Var(k) above"],
            "bias by range": {arm: [found[f"{arm}: {name}"] for name in BINS] for arm in TOKEN_ARMS},
            "bias": {arm: found[f"{arm}: bias"] for arm in TOKEN_ARMS},
            "variance": {arm: found[f"{arm}: variance"] for arm in TOKEN_ARMS},
        }
        finding.checks += [_side(sample, found), *(_less_bias(sample, found, form) for form in FORMS)]
    return finding


READING = "the formula of CIS is cut off in the text we had: its three readings (odds, linear, loglinear) are all shown"


def _side(sample: TokenSample, found: Found) -> Check:
    value, low, high = found["share of Var(k) above"]
    return Check(
        statement=f"{sample.name}: most of Var(k) lies on the side k > 1, the side that truncation bounds",
        holds=None if low <= 0.5 <= high else low > 0.5,
        found=f"share above {value:.3f} [{low:.3f}, {high:.3f}]",
    )


def _less_bias(sample: TokenSample, found: Found, form: str) -> Check:
    name = BINS[0]
    cis, tis = found[f"{form}: {name}"], found[f"TIS: {name}"]
    nothing = max(abs(tis[0]), abs(cis[0])) < ROUNDING
    apart = cis[1] > tis[2] or cis[2] < tis[1]
    return Check(
        statement=f"{sample.name}: {form} has less truncation bias than TIS on tokens with {name}",
        holds=None if nothing or not apart else abs(cis[0]) < abs(tis[0]),
        found="nothing is truncated there"
        if nothing
        else f"E[w - k]: {form} {cis[0]:.3g} [{cis[1]:.3g}, {cis[2]:.3g}], TIS {tis[0]:.3g} [{tis[1]:.3g}, {tis[2]:.3g}]",
    )
