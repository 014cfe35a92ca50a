"""A run as its reader meets it: while it goes on, and when it has ended."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from testbed.core.sections import number, share
from testbed.training.grpo import GRPORun
from testbed.training.grpo_metrics import OLDEST


def run_words(run: GRPORun) -> str:
    """How a run is doing, in one line."""
    words = [f"evaluation {run.evaluations[-1][1]:.3f}"]
    if run.curve["reward"]:
        last = {name: values[-1] for name, values in run.curve.items()}
        words.insert(0, f"reward {last['reward']:.3f}")
        words += [f"max |log k| {number(last['max_log_k'])}", f"acted {share(last['acted'])}"]
    return "  ".join(words)


def result_lines(result: dict[str, Any], planned: int) -> list[str]:
    r"""What a run's result says, in a few lines.

    Parameters
    ----------
    result : dict    of `run_result`
    planned : int    updates that were asked for

    Examples
    --------
    >>> result = {"outcome": "finished", "reason": "", "updates": 2, "start": 0.25, "best": 0.5, "final": 0.375,
    ...           "collapsed": False, "curve": {"acted": [0.0, 0.5], "max_log_k": [0.0, 0.7], "ages": [[4, 0], [1, 3]]}}
    >>> print("\n".join(result_lines(result, 2)))
    reward 0.250 -> 0.375 (best 0.500), no collapse
    finished: 2 updates (reward at the end: mean of the last three evaluations)
    staleness 0.38 updates on average, 1 at most; acted on 25% of the tokens; max |log k| 0.700
    """
    curve, made = result["curve"], result["updates"]
    judged = "collapsed" if result["collapsed"] else "no collapse"
    ended = (
        f"{made} updates (reward at the end: mean of the last three evaluations)"
        if result["outcome"] == "finished"
        else f"{result['reason']}, of {planned} planned"
    )
    lines = [
        f"reward {result['start']:.3f} -> {result['final']:.3f} (best {result['best']:.3f}), {judged}",
        f"{result['outcome']}: {ended}",
    ]
    if not curve["acted"]:
        return lines
    counts = [sum(column) for column in zip(*curve["ages"], strict=True)]
    mean = sum(age * count for age, count in enumerate(counts)) / sum(counts)
    most = max(age for age, count in enumerate(counts) if count)
    oldest = f"{most} or more" if most == OLDEST else f"{most}"
    finite = [gap for gap in curve["max_log_k"] if isinstance(gap, int | float) and math.isfinite(gap)]
    acted = sum(curve["acted"]) / len(curve["acted"])
    lines.append(
        f"staleness {number(float(mean), 2)} updates on average, {oldest} at most; acted on {share(acted)} of the tokens; "
        f"max |log k| {number(max(finite, default=math.nan))}"
    )
    return lines


def kept_line(record: Path, weights: Path) -> str:
    """Where a run's record and weights are."""
    return f"record {record}, weights {weights.name} beside it"
