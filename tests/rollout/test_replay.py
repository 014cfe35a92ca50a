import math

import pytest
import torch

from testbed.core.choices import KeyedChooser, RandomChooser
from testbed.core.errors import InputError
from testbed.environments.prefix_tree import PrefixTree
from testbed.exact.output_law import output_law
from testbed.policies.tabular import TabularPolicy
from testbed.rollout.replay import ReplayBuffer, mixed_batches, replay_counts, replayed_ages
from testbed.rollout.replay_ages import age_law, mean_growth
from testbed.stats.gates import LawGate


@pytest.mark.parametrize("share", [0.0, 0.1, 1 / 3, 0.5, 0.7, 1.0])
def test_counts_never_stray_from_the_share(share):
    counts = replay_counts(50, 7, share)
    assert counts[0] == 0
    running = torch.tensor(counts).cumsum(0)[1:] + int(share * 7 + 1e-9)
    steps = torch.arange(2, 51)
    assert bool(((running - steps * share * 7).abs() < 1 + 1e-9).all())


def test_fifo_keeps_the_newest():
    buffer = ReplayBuffer(3)
    for step in range(5):
        buffer.add(step, step, RandomChooser(0))
    assert [kept.item for kept in buffer.stored] == [2, 3, 4]


def test_random_eviction_takes_each_place_equally():
    def stored(chooser):
        buffer = ReplayBuffer(3, "random")
        for step in range(4):
            buffer.add(step, step, chooser)
        return tuple(sorted(kept.item for kept in buffer.stored))

    law = output_law(stored)
    assert law == pytest.approx({(0, 1, 3): 1 / 3, (0, 2, 3): 1 / 3, (1, 2, 3): 1 / 3})


@pytest.mark.parametrize(
    ("eviction", "capacity", "n", "share", "steps"), [("fifo", 2, 2, 0.5, 5), ("random", 2, 2, 0.5, 5)]
)
def test_ages_over_all_choices(eviction, capacity, n, share, steps):
    law = output_law(lambda c: int(replayed_ages(steps, n, share, ReplayBuffer(capacity, eviction), c)[-1][0]))
    stated = age_law(eviction, capacity, round(n * (1 - share)), steps - 1).tolist()
    stated[-1] += 1 - sum(stated)  # what the first step stored holds the rest of the mass
    assert [law.get(k, 0.0) for k in range(1, steps)] == pytest.approx(stated, abs=1e-12)


@pytest.mark.stat
def test_ages_of_a_larger_buffer(generator):
    """A production-shaped buffer against a faulty one that evicts one item fewer per step."""
    capacity, n, share, steps, oldest = 8, 4, 0.5, 12, 6
    law = age_law("random", capacity, 2, oldest)
    other = age_law("random", capacity, 1, oldest)
    gate = LawGate(
        name="ages under random eviction",
        probs=torch.cat([law, 1 - law.sum(0, keepdim=True)]),
        alternative=torch.cat([other, 1 - other.sum(0, keepdim=True)]),
    )
    chooser = RandomChooser(generator)
    drawn = []
    for _ in range(gate.sample_size()):  # one age per run: draws of one run are not independent
        age = int(replayed_ages(steps, n, share, ReplayBuffer(capacity, "random"), chooser)[-1][0])
        drawn.append(min(age, oldest + 1) - 1)
    assert gate.decide(torch.tensor(drawn))


def test_growth_is_finite_exactly_below_the_turnover():
    assert mean_growth("random", 4, 2, 16 / 9) == math.inf
    assert mean_growth("random", 4, 2, 1.7) == pytest.approx(1.7 * (7 / 16) / (1 - 1.7 * 9 / 16))
    assert mean_growth("random", 4, 2, 0.0) == 0.0
    assert mean_growth("fifo", 4, 2, 100.0) == pytest.approx((100 + 100**2) / 2)


def test_mixed_batches_record_who_drew_what():
    env = PrefixTree(2, 3, rewards=torch.arange(8.0), eos=1)
    policies = [TabularPolicy.random(2, 3, seed, 1.0) for seed in range(5)]
    for step, (batch, age) in enumerate(mixed_batches(env, policies, 4, 0.5, ReplayBuffer(3), RandomChooser(1))):
        assert batch.batch_size == 4
        assert int((age > 0).sum()) == (2 if step else 0)
        for row in range(4):
            made = step - int(age[row])
            live = batch.mask[row]
            assert bool((batch.version[row][live] == made).all())
            expected = policies[made].score(batch.tokens[row : row + 1])[0]
            torch.testing.assert_close(batch.logp_behavior[row][live], expected[live])
            target = policies[step].score(batch.tokens[row : row + 1])[0]
            torch.testing.assert_close(batch.logp_target[row][live], target[live])


def test_all_replay_lives_on_the_first_step():
    env = PrefixTree(2, 2, rewards=[0.0, 1.0, 2.0, 3.0])
    policies = [TabularPolicy.random(2, 2, seed, 1.0) for seed in range(3)]
    ages = [mixed.age.tolist() for mixed in mixed_batches(env, policies, 3, 1.0, ReplayBuffer(2), RandomChooser(0))]
    assert ages == [[0, 0, 0], [1, 1, 1], [2, 2, 2]]


def test_keys_do_not_repeat():
    """Keyed noise is fresh for every draw and eviction: a hundred draws of one buffer are not all alike."""
    buffer, chooser = ReplayBuffer(4, "random"), KeyedChooser(3)
    for item in range(4):
        buffer.add(item, 0, chooser)
    assert {kept.item for _ in range(100) for kept in buffer.draw(1, 1, chooser)} == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: ReplayBuffer(0), "`capacity` must be >= 1"),
        (lambda: ReplayBuffer(2).draw(1, 0, RandomChooser(0)), "0 while the buffer is empty"),
        (lambda: replay_counts(0, 1, 0.5), "`steps` and `n` must be >= 1"),
        (lambda: replay_counts(2, 1, 1.5), "`share` must lie in"),
        (lambda: age_law("fifo", 2, 1, 0), "`longest` must be >= 1"),
        (lambda: age_law("oldest", 2, 1, 1), "`eviction` must be"),
        (lambda: age_law("fifo", 0, 1, 1), "`capacity` and `stored` must be >= 1"),
        (lambda: mean_growth("fifo", 2, 1, -1.0), "`growth` must be >= 0"),
    ],
)
def test_what_is_refused(wrong, words):
    with pytest.raises(InputError, match=words):
        wrong()


def test_an_unknown_eviction_is_named(untyped):
    with pytest.raises(InputError, match="'fifo' or 'random'; found 'lru'"):
        ReplayBuffer(2, "lru")


def test_items_from_the_future_are_refused():
    buffer = ReplayBuffer(2)
    buffer.add("late", 5, RandomChooser(0))
    with pytest.raises(InputError, match="must not lie before"):
        buffer.draw(1, 4, RandomChooser(0))
