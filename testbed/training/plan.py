"""What a sweep would run and cost, before it does: a few updates of some combinations, extrapolated to all.

CPU seconds of a run are made of its beginning, its updates and its evaluations. Combinations are ordered by a rough count of
operations; those at both ends and some between are timed, the others lie between their neighbors. Where records exist, their
seconds are taken instead.
"""

from __future__ import annotations

import os
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from testbed.core.seeds import SeedTree
from testbed.environments.tasks import make_task
from testbed.training.grpo_config import GRPOConfig
from testbed.training.held_out import split_prompts
from testbed.training.lab import recipe_of, run_of, shape_of
from testbed.training.small_models import first_weights
from testbed.training.starts import missing_starts, start_key
from testbed.training.study import Study
from testbed.training.supervised import WarmStart
from testbed.training.sweep import read_record, record_path

Levels = tuple[tuple[str, str], ...]  # of a combination: (factor, level), ...
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

    def times(self, factor: int | float) -> Seconds:
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
    random : bool             whether a pilot wrote with random weights, its warm start not being made yet
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
    random: bool


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
    configs: dict[Levels, GRPOConfig] = {}
    known: dict[Levels, list[float]] = {}
    left: list[Levels] = []
    begun: list[GRPOConfig] = []  # of the runs that are left, each with the warm start of its seed
    for cell in cells:
        record, key = read_record(record_path(out, cell)), tuple(cell.levels.items())
        configs.setdefault(key, cell.config)
        if record is None:
            left.append(key)
            begun.append(cell.config)
        elif isinstance(record.provenance.get("seconds"), int | float):
            known.setdefault(key, []).append(float(record.provenance["seconds"]))
    timed = {key: Seconds(statistics.fmean(found), min(found), max(found)) for key, found in known.items()}
    work = {key: operations(config) for key, config in configs.items()}
    asked = [key for key in _spread(sorted(work, key=lambda key: work[key])) if key not in timed] if left else []
    missing = missing_starts(begun, cache)
    unmade = {start_key(config) for config in missing}
    random = {key for key in asked if start_key(configs[key]) in unmade}
    timed |= {key: pilot(configs[key], random=key in random, cache=cache) for key in asked}
    each = interpolated(work, timed)
    kinds = Counter(start_key(replace(config, warm_seed=0)) for config in missing)  # seeds differ in luck, not in work
    shown = {start_key(replace(config, warm_seed=0)): config for config in missing}
    starts_cpu = sum((start_pilot(shown[kind]).times(n) for kind, n in kinds.items()), Seconds(0.0, 0.0, 0.0))
    cpu = sum((each[key] for key in left), Seconds(0.0, 0.0, 0.0)) + starts_cpu
    workers = max(1, min(jobs, len(os.sched_getaffinity(0))))
    longest = max((each[key].guess for key in left), default=0.0)
    shared = cpu.times(1 / workers)
    wall = Seconds(*(max(longest, seconds) for seconds in (shared.guess, shared.low, shared.high)))
    return Plan(
        runs=len(cells), found=len(cells) - len(left), jobs=jobs, workers=workers, cpu=cpu, wall=wall,
        starts=len(missing), starts_cpu=starts_cpu, piloted=len(asked), recorded=len(known), random=bool(random),
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
    sampled = config.batch * (
        1.5 if config.system != "synchronous" or config.noise or config.engine != "plain" else 1.0
    )
    judged = config.evaluate_responses / config.evaluate_every
    passes = sampled + config.batch * (1 + 3 * config.epochs) + judged
    return float(config.updates * passes * tokens * shape_of(config, task).parameter_count())


def pilot(config: GRPOConfig, *, random: bool = False, cache: Path | None = None) -> Seconds:
    """CPU seconds of a run, by its first updates.

    Parameters
    ----------
    config : GRPOConfig
    random : bool           take random weights instead of the warm start; their answers are longer
    cache : Path | None     folder of warm starts
    """
    changes = {"updates": UPDATES + 2, "evaluate_every": config.updates + UPDATES + 2} | (
        {"warm_steps": 0} if random else {}
    )
    begun = time.process_time()
    run = run_of(GRPOConfig.of(config.plain() | changes), 0, cache=cache)
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


def interpolated(work: Mapping[Levels, float], timed: Mapping[Levels, Seconds]) -> dict[Levels, Seconds]:
    """Seconds of every combination: as timed, or between its neighbors in work.

    Examples
    --------
    >>> a, b, c = ((("rule", name),) for name in "abc")
    >>> interpolated({a: 1.0, b: 2.0, c: 3.0}, {a: Seconds(1.0, 1.0, 1.0), c: Seconds(5.0, 4.0, 6.0)})[b]
    Seconds(guess=3.0, low=2.5, high=3.5)
    """
    if not timed:
        return {}
    points: dict[float, list[Seconds]] = {}
    for key in sorted(timed, key=lambda key: work[key]):
        points.setdefault(work[key], []).append(timed[key])
    curves = [
        [statistics.fmean(seconds.guess for seconds in found) for found in points.values()],
        [min(seconds.low for seconds in found) for found in points.values()],
        [max(seconds.high for seconds in found) for found in points.values()],
    ]
    between = {x: Seconds(*(float(np.interp(x, list(points), curve)) for curve in curves)) for x in set(work.values())}
    return {key: timed.get(key) or between[x] for key, x in work.items()}


def _timed(function: Callable[[], object]) -> float:
    """CPU seconds of a call."""
    begun = time.process_time()
    function()
    return time.process_time() - begun


def _spread(keys: list[Levels]) -> list[Levels]:
    """Both ends of a list and some between, evenly."""
    places = {round(i) for i in np.linspace(0, len(keys) - 1, min(PILOTS, len(keys)))}
    return [keys[place] for place in sorted(places)]
