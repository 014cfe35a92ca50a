"""Mismatch at tiny scale, first way: the calibrated noise laws on the logits of random next-token laws.

    p = softmax(s z), z ~ N(0, 1) per token, s drawn per prefix;  q = softmax(log p + delta), delta ~ noise;  y ~ q

Of the drawn tokens as many are kept in each range of confidence as in table 7, the first ones drawn. The noise was calibrated
on tables 3 to 7 (`testbed.policies.noise.calibration`): a number it was fitted to shows nothing when it comes out again, and
is marked as fitted.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import torch

from paper_repro.mismatch_samples import BINS, Array, NoiseSample, TokenSample
from paper_repro.reported_tables import reported
from testbed.core.choices import RandomChooser
from testbed.core.seeds import SeedTree
from testbed.policies.noise.calibration import confident_moe_noise, dense_noise, moe_noise
from testbed.policies.noise.law import NoiseLaw
from testbed.policies.noise.streams import NoiseStreams

VOCABULARY, PREFIXES, FLIPPING, AT_ONCE = 64, 60_000, 12_000, 4_000
ENTRIES = "all 64 tokens of every tenth prefix; trainer's logit minus sampler's"
SCALES = (1.0, 80.0)  # s is log-uniform between these


def laws() -> dict[str, tuple[str, NoiseLaw]]:
    """Return name -> (column of the paper, noise law)."""
    return {
        "noise model, dense": ("Dense", dense_noise()),
        "noise model, MoE": ("MoE", moe_noise()),
        "noise model, MoE, rougher when sure": ("MoE", confident_moe_noise()),
    }


@cache
def draw(name: str, prefixes: int = PREFIXES) -> tuple[TokenSample, NoiseSample]:
    """Draw one token at each of many prefixes, every prefix a response of its own.

    Parameters
    ----------
    name : str        a key of `laws()`
    prefixes : int    how many

    Returns
    -------
    (TokenSample, NoiseSample)   the tokens, and the perturbations at every tenth prefix
    """
    model, noise = laws()[name]
    seeds = SeedTree("tiny noise")
    parts, entries = [], []
    for start in range(0, prefixes, AT_ONCE):
        n = min(AT_ONCE, prefixes - start)
        stream = seeds[start]
        generator = stream["laws"].torch_generator()
        spread = torch.rand(n, 1, generator=generator, dtype=torch.float64) * math.log(SCALES[1] / SCALES[0])
        scale = SCALES[0] * spread.exp()
        logits = scale * torch.randn(n, VOCABULARY, generator=generator, dtype=torch.float64)
        target = torch.log_softmax(logits, -1)
        added = noise.draw(NoiseStreams.of(stream[name], [(row,) for row in range(n)]), target)
        behavior = torch.log_softmax(target + added, -1)
        drawn = RandomChooser(stream["tokens"]).choose(behavior.exp())[:, None]
        parts.append(
            torch.cat([
                torch.arange(start, start + n, dtype=torch.float64)[:, None],
                target.gather(1, drawn), behavior.gather(1, drawn),
                *(torch.log_softmax(law.float(), -1).gather(1, drawn).double() for law in (target, target + added)),
            ], 1)
        )  # fmt: skip
        entries.append(-added[::10])
    rows = torch.cat(parts).numpy()
    delta = torch.cat(entries).numpy()
    position = np.repeat(np.arange(len(delta)), VOCABULARY)
    tokens = TokenSample(
        name=name, model=model, response=rows[:, 0].astype(np.int64), logp_target=rows[:, 1],
        logp_behavior=rows[:, 2], finite=(rows[:, 3] < 0) & (rows[:, 4] < 0),
    )  # fmt: skip
    kept = NoiseSample(
        name=name, model=model, entries=ENTRIES, response=position, position=position, delta=delta.ravel()
    )
    return tokens.of(standardized(tokens.bin)), kept


def standardized(bins: Array) -> Array:
    """Return positions at which each range of confidence has its share of table 7, as many as there can be.

    Examples
    --------
    >>> kept = standardized(np.repeat(np.arange(5), 1000))
    >>> [round(float((np.repeat(np.arange(5), 1000)[kept] == b).mean()), 2) for b in range(5)]
    [0.23, 0.19, 0.16, 0.13, 0.29]
    """
    table = reported(7)
    shares = np.array([table.value(name, "Tokens") for name in BINS])
    shares = shares / shares.sum()
    total = (np.bincount(bins, minlength=len(BINS)) / shares).min()
    return np.sort(np.concatenate([np.nonzero(bins == b)[0][: int(total * share)] for b, share in enumerate(shares)]))


@cache
def flipping(prefixes: int = FLIPPING) -> NoiseSample:
    """Draw perturbations of the mixture of experts together with the number of layers that route differently."""
    law, streams = moe_noise(), NoiseStreams.of(SeedTree("routing flips"), [(row,) for row in range(prefixes)])
    delta = -law.draw(streams, torch.zeros(prefixes, VOCABULARY, dtype=torch.float64)).numpy()
    position = np.repeat(np.arange(prefixes), VOCABULARY)
    return NoiseSample(
        name="noise model, MoE",
        model="MoE",
        entries=f"{VOCABULARY} perturbations of each of {prefixes:,} prefixes",
        response=position,
        position=position,
        delta=delta.ravel(),
        flips=np.repeat(law.flips(streams).numpy(), VOCABULARY),
    )
