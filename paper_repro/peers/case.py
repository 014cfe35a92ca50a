"""One comparison: arms that do the same work, one of them the reference; and its result as plain values."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from paper_repro.peers.timing import in_turns, quartiles, ratios

Arms = Mapping[str, Callable[[], object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Arms to be timed in turns.

    Parameters
    ----------
    name : str
    unit : str                 what an arm produces, "tokens"
    amount : float             how many of them in one run, unless an arm says otherwise
    arms : function            makes the arms, the reference first; what an arm's first run returns, if it is a dict, is
                               noted beside its times, and its "amount" is how much that arm produces
    target : str               what the project promises of this case, "" for nothing
    """

    name: str
    unit: str
    amount: float
    arms: Callable[[], Arms]
    target: str = ""

    def measured(self, repeats: int) -> dict[str, Any]:
        """Run each arm once to warm up, then all in turns.

        Returns
        -------
        dict   load (one-minute load average before and after), and per arm: seconds of each run, rate (units per second:
               lower quartile, median, upper quartile), ratio (times as fast as the reference: likewise), notes
        """
        arms, before = self.arms(), os.getloadavg()[0]
        notes = {name: run() for name, run in arms.items()}
        seconds = in_turns(arms, repeats)
        noted = {name: dict(note) if isinstance(note, dict) else {} for name, note in notes.items()}
        amounts = {name: note.pop("amount", self.amount) for name, note in noted.items()}
        rates = {name: [amounts[name] / second for second in seconds[name]] for name in arms}
        reference = rates[next(iter(arms))]
        return {
            "name": self.name,
            "unit": self.unit,
            "amount": self.amount,
            "target": self.target,
            "load": [round(before, 2), round(os.getloadavg()[0], 2)],
            "arms": {
                name: {
                    "seconds": [float(f"{second:.4g}") for second in seconds[name]],
                    "rate": _rounded(quartiles(rates[name])),
                    "ratio": _rounded(ratios(rates[name], reference)),
                    "notes": noted[name],
                }
                for name in arms
            },
        }


def _rounded(values: list[float]) -> list[float]:
    return [float(f"{value:.4g}") for value in values]
