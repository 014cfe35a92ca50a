"""How long a pass over so many tokens takes on this machine: the numbers that budgets are made from.

Times of a pass are a staircase rather than a line, because kernels change with the shape of their operands; so they are
measured and looked up, not fitted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import torch

from testbed.core.errors import InputError
from testbed.policies.transformer.policy import TransformerPolicy
from testbed.policies.transformer.tree_decoder import TreeDecoder


def pass_seconds(
    policy: TransformerPolicy,
    active: Sequence[int],
    nodes: int,
    *,
    repeats: int = 5,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[int, list[float]]:
    """Fastest of several passes over 1, 2, ..., nodes + 1 tokens per response, behind prompt 0.

    Parameters
    ----------
    policy : TransformerPolicy    unconditioned
    active : sequence of int      numbers of responses B to time, each >= 1
    nodes : int                   most candidates per response, >= 0
    repeats : int                 passes of each shape, >= 1; the shapes take turns, so that a busy moment harms all alike
    clock : callable              seconds

    Returns
    -------
    dict   B -> [T(B, 1), ..., T(B, nodes + 1)], as `MarginalBudget` takes it

    Raises
    ------
    InputError   numbers below their least

    Examples
    --------
    >>> from testbed.policies.transformer import Transformer, TransformerConfig
    >>> config = TransformerConfig(vocab_size=3, width=8, heads=2, layers=1, hidden=8)
    >>> times = pass_seconds(TransformerPolicy(Transformer.random(config, seed=0)), [1, 4], 2)
    >>> sorted(times), [len(row) for row in times.values()]
    ([1, 4], [3, 3])
    """
    if not active or min(active) < 1 or nodes < 0 or repeats < 1:
        found = f"active={list(active)}, nodes={nodes}, repeats={repeats}"
        raise InputError("`active` and `repeats` must be >= 1 and `nodes` >= 0", found=found)
    device = policy.model.device
    best = {b: [float("inf")] * (nodes + 1) for b in active}
    decoders = {b: TreeDecoder(policy, torch.zeros(b, dtype=torch.int64), room=nodes + 1) for b in active}
    for decoder in decoders.values():
        decoder.start()
    for turn in range(repeats + 1):  # the first turn warms up
        for b, decoder in decoders.items():
            for count in range(1, nodes + 2):
                tokens = torch.zeros(b, count, dtype=torch.int64, device=device)
                depth = torch.arange(count, device=device).expand(b, -1)
                sees = torch.ones(count, count, dtype=torch.bool, device=device).tril().expand(b, -1, -1)
                started = clock()
                decoder.laws(decoder.extend(tokens, depth, sees)).sum().item()  # waits for the device
                took = clock() - started
                if turn:
                    best[b][count - 1] = min(best[b][count - 1], took)
    return best


def measured_peak(seconds: Mapping[int, Sequence[float]], slack: float = 1.25) -> int:
    """C_peak: the most tokens of a pass, over all responses, that take at most `slack` times the fastest pass.

    Parameters
    ----------
    seconds : as from `pass_seconds`
    slack : float    >= 1

    Raises
    ------
    InputError   no times, or a slack below 1

    Examples
    --------
    >>> measured_peak({1: [1.0, 1.1, 1.2, 1.4], 4: [1.2, 1.9]})
    4
    """
    fastest = min((t for row in seconds.values() for t in row), default=0.0)
    if not fastest > 0 or not slack >= 1:
        raise InputError("`seconds` must hold positive times, and `slack` be >= 1", found=f"{dict(seconds)}, {slack}")
    return max(b * (k + 1) for b, row in seconds.items() for k, t in enumerate(row) if t <= slack * fastest)
