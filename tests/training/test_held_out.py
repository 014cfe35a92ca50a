"""The split keeps problems apart, and greedy exact match counts what the engine really writes."""

import pytest
import torch

from testbed import ArithmeticTask, InputError
from testbed.environments.arithmetic import EOS
from testbed.policies.base import Policy
from testbed.training import exact_match, split_prompts

TASK = ArithmeticTask(9)


class Knows(Policy):
    """Answers right on some prompts and "0" on the others, with a little of every token everywhere."""

    vocab_size = TASK.vocab_size

    def __init__(self, known, group=None):
        self.known, self.group = known, group

    def at(self, group):
        return Knows(self.known, group)

    def next_log_probs(self, prefix):
        t = prefix.shape[1]
        solution, mask = TASK.solution(self.group)
        wrong = torch.tensor([0, EOS, EOS])[t].expand(len(prefix))
        answer = torch.where(torch.isin(self.group, self.known), solution[:, t], wrong)
        assert mask[torch.isin(self.group, self.known), t].all(), "asked after the end"
        probs = torch.full((len(prefix), self.vocab_size), 0.5 / self.vocab_size, dtype=torch.float64)
        return (probs + 0.5 * torch.nn.functional.one_hot(answer, self.vocab_size)).log()


def test_the_split_is_a_partition_and_the_same_for_everyone():
    train, held = split_prompts(ArithmeticTask(99))
    assert (len(train), len(held)) == (9500, 500)
    assert torch.equal(torch.cat([train, held]).sort().values, torch.arange(10_000))
    again = split_prompts(ArithmeticTask(99))
    assert torch.equal(again[0], train) and torch.equal(again[1], held)
    assert not torch.equal(split_prompts(ArithmeticTask(99), seed=1)[1], held)


@pytest.mark.parametrize("count", [0, 100, 101])
def test_a_split_must_leave_both_parts(count):
    with pytest.raises(InputError, match=r"`held_out` must lie in 1\.\.99"):
        split_prompts(TASK, held_out=count)


@pytest.mark.parametrize("count", [0, 7, 30])
def test_exact_match_is_the_share_of_known_problems(count):
    prompts = torch.arange(1, 31)  # 0 + 0 is left out: "0" would be right
    assert exact_match(TASK, Knows(prompts[:count]), prompts) == count / 30
    assert exact_match(TASK, Knows(prompts[:count]), prompts.flip(0)) == count / 30
