"""Table 8 of the CIS paper: its operators beside the rules of this project, compared on a grid of probabilities."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from paper_repro.mismatch_samples import Array, TokenSample
from paper_repro.mismatch_weights import ARMS, acted_on, weights_of
from paper_repro.reported_tables import reported
from paper_repro.study import Finding, Setting
from testbed.weighting.registry import RULES

SAME = 1e-12  # relative difference that rounding explains
TIE = 1e-9  # distance in log k below which a point counts as lying on a threshold, where either side is right
LENGTH = 3  # tokens of a response of the grid


def grid() -> TokenSample:
    """Responses of three tokens over every pair of log-odds in -12, -11, ..., 12, probabilities 1e-5 to 1 - 1e-5."""
    odds = np.arange(-12.0, 12.01, 1.0)
    p, q = (axis.ravel() for axis in np.meshgrid(odds, odds + 0.25, indexing="ij"))
    order = np.arange(len(p)) * 7 % len(p)  # neighbors in a response are no neighbors on the grid
    return TokenSample(
        name="grid",
        model="",
        response=np.arange(len(p)) // LENGTH,
        logp_target=-np.logaddexp(0.0, -p[order]),
        logp_behavior=-np.logaddexp(0.0, -q[order]),
        finite=np.ones(len(p), dtype=bool),
    )


def _kl(log_a: Array, log_b: Array) -> Array:
    """KL of two coins, from their log-probabilities."""
    a = np.exp(log_a)
    other_a, other_b = (np.log(-np.expm1(x)) for x in (log_a, log_b))
    return a * (log_a - log_b) + (1 - a) * (other_a - other_b)


def _product(sample: TokenSample) -> Array:
    totals = np.bincount(sample.response, sample.log_k)
    return np.exp(totals)[sample.response]


def _band(k: Array) -> Array:
    return np.where((k >= 0.5) & (k <= 5.0), k, 0.0)


def _kpop(sample: TokenSample) -> Array:
    p, q = sample.logp_target, sample.logp_behavior
    return np.where(np.maximum(_kl(p, q), _kl(q, p)) <= 2.0, np.exp(sample.log_k), 0.0)


PRINTED: dict[str, Callable[[TokenSample], Array]] = {  # the paper's column "Weight on the token loss", typed from it
    "No correction": lambda s: np.ones(len(s)),
    "Exact ratio": lambda s: np.clip(np.exp(s.log_k), 1e-6, 1e6),
    "TIS": lambda s: np.minimum(np.exp(s.log_k), 2.0),
    "IcePop": lambda s: _band(np.exp(s.log_k)),
    "KPop": _kpop,
    "Seq-TIS": lambda s: np.minimum(_product(s), 2.0),
}


def table8(setting: Setting) -> Finding:
    """Every arm's formula beside our rule, their largest difference on the grid, and how often each acts."""
    printed, sample = reported(8), grid()
    finding = Finding(
        sources={"grid": f"{len(sample)} tokens in responses of {LENGTH}: {(grid.__doc__ or '').strip()}"}
    )
    samples = setting.tokens()
    for arm, (rule, params) in ARMS.items():
        row = arm.split(",")[0]
        formula = printed[row, "Weight on the token loss"]
        ours = weights_of(sample, rule, **params)
        finding.rows.append(
            {
                "method": arm,
                "paper": formula.printed or "missing",
                "paper's values": printed[row, "Hyperparameters"].printed or "missing",
                "rule": rule,
                "parameters": ", ".join(f"{name}={value}" for name, value in params.items()) or "-",
                "formula here": RULES[rule].formula,
                **_agreement(arm, sample, ours),
                **{f"acted on: {one.name}": f"{100 * acted_on(one, rule, **params):.3f}%" for one in samples},
            }
        )
    finding.sources |= {one.name: f"{len(one):,} tokens" for one in samples}
    finding.remarks += [
        "Seq-MIS and CIS: the paper's rows are cut off. Seq-MIS is shown with cap 2 by analogy to Seq-TIS, CIS in three readings",
        "while the paper's model trained, IcePop acted on 3.64%, TIS on .76%, KPop on 1.33% and the clamp of the exact ratio on "
        ".06% of the tokens (table 10); a model at rest whose engines differ by rounding alone is far calmer",
    ]
    return finding


def _agreement(arm: str, sample: TokenSample, ours: Array) -> dict[str, str]:
    if arm not in PRINTED:
        return {"largest difference": "-", "verdict": "missing"}
    theirs = PRINTED[arm](sample)
    gap = np.abs(ours - theirs) / np.maximum(np.abs(theirs), 1e-300)
    gap = np.where(ours == theirs, 0.0, gap)[away_from_thresholds(sample)]
    return {"largest difference": f"{gap.max():.1e}", "verdict": "agrees" if gap.max() <= SAME else "differs"}


def away_from_thresholds(sample: TokenSample) -> Array:
    """True where no threshold of an arm is so near that rounding decides."""
    log_k, total = sample.log_k, np.log(_product(sample))
    p, q = sample.logp_target, sample.logp_behavior
    near = np.zeros(len(sample), dtype=bool)
    for bound in (0.5, 2.0, 5.0):
        near |= (np.abs(log_k - np.log(bound)) < TIE) | (np.abs(total - np.log(bound)) < TIE)
    return ~(near | (np.abs(np.maximum(_kl(p, q), _kl(q, p)) - 2.0) < TIE))
