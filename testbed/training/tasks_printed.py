"""The verifiable tasks as text: one line each, or every parameter of one."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from testbed.core.errors import InputError
from testbed.core.sections import Section, number
from testbed.environments.tasks import TASKS, make_task
from testbed.environments.verifiable import VerifiableTask
from testbed.training.fields import require_choice, written
from testbed.training.warm_starts import WARM_STARTS


def list_tasks() -> tuple[list[Section], list[dict[str, Any]]]:
    """All tasks, as tables and as records.

    Examples
    --------
    >>> sections, records = list_tasks()
    >>> [row[0] for row in sections[0].rows] == [record["name"] for record in records]
    True
    """
    records = [_record(name) for name in TASKS]
    table = Section(
        title="TASKS",
        says=f"{len(records)} tasks whose answers a program checks; `tasks NAME` shows one's parameters.",
        header=("task", "prompts", "answer tokens", "warm start", "an example"),
        rows=[
            (r["name"], _or_dash(r["prompts"]), _or_dash(r["horizon"]), number(r["warm_start_reward"], 2), r["example"])
            for r in records
        ],
        text=("an example",),
        remarks=[
            "Prompts and answer tokens: with the default parameters. Warm start: the reward at which the one in "
            "`testbed.training.WARM_STARTS` stops."
        ],
    )  # fmt: skip
    what = Section(
        title="WHAT THEY ASK", says="One line each.", header=("task", "asks"), text=("asks",),
        rows=[(r["name"], r["summary"]) for r in records],
    )  # fmt: skip
    defaults = Section(
        title="DEFAULTS", says="Of `task_params`; a name without a value is set by the task itself.",
        header=("task", "parameters"), rows=[(r["name"], _defaults(r["parameters"])) for r in records],
        text=("parameters",),
    )  # fmt: skip
    return [table, what, defaults], records


def one_task(name: str) -> tuple[list[Section], list[dict[str, Any]]]:
    """Every parameter of one task.

    Raises
    ------
    InputError   unknown name
    """
    require_choice("task", name, TASKS)
    record = _record(name)
    rows = [(key, str(value)) for key, value in record["parameters"].items()]
    remarks = [f"Example: {record['example']}"]
    if name in WARM_STARTS:
        choice = WARM_STARTS[name]
        changed = f", with {written(choice.params)}" if choice.params else ""
        remarks.append(
            f"Its warm start in `testbed.training.WARM_STARTS` stops at a reward of {choice.until:g}{changed}."
        )
    section = Section(
        title=name,
        says=record["summary"],
        header=("parameter", "default"),
        rows=rows,
        text=("default",),
        remarks=remarks,
    )
    return [section], [record]


def _record(name: str) -> dict[str, Any]:
    """A task by its class, and, where it can be made, by its defaults."""
    kind = TASKS[name]
    parameters = {p.name: p.default for p in inspect.signature(kind).parameters.values()}
    record: dict[str, Any] = {
        "name": name,
        "summary": (inspect.getdoc(kind) or "").split("\n")[0],
        "parameters": parameters,
        "warm_start_reward": WARM_STARTS[name].until if name in WARM_STARTS else None,
    }
    try:
        task = make_task(name)
    except InputError as error:  # its package is not installed
        return record | {"prompts": None, "horizon": None, "example": error.hint}
    return record | {"prompts": task.n_prompts, "horizon": task.horizon, "example": _example(task)}


def _example(task: VerifiableTask) -> str:
    """A prompt and its answer."""
    which = torch.tensor([task.n_prompts // 3])
    tokens, mask = task.solution(which)
    prompt = task.prompt_tokens(which)[0][: int(task.prompt_lengths(which))]
    answer = [token for token in tokens[0][mask[0]].tolist() if token != task.end]
    return f"{task.decode(prompt)} {task.decode(answer)}"


def _defaults(parameters: dict[str, Any]) -> str:
    return ", ".join(name if value is None else written({name: value}) for name, value in parameters.items())


def _or_dash(value: int | None) -> str:
    return "-" if value is None else f"{value}"
