"""Every run of a program that treats its rows separately: many walks through decision trees side by side.

`ReplayChooser` walks the *joint* decision tree of a program: with n rows of k branches each, k^n runs. If what happens in a row
depends on that row only, two shorter ways are open. `walk_rows`: rows that differ walk a tree each, in as many passes as the
largest of them has branches. `walk_in_batches`: rows that are alike share the branches of their one tree, in as many passes as
it takes to give each branch a row. Rows are told apart by the first half of each draw's key, the response.
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
NAMELESS = "rows are replayed by the first half of each draw's key"


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
            raise InputError(NAMELESS, found="no key")
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


class ScriptedRows:
    """Takes the scripted branches of many runs of one program at once; used by `walk_in_batches`.

    Parameters
    ----------
    scripts : Int64[Tensor, "n L"]     branches to take, row by row; beyond a row's length, the first possible one
    lengths : Int64[Tensor, " n"]      of the scripts
    together : int                     rows r of one run: those whose keys begin with run * together + r
    """

    def __init__(self, scripts: Int64[Tensor, "n L"], lengths: Int64[Tensor, " n"], together: int = 1) -> None:
        self.scripts, self.lengths, self.together = scripts, lengths, together
        self.step = torch.zeros_like(lengths)
        self.probability = torch.ones(len(lengths), dtype=torch.float64)
        self.draws: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []  # run, step, branch taken, branches left for later

    def choose(self, probs: Float[Tensor, "B V"], key: Int64[Tensor, "B 2"] | None = None) -> Int64[Tensor, " B"]:
        """Take the next branch of the run that each key belongs to; draws of one run count in the order given."""
        if key is None:
            raise InputError(NAMELESS, found="no key")
        p, run = checked(probs).cpu(), key[:, 0].cpu() // self.together
        order = torch.sort(run, stable=True).indices
        grouped = run[order]
        at = torch.empty_like(run)
        at[order] = torch.arange(len(run)) - torch.searchsorted(grouped, grouped)
        at += self.step[run]
        given = at < self.lengths[run]
        first = (p > 0).long().argmax(1)
        taken = torch.where(given, self.scripts[run, at.clamp(max=self.scripts.shape[1] - 1)], first)
        chance = p.gather(1, taken[:, None])[:, 0] / p.sum(1)
        self.probability.scatter_reduce_(0, run, chance, "prod")
        self.step += torch.bincount(run, minlength=len(self.step))
        later = (p > 0) & ~given[:, None] & (torch.arange(p.shape[1]) > taken[:, None])
        self.draws.append((run, at, taken, later))
        return taken.to(probs.device)

    def others(self) -> tuple[Int64[Tensor, "m L"], Int64[Tensor, " m"]]:
        """Return the scripts that branch off from what was taken beyond the scripts given, with their lengths."""
        path = torch.zeros(len(self.step), int(self.step.max()) if len(self.step) else 0, dtype=torch.int64)
        for run, at, taken, _ in self.draws:
            path[run, at] = taken
        scripts, lengths = [path[:0]], [self.lengths[:0]]
        for run, at, _, later in self.draws:
            draw, branch = torch.nonzero(later, as_tuple=True)
            found = path[run[draw]]
            scripts.append(found.scatter_(1, at[draw, None], branch[:, None]))
            lengths.append(at[draw] + 1)
        return torch.cat(scripts), torch.cat(lengths)


def walk_in_batches(
    program: Callable[[Chooser, int], Sequence[Result]],
    *,
    width: int = 4096,
    together: int = 1,
    merged: bool = False,
    limit: int = 10_000_000,
) -> list[tuple[Result, float]]:
    """Every result of one program, with its probability, by runs of many rows that each follow another script.

    One run of `width` rows costs about as much as one of a few, so that a tree of a million branches takes hundreds of runs
    instead of a million. What a run takes beyond its scripts shows the branches beside it, which later runs follow.

    Parameters
    ----------
    program : (chooser, n) -> n results   runs n copies; the draws of copy i have keys (i, anything), or, if a copy has several
                                          rows, (i * together + row, anything)
    width : int                           most copies of one run, >= 1
    together : int                        rows of a copy, >= 1
    merged : bool                         whether equal results, which must be hashable, come once, with the sum of their
                                          probabilities; else every branch comes by itself
    limit : int                           most branches

    Returns
    -------
    list of (result, probability), in no particular order

    Raises
    ------
    InputError   more than `limit` branches, a draw without a key, a number of results that is not n, or probabilities that do
                 not sum to 1 within 1e-9: copies that are not alike, or depend on each other
    Assumes      draws and result of a copy depend on its own draws only
    Gives        the law of `ReplayChooser.walk` for one copy

    Examples
    --------
    >>> def two_coins(chooser, n):
    ...     row = torch.arange(n)
    ...     p = torch.tensor([[0.25, 0.75]]).expand(n, -1)
    ...     return sum(chooser.choose(p, torch.stack([row, row], 1)) for _ in range(2)).tolist()
    >>> sorted(walk_in_batches(two_coins))
    [(0, 0.0625), (1, 0.1875), (1, 0.1875), (2, 0.5625)]
    >>> sorted(walk_in_batches(two_coins, merged=True))
    [(0, 0.0625), (1, 0.375), (2, 0.5625)]
    """
    if width < 1 or together < 1:
        raise InputError("`width` and `together` must be >= 1", found=f"width={width}, together={together}")
    branches: list[tuple[Result, float]] = []
    law: dict[Result, float] = {}
    count, total = 0, 0.0
    waiting = [(torch.zeros(1, 1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64))]
    while waiting:
        scripts, lengths = _taken_off(waiting, width)
        count += len(lengths)
        if count > limit:
            raise InputError(f"the decision tree must have at most {limit} branches", found=f"more than {limit}")
        chooser = ScriptedRows(scripts, lengths, together)
        found = program(chooser, len(lengths))
        if len(found) != len(lengths):
            raise InputError(f"{len(lengths)} copies must have as many results", found=len(found))
        total += float(chooser.probability.sum())
        outcomes = zip(found, chooser.probability.tolist(), strict=True)
        if merged:
            for result, probability in outcomes:
                law[result] = law.get(result, 0.0) + probability
        else:
            branches += outcomes
        scripts, lengths = chooser.others()
        if len(lengths):
            waiting.append((scripts, lengths))
    if not abs(total - 1) <= 1e-9:
        raise InputError(
            "the branches of a program must have probabilities that sum to 1",
            found=f"{total:.12g}",
            hint="the copies of one run may not depend on each other",
        )
    return list(law.items()) if merged else branches


def _taken_off(waiting: list[tuple[Tensor, Tensor]], width: int) -> tuple[Tensor, Tensor]:
    """Take at most `width` scripts from the end of the list, the newest first, which keeps it short."""
    taken: list[tuple[Tensor, Tensor]] = []
    while waiting and width:
        scripts, lengths = waiting.pop()
        if len(lengths) > width:
            waiting.append((scripts[width:], lengths[width:]))
            scripts, lengths = scripts[:width], lengths[:width]
        taken.append((scripts, lengths))
        width -= len(lengths)
    longest = max(scripts.shape[1] for scripts, _ in taken)
    padded = [torch.nn.functional.pad(scripts, (0, longest - scripts.shape[1])) for scripts, _ in taken]
    return torch.cat(padded), torch.cat([lengths for _, lengths in taken])
