"""The addition task: every prompt has a right answer, the checker is as strict as it says, prompts are reproducible."""

import pytest
import torch

from testbed.core.errors import InputError
from testbed.core.seeds import SeedTree
from testbed.environments.arithmetic import EOS, ArithmeticTask


@pytest.mark.parametrize("max_operand", [0, 4, 9, 12])
def test_the_solution_of_every_prompt_is_right_and_of_no_other_sum(max_operand):
    task = ArithmeticTask(max_operand)
    group = task.prompts()
    tokens, mask = task.solution(group)
    assert task.reward(tokens, mask, group).tolist() == [1.0] * task.n_prompts
    for prompt in group.tolist():
        a, b = divmod(prompt, max_operand + 1)
        assert task.decode(tokens[prompt][mask[prompt]]) == f"{a + b}<eos>"
        width = len(str(max_operand))
        assert task.decode(task.prompt_tokens(group)[prompt]) == f"{a:0{width}}+{b:0{width}}="
    first, second = task.operands(group)
    right = first + second
    for shift in (1, 2):
        moved = group.roll(shift)
        same_sum = (right == right.roll(shift)).double()
        assert torch.equal(task.reward(tokens, mask, moved), same_sum)


def test_prompts_read_as_text_with_one_length():
    task = ArithmeticTask(12)
    assert task.decode(task.prompt_tokens(torch.tensor([7 * 13 + 11]))[0]) == "07+11="
    assert task.prompt_tokens(task.prompts()).shape == (169, task.prompt_length)


@pytest.mark.parametrize(
    ("response", "reward"),
    [
        ("12<eos>", 1.0),
        ("012<eos>", 1.0),  # leading zeros are part of the number
        ("12<eos>9", 1.0),  # what follows the end is ignored
        ("12", 0.0),  # not ended in time
        ("012", 0.0),
        ("13<eos>", 0.0),
        ("<eos>", 0.0),
        ("<eos>12", 0.0),
        ("1+<eos>", 0.0),
        ("12+<eos>", 0.0),
        ("=12<eos>", 0.0),
        ("12<pad><eos>", 0.0),
        ("", 0.0),
    ],
)
def test_checker(response, reward):
    task = ArithmeticTask(horizon=4)
    assert task.check(response, 5 * 10 + 7) == reward


def test_an_empty_response_is_not_the_number_zero():
    assert ArithmeticTask().check("<eos>", 0) == 0.0
    assert ArithmeticTask().check("0<eos>", 0) == 1.0


def test_padding_is_ignored():
    task = ArithmeticTask(horizon=4)
    tokens = torch.tensor([[1, 2, EOS, 5], [1, 2, EOS, 0], [1, 2, 3, EOS]])
    mask = torch.tensor([[True, True, True, False]] * 2 + [[True, True, False, False]])
    assert task.reward(tokens, mask, torch.full((3,), 57)).tolist() == [1.0, 1.0, 0.0]


def test_vectorized_rewards_agree_with_one_at_a_time(generator):
    task = ArithmeticTask(2)
    tokens = torch.randint(13, (400, task.horizon), generator=generator)
    tokens[:, 1] = torch.where(torch.rand(400, generator=generator) < 0.8, EOS, tokens[:, 1])
    group = torch.randint(task.n_prompts, (400,), generator=generator)
    mask = torch.ones_like(tokens, dtype=torch.bool)
    one_by_one = []
    for row, prompt in zip(tokens.tolist(), group.tolist(), strict=True):
        text = task.decode(row).split("<eos>")
        right = len(text) > 1 and text[0].isdigit() and int(text[0]) == sum(divmod(prompt, 3))
        one_by_one.append(float(right))
    assert 0 < sum(one_by_one) < 400
    assert task.reward(tokens, mask, group).tolist() == one_by_one


def test_text_and_ids_round_trip():
    task = ArithmeticTask()
    for ids in (list(range(14)), [], [12, 13, 3]):
        assert task.encode(task.decode(ids)) == ids
    assert task.encode("7+5=12<eos>") == [7, 10, 5, 11, 1, 2, 12]
    with pytest.raises(InputError, match="digits"):
        task.encode("7-5=")


def test_sampled_prompts_follow_their_stream():
    task = ArithmeticTask()
    draws = task.sample_prompts(5000, 3)
    assert torch.equal(draws, task.sample_prompts(5000, SeedTree(3)))
    assert not torch.equal(draws, task.sample_prompts(5000, 4))
    assert torch.equal(task.sample_prompts(5, torch.Generator().manual_seed(1)),
                       task.sample_prompts(5, torch.Generator().manual_seed(1)))  # fmt: skip
    # each of 100 prompts is missing with probability .99^5000 < 2e-22
    assert draws.unique().numel() == task.n_prompts


@pytest.mark.parametrize("arguments", [{"max_operand": -1}, {"horizon": 1}, {"horizon": 20}])
def test_bad_tasks_are_refused(arguments):
    with pytest.raises(InputError, match=next(iter(arguments))):
        ArithmeticTask(**arguments)


def test_unknown_prompts_and_short_horizons_are_refused():
    task = ArithmeticTask(horizon=2)
    with pytest.raises(InputError, match="prompt numbers"):
        task.operands(torch.tensor([100]))
    with pytest.raises(InputError, match="horizon"):
        task.solution(torch.tensor([99]))
    with pytest.raises(InputError, match="at most 2 tokens"):
        task.check("12<eos>", 57)
