"""Temperature on one side: the sampler drew and recorded at a temperature that the trainer does not apply, or the reverse.

At temperature T the log-odds of the sampler are about those of the trainer divided by T, so the displacement is a line in
the log-odds,

    eps = logit p - logit q ~ slope (logit p + logit q)/2,   slope = 2 (T - 1)/(T + 1)

whereas engine noise is no function of the log-odds, and E[w] = 1 holds in both cases and tells nothing. An update that
sharpens the policy makes the same line: without `logp_proximal` the two are one thing, and the slope must be larger and
explain more. Undetectable in principle: a sampler that draws at T and records log-probs at 1.

Measured (dumps named, of dumps; evaluation streams, see `testbed.diagnosis.power`)

* T = 0.6: 100 of 100 simulated
* T = 0.8: 100 of 100 simulated
* T = 0.9: 97 of 100 simulated
* T = 1.2: 100 of 100 simulated
* healthy: 0 of 2000 simulated, 0 of 400 real
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from testbed.core.batch import SegmentedBatch
from testbed.diagnosis.detectors.log_odds import displaced, trainer_log_probs

KIND = "fault"
FEWEST, SPREAD = 200, 0.5  # tokens; standard deviation of their log-odds
REACH, FARTHEST = 8.0, 5.0  # nats: log-odds and displacements beyond count as these
SLOPE = {True: 0.03, False: 0.10}  # with the proximal policy, without
EXPLAINED = {True: 0.10, False: 0.30}  # share of the displacement's variance


def measure(batch: SegmentedBatch) -> dict[str, float]:
    """Least-squares slope of displacement on mean log-odds, and the share of variance it explains."""
    x, y, proximal = _coordinates(batch)
    if _lacking(x):
        return {}
    x, y = x - x.mean(), y - y.mean()
    spread = float(y.square().sum())
    slope = float((x * y).sum() / x.square().sum())
    explained = slope**2 * float(x.square().sum()) / spread if spread > 0 else 0.0
    slope = slope if abs(slope) < 2 else torch.tensor(slope).sign().item() * 1.99
    return {"slope": slope, "explained": explained, "proximal": float(proximal)}


def why_not(batch: SegmentedBatch) -> str:
    """Say what a line cannot be drawn through: too few tokens, or tokens of one log-odds."""
    return _lacking(_coordinates(batch)[0])


def _coordinates(batch: SegmentedBatch) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"], bool]:
    """Mean log-odds and displacement of the tokens where both are finite, and whether they are from the proximal policy."""
    trainer, proximal = trainer_log_probs(batch)
    shift, middle, usable = displaced(batch, trainer, batch.logp_behavior)
    return middle[usable].clamp(-REACH, REACH), shift[usable].clamp(-FARTHEST, FARTHEST), proximal


def _lacking(log_odds: Float[Tensor, " n"]) -> str:
    if len(log_odds) < FEWEST:
        return f"{len(log_odds)} of {FEWEST} tokens with finite log-odds"
    spread = float(log_odds.std())
    return "" if spread >= SPREAD else f"log-odds too alike, sd {spread:.2g} of {SPREAD}"


def verdict(measured: dict[str, float]) -> str:
    """Name the temperature, or say nothing."""
    proximal = bool(measured["proximal"])
    if abs(measured["slope"]) < SLOPE[proximal] or measured["explained"] < EXPLAINED[proximal]:
        return ""
    ratio = (2 + measured["slope"]) / (2 - measured["slope"])
    other = (
        ""
        if proximal
        else "; or updates have made the policy as much sharper or flatter, which `logp_proximal` would tell"
    )
    return (
        f"the sampler's log-odds are the trainer's divided by about {ratio:.2f} ({measured['explained']:.0%} of their "
        f"differences): a temperature of {ratio:.2f} on the sampler's side or of "
        f"{1 / ratio:.2f} on the trainer's, which the other side does not apply{other}"
    )
