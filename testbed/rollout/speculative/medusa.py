"""One sparse tree for every round: the paths of ranks that were right most often where the heads were measured.

The tree does not look at the heads' laws in the round at hand, as `largest` does; it rests on how often each head's r-th
guess was right on responses written before.
"""

from __future__ import annotations

import heapq

import torch
from jaxtyping import Float
from torch import Tensor

from testbed.core.batch import SegmentedBatch
from testbed.core.errors import InputError
from testbed.policies.transformer.policy import TransformerPolicy
from testbed.rollout.speculative.head_training import future_tokens
from testbed.rollout.speculative.heads import FutureHeads
from testbed.rollout.speculative.tree import RankPaths


@torch.no_grad()
def rank_accuracies(
    heads: FutureHeads, policy: TransformerPolicy, batch: SegmentedBatch, ranks: int
) -> Float[Tensor, "K R"]:
    """How often the r-th most probable token of head k was the one written.

        a_kr = mean over the positions t with a token t + k of 1[y_t+k = r-th most probable token under q_k(. | h_t)]

    Parameters
    ----------
    heads : FutureHeads          of the policy's model
    policy : TransformerPolicy   the batch's author
    batch : SegmentedBatch       responses to measure on, others than the heads were taught with
    ranks : int                  R, in 1..V

    Returns
    -------
    Float64[Tensor, "K R"]       rows sum to 1 at most, to 1 for R = V; a head that no response is long enough for has zeros

    Raises
    ------
    InputError                   a number of ranks outside its range

    Examples
    --------
    >>> from testbed import KeyedChooser, PrefixTree
    >>> from testbed.policies.transformer import Transformer, TransformerConfig
    >>> from testbed.rollout import rollout
    >>> config = TransformerConfig(vocab_size=3, width=8, heads=2, layers=1, hidden=8)
    >>> pi = TransformerPolicy(Transformer.random(config, seed=0, sharpness=3.0))
    >>> batch = rollout(PrefixTree(3, 5, rewards=[0.0] * 243), pi, 40, KeyedChooser(0))
    >>> rank_accuracies(FutureHeads.of(pi), pi, batch, 3).sum(1)
    tensor([1.0000, 1.0000, 1.0000], dtype=torch.float64)
    """
    if not 1 <= ranks <= policy.vocab_size:
        raise InputError(f"`ranks` must lie in 1..{policy.vocab_size}, the vocabulary", found=ranks)
    state = policy.at(batch.group).hidden_states(batch.tokens)
    laws = heads.log_laws(state, policy.weights(), policy.numerics)
    guess = torch.sort(laws, dim=-1, descending=True, stable=True).indices[..., :ranks]  # [B, T, K, R]
    target, real = (x.to(guess.device) for x in future_tokens(batch.tokens, batch.mask, heads.count))
    right = (guess == target[..., None]) & real[..., None]
    return right.sum((0, 1)).double() / real.sum((0, 1)).clamp(min=1)[:, None]


def static_layout(accuracies: Float[Tensor, "K R"], nodes: int) -> RankPaths:
    """Tree of the `nodes` paths with the largest product of accuracies, for `HeadDrafter(..., layout=...)`.

        w(r_1 .. r_k) = a_1,r_1 ... a_k,r_k

    Parameters
    ----------
    accuracies : Float[Tensor, "K R"]   of head k's r-th guess, as `rank_accuracies` measures them
    nodes : int                         in 1..(R + R^2 + ... + R^K)

    Raises
    ------
    InputError                          accuracies outside [0, 1], heads whose accuracies sum to more than 1, or a number of
                                        nodes outside its range

    Gives                               paths in the order of their weight, the shorter first among equals, so that the first
                                        n of them are the layout of n nodes; no tree of as many nodes has a larger sum of
                                        weights, which is the accepted drafts per round of heads that are right independently

    References                          Medusa (arXiv:2401.10774)

    Examples
    --------
    >>> static_layout(torch.tensor([[0.6, 0.3], [0.6, 0.3]]), 5).ranks()
    [(0,), (0, 0), (1,), (0, 1), (1, 0)]
    """
    if accuracies.dim() != 2 or not accuracies.numel():
        raise InputError("`accuracies` must be [heads, ranks], at least one of each", found=tuple(accuracies.shape))
    table = accuracies.double().tolist()
    heads, ranks = accuracies.shape
    if not bool(((accuracies >= 0) & (accuracies <= 1)).all()) or bool((accuracies.sum(1) > 1 + 1e-6).any()):
        raise InputError("`accuracies` must be >= 0 and sum to at most 1 for each head", found=table)
    most = sum(ranks**k for k in range(1, heads + 1))
    if not 1 <= nodes <= most:
        raise InputError(f"`nodes` must lie in 1..{most}, the paths of {heads} heads and {ranks} ranks", found=nodes)
    reachable: list[tuple[float, int, tuple[int, ...]]]
    reachable = [(-table[0][rank], 1, (rank,)) for rank in range(ranks)]  # heaviest first, then shortest
    heapq.heapify(reachable)
    chosen: list[tuple[int, ...]] = []
    while len(chosen) < nodes:
        weight, depth, path = heapq.heappop(reachable)
        chosen.append(path)
        if depth < heads:
            for rank in range(ranks):
                heapq.heappush(reachable, (weight * table[depth][rank], depth + 1, (*path, rank)))
    return RankPaths.of(chosen)
