"""The order of prefixes ("nodes") and of full responses ("leaves") in every table of the library.

Prefixes are ordered by length, then lexicographically: (), (0,), (1,), ..., (0,0), ...; with V tokens and T positions there
are 1 + V + ... + V^(T-1) of them. Full responses are in lexicographic order, V^T of them.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product

import torch
from jaxtyping import Int64
from torch import Tensor


def node_count(vocab_size: int, horizon: int) -> int:
    """Number of prefixes shorter than `horizon`: sum of V^t for t < T.

    Examples
    --------
    >>> node_count(3, 3)
    13
    """
    return sum(vocab_size**t for t in range(horizon))


@lru_cache(maxsize=64)
def prefixes(vocab_size: int, horizon: int) -> tuple[tuple[int, ...], ...]:
    """All prefixes shorter than `horizon`, by length, then lexicographically.

    Examples
    --------
    >>> prefixes(2, 2)
    ((), (0,), (1,))
    """
    return tuple(p for t in range(horizon) for p in product(range(vocab_size), repeat=t))


def node_index(tokens: Int64[Tensor, "B T"], vocab_size: int) -> Int64[Tensor, "B T"]:
    """Index of the prefix h_t = tokens[:, :t] of every position t.

    Examples
    --------
    >>> node_index(torch.tensor([[1, 0, 1]]), 2)
    tensor([[0, 2, 5]])
    """
    batch, horizon = tokens.shape
    index = torch.zeros(batch, horizon, dtype=torch.int64, device=tokens.device)
    code = torch.zeros(batch, dtype=torch.int64, device=tokens.device)
    for t in range(horizon):
        index[:, t] = node_count(vocab_size, t) + code
        code = code * vocab_size + tokens[:, t]
    return index


def leaf_index(tokens: Int64[Tensor, "B T"], vocab_size: int) -> Int64[Tensor, " B"]:
    """Index of each full-length response in lexicographic order.

    Examples
    --------
    >>> leaf_index(torch.tensor([[1, 0, 1]]), 2)
    tensor([5])
    """
    code = torch.zeros(tokens.shape[0], dtype=torch.int64, device=tokens.device)
    for t in range(tokens.shape[1]):
        code = code * vocab_size + tokens[:, t]
    return code


def all_responses(vocab_size: int, horizon: int) -> Int64[Tensor, "L T"]:
    """All V^T full-length responses in lexicographic order.

    Examples
    --------
    >>> all_responses(2, 2).tolist()
    [[0, 0], [0, 1], [1, 0], [1, 1]]
    """
    codes = torch.arange(vocab_size**horizon)
    powers = vocab_size ** torch.arange(horizon - 1, -1, -1)
    return (codes[:, None] // powers) % vocab_size
