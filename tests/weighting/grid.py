"""Batches on which every rule meets its formula: confidences from e^-700 to 1, log ratios from -700 to 700.

Values are irregular on purpose: none lands on a threshold, where rounding and not the formula would decide. All are
float64 and exact; no random numbers are drawn.
"""

import itertools
import math

import torch

from tests.weighting.worlds import batch_of

# log-probs up to p = 1 - 1e-12, and 1 itself
CONFIDENCES = (
    0.0, -1e-12, -3.7e-9, -4.1e-6, -2.3e-3, -5.9e-3, -0.1137, -0.731, -2.93, -11.3, -46.7, -163.1, -699.7,
)  # fmt: skip
SHIFTS = (-0.213, -1.3e-3, -1.7e-7, -3e-13, 3e-13, 1.7e-7, 1.3e-3, 0.213)
ADVANTAGES = (1.25, -0.75, 0.0)
GOLDEN = (math.sqrt(5) - 1) / 2


def pairs():
    """Every (log p, log q) of the grid: all confidences against each other, and each against its close neighbors."""
    crossed = list(itertools.product(CONFIDENCES, CONFIDENCES))
    near = [(p, p + d) for p, d in itertools.product(CONFIDENCES, SHIFTS) if p + d <= 0.0]
    return crossed + near


def spread(i):
    """Return the i-th point of a sequence that fills (0, 1) evenly."""
    return (i + 1) * GOLDEN % 1.0


def tokens():
    """Every pair of the grid as a response of one token, once with each sign of the advantage."""
    rows = [(p, q, a) for p, q in pairs() for a in ADVANTAGES]
    target, behavior, reward = (torch.tensor(x, dtype=torch.float64) for x in zip(*rows, strict=True))
    between = behavior + (target - behavior) * torch.tensor([spread(i) for i in range(len(rows))]).double()
    return batch_of(target[:, None], behavior[:, None], proximal=between[:, None].clamp(max=0.0), reward=reward)


def ragged(entries, advantages=ADVANTAGES):
    """Lay (log p, log q) out in responses of 1 to 5 tokens with padding in front, inside and behind, of NaN."""
    horizon, lengths, left = 7, itertools.cycle((1, 4, 2, 5, 3)), list(entries)
    rows, reward = [], []
    while left:
        n = next(lengths)
        rows.append(left[:n])
        left = left[n:]
        reward.append(advantages[len(rows) % len(advantages)])
    mask = torch.zeros(len(rows), horizon, dtype=torch.bool)
    target, behavior, proximal = (torch.full(mask.shape, math.nan, dtype=torch.float64) for _ in range(3))
    segment = torch.zeros(mask.shape, dtype=torch.int64)
    for b, row in enumerate(rows):
        start, hole = b % 2, b % 3 == 0
        for i, (p, q) in enumerate(row):
            t = start + i + (hole and i > 1)
            mask[b, t], target[b, t], behavior[b, t] = True, p, q
            proximal[b, t] = min(q + (p - q) * (1.4 * spread(7 * b + t) - 0.2), 0.0)
            segment[b, t] = i * (b % 3) // 2
    return batch_of(target, behavior, mask=mask, segment=segment, proximal=proximal, reward=reward)


def scattered():
    """Every pair of the grid, mixed into responses: most products overflow, underflow, or are rejected."""
    every = pairs()
    order = sorted(range(len(every)), key=spread)
    return ragged([every[i] for i in order])


def mild():
    """Responses of ordinary ratios at every confidence: gaps from 1e-5 to about 1 nat, one size per response."""
    entries, sizes = [], (1e-5, 3e-4, 2e-3, 0.02, 0.2, 0.9)
    for i, n in zip(range(90), itertools.cycle((1, 4, 2, 5, 3)), strict=False):
        for j in range(n):
            q = CONFIDENCES[1 + (3 * i + 5 * j) % (len(CONFIDENCES) - 2)]
            entries.append((min(q + sizes[i % len(sizes)] * (2 * spread(5 * i + j) - 1), 0.0), q))
    return ragged(entries)


WORLDS = {"tokens": tokens, "scattered": scattered, "mild": mild}
