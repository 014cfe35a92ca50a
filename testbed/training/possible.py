"""Whether settings can be run at all, asked before anything is: a warm start of minutes is no place to meet a typing error."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from testbed.core.batch import SegmentedBatch
from testbed.core.errors import InputError, MissingField
from testbed.environments.tasks import make_task
from testbed.environments.verifiable import VerifiableTask
from testbed.rollout.systems import find_system
from testbed.training.controls import kept_of
from testbed.training.engines import numerics_of
from testbed.training.grpo_config import GRPOConfig
from testbed.training.lab import shape_of
from testbed.weighting.rules import RULES, weigh


def require_possible(configs: Iterable[GRPOConfig]) -> None:
    """Refuse settings that name what does not exist, or values that their owner does not take.

    Raises
    ------
    InputError   naming the field, its value and what is allowed

    Examples
    --------
    >>> require_possible([GRPOConfig(rule="cis"), GRPOConfig(system="steps_off", system_params={"ahead": 3})])
    >>> require_possible([GRPOConfig(rule="sis")])
    Traceback (most recent call last):
    ...
    testbed.core.errors.InputError: `rule` must weigh what a run records; found 'sis', which needs `next_token`
    """
    tasks: dict[str, VerifiableTask] = {}
    for config in configs:
        key = json.dumps([config.task, dict(config.task_params)], sort_keys=True, default=str)
        if key not in tasks:
            tasks[key] = _asked("task_params", config.task_params, _task_of, config)
        _asked("width", config.width, shape_of, config, tasks[key])
        for engine in ("sampler", "trainer"):
            _asked(engine, getattr(config, engine), numerics_of, engine, getattr(config, engine))
        _asked("system_params", config.system_params, _system_of, config)
        _asked("keep", config.keep, kept_of, config, tasks[key])
        _asked("rule_params", config.rule_params, _weigh_by, config)
        if config.engine == "speculative" and config.noise:
            raise InputError("`engine` = 'speculative' needs a sampler without `noise`", found=repr(config.noise))


def _asked(name: str, value: object, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function that looks at a field; what is of a wrong type ends in a sentence, too."""
    try:
        return function(*arguments)
    except InputError:
        raise
    except (TypeError, ValueError, AttributeError) as error:
        shown = dict(value) if isinstance(value, Mapping) else value
        raise InputError(f"`{name}` must hold values of the right kind", found=f"{shown!r}: {error}") from None


def _task_of(config: GRPOConfig) -> VerifiableTask:
    task = make_task(config.task, **config.task_params)
    if task.n_prompts < 4:
        raise InputError("a task must have at least 4 problems, a quarter of which is held out", found=task.n_prompts)
    return task


def _system_of(config: GRPOConfig) -> None:
    """Make the system, and ask of it and of the sampler what a run asks of both after its warm start."""
    for name in ("objective", "source"):  # read by people: another value would change the record and not the run
        if name in config.system_params:
            found = f"{name} = {config.system_params[name]!r}"
            hint = "set `rule`, whose loss a run has" if name == "objective" else ""
            raise InputError("`system_params` must hold values that a run reads", found=found, hint=hint)
    system = find_system(config.system, **config.system_params)
    if system.push == "stale_cache" and not numerics_of("sampler", config.sampler).cached:
        raise InputError(
            "push='stale_cache' needs a sampler that keeps keys and values", found="`sampler.cached` = False",
            hint="set it to true, or `system_params.push` to 'recompute'",
        )  # fmt: skip


def _weigh_by(config: GRPOConfig) -> None:
    """Weigh two responses of one token with all that a run's batches hold."""
    one, logp = torch.ones(2, 1, dtype=torch.int64), torch.full((2, 1), -1.0)
    batch = SegmentedBatch(
        tokens=one, mask=one > 0, segment=0 * one, version=0 * one, engine=0 * one, logp_target=logp, logp_behavior=logp,
        logp_proximal=logp, reward=torch.tensor([1.0, 0.0]), group=torch.tensor([0, 0]),
    )  # fmt: skip
    try:
        weigh(config.rule, batch, advantage=torch.tensor([1.0, -1.0]), **config.rule_params)
    except MissingField as error:
        needs = ", ".join(f"`{name}`" for name in RULES[config.rule].needs)
        raise InputError(
            "`rule` must weigh what a run records", found=f"{config.rule!r}, which needs {needs}"
        ) from error
