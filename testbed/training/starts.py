"""The warm starts that a study's runs begin with: which are not kept yet, and making those before the runs need them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from testbed.environments.tasks import make_task
from testbed.training.backends import parallel
from testbed.training.grpo_config import GRPOConfig
from testbed.training.lab import first_policy, recipe_of, shape_of
from testbed.training.warm_start import ingredients
from testbed.training.warm_start_files import content_key, default_cache

SHARED = (
    "task", "task_params", "width", "layers", "heads", "hidden", "experts", "warm_steps", "warm_corruption", "warm_seed",
)  # fmt: skip


def missing_starts(configs: Iterable[GRPOConfig], cache: Path | None = None) -> list[GRPOConfig]:
    """Settings that need a warm start which is not kept yet, one for each.

    Parameters
    ----------
    configs : iterable of GRPOConfig
    cache : Path | None     folder of warm starts (None: the user's cache)

    Examples
    --------
    >>> missing_starts([GRPOConfig(warm_steps=0)])
    []
    """
    folder, found = default_cache() if cache is None else cache, {}
    for key, config in {start_key(config): config for config in configs if config.warm_steps}.items():
        task = make_task(config.task, **config.task_params)
        made_of = ingredients(task, shape_of(config, task), recipe_of(config, task), config.warm_seed, None, 1)
        if not (folder / f"{content_key(made_of)}.start").is_file():
            found[key] = config
    return list(found.values())


def make_starts(configs: list[GRPOConfig], jobs: int, report: Callable[[int, str], None]) -> None:
    """Make warm starts side by side; one that fails is left to fail in the runs that need it.

    Parameters
    ----------
    configs : list of GRPOConfig   of `missing_starts`
    jobs : int                     processes of this machine
    report : callable              (warm starts done, ""), after each
    """
    workers = min(jobs, max(1, len(configs)))
    for done, _ in enumerate(parallel(make_start, [(config,) for config in configs], jobs=workers, backend="loky"), 1):
        report(done, "")


def make_start(config: GRPOConfig) -> str:
    """Make a warm start; return what went wrong, "" if nothing did."""
    try:
        first_policy(config, make_task(config.task, **config.task_params))
    except Exception as error:  # its runs will say so, each in its own record of the failure
        return f"{type(error).__name__}: {error}"
    return ""


def start_key(config: GRPOConfig) -> str:
    """Everything of the settings that a warm start depends on: one that two runs share has one key."""
    values: dict[str, Any] = config.plain()
    return json.dumps([values[name] for name in SHARED], sort_keys=True)
