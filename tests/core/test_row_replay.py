"""Rows that walk their decision trees side by side have the laws they have alone; copies of one program share its tree."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from testbed import InputError
from testbed.core.choices import ReplayChooser
from testbed.core.row_replay import walk_in_batches, walk_rows

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


# ------------------------------------------------------------------------------------------------ copies of one program
def law_after(past):
    """Another law over three branches after every past; some have one branch, some two."""
    weights = torch.stack([(past * 7 + 3 * j) % 4 for j in range(3)], -1).double()
    return weights / weights.sum(-1, keepdim=True)


def wandering(chooser, n, together=1):
    """Draws whose laws depend on all draws of the copy before: each row once, then each row twice in one request."""
    row, past = torch.arange(n * together), torch.ones(n, dtype=torch.int64)
    for times in (1, 2) if together > 1 else (1, 2, 1):
        asked = row.repeat(times)
        drawn = chooser.choose(law_after(past[asked // together] + asked % together), torch.stack([asked, asked], 1))
        for one in drawn.reshape(times, n, together).unbind(0):
            for r in range(together):
                past = past * 3 + one[:, r]
    return past.tolist()


def law_of(outcomes):
    found = Counter()
    for result, probability in outcomes:
        found[result] += probability
    return found


@pytest.mark.parametrize("width", [1, 3, 64])
@pytest.mark.parametrize("together", [1, 2])
def test_copies_share_the_tree_of_one(width, together):
    found = walk_in_batches(lambda c, n: wandering(c, n, together), width=width, together=together)
    alone = ReplayChooser.walk(lambda c: wandering(c, 1, together)[0])
    assert len(found) == len(alone) == len({result for result, _ in found}) > 20
    assert law_of(found) == pytest.approx(law_of(alone), rel=1e-12)
    parity = walk_in_batches(
        lambda c, n: [x % 2 for x in wandering(c, n, together)], width=width, together=together, merged=True
    )
    odd = sum(p for result, p in alone if result % 2)
    assert dict(parity) == pytest.approx({0: 1 - odd, 1: odd}, rel=1e-12)


def test_runs_are_as_wide_as_allowed_and_as_few_as_possible():
    sizes = []

    def counted(chooser, n):
        sizes.append(n)
        return wandering(chooser, n)

    branches = len(walk_in_batches(counted, width=8))
    assert sum(sizes) == branches and max(sizes) == 8 and len(sizes) < branches / 4


def test_a_program_without_choices_has_one_branch():
    assert walk_in_batches(lambda chooser, n: ["done"] * n) == [("done", 1.0)]


def test_what_the_walk_of_copies_refuses():
    with pytest.raises(InputError, match="at most 5 branches"):
        walk_in_batches(wandering, limit=5)
    with pytest.raises(InputError, match="no key"):
        walk_in_batches(lambda chooser, n: chooser.choose(LAW[:1].expand(n, -1)).tolist())
    with pytest.raises(InputError, match="as many results"):
        walk_in_batches(lambda chooser, n: [*wandering(chooser, n), 0])
    with pytest.raises(InputError, match="`width` and `together` must be >= 1"):
        walk_in_batches(wandering, width=0)


def test_copies_that_depend_on_each_other_are_found_out():
    def coupled(chooser, n):
        """A copy draws again after branch 1, but only in odd company."""
        row = torch.arange(n)
        first = chooser.choose(LAW[:1].expand(n, -1), torch.stack([row, row], 1))
        again = row[(first == 1) & (n % 2 == 1)]
        chooser.choose(LAW[2:].expand(len(again), -1), torch.stack([again, again], 1))
        return first.tolist()

    with pytest.raises(InputError, match="sum to 1"):
        walk_in_batches(coupled)
