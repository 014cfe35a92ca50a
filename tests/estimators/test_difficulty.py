"""The difficulty factor against all 2^M groups, its closed forms and limits, refusals."""

import math
from itertools import product

import pytest
import torch

from testbed.core.errors import InputError
from testbed.estimators.difficulty import difficulty_factor


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("ddof", [0, 1])
def test_all_groups(size, ddof):
    p = 0.3
    total = 0.0
    for group in product((0, 1), repeat=size):
        k = sum(group)
        spread = math.sqrt(k * (size - k)) / size
        scaled = spread**2 / (spread * math.sqrt(size / (size - ddof))) if spread else 0.0
        total += p**k * (1 - p) ** (size - k) * scaled
    found = float(difficulty_factor(torch.tensor(p, dtype=torch.float64), size, ddof))
    assert found == pytest.approx(total / (p * (1 - p)), rel=1e-12)


def test_closed_forms():
    p = torch.tensor([0.0, 0.03, 0.5, 1.0], dtype=torch.float64)
    torch.testing.assert_close(difficulty_factor(p, 2), torch.ones_like(p), rtol=1e-13, atol=0)
    torch.testing.assert_close(difficulty_factor(p, 3), torch.full_like(p, math.sqrt(2)), rtol=1e-13, atol=0)
    four = math.sqrt(3) * (p**2 + (1 - p) ** 2) + 3 * p * (1 - p)
    torch.testing.assert_close(difficulty_factor(p, 4), four, rtol=1e-13, atol=0)


def test_certain_prompts_take_the_limit():
    ends = torch.tensor([0.0, 1.0])
    assert difficulty_factor(ends, 50).tolist() == pytest.approx([7.0, 7.0], rel=1e-12)
    assert difficulty_factor(ends, 1, 1).tolist() == [0.0, 0.0]


def test_refusals():
    with pytest.raises(InputError, match="rate in"):
        difficulty_factor(torch.tensor([0.5, 1.1]), 4)
    with pytest.raises(InputError, match="rate in"):
        difficulty_factor(torch.tensor([float("nan")]), 4)
    for size, ddof in ((0, 0), (4, 2)):
        with pytest.raises(InputError, match="`size` must be >= 1"):
            difficulty_factor(torch.tensor([0.5]), size, ddof)
