"""Healthy and faulty dumps whose truth is known: simulated rollouts, and draws of the bundled real ones.

A simulated dump has prompts with several responses, positions whose laws run from undecided to certain, a sampler whose
logits differ from the trainer's by the noise calibrated on a dense model or on a mixture of experts, and weights that
drift with every version, some of it sharpening. Responses may be resumed by the next version. What is recorded varies:
the proximal policy and version tags in half of the dumps each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from testbed.core.batch import SegmentedBatch
from testbed.core.seeds import SeedTree
from testbed.policies.noise.calibration import dense_noise, moe_noise

VOCABULARY, GROUP = 32, 4
RESPONSES, HORIZONS, VERSIONS = (32, 64, 128), (32, 64), (1, 2, 4)
DRIFTS, SHARPENINGS = (0.0, 0.05, 0.15), (0.0, 0.01)  # nats per version and logit; relative per version
Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Sampler:
    """How a faulty sampler turns logits into the law it draws from and records.

    Examples
    --------
    >>> log_q = Sampler(top_p=0.8).log_law(np.log(np.array([[0.5, 0.3, 0.15, 0.05]])))
    >>> np.exp(log_q).round(3).tolist()
    [[0.625, 0.375, 0.0, 0.0]]
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0

    def log_law(self, logits: Array) -> Array:
        """Log law along the last dimension; -inf where a token is not kept."""
        log_p = _log_softmax(logits / self.temperature)
        if self.top_p == 1.0 and not self.top_k:
            return log_p
        order = np.argsort(-log_p, -1)
        ordered = np.take_along_axis(log_p, order, -1)
        before = np.cumsum(np.exp(ordered), -1) - np.exp(ordered)
        keep = before < self.top_p - 1e-12
        if self.top_k:
            keep = keep & (np.arange(log_p.shape[-1]) < self.top_k)
        kept = np.where(keep, ordered, -np.inf)
        out = np.empty_like(log_p)
        np.put_along_axis(out, order, kept, -1)
        return _log_softmax(out)


def simulated_dump(
    seeds: SeedTree, sampler: Sampler | None = None, *, drift: float | None = None, tagged: bool | None = None
) -> SegmentedBatch:
    """Draw a dump.

    Parameters
    ----------
    seeds : SeedTree     of the dump's size, laws, noise and tokens
    sampler : Sampler    None: the whole law at temperature 1
    drift : float        nats per version; None: drawn, with the number of versions
    tagged : bool        whether versions are recorded; None: drawn

    Examples
    --------
    >>> batch = simulated_dump(SeedTree("example"))
    >>> batch.batch_size in RESPONSES, batch.n_tokens > 500
    (True, True)
    """
    rng = seeds.numpy_generator()
    n, horizon = int(rng.choice(RESPONSES)), int(rng.choice(HORIZONS))
    shape = (n, horizon, VOCABULARY)
    versions = int(rng.choice(VERSIONS)) if drift is None else VERSIONS[-1]
    step = float(rng.choice(DRIFTS)) if drift is None else drift
    sharpening = float(rng.choice(SHARPENINGS))
    group = np.arange(n) // GROUP
    by_prompt = np.exp(0.3 * rng.standard_normal(group[-1] + 1))[group]
    base = rng.standard_normal(shape) * np.exp(rng.uniform(0, math.log(40), shape[:2]))[..., None]
    direction = step * by_prompt[:, None, None] * rng.standard_normal(shape)

    def logits(version: Array | int) -> Array:
        age = np.asarray(version)[..., None] if isinstance(version, np.ndarray) else version
        return base * (1 + sharpening * age) + direction * age

    first = rng.integers(0, versions, n)
    switch = np.where(rng.random(n) < 0.5, rng.integers(8, horizon - 7, n), horizon)
    version = first[:, None] + (np.arange(horizon) >= switch[:, None]) * (first < versions - 1)[:, None]
    drawing = logits(version)
    law = (sampler or Sampler()).log_law(drawing + _engine_noise(rng, shape))
    token = np.argmax(law + rng.gumbel(size=shape), -1)
    lengths = rng.integers(horizon // 2, horizon + 1, n)

    def of_drawn(log_law: Array) -> torch.Tensor:
        picked = np.take_along_axis(log_law, token[..., None], -1)[..., 0]
        return torch.from_numpy(picked.astype(np.float32))

    proximal = bool(rng.random() < 0.5)
    tags = bool(rng.random() < 0.5) if tagged is None else tagged
    return SegmentedBatch(
        tokens=torch.from_numpy(token),
        mask=torch.from_numpy(np.arange(horizon) < lengths[:, None]),
        segment=torch.from_numpy((version > first[:, None]).astype(np.int64)),
        logp_target=of_drawn(_log_softmax(logits(versions))),
        logp_behavior=of_drawn(law),
        logp_proximal=of_drawn(_log_softmax(drawing)) if proximal else None,
        version=torch.from_numpy(version) if tags else None,
        reward=torch.from_numpy((rng.random(n) < 0.4).astype(np.float32)),
        group=torch.from_numpy(group),
    )


def drawn_from(batch: SegmentedBatch, seeds: SeedTree) -> SegmentedBatch:
    """Draw half or three quarters of the responses of a real dump, tagged by segment; half of the draws keep `logp_proximal`.

    Without replacement: a bootstrap's mean ratio is that of the sample and not 1, so that it is no healthy dump.
    """
    rng = seeds.numpy_generator()
    size = int(batch.batch_size * rng.choice((0.5, 0.75)))
    drawn = batch.select(torch.from_numpy(rng.permutation(batch.batch_size)[:size]))
    kept = {} if rng.random() < 0.5 else {"logp_proximal": None}
    return drawn.replaced(version=drawn.segment, **kept)


def _engine_noise(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Gaussian given a scale of each prefix; without the common part, which moves no law."""
    noise = dense_noise() if rng.random() < 0.5 else moe_noise().mixture
    sds = np.asarray(noise.sds)
    tau = sds[np.searchsorted(np.cumsum(noise.shares)[:-1], rng.random(shape[:-1]), side="right")]
    if math.isfinite(noise.df):
        tau = tau * np.sqrt((noise.df - 2) / rng.chisquare(noise.df, shape[:-1]))
    return tau[..., None] * math.sqrt(1 - noise.correlation) * rng.standard_normal(shape)


def _log_softmax(logits: Array) -> Array:
    top = logits.max(-1, keepdims=True)
    return logits - top - np.log(np.exp(logits - top).sum(-1, keepdims=True))
