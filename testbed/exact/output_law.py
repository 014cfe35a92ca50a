"""The output law of an engine, computed by replaying every choice it can make."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeVar

from testbed.core.choices import Chooser, ReplayChooser

Output = TypeVar("Output", bound=Hashable)


def output_law(engine: Callable[[Chooser], Output], limit: int = 1_000_000) -> dict[Output, float]:
    """Probability of each output of a program whose only randomness is `chooser.choose`.

    Parameters
    ----------
    engine : Chooser -> hashable output   called once per branch of its decision tree
    limit : int                           most branches to walk

    Returns
    -------
    dict output -> probability; the values sum to 1

    Raises
    ------
    InputError   more than `limit` branches

    Examples
    --------
    >>> import torch
    >>> output_law(lambda chooser: int(chooser.choose(torch.tensor([[0.25, 0.75]]))))
    {0: 0.25, 1: 0.75}
    """
    law: dict[Output, float] = {}
    for output, probability in ReplayChooser.walk(engine, limit):
        law[output] = law.get(output, 0.0) + probability
    return law
