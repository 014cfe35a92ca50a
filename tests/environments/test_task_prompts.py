"""Prompts, demonstrations, horizons, symbols and the registry: what every task promises beyond its verifier."""

import pytest
import torch

from testbed.core.errors import InputError
from testbed.environments import TASKS, ModularSum, Parity, Sorting, WorkedAddition, make_task
from testbed.environments.digit_strings import DigitStrings

MADE = {
    "addition": {"max_operand": 99},
    "modular_sum": {"terms": 3, "least_terms": 1, "modulus": 100},
    "worked_addition": {"digits": 3},
    "parity": {"bits": 12, "least_bits": 4},
    "sorting": {"digits": 7, "least_digits": 2, "per_length": 900},
}


def texts(task, tokens, mask):
    return [task.decode(row[on]) for row, on in zip(tokens, mask, strict=True)]


def questions(task):
    group = task.prompts()
    place = torch.arange(task.prompt_length)
    return texts(task, task.prompt_tokens(group), place < task.prompt_lengths(group)[:, None])


@pytest.mark.parametrize("name", MADE)
def test_prompts_are_thousands_distinct_and_padded_behind_their_length(name):
    task = make_task(name, **MADE[name])
    group = task.prompts()
    tokens, lengths = task.prompt_tokens(group), task.prompt_lengths(group)
    assert tokens.shape == (task.n_prompts, task.prompt_length) and task.n_prompts >= 1000
    assert int(lengths.max()) == task.prompt_length and int(lengths.min()) >= 2
    behind = torch.arange(task.prompt_length) >= lengths[:, None]
    assert torch.equal(tokens == task.pad, behind)
    found = questions(task)
    assert len(set(found)) == task.n_prompts and all(question.endswith("=") for question in found)
    some = torch.tensor([5, 0, 5])
    assert torch.equal(task.prompt_tokens(some), tokens[some])
    with pytest.raises(InputError, match=rf"prompt numbers must lie in 0\.\.{task.n_prompts - 1}; found 0\.\.{10**7}"):
        task.prompt_lengths(torch.tensor([0, 10**7]))


@pytest.mark.parametrize("name", MADE)
def test_every_demonstration_and_solution_is_right_within_a_horizon_that_just_holds_it(name):
    task = make_task(name, **MADE[name])
    group = task.prompts()
    most = 0
    for tokens, mask in (task.solution(group), task.demonstration(group)):
        assert tokens.shape == mask.shape == (task.n_prompts, task.horizon)
        assert task.reward(tokens, mask, group).tolist() == [1.0] * task.n_prompts
        assert torch.equal(mask.sum(1), (tokens == task.end).long().argmax(1) + 1)  # ends with the end token
        assert not tokens[~mask].any()
        most = max(most, int(mask.sum(1).max()))
    assert most == task.horizon
    assert (task.solution(group)[1].sum(1) <= task.demonstration(group)[1].sum(1)).all()


@pytest.mark.parametrize("units_first", [False, True])
def test_the_working_of_an_addition_is_that_of_a_pupil(units_first):
    task = WorkedAddition(digits=3, units_first=units_first)
    shown = texts(task, *task.demonstration(task.prompts()))
    for question, response in zip(questions(task)[::97], shown[::97], strict=True):
        first, second = (int(x) for x in question[:-1].split("+"))
        columns, carry = [], 0
        for place in range(3):
            column = first // 10**place % 10 + second // 10**place % 10 + carry
            carry = column // 10
            columns.append(f"{column:02d}")
        total = str(first + second)
        assert response == ",".join(columns) + ">" + (total[::-1] if units_first else total) + "<eos>"


def test_the_working_of_a_parity_is_the_running_parity():
    task = Parity(bits=6, least_bits=2)
    for question, response in zip(questions(task), texts(task, *task.demonstration(task.prompts())), strict=True):
        bits = [int(x) for x in question[:-1]]
        assert response == "".join(str(sum(bits[: n + 1]) % 2) for n in range(len(bits))) + "<eos>"


def test_a_horizon_too_short_for_the_working_still_leaves_the_answer():
    for task in (WorkedAddition(digits=2, horizon=4), Parity(bits=5, horizon=2)):
        group = task.prompts()
        assert task.reward(*task.solution(group), group).tolist() == [1.0] * task.n_prompts
        with pytest.raises(InputError, match="`horizon` must be a whole number >= "):
            task.demonstration(group)


# ------------------------------------------------------------------------------------------------ strings
def test_strings_of_a_length_are_all_there_or_distinct_and_spread():
    strings = DigitStrings(3, least=1, most=6, per_length=50)
    group = torch.arange(strings.count)
    lengths, digits = strings.lengths(group), strings.digits(group)
    assert torch.equal(lengths.bincount(), torch.tensor([0, 3, 9, 27, 50, 50, 50]))
    assert lengths.tolist() == sorted(lengths.tolist())
    for n in range(1, 7):
        rows = digits[lengths == n]
        values = (rows[:, :n] * 3 ** torch.arange(n - 1, -1, -1)).sum(1).sort().values
        assert not rows[:, n:].any() and len(values.unique()) == len(rows)
        gaps = torch.cat([values[1:], values[:1] + 3**n]) - values
        assert int(gaps.max()) <= 4 * 3**n / len(rows)  # no stretch of the strings is left out


@pytest.mark.parametrize("base", [2, 6, 10])
def test_the_last_of_a_million_strings_of_the_longest_length_are_distinct(base):
    longest = {2: 39, 6: 15, 10: 12}[base]
    strings = DigitStrings(base, longest, longest, per_length=10**6)
    digits = strings.digits(torch.arange(strings.count - 10**5, strings.count))
    values = (digits * base ** torch.arange(longest - 1, -1, -1)).sum(1)
    assert strings.count == 10**6 and len(values.unique()) == 10**5
    assert int(values.min()) >= 0 and int(values.max()) < base**longest
    assert int(digits.min()) >= 0 and int(digits.max()) == base - 1


# ------------------------------------------------------------------------------------------------ registry
@pytest.mark.parametrize("name", MADE)
def test_a_task_is_made_again_from_its_parameters(name):
    task = make_task(name, **MADE[name])
    again = make_task(task.name, **task.params)
    assert type(again) is type(task) and again.params == task.params and task.name == name
    assert (again.symbols, again.horizon, again.n_prompts) == (task.symbols, task.horizon, task.n_prompts)
    assert torch.equal(again.prompt_tokens(again.prompts()), task.prompt_tokens(task.prompts()))
    assert {key: task.params[key] for key in MADE[name]} == MADE[name]


def test_symbols_round_trip_and_the_end_comes_before_the_padding():
    for name in MADE:
        task = make_task(name, **MADE[name])
        ids = list(range(task.vocab_size))
        assert task.encode(task.decode(ids)) == ids
        assert task.symbols[-2:] == ("<eos>", "<pad>") and (task.eos, task.pad) == (task.end, task.end + 1)
    with pytest.raises(InputError, match=r"made of the digits 0 to 1, '=', '<eos>' and '<pad>'; found '2'"):
        Parity(bits=3).encode("012")


@pytest.mark.parametrize(
    ("name", "params", "words"),
    [
        (
            "adition",
            {},
            "`task` must be one of addition, modular_sum, worked_addition, parity, sorting, reasoning_gym; ",
        ),
        ("parity", {"digits": 3}, "a parameter of the task 'parity' must be one of bits, least_bits, working, "),
        ("parity", {"bits": 40}, r"task 'parity': `bits` must be a whole number in 1\.\.39; found 40"),
        ("parity", {"bits": 12.0}, r"`bits` must be a whole number in 1\.\.39; found 12\.0"),
        ("parity", {"bits": True}, "`bits` must be a whole number .* found True"),
        ("parity", {"least_bits": 13}, r"`least_bits` must be a whole number in 1\.\.12; found 13"),
        ("parity", {"working": 1}, "`working` must be true or false; found 1"),
        ("parity", {"horizon": 1}, "`horizon` must be a whole number >= 2; found 1"),
        ("parity", {"per_length": 0}, r"`per_length` must be a whole number in 1\.\.1000000; found 0"),
        ("addition", {"max_operand": "9"}, "task 'addition': `max_operand` must be a whole number >= 0; found '9'"),
        ("addition", {"horizon": 20}, r"`horizon` must be a whole number in 2\.\.19; found 20"),
        ("modular_sum", {"modulus": 1}, r"`modulus` must be a whole number in 2\.\.1000; found 1"),
        ("modular_sum", {"modulus": 100, "horizon": 2}, "`horizon` must be a whole number >= 3; found 2"),
        ("modular_sum", {"base": 11}, r"`base` must be a whole number in 2\.\.10; found 11"),
        ("modular_sum", {"terms": 13}, r"`terms` must be a whole number in 1\.\.12; found 13"),
        ("sorting", {"least_digits": 0}, r"`least_digits` must be a whole number in 1\.\.5; found 0"),
        ("sorting", {"horizon": 5}, "`horizon` must be a whole number >= 6; found 5"),
        ("worked_addition", {"digits": 7}, r"`digits` must be a whole number in 1\.\.6; found 7"),
        ("worked_addition", {"units_first": "yes"}, "`units_first` must be true or false; found 'yes'"),
        ("worked_addition", {"horizon": 4}, "`horizon` must be a whole number >= 5; found 4"),
    ],
)
def test_what_cannot_be_made_names_the_field_its_value_and_what_is_allowed(untyped, name, params, words):
    with pytest.raises(InputError, match=words):
        make_task(name, **params)


def test_the_registry_holds_every_task_under_its_own_name():
    assert {task.name for task in TASKS.values()} == set(TASKS) == {*MADE, "reasoning_gym"}
    assert (TASKS["modular_sum"], TASKS["sorting"]) == (ModularSum, Sorting)
