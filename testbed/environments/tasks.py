"""Every verifiable task by name, made from plain parameters such as a configuration file holds."""

from __future__ import annotations

import inspect
from typing import Any

from testbed.core.errors import InputError
from testbed.environments.arithmetic import ArithmeticTask
from testbed.environments.modular_sum import ModularSum
from testbed.environments.parity import Parity
from testbed.environments.reasoning_gym_task import ReasoningGymTask
from testbed.environments.sorting import Sorting
from testbed.environments.verifiable import VerifiableTask
from testbed.environments.worked_addition import WorkedAddition

TASKS: dict[str, type[VerifiableTask]] = {
    task.name: task for task in (ArithmeticTask, ModularSum, WorkedAddition, Parity, Sorting, ReasoningGymTask)
}


def make_task(name: str, **params: Any) -> VerifiableTask:
    """Make a task from its name and its parameters.

    Parameters
    ----------
    name : str     one of `TASKS`
    params         of the task's class; what is left out has the class's default

    Raises
    ------
    InputError   no such task or parameter, or a parameter's value is not allowed

    Examples
    --------
    >>> make_task("parity", bits=8).n_prompts
    256
    >>> make_task("parity", length=8)
    Traceback (most recent call last):
    testbed.core.errors.InputError: a parameter of the task 'parity' must be one of bits, least_bits, working, per_length, \
horizon; found 'length'
    """
    if name not in TASKS:
        raise InputError(f"`task` must be one of {', '.join(TASKS)}", found=repr(name))
    allowed = list(inspect.signature(TASKS[name]).parameters)
    for unknown in params:
        if unknown not in allowed:
            rule = f"a parameter of the task '{name}' must be one of {', '.join(allowed)}"
            raise InputError(rule, found=repr(unknown))
    try:
        return TASKS[name](**params)
    except InputError as error:
        raise InputError(f"task '{name}': {error.rule}", found=error.found, hint=error.hint) from None
