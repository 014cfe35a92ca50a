"""Whole next-token laws of a real model at a dozen positions: one target and the behaviors it is compared with.

Each law covers the 4,095 words the target finds likeliest and puts the rest of the vocabulary into one last outcome. A
ratio of bucket masses is a coarser weight than the ratio of the words in it, so second moments are those of the coarse
laws: exact for them, lower bounds for the whole vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

BEHAVIORS = ("v0_bf16", "v1_int8w", "v0_f32", "v1_f32", "v1_int8_dynamic")
REST = -1  # recorded in place of a word for the outcome that stands for all the others


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedLaws:
    """Next-token laws at P positions over V outcomes, log-probabilities in nats.

    Attributes
    ----------
    sequence, position : [P]      which response and which of its tokens, as numbered in the partial rollouts
    words : [P, V]                vocabulary index of each outcome, most likely first; -1 for all other words together
    logp_target : [P, V]
    logp_behavior : dict          name -> [P, V], one entry per name in BEHAVIORS
    """

    sequence: Int64[Tensor, " P"]
    position: Int64[Tensor, " P"]
    words: Int64[Tensor, "P V"]
    logp_target: Float[Tensor, "P V"]
    logp_behavior: dict[str, Float[Tensor, "P V"]]


def next_token_laws() -> RecordedLaws:
    """Recorded laws of the target and of five behaviors at 12 positions, made to sum to 1 in float64.

    Returns
    -------
    RecordedLaws   P = 12, V = 4096, float64

    Numerics   stored in float32, whose sums miss 1 by about 1e-7: every law is renormalized after widening

    Examples
    --------
    >>> laws = next_token_laws()
    >>> tuple(laws.logp_target.shape), abs(float(laws.logp_target[0].exp().sum()) - 1) < 1e-14
    ((12, 4096), True)
    >>> pi, mu = laws.logp_target[6].exp(), laws.logp_behavior["v0_bf16"][6].exp()
    >>> round(float((pi * pi / mu).sum()), 3)  # d2 of one stale token
    1.748
    """
    with np.load(Path(__file__).with_name("smollm2_next_token_laws.npz")) as stored:
        laws = {name: _normalized(stored[f"logp_{name}"]) for name in ("target", *BEHAVIORS)}
        where, words = torch.from_numpy(stored["positions"]), torch.from_numpy(stored["token"]).long()
    return RecordedLaws(
        sequence=where[:, 0],
        position=where[:, 1],
        words=words,
        logp_target=laws["target"],
        logp_behavior={name: laws[name] for name in BEHAVIORS},
    )


def _normalized(log_probs: np.ndarray) -> Float[Tensor, "P V"]:
    return torch.log_softmax(torch.from_numpy(log_probs).double(), -1)
