"""Every run of a program that treats its rows separately: all rows walk their decision trees side by side.

`ReplayChooser` walks the *joint* decision tree of a program: with n rows of k branches each, k^n runs. If what happens in a row
depends on that row only, the law of each row follows from as many passes as its own tree has branches, all rows at once. Rows
are told apart by the first half of each draw's key, the response.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from testbed.core.choices import Chooser, checked
from testbed.core.errors import InputError

Result = TypeVar("Result")


class RowReplayChooser:
    """Takes the scripted branch of each row's next draw; used by `walk_rows`.

    Parameters
    ----------
    scripts : dict row -> list of int   branches to take; beyond the script, the first possible one
    """

    def __init__(self, scripts: dict[int, list[int]]) -> None:
        self.scripts = scripts
        self.probability = dict.fromkeys(scripts, 1.0)
        self.trail: dict[int, list[list[int]]] = {row: [] for row in scripts}

    def choose(self, probs: Float[Tensor, "B V"], key: Int64[Tensor, "B 2"] | None = None) -> Int64[Tensor, " B"]:
        """Take the next branch of the row that each key names."""
        if key is None:
            raise InputError("rows are replayed by the first half of each draw's key", found="no key")
        taken = []
        for row, law in zip(key[:, 0].tolist(), checked(probs).tolist(), strict=True):
            trail, script = self.trail[row], self.scripts[row]
            possible = [i for i, chance in enumerate(law) if chance > 0]
            index = script[len(trail)] if len(trail) < len(script) else possible[0]
            trail.append([index, *[i for i in possible if i > index]])
            self.probability[row] *= law[index] / sum(law)
            taken.append(index)
        return torch.tensor(taken, dtype=torch.int64)


def walk_rows(
    program: Callable[[Chooser, Int64[Tensor, " b"]], Sequence[Result]], rows: int, limit: int = 100_000
) -> list[list[tuple[Result, float]]]:
    """Every result of each row, with its probability.

    Parameters
    ----------
    program : (chooser, rows [b]) -> b results   runs these rows; its draws must carry keys (row, anything)
    rows : int                                   rows 0 .. rows-1
    limit : int                                  most passes

    Returns
    -------
    per row, a list of (result, probability); the probabilities of a row sum to 1

    Raises
    ------
    InputError   a row with more than `limit` branches, or a draw without a key
    Assumes      a row's draws and result depend on that row only

    Examples
    --------
    >>> law = torch.tensor([[0.25, 0.75], [1.0, 0.0]])
    >>> def coins(chooser, rows):
    ...     return chooser.choose(law[rows], torch.stack([rows, rows], 1)).tolist()
    >>> walk_rows(coins, 2)
    [[(0, 0.25), (1, 0.75)], [(0, 1.0)]]
    """
    results: list[list[tuple[Result, float]]] = [[] for _ in range(rows)]
    scripts: dict[int, list[int]] = {row: [] for row in range(rows)}
    for _ in range(limit):
        if not scripts:
            return results
        chooser = RowReplayChooser(scripts)
        live = list(scripts)
        found = program(chooser, torch.tensor(live, dtype=torch.int64))
        scripts = {}
        for row, result in zip(live, found, strict=True):
            results[row].append((result, chooser.probability[row]))
            trail = chooser.trail[row]
            while trail and len(trail[-1]) == 1:
                trail.pop()
            if trail:
                scripts[row] = [options[0] for options in trail[:-1]] + [trail[-1][1]]
    if scripts:
        raise InputError(f"a row may have at most {limit} branches", found=f"more than {limit}")
    return results
