"""Rows that walk their decision trees side by side have the laws they have alone."""

from __future__ import annotations

import pytest
import torch

from testbed import InputError
from testbed.core.choices import ReplayChooser
from testbed.core.row_replay import walk_rows

LAW = torch.tensor([[0.25, 0.75, 0.0], [0.0, 1.0, 0.0], [0.2, 0.3, 0.5]], dtype=torch.float64)


def two_draws(chooser, rows):
    """A second draw follows an even first one."""
    key = torch.stack([rows, torch.zeros_like(rows)], 1)
    first = chooser.choose(LAW[rows], key)
    again = first % 2 == 0
    second = torch.full_like(first, -1)
    if bool(again.any()):
        second[again] = chooser.choose(LAW[rows[again]], key[again])
    return list(zip(first.tolist(), second.tolist(), strict=True))


def test_each_row_has_its_own_law():
    together = walk_rows(two_draws, 3)
    for row, outcomes in enumerate(together):
        alone = ReplayChooser.walk(lambda c, row=row: two_draws(c, torch.tensor([row]))[0])
        assert outcomes == alone
        assert sum(chance for _, chance in outcomes) == pytest.approx(1.0)
    assert [len(outcomes) for outcomes in together] == [3, 1, 7]


def test_a_row_is_run_only_while_it_has_branches_left():
    sizes = []

    def counted(chooser, rows):
        sizes.append(len(rows))
        return two_draws(chooser, rows)

    walk_rows(counted, 3)
    assert sizes == [3, 2, 2, 1, 1, 1, 1]


def test_what_it_refuses():
    with pytest.raises(InputError, match="at most 2 branches"):
        walk_rows(two_draws, 3, limit=2)
    with pytest.raises(InputError, match="no key"):
        walk_rows(lambda chooser, rows: chooser.choose(LAW[rows]).tolist(), 3)
    assert walk_rows(two_draws, 0) == []
