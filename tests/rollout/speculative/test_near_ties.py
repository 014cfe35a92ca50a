"""The ledger of near ties: what is noted of a draw, and which partings rounding explains."""

import math
from dataclasses import replace

import pytest
import torch

from testbed import KeyedChooser, TabularPolicy
from testbed.core.errors import InputError
from testbed.rollout import rollout
from testbed.rollout.speculative.near_ties import NEAR, Parting, TieChooser, exact_gap, partings
from tests.rollout.speculative.worlds import GROUP, ROWS, Letters, T, policy_of, transformer_of


def written(policy, chooser, horizon=5, rows=40):
    batch = rollout(Letters(policy.vocab_size, horizon), policy, rows, chooser)
    return batch, chooser.gaps(rows, horizon)


def test_it_draws_what_a_keyed_chooser_draws_and_notes_the_gap():
    laws = torch.rand(6, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    laws, key = laws / laws.sum(1, keepdim=True), torch.tensor([[r, t] for r in range(3) for t in range(2)])
    chooser = TieChooser(9)
    assert torch.equal(chooser.choose(laws, key), KeyedChooser(9).choose(laws, key))
    for (r, t), law, gap in zip(key.tolist(), laws, chooser.gaps(3, 2).flatten().tolist(), strict=True):
        best = sorted((law.log() + chooser.noise(r, t, 5)).tolist())
        assert gap == best[-1] - best[-2]
    assert bool(chooser.gaps(3, 2).isinf().all())  # told once


def test_the_last_draw_of_a_key_counts():
    chooser, key = TieChooser(0), torch.tensor([[0, 0]])
    chooser.choose(torch.tensor([[0.5, 0.5]]), key)
    chooser.choose(torch.tensor([[0.0, 1.0]]), key)  # certain: no second candidate
    assert float(chooser.gaps(1, 1)[0, 0]) == math.inf


def test_rounding_parts_engines_at_near_ties_only_and_another_law_elsewhere():
    """Two candidates whose scores differ by 1e-6 may swap under a shift of 2e-6; a shift of 0.1 parts at large gaps."""
    policy, chooser = TabularPolicy.random(3, 3, seed=1), TieChooser(4)
    first, gaps = written(policy, chooser, 3)
    assert partings(first, first, (gaps, gaps)) == []
    row, logits = int(gaps[:, 0].argmin()), policy.logits.clone()
    best = (policy.table[0] + chooser.noise(row, 0, 3)).topk(2)
    logits[0, best.indices[1]] += float(best.values[0] - best.values[1]) + 1e-6  # now the second leads, barely
    close, near = written(TabularPolicy(logits), chooser, 3)
    found = partings(first, close, (gaps, near))
    assert [(p.response, p.position) for p in found] == [(row, 0)]
    assert found[0].tokens == tuple(best.indices.tolist())
    assert found[0].gaps == (float(gaps[row, 0]), float(near[row, 0]))
    assert found[0].near_tie == (float(gaps[row, 0]) < NEAR)
    far, wide = written(TabularPolicy(policy.logits + torch.tensor([0.3, 0.0, 0.0])), chooser, 3)
    assert any(not p.near_tie for p in partings(first, far, (gaps, wide)))


@pytest.mark.parametrize(
    ("gaps", "exact", "near"),
    [
        ((2e-5, 3e-6), 1e-6, True),
        ((2e-5, 3e-6), None, True),
        ((NEAR, 3e-6), None, False),
        ((3e-6, 2 * NEAR), None, False),
        ((3e-6, 3e-6), 2 * NEAR, False),
        ((3e-6, math.inf), None, False),
    ],
)
def test_every_engine_must_have_seen_the_tie(gaps, exact, near):
    assert Parting(response=0, position=0, tokens=(1, 2), gaps=gaps, exact=exact).near_tie is near


def test_a_response_that_ends_too_early_is_no_near_tie():
    first, gaps = written(TabularPolicy.random(3, 5, seed=1), TieChooser(4))
    cut = first.mask.clone()
    cut[7, 3:] = False
    for pair, tokens in (((first, first.replaced(mask=cut)), 1), ((first.replaced(mask=cut), first), 0)):
        (one,) = partings(*pair, (torch.full_like(gaps, 1e-6), torch.full_like(gaps, 1e-6)))
        assert (one.response, one.position, one.tokens[tokens]) == (7, 3, -1)
        assert not one.near_tie


def test_tables_of_another_shape_are_refused():
    first, gaps = written(TabularPolicy.random(3, 5, seed=1), TieChooser(4))
    with pytest.raises(InputError, match="horizon"):
        partings(first, first.select(torch.arange(3)), (gaps, gaps[:3]))
    with pytest.raises(InputError, match="gaps"):
        partings(first, first, (gaps, gaps[:, :2]))


def test_the_exact_gap_is_that_of_a_pass_over_the_prefix():
    policy, chooser = transformer_of(policy_of("dense")), TieChooser(5)
    batch = rollout(Letters(7, T), policy, ROWS, chooser, group=GROUP)
    gaps = chooser.gaps(ROWS, T)
    for row, at in ((0, 0), (3, 5), (11, T - 1)):
        found = exact_gap(policy.at(GROUP[row : row + 1]), batch.tokens[row, :at], chooser.noise(row, at, 7))
        assert abs(found - float(gaps[row, at])) < 1e-10
    assert replace(Parting(response=0, position=0, tokens=(0, 1), gaps=(0.0, 0.0)), exact=1.0).exact == 1.0
