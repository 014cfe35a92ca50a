"""Top-p or top-k: the sampler recorded log-probs renormalized over the tokens it kept, the trainer over all of them.

Then the ratio trainer/sampler of every kept token of a prefix is the kept mass S < 1 (BR-28 of the museum: 0.8 for each of
them, E[w] = 0.8, and what was cut off is beyond any weight). Two traces:

* *certain* tokens: where one token alone was kept, the sampler's log-prob is exactly 0 while the trainer is not sure
  (p < 0.99); such a token has most of the trainer's mass, else it would not be alone;
* a mean ratio below 1 whose ratios lie on one side: of the unsure tokens (0.02 < p < 0.98) most have ratios below 1.

Measured (dumps named, of dumps; evaluation streams, see `testbed.diagnosis.power`)

* top-p 0.8: 100 of 100 simulated
* top-p 0.9: 100 of 100 simulated
* top-p 0.95: 100 of 100 simulated
* top-p 0.99: 81 of 100 simulated
* top-k 2: 100 of 100 simulated
* top-k 8: 98 of 100 simulated
* healthy: 0 of 2000 simulated, 0 of 400 real
"""

from __future__ import annotations

import math

import torch

from testbed.core.batch import SegmentedBatch
from testbed.core.numerics import safe_exp
from testbed.diagnosis.detectors.log_odds import trainer_log_probs
from testbed.diagnosis.response_means import FEWEST, token_mean_score

KIND = "fault"
CERTAIN = -1e-6  # nats: the sampler was sure, up to float32
UNSURE, MOST = math.log(0.99), math.log(0.3)  # trainer's log-prob of a token that was kept alone lies between
LEAST_CERTAIN, SHARE_MOST = 3, 0.95
SCORE, BELOW = -5.0, 0.62


def measure(batch: SegmentedBatch) -> dict[str, float]:
    """Return certain (count), most (share of these with p > .3), mean ratio, its score against 1, below (share of ratios < 1)."""
    trainer, _ = trainer_log_probs(batch)
    behavior = batch.logp_behavior.double()
    certain = batch.mask & (behavior >= CERTAIN) & (trainer < UNSURE)
    count = int(certain.sum())
    ratio, _ = safe_exp(trainer - behavior, batch.mask)
    score = token_mean_score(ratio, batch.mask, 1.0)
    p = trainer.exp()
    unsure = batch.mask & (p > 0.02) & (p < 0.98)
    return {
        "certain": float(count),
        "most": float((trainer[certain] > MOST).double().mean()) if count else 0.0,
        "mean_ratio": float(ratio[batch.mask].mean()),
        "score": 0.0 if score is None else score,
        "below": float((ratio[unsure] < 1).double().mean()) if bool(unsure.any()) else 0.5,
        "least_mass": float(torch.where(certain, trainer, 0.0).min().exp()),
    }


def why_not(batch: SegmentedBatch) -> str:
    """Say why one-sided ratios cannot be told; certain tokens still count where the batch has them.

    Few responses without certain tokens are no sign of an uncut law: a cut that leaves two tokens or more makes none.
    """
    responses = int(batch.mask.any(1).sum())
    if responses < FEWEST:
        return f"{responses} of {FEWEST} responses"
    trainer, _ = trainer_log_probs(batch)
    p = trainer.exp()
    if not bool((batch.mask & (p > 0.02) & (p < 0.99)).any()):
        return "no token that the trainer is unsure of"
    ratio, _ = safe_exp(trainer - batch.logp_behavior.double(), batch.mask)
    return "" if token_mean_score(ratio, batch.mask, 1.0) is not None else "the mean ratio is not finite"


def verdict(measured: dict[str, float]) -> str:
    """Say what was cut off, or nothing."""
    alone = measured["certain"] >= LEAST_CERTAIN and measured["most"] >= SHARE_MOST
    one_sided = measured["score"] <= SCORE and measured["below"] >= BELOW
    if not (alone or one_sided):
        return ""
    seen = [
        f"{measured['certain']:.0f} tokens of log-prob 0 that the trainer gives at least {measured['least_mass']:.2f}"
    ]
    seen = seen * alone + [f"{measured['below']:.0%} of the ratios below 1"] * one_sided
    return (
        f"the sampler renormalized over kept tokens (top-p or top-k) and the trainer did not ({', '.join(seen)}; mean ratio "
        f"{measured['mean_ratio']:.4f}): ratios are the kept mass, and no weight brings back what was cut off"
    )
