"""The listings of tasks and systems: nothing missing, nothing wider than a page, and unknown names are refused."""

import json

import pytest

from testbed.cli import app
from testbed.core.command import run_command
from testbed.core.sections import WIDTH, plain_lines
from testbed.environments.tasks import TASKS, make_task
from testbed.rollout.systems import SYSTEMS
from testbed.training.fields import written
from testbed.training.tasks_printed import list_tasks, one_task
from testbed.training.warm_starts import WARM_STARTS


def test_every_task_has_a_line_and_a_record_that_makes_it():
    sections, records = list_tasks()
    assert all([row[0] for row in section.rows] == list(TASKS) for section in sections)
    assert max(len(line) for section in sections for line in plain_lines(section)) <= WIDTH
    for record in records:
        if record["prompts"] is not None:
            task = make_task(record["name"], **record["parameters"])
            assert (task.n_prompts, task.horizon) == (record["prompts"], record["horizon"])
        choice = WARM_STARTS.get(record["name"])
        assert record["warm_start_reward"] == (None if choice is None else choice.until)


def test_an_example_is_a_prompt_and_its_right_answer():
    examples = {record["name"]: record["example"] for record in list_tasks()[1]}
    for name in ("addition", "modular_sum", "parity", "sorting"):
        prompt, answer = examples[name].split()
        task = make_task(name)
        number = task.n_prompts // 3
        assert task.decode(task.prompt_tokens(task.prompts()[number : number + 1])[0]).startswith(prompt)
        assert task.check(f"{answer}<eos>", number) == 1.0


def test_one_task_shows_every_parameter():
    sections, _ = one_task("parity")
    assert ("bits", "12") in sections[0].rows and len(sections[0].rows) == 5
    assert sections[0].remarks[1].endswith(f"with {written(WARM_STARTS['parity'].params)}.")


@pytest.mark.parametrize(("command", "known"), [("tasks", TASKS), ("systems", SYSTEMS)])
def test_the_commands_list_all_show_one_and_refuse_others(capsys, tmp_path, command, known):
    assert run_command(app, "testbed", [command, "--json", str(tmp_path / "all.json")]) == 0
    printed = capsys.readouterr().out
    assert all(f"  {name} " in printed for name in known)
    kept = json.loads((tmp_path / "all.json").read_text())["result"][command]
    assert [record["name"] for record in kept] == list(known)
    name = next(iter(known))
    assert run_command(app, "testbed", [command, name]) == 0
    assert capsys.readouterr().out.startswith(f"{name}\n")
    assert run_command(app, "testbed", [command, "sortin"]) == 2
    assert "'sortin'" in capsys.readouterr().err
