"""Every task against a slow reader of text: over all responses of a small instance, the reward is 1 iff the text is right."""

from functools import lru_cache
from itertools import product

import pytest
import torch

from testbed.environments import ArithmeticTask, ModularSum, Parity, Sorting, WorkedAddition


# ------------------------------------------------------------------------------------------------ slow readers of text
def is_number(text):
    return text != "" and set(text) <= set("0123456789")


def adds(task, prompt, answer):
    first, second = prompt[:-1].split("+")
    return is_number(answer) and int(answer) == int(first) + int(second)


def adds_with_working(task, prompt, answer):
    number = answer.split(">")[-1]
    return adds(task, prompt, number[::-1] if task.units_first else number)


def sums_modulo(task, prompt, answer):
    return is_number(answer) and int(answer) == sum(map(int, prompt[:-1])) % task.modulus


def says_parity(task, prompt, answer):
    bit = "01"[prompt.count("1") % 2]
    return answer.endswith(bit) if task.working else answer == bit


def sorts(task, prompt, answer):
    return answer == "".join(sorted(prompt[:-1]))


CASES = {
    "addition": (lambda: ArithmeticTask(5, horizon=3), adds, [0, 3, 20, 35]),
    "modular_sum": (lambda: ModularSum(terms=2, least_terms=1, modulus=4, horizon=3), sums_modulo, [0, 3, 7, 25, 109]),
    "modular_sum two digits": (lambda: ModularSum(terms=2, modulus=13), sums_modulo, [4, 57, 67, 99]),
    "parity": (lambda: Parity(bits=3, least_bits=2, working=False, horizon=4), says_parity, range(12)),
    "parity with working": (lambda: Parity(bits=3, least_bits=2), says_parity, range(12)),
    "sorting": (lambda: Sorting(digits=3, least_digits=1, base=2, horizon=5), sorts, range(14)),
    "worked_addition": (lambda: WorkedAddition(digits=1, horizon=4), adds_with_working, [0, 12, 99]),
    "worked_addition units first": (
        lambda: WorkedAddition(digits=1, units_first=True, horizon=4),
        adds_with_working,
        [46, 99],
    ),
}


def text(task, ids):
    """One character a token: the end is E, the padding P."""
    return "".join("EP"[i - task.end] if i >= task.end else task.symbols[i] for i in ids)


def prompt_text(task, prompt):
    group = torch.tensor([prompt])
    return text(task, task.prompt_tokens(group)[0, : int(task.prompt_lengths(group))].tolist())


@lru_cache(maxsize=1)
def every_response(vocab_size, horizon, end):
    """All rows of tokens, and the text of each up to its first end; None where there is no end."""
    rows = list(product(range(vocab_size), repeat=horizon))
    return torch.tensor(rows), [row[: row.index(end)] if end in row else None for row in rows]


def wrong_rewards(task, reader, prompts):
    """Responses whose reward is not what the slow reader says, and how many right ones there are."""
    tokens, bodies = every_response(task.vocab_size, task.horizon, task.end)
    mask = torch.ones_like(tokens, dtype=torch.bool)
    wrong, right = [], 0
    for prompt in prompts:
        question = prompt_text(task, prompt)
        verdict = {body: float(reader(task, question, text(task, body))) for body in set(bodies) - {None}}
        want = [verdict.get(body, 0.0) for body in bodies]
        got = task.reward(tokens, mask, torch.full((len(tokens),), prompt)).tolist()
        wrong += [(question, body) for body, a, b in zip(bodies, want, got, strict=True) if a != b]
        right += sum(want)
    return wrong, right


@pytest.mark.parametrize("case", CASES)
def test_a_response_is_rewarded_iff_its_text_is_right(case):
    make, reader, prompts = CASES[case]
    wrong, right = wrong_rewards(make(), reader, prompts)
    assert wrong == []
    assert right >= len(prompts)  # each has an answer


@pytest.mark.parametrize("case", CASES)
def test_the_solution_is_right_and_none_is_shorter(case):
    make, reader, prompts = CASES[case]
    task = make()
    tokens, _ = every_response(task.vocab_size, task.horizon, task.end)
    mask = torch.ones_like(tokens, dtype=torch.bool)
    length = (tokens == task.end).long().argmax(1) + 1
    for prompt in prompts:
        solution, on = task.solution(torch.tensor([prompt]))
        answer = text(task, solution[on].tolist())
        assert answer.endswith("E") and reader(task, prompt_text(task, prompt), answer[:-1])
        assert not solution[~on].any() and solution.shape == (1, task.horizon)
        right = task.reward(tokens, mask, torch.full((len(tokens),), prompt)) == 1
        assert int(length[right].min()) == int(on.sum())


@pytest.mark.parametrize("case", CASES)
def test_what_stands_behind_the_end_or_outside_the_mask_is_not_read(case):
    make, _, prompts = CASES[case]
    task = make()
    group = torch.tensor(list(prompts))
    tokens, mask = task.solution(group)
    for junk in range(task.vocab_size):
        assert task.reward(torch.where(mask, tokens, junk), torch.ones_like(mask), group).tolist() == [1.0] * len(group)
        assert task.reward(torch.where(mask, tokens, junk), mask, group).tolist() == [1.0] * len(group)
    cut = mask & (tokens != task.end)
    assert task.reward(tokens, cut, group).tolist() == [0.0] * len(group)  # not ended


# ------------------------------------------------------------------------------------------------ planted bugs
@pytest.mark.parametrize("case", CASES)
def test_a_verifier_that_stops_one_token_early_is_caught(case, monkeypatch):
    make, reader, prompts = CASES[case]
    task = make()
    honest = task.verified
    shorter = lambda answer: answer & torch.nn.functional.pad(answer[:, 1:], (0, 1))  # noqa: E731
    monkeypatch.setattr(task, "verified", lambda tokens, answer, group: honest(tokens, shorter(answer), group))
    assert wrong_rewards(task, reader, prompts)[0]


@pytest.mark.parametrize(
    ("case", "number"),
    [("modular_sum", "remainder"), ("parity", "odd"), ("parity with working", "odd"), ("worked_addition", "total")],
)
def test_a_verifier_whose_number_is_off_by_one_is_caught(case, number, monkeypatch):
    make, reader, prompts = CASES[case]
    task = make()
    right = getattr(task, number)
    monkeypatch.setattr(task, number, lambda group: right(group) + 1)
    assert wrong_rewards(task, reader, prompts)[0]


def test_an_order_that_refuses_equal_digits_is_caught(monkeypatch):
    make, reader, prompts = CASES["sorting"]
    task = make()
    honest = task.verified

    def strict(tokens, answer, group):
        again = answer[:, 1:] & (tokens[:, 1:] == tokens[:, :-1])
        return honest(tokens, answer, group) & ~again.any(1)

    monkeypatch.setattr(task, "verified", strict)
    assert wrong_rewards(task, reader, prompts)[0]


# ------------------------------------------------------------------------------------------------ long responses
@pytest.mark.parametrize("units_first", [False, True])
def test_a_number_of_any_length_is_read_exactly(units_first):
    """Modulo 2^64, 10^64 is 0: a verifier whose numbers wrap around takes rubbish for zeros."""
    task = WorkedAddition(digits=2, units_first=units_first, horizon=90)
    prompt = 5768  # 57 + 68 = 125

    def answer(high, low):
        number = high + low
        return task.check("9," * 3 + ">" + (number[::-1] if units_first else number) + "<eos>", prompt)

    assert answer("0" * 64, "125") == 1.0
    assert answer("1" + "0" * 63, "125") == 0.0
    assert answer("1" + "0" * 61, "125") == 0.0
    assert answer("", str(125 + 2**64)) == 0.0
    assert answer("9" * 40, "125") == 0.0
