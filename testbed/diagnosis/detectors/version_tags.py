"""Version tags that are not those of the weights that drew: the drift does not grow with the recorded staleness.

The unit is a *leg*: the tokens of one response with one tag. Its drift is measured by the mean of log |eps|, eps being the
displacement (from the proximal policy to the target, else from the behavior), whose scale does not depend on how sure the
tokens are. Where a prompt has several legs they are compared with each other, so that prompts may drift differently. Two
traces:

* reversed: legs tagged older have drifted *less* (the score of the slope on age is far below 0);
* unrelated: legs of one tag differ by much more than their tokens' scatter explains, and age explains none of it.

Tags that are wrong by the same amount everywhere cannot be told from right ones.

Measured (dumps named, of dumps; evaluation streams, see `testbed.diagnosis.power`)

* reversed: 100 of 100 simulated
* shuffled: 92 of 100 simulated
* healthy: 0 of 2000 simulated, 0 of 400 real
"""

from __future__ import annotations

import math

import torch

from testbed.core.batch import SegmentedBatch
from testbed.diagnosis.detectors.log_odds import displaced

KIND = "fault"
FEWEST_TOKENS, FEWEST_LEGS = 8, 30  # of a leg; of a batch
FLOOR = 1e-6  # nats
REVERSED = -5.0
UNEXPLAINED, EXPLAINED = 0.09, 0.10


def measure(batch: SegmentedBatch) -> dict[str, float]:
    """Return legs, score (of the slope on age), unexplained (variance of legs beyond token noise), explained (share, by age)."""
    found = _drifts(batch)
    if isinstance(found, str):
        return {}
    scale, age, freedom, noise = found
    slope = float((age * scale).sum() / age.square().sum())
    rest = scale - slope * age
    residual = float(rest.square().sum()) / (freedom - 1)
    error = math.sqrt(residual / float(age.square().sum()))
    total = float(scale.square().sum())
    return {
        "legs": float(len(scale)),
        "score": slope / error if error > 0 else 0.0,
        "unexplained": residual - noise,
        "explained": 1 - float(rest.square().sum()) / total if total > 0 else 0.0,
    }


def why_not(batch: SegmentedBatch) -> str:
    """Say what is missing: the tags, tags that differ, legs enough, or legs of different ages that may be compared."""
    found = _drifts(batch)
    return found if isinstance(found, str) else ""


def _drifts(batch: SegmentedBatch) -> tuple[torch.Tensor, torch.Tensor, int, float] | str:
    """Return the legs' drift and age about their means, degrees of freedom and token noise; or why there are none."""
    if batch.version is None:
        return "no column `version`"
    below = batch.logp_behavior if batch.logp_proximal is None else batch.logp_proximal
    shift, _, usable = displaced(batch, batch.logp_target, below)
    row = torch.arange(batch.batch_size)[:, None].expand(batch.mask.shape)[usable]
    tag = batch.version[usable]
    size = shift[usable].abs().clamp(min=FLOOR).log()
    if len(size) == 0:
        return "no token with a finite displacement"
    pairs, leg = torch.unique(torch.stack([row, tag]), dim=1, return_inverse=True)
    count = torch.bincount(leg).double()
    mean = torch.zeros(len(count), dtype=torch.float64).index_add_(0, leg, size) / count
    within = float((size - mean[leg]).square().sum() / max(len(size) - len(count), 1))
    keep = count >= FEWEST_TOKENS
    if int(keep.sum()) < FEWEST_LEGS:
        return f"{int(keep.sum())} of {FEWEST_LEGS} responses or parts of one version with {FEWEST_TOKENS} tokens"
    if len(pairs[1][keep].unique()) < 2:
        return "one version: nothing to compare"
    age = (tag.max() - pairs[1][keep]).double()
    scale, noise = mean[keep], within / count[keep]
    group = batch.group[pairs[0][keep]]
    scale, age, freedom = _within_groups(scale, age, group)
    if freedom < FEWEST_LEGS / 2 or float(age.square().sum()) < FEWEST_LEGS / 8:
        return "too few versions to compare within groups"
    return scale, age, freedom, float(noise.mean())


def _within_groups(
    scale: torch.Tensor, age: torch.Tensor, group: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Deviations from the means of groups, where most legs have others of their group; else from the overall mean."""
    _, member, size = torch.unique(group, return_inverse=True, return_counts=True)
    if float((size[member] > 1).double().mean()) < 0.5:
        return scale - scale.mean(), age - age.mean(), len(scale) - 1
    share = size.double()

    def centered(values: torch.Tensor) -> torch.Tensor:
        return values - (torch.zeros(len(size), dtype=torch.float64).index_add_(0, member, values) / share)[member]

    return centered(scale), centered(age), len(scale) - len(size)


def verdict(measured: dict[str, float]) -> str:
    """Say how tags and drift disagree, or nothing."""
    if measured["score"] <= REVERSED:
        return (
            f"tokens tagged older have drifted less than those tagged newer ({measured['score']:.1f} standard errors): the "
            "version tags are reversed, or not those of the weights that drew"
        )
    if measured["unexplained"] >= UNEXPLAINED and abs(measured["explained"]) <= EXPLAINED and measured["score"] < 3:
        return (
            f"responses of one version tag have drifted by factors of about {math.exp(math.sqrt(measured['unexplained'])):.1f} "
            f"from each other, and the tag explains {measured['explained']:.0%} of it: the version tags are not those of the "
            "weights that drew"
        )
    return ""
