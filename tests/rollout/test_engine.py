"""The rollout engine: its law by enumerating every choice, its records, its reproducibility."""

import pytest
import torch

from testbed import (
    InputError,
    KeyedChooser,
    PrefixSchedule,
    PrefixTree,
    RandomChooser,
    TabularPolicy,
    after_token,
    cuts,
    enumerate_law,
    exogenous_hazard,
    output_law,
)
from testbed.rollout import rollout

MU = tuple(TabularPolicy.random(2, 3, k) for k in range(2))
PI = TabularPolicy.random(2, 3, 9)
ENV = PrefixTree.random(2, 3, 5, eos=1)
SCHEDULES = {
    "policy": MU[0],
    "cuts": PrefixSchedule(MU, cuts((1,))),
    "after_token": PrefixSchedule(MU, after_token(0)),
    "exogenous": exogenous_hazard(MU, 0.3, 3),
}


def row(batch, b):
    n = int(batch.lengths[b])
    return (
        tuple(batch.tokens[b, :n].tolist()),
        tuple(batch.segment[b, :n].tolist()),
        tuple(round(x, 12) for x in batch.logp_behavior[b, :n].tolist()),
    )


@pytest.mark.parametrize("name", SCHEDULES)
def test_output_law_is_the_enumerated_law(name):
    """Every choice of the engine, replayed, against enumerate_law: tokens, labels and recorded log-probs."""
    got = output_law(lambda chooser: row(rollout(ENV, SCHEDULES[name], 1, chooser, PI), 0))
    law = enumerate_law(ENV, PI, SCHEDULES[name])
    want = {}
    for b, p in enumerate(law.probs.tolist()):
        want[row(law.batch, b)] = want.get(row(law.batch, b), 0.0) + p
    assert got.keys() == want.keys()
    for key, p in want.items():
        assert got[key] == pytest.approx(p, rel=1e-12)


def test_rows_of_a_batch_are_independent():
    got = output_law(lambda chooser: tuple(row(rollout(ENV, MU[0], 2, chooser), b)[0] for b in range(2)))
    single = output_law(lambda chooser: row(rollout(ENV, MU[0], 1, chooser), 0)[0])
    for (a, b), p in got.items():
        assert p == pytest.approx(single[a] * single[b], rel=1e-12)


def test_keyed_rollouts_do_not_depend_on_the_batch():
    whole = rollout(ENV, SCHEDULES["exogenous"], 6, KeyedChooser(3), PI)
    for n in (1, 4):
        part = rollout(ENV, SCHEDULES["exogenous"], n, KeyedChooser(3), PI)
        assert torch.equal(part.tokens, whole.tokens[:n])
        assert torch.equal(part.segment, whole.segment[:n])


def test_same_seed_same_batch_and_target_scores():
    a, b = (rollout(ENV, SCHEDULES["cuts"], 50, RandomChooser(4), PI) for _ in range(2))
    assert torch.equal(a.tokens, b.tokens)
    assert not torch.equal(a.tokens, rollout(ENV, SCHEDULES["cuts"], 50, RandomChooser(5), PI).tokens)
    torch.testing.assert_close(a.logp_target[a.mask], PI.score(a.tokens)[a.mask])
    assert torch.equal(a.reward, ENV.reward(a.tokens, a.mask, a.group))
    ended = (a.tokens == 1) & a.mask
    assert (ended.sum(1) <= 1).all()


def test_refusals():
    with pytest.raises(InputError, match="`n` must be >= 1"):
        rollout(ENV, MU[0], 0, RandomChooser(0))
    with pytest.raises(InputError, match="share one vocabulary; found 3 and 2"):
        rollout(ENV, TabularPolicy.random(3, 3, 0), 2, RandomChooser(0))
    with pytest.raises(InputError, match="must not decrease"):
        rollout(ENV, PrefixSchedule(MU, lambda p: int(len(p) == 0)), 2, RandomChooser(0))


@pytest.mark.parametrize("seed_alone", [0, torch.Generator()])
def test_a_seed_is_no_chooser(untyped, seed_alone):
    with pytest.raises(InputError, match=r"`chooser` must be an object that draws.*found .*RandomChooser\(seed\)"):
        rollout(ENV, MU[0], 2, seed_alone)
