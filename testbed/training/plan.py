"""What a sweep would run and cost, before it does: a few updates of some combinations, extrapolated to all.

CPU seconds of a run are made of its beginning, its updates and its evaluations. Combinations are ordered by a rough count of
operations; those at both ends and some between are timed, the others lie between their neighbors. Where records exist, their
seconds are taken instead.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from testbed.core.seeds import SeedTree
from testbed.environments.tasks import make_task
from testbed.training.grpo_config import GRPOConfig
from testbed.training.held_out import split_prompts
from testbed.training.lab import recipe_of, run_of, shape_of
from testbed.training.small_models import first_weights
from testbed.training.starts import missing_starts
from testbed.training.study import Study
from testbed.training.supervised import WarmStart
from testbed.training.sweep import read_record, record_path

PILOTS = 8  # combinations that are timed at most
UPDATES = 3  # timed updates of each, after one that is not


@dataclass(frozen=True, slots=True)
class Seconds:
    """CPU seconds: the best guess, and from the fastest to the slowest of what was timed."""

    guess: float
    low: float
    high: float

    def __add__(self, other: Seconds) -> Seconds:
        return Seconds(self.guess + other.guess, self.low + other.low, self.high + other.high)

    def times(self, factor: float) -> Seconds:
        """Return so many of them."""
        return Seconds(self.guess * factor, self.low * factor, self.high * factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a sweep would do.

    Parameters
    ----------
    runs, found : int         runs of the study, and those with a record
    jobs, workers : int       workers asked for, and how many of them this machine's cores serve at a time
    cpu, wall : Seconds       of the runs that are left and the warm starts that are missing, together and at `workers`
    starts : int              warm starts that are missing
    starts_cpu : Seconds      of them
    piloted, recorded : int   combinations whose time was measured just now, and whose records told it
    """

    runs: int
    found: int
    jobs: int
    workers: int
    cpu: Seconds
    wall: Seconds
    starts: int
    starts_cpu: Seconds
    piloted: int
    recorded: int


def planned(study: Study, out: Path, jobs: int, *, cache: Path | None = None) -> Plan:
    """Plan a sweep: a pilot of some seconds, no records, no warm starts.

    Parameters
    ----------
    study : Study
    out : Path              folder of the records
    jobs : int              workers
    cache : Path | None     folder of warm starts (None: the user's cache)

    Assumes      a run costs what its first updates cost; runs that diverge end early, and policies that learn to answer at
                 greater or smaller length change it
    """
    cells = study.cells()
    configs = {tuple(cell.levels.items()): cell.config for cell in cells}
    known: dict[tuple[tuple[str, str], ...], list[float]] = {}
    left: list[tuple[tuple[str, str], ...]] = []
    for cell in cells:
        record, key = read_record(record_path(out, cell)), tuple(cell.levels.items())
        if record is None:
            left.append(key)
        elif isinstance(record.provenance.get("seconds"), int | float):
            known.setdefault(key, []).append(float(record.provenance["seconds"]))
    timed = {key: Seconds(statistics.fmean(found), min(found), max(found)) for key, found in known.items()}
    work = {key: operations(config) for key, config in configs.items()}
    asked = [key for key in _spread(sorted(work, key=lambda key: work[key])) if key not in timed] if left else []
    missing = missing_starts([configs[key] for key in left], cache)
    timed |= {key: pilot(configs[key], missing, cache) for key in asked}
    each = interpolated(work, timed)
    starts_cpu = sum((start_pilot(config) for config in missing), Seconds(0.0, 0.0, 0.0))
    cpu = sum((each[key] for key in left), Seconds(0.0, 0.0, 0.0)) + starts_cpu
    workers = max(1, min(jobs, len(os.sched_getaffinity(0))))
    longest = max((each[key].guess for key in left), default=0.0)
    shared = cpu.times(1 / workers)
    wall = Seconds(*(max(longest, seconds) for seconds in (shared.guess, shared.low, shared.high)))
    return Plan(
        runs=len(cells), found=len(cells) - len(left), jobs=jobs, workers=workers, cpu=cpu, wall=wall,
        starts=len(missing), starts_cpu=starts_cpu, piloted=len(asked), recorded=len(known),
    )  # fmt: skip


def operations(config: GRPOConfig) -> float:
    """A rough count of the multiplications of a run, for the order of the combinations only.

    Examples
    --------
    >>> operations(GRPOConfig(epochs=2)) > operations(GRPOConfig())
    True
    """
    task = make_task(config.task, **config.task_params)
    tokens = task.prompt_length + task.horizon
    sampled = config.batch * (1.5 if config.system != "synchronous" or config.noise or config.engine != "plain" else 1.0)
    judged = config.evaluate_responses / config.evaluate_every
    passes = sampled + config.batch * (1 + 3 * config.epochs) + judged
    return float(config.updates * passes * tokens * shape_of(config, task).parameter_count())


def pilot(config: GRPOConfig, missing: Sequence[GRPOConfig] = (), cache: Path | None = None) -> Seconds:
    """CPU seconds of a run, by its first updates.

    With a warm start that is kept, if it is; else from random weights, whose answers are longer.
    """
    random = config in missing or any(_same_start(config, other) for other in missing)
    values = config.plain() | ({"warm_steps": 0} if random else {})
    begun = time.process_time()
    run = run_of(GRPOConfig.of(values | {"updates": UPDATES + 2}), 0, cache=cache)
    begin = time.process_time() - begun
    run.advance()
    spent = [_timed(run.advance) for _ in range(UPDATES)]
    judged = _timed(run.evaluate) * (-(-config.updates // config.evaluate_every))
    fixed = Seconds(begin + judged, begin + judged, begin + judged)
    return fixed + Seconds(statistics.fmean(spent), min(spent), max(spent)).times(config.updates)


def start_pilot(config: GRPOConfig) -> Seconds:
    """CPU seconds of a warm start, by its first updates."""
    task = make_task(config.task, **config.task_params)
    train, _ = split_prompts(task, min(500, task.n_prompts // 4))
    model = first_weights(shape_of(config, task), config.warm_seed)
    run = WarmStart(model, task, train, recipe_of(config, task), SeedTree(config.warm_seed))
    run.advance()
    spent = [_timed(run.advance) for _ in range(min(UPDATES, config.warm_steps - 1))] or [0.0]
    return Seconds(statistics.fmean(spent), min(spent), max(spent)).times(config.warm_steps)


def interpolated(
    work: Mapping[tuple[tuple[str, str], ...], float], timed: Mapping[tuple[tuple[str, str], ...], Seconds]
) -> dict[tuple[tuple[str, str], ...], Seconds]:
    """Seconds of every combination: as timed, or between its neighbors in work.

    Examples
    --------
    >>> a, b, c = ((("rule", name),) for name in "abc")
    >>> interpolated({a: 1.0, b: 2.0, c: 3.0}, {a: Seconds(1, 1, 1), c: Seconds(5, 4, 6)})[b]
    Seconds(guess=3.0, low=2.5, high=3.5)
    """
    if not timed:
        return {}
    order = sorted(timed, key=lambda key: work[key])
    x = [work[key] for key in order]

    def between(key: tuple[tuple[str, str], ...], name: str) -> float:
        return float(np.interp(work[key], x, [getattr(timed[other], name) for other in order]))

    names = ("guess", "low", "high")
    return {key: timed.get(key) or Seconds(*(between(key, name) for name in names)) for key in work}


def _spread(keys: list[tuple[tuple[str, str], ...]]) -> list[tuple[tuple[str, str], ...]]:
    """Both ends of a list and some between, evenly."""
    places = {round(i) for i in np.linspace(0, len(keys) - 1, min(PILOTS, len(keys)))}
    return [keys[place] for place in sorted(places)]
