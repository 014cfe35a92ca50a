"""What a run leaves behind, as plain values, and how its end is judged."""

from __future__ import annotations

import statistics
from typing import Any

LAST = 3  # evaluations that the final reward is the mean of


def run_result(run: Any) -> dict[str, Any]:
    """Outcome, judgment and curves of a run that has ended.

    Parameters
    ----------
    run : GRPORun      or whatever has its `config`, `outcome`, `reason`, `done`, `evaluations` and `curve`

    Returns
    -------
    outcome, reason     "finished" or "diverged", and why
    updates             made
    start, best         first and largest evaluation
    final               mean of the last LAST evaluations; 0 for a run that diverged: it left no policy to use
    area                mean of all evaluations that were planned; those after a divergence count 0
    collapsed           diverged, or `final` below `config.collapse` times `best`
    evaluations         [[update, reward], ...]
    curve               name -> a value per update

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> config = SimpleNamespace(updates=4, evaluate_every=2, collapse=0.5)
    >>> run = SimpleNamespace(config=config, outcome="finished", reason="", done=4, curve={},
    ...                       evaluations=[(0, 0.5), (2, 0.9), (4, 0.1)])
    >>> found = run_result(run)
    >>> found["final"], found["best"], found["collapsed"]
    (0.5, 0.9, False)
    """
    config, rewards = run.config, [reward for _, reward in run.evaluations]
    planned = 1 + -(-config.updates // config.evaluate_every)
    diverged = run.outcome == "diverged"
    final = 0.0 if diverged else statistics.fmean(rewards[-LAST:])
    return {
        "outcome": run.outcome,
        "reason": run.reason,
        "updates": run.done,
        "start": rewards[0],
        "best": max(rewards),
        "final": final,
        "area": sum(rewards) / planned,
        "collapsed": diverged or final < config.collapse * max(rewards),
        "evaluations": [[step, reward] for step, reward in run.evaluations],
        "curve": run.curve,
    }
