"""Engines that are right about every token: what each does to a group, against the same process in plain fractions."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from functools import lru_cache
from itertools import product

import pytest
import torch

from testbed import KeyedChooser, ReplayChooser, TabularPolicy
from testbed.core.batch import SegmentedBatch
from testbed.core.errors import InputError
from testbed.estimators.advantage import group_advantage
from testbed.estimators.group_gradient import group_coefficients
from testbed.exact.gradients import exact_gradient
from testbed.policies.transformer import Transformer, TransformerConfig, TransformerPolicy
from testbed.rollout.speculative import FutureHeads, HeadDrafter, speculative_rollout
from testbed.rollout.speculative.group_specimens import (
    GROUP_SPECIMENS,
    group_specimen,
    rows_sorted,
    specimen_rollout,
)
from tests.rollout.speculative.worlds import Letters, finish_law, target_law, tiny, total_variation, written

EXACT = 1e-12
P = (Fraction(1, 2), Fraction(2, 5), Fraction(1, 10))  # the last letter ends a response
END, WORD = 2, 0  # the drafter proposes the most probable letter, again and again
ROLLOUTS = ["shared_first_token", "whole_batch_stop"]


@lru_cache
def memoryless(law=P):
    """A transformer with the same next-token law after every context, and hence heads that agree with it."""
    config = TransformerConfig(vocab_size=len(law), width=2, layers=1, heads=1, hidden=1, context=9)
    weights = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in config.shapes().items()}
    weights["embedding"] += 1
    weights["final_norm"] += 1
    logits = torch.tensor([float(p) for p in law], dtype=torch.float64).log()
    weights["head"] = logits[:, None].expand(-1, 2) * (1 + config.epsilon) ** 0.5 / 2
    return TransformerPolicy(Transformer(config, weights))


def engine(env, policy, n, chooser, specimen=None, levels=1, **options):
    """What an engine writes with a chain of drafts."""
    if levels:
        options |= {"drafter": HeadDrafter(FutureHeads.of(policy, levels), (1,) * levels), "nodes": levels}
    if specimen is None:
        return speculative_rollout(env, policy, n, chooser, **options)
    return specimen_rollout(specimen, env, policy, n, chooser, **options)


def law_of(env, policy, n, **options):
    """Law of the responses that an engine writes, over every choice it makes."""
    law = Counter()
    for rows, p in ReplayChooser.walk(lambda chooser: written(engine(env, policy, n, chooser, **options))):
        law[rows] += p
    return law


# ------------------------------------------------------------------------------------------------ the same, in fractions
def runs(so_far, cap, levels):
    """Every continuation by one round: letters are drawn while they are the drafted one, and one letter more."""
    found, waiting = [], [(so_far, Fraction(1), 0)]
    while waiting:
        y, p, drafted = waiting.pop()
        for letter, chance in enumerate(P):
            z = (*y, letter)
            if letter != WORD or drafted == levels or len(z) == cap:
                found.append((z, p * chance))
            else:
                waiting.append((z, p * chance, drafted + 1))
    return found


def pair_law(cap, levels, *, shared=False, stop=False):
    """Law of two responses that an engine writes."""
    one = [((letter,), chance) for letter, chance in enumerate(P)]
    if shared:
        waiting = [((y, y), p) for y, p in one]
    else:
        waiting = [((y, z), p * q) for (y, p), (z, q) in product(one, one)]
    law = Counter()
    while waiting:
        pair, p = waiting.pop()
        ended = [END in y or len(y) == cap for y in pair]
        if all(ended) or (stop and any(len(y) == cap for y in pair)):
            law[pair] += p
            continue
        ways = [[(y, Fraction(1))] if done else runs(y, cap, levels) for y, done in zip(pair, ended, strict=True)]
        waiting += [((y, z), p * a * b) for (y, a), (z, b) in product(*ways)]
    return law


def update_by_hand(law, trained=lambda pair: pair):
    """Mean of half the sum of advantage times score, in logits that all contexts share; the reward is the sum of letters."""
    total = [Fraction(0)] * len(P)
    for pair, p in law.items():
        rewards = [sum(y) for y in pair]
        for y, reward in zip(trained(pair), rewards, strict=True):
            advantage = reward - Fraction(sum(rewards), 2)
            for letter, chance in enumerate(P):
                total[letter] += p * advantage / 2 * (y.count(letter) - len(y) * chance)
    return total


def update(law, cap, trained=lambda batch: batch):
    """Return the library's: group coefficients of every pair, times scores."""
    pairs = [y for pair in law for y in pair]
    tokens = torch.tensor([[*y, *[0] * (cap - len(y))] for y in pairs])
    mask = torch.arange(cap) < torch.tensor([len(y) for y in pairs])[:, None]
    group = torch.arange(len(law)).repeat_interleave(2)
    batch = SegmentedBatch(
        tokens=tokens, mask=mask, segment=tokens * 0, logp_target=tokens * 0.0, logp_behavior=tokens * 0.0,
        reward=Letters(3, cap).reward(tokens, mask, group), group=group,
    )  # fmt: skip
    batch = SegmentedBatch.concatenated([trained(batch.select(rows)) for rows in torch.arange(len(pairs)).split(2)])
    c = group_coefficients(batch, "group_mean", normalizer="constant", constant=2.0)
    c = c * torch.tensor([float(p) for p in law.values()], dtype=torch.float64)[group][:, None]
    table = torch.tensor([[float(p) for p in P]], dtype=torch.float64).expand((3**cap - 1) // 2, -1)
    return TabularPolicy.from_probs(table).score_terms(batch.tokens, c).sum((0, 1))


# ------------------------------------------------------------------------------------------------ the expected update
CAP = 3
UPDATES = {  # specimen -> mean update of a pair in the logits of the three letters, caps of three, one draft per round
    None: (Fraction(-729, 2000), Fraction(313, 1250), Fraction(1141, 10000)),
    "shared_first_token": (Fraction(-243, 1000), Fraction(369, 2500), Fraction(477, 5000)),
    "whole_batch_stop": (Fraction(-729, 2500), Fraction(4721, 25000), Fraction(2569, 25000)),
    "rows_sorted": (Fraction(-52283, 200000), Fraction(3367, 15625), Fraction(45927, 1000000)),
}


@lru_cache
def pairs_written(specimen):
    return law_of(Letters(3, CAP, END), memoryless(), 2, specimen=specimen)


def longest_first(pair):
    return tuple(sorted(pair, key=lambda y: -len(y)))


@pytest.mark.parametrize("specimen", [None, *ROLLOUTS])
def test_pairs_have_the_law_of_the_process_in_fractions(specimen):
    plain = pair_law(CAP, 1, shared=specimen == "shared_first_token", stop=specimen == "whole_batch_stop")
    assert total_variation(pairs_written(specimen), plain) <= EXACT
    assert update_by_hand(plain) == list(UPDATES[specimen])


@pytest.mark.parametrize("specimen", list(UPDATES))
def test_the_expected_update_of_a_pair(specimen):
    sorts = specimen == "rows_sorted"  # a step of the trainer: groups are the engine's
    found = update(pairs_written(None if sorts else specimen), CAP, rows_sorted if sorts else lambda batch: batch)
    assert found.tolist() == pytest.approx([float(x) for x in UPDATES[specimen]], abs=EXACT)


def test_only_the_engines_own_groups_follow_the_gradient():
    table = torch.tensor([[float(p) for p in P]], dtype=torch.float64).expand((3**CAP - 1) // 2, -1)
    gradient = exact_gradient(Letters(3, CAP, END), TabularPolicy.from_probs(table)).sum(0) / 2
    assert update_by_hand(pair_law(CAP, 1), longest_first) == list(UPDATES["rows_sorted"])
    for specimen, value in UPDATES.items():
        off = (torch.tensor([float(x) for x in value], dtype=torch.float64) - gradient).norm() / gradient.norm()
        assert off <= EXACT if specimen is None else off > 0.1
    assert set(UPDATES) == {None, *GROUP_SPECIMENS}


# ------------------------------------------------------------------------------------------------ shared first token
@pytest.mark.parametrize(
    ("law", "distance"), [((0.4, 0.3, 0.2, 0.1), 0.7), ((0.5, 0.4, 0.1), 0.58), ((0.98, 0.01, 0.01), 0.0394)]
)
def test_shared_first_tokens_are_as_far_from_independent_as_two_draws_differ(law, distance):
    env, policy = Letters(len(law), 1), memoryless(law)
    alone = {(y, z): p * q for (y, p), (z, q) in product([((i,), p) for i, p in enumerate(law)], repeat=2)}
    found = law_of(env, policy, 2, specimen="shared_first_token", levels=0)
    assert total_variation(found, alone) == pytest.approx(1 - sum(p * p for p in law), abs=EXACT)
    assert total_variation(found, alone) == pytest.approx(distance, abs=EXACT)
    assert total_variation(law_of(env, policy, 2, levels=0), alone) <= EXACT


def test_whole_responses_that_share_a_token_are_as_far_apart_and_each_alone_is_right():
    found, alone = pairs_written("shared_first_token"), target_law(Letters(3, CAP, END), memoryless(), 1)
    apart = {(y, z): p * q for ((y,), p), ((z,), q) in product(alone.items(), repeat=2)}
    assert total_variation(found, apart) == pytest.approx(1 - sum(float(p * p) for p in P), abs=EXACT)
    for row in range(2):
        single = Counter()
        for pair, p in found.items():
            single[(pair[row],)] += p
        assert total_variation(single, alone) <= EXACT


def two_prompts():
    return TransformerPolicy(tiny(2).model, torch.tensor([[0, 1, 1], [1, 0, 0]]), torch.tensor([3, 1]))


def test_the_token_is_shared_within_a_prompt_and_not_between_prompts():
    group = torch.tensor([0, 1, 0, 1])
    found = law_of(Letters(2, 1), two_prompts(), 4, specimen="shared_first_token", levels=0, group=group)
    with torch.no_grad():
        p, q = two_prompts().at(torch.tensor([0, 1])).next_log_probs(torch.zeros(2, 0).long()).exp().tolist()
    assert abs(p[0] - q[0]) > 0.01
    assert found == pytest.approx(
        {((a,), (b,), (a,), (b,)): p[a] * q[b] for a, b in product((0, 1), repeat=2)}, abs=EXACT
    )


def test_the_first_response_that_may_have_a_token_draws_for_its_prompt():
    env, group, most = Letters(2, 4), torch.tensor([0, 1, 0, 0, 1, 0]), torch.tensor([0, 4, 4, 4, 2, 4])
    options = {"group": group, "max_tokens": most}
    right = engine(env, two_prompts(), 6, KeyedChooser(3), **options)
    wrong = engine(env, two_prompts(), 6, KeyedChooser(3), "shared_first_token", **options)
    assert wrong.tokens[:, 0].tolist()[1:] == right.tokens[torch.tensor([1, 2, 2, 1, 2]), 0].tolist()
    assert not torch.equal(wrong.tokens[:, 0], right.tokens[:, 0])  # this noise draws different ones where it is asked
    assert torch.equal(wrong.lengths, most)
    with torch.no_grad():
        score = two_prompts().at(group).score(wrong.tokens)
    assert torch.allclose(wrong.logp_behavior, torch.where(wrong.mask, score, 0.0), rtol=0, atol=1e-12)


# ------------------------------------------------------------------------------------------------ whole-batch stop
@pytest.mark.parametrize(("cap", "levels", "harmed"), [(2, 1, False), (8, 0, False), (8, 1, True)])
def test_a_batch_that_moves_in_step_is_not_harmed(cap, levels, harmed):
    env = Letters(3, cap, END)
    right, wrong = (engine(env, memoryless(), 20, KeyedChooser(4), name, levels) for name in (None, "whole_batch_stop"))
    assert torch.equal(wrong.tokens, right.tokens) != harmed


def test_a_stopped_batch_has_another_law_of_lengths():
    """One of two responses is cut with two letters where the other one had its draft accepted and it had not."""
    found, plain = finish_law(pairs_written("whole_batch_stop"), END), finish_law(pairs_written(None), END)
    cut = (
        P[1] * (1 - P[END]) ** 2 * P[WORD]
    )  # letter 1 in the first round; the other one begins and has its draft accepted
    assert found[2, "cap"] == pytest.approx(float(cut), abs=EXACT)
    assert total_variation(found, plain) == pytest.approx(float(cut), abs=EXACT)


def test_the_distance_of_lengths_at_six_letters():
    """Two responses, two drafts per round, end probability 1/10: 0.12 to two digits."""
    stopped, plain = (finish_law(pair_law(6, 2, stop=stop), END) for stop in (True, False))
    assert total_variation(stopped, plain) == pytest.approx(0.117795708, abs=EXACT)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_stopped_batch_with_two_drafts():
    found = law_of(Letters(3, 4, END), memoryless(), 2, specimen="whole_batch_stop", levels=2)
    assert total_variation(found, pair_law(4, 2, stop=True)) <= EXACT


def test_stopped_responses_are_beginnings_of_what_the_engine_would_have_written():
    env, policy, n = Letters(3, 8), memoryless(), 20
    right = engine(env, policy, n, KeyedChooser(0), levels=3)
    wrong = engine(env, policy, n, KeyedChooser(0), "whole_batch_stop", levels=3)
    assert torch.equal(wrong.tokens, torch.where(wrong.mask, right.tokens, 0))
    assert int(wrong.lengths.max()) == 8 > int(wrong.lengths.min())


# ------------------------------------------------------------------------------------------------ rows sorted
def test_sorting_is_harmless_if_the_rewards_go_along():
    env, n = Letters(3, 5, END), 12
    right = engine(env, memoryless(), n, KeyedChooser(2))
    wrong = engine(env, memoryless(), n, KeyedChooser(2), "rows_sorted")
    order = torch.argsort(right.lengths, descending=True, stable=True)
    assert torch.equal(wrong.tokens, right.tokens[order]) and torch.equal(wrong.reward, right.reward)
    loss = {}
    for name, batch, advantage in (
        ("given", right, group_advantage(right, "group_mean")),
        ("permuted", right.select(order), group_advantage(right, "group_mean")[order]),
        ("specimen", wrong, group_advantage(right, "group_mean")),
    ):
        log_probs = (
            torch.arange(n * 5.0).reshape(n, 5) if name == "given" else torch.arange(n * 5.0).reshape(n, 5)[order]
        )
        loss[name] = float((log_probs * batch.mask * advantage[:, None]).sum())
    assert loss["permuted"] == pytest.approx(loss["given"], rel=1e-12)
    assert abs(loss["specimen"] - loss["given"]) > 1e-3


# ------------------------------------------------------------------------------------------------ the list
def test_an_unknown_specimen_is_refused_with_the_nearest_name():
    with pytest.raises(InputError, match="did you mean whole_batch_stop"):
        group_specimen("whole_batch_stops")
    with pytest.raises(InputError, match="unknown specimen"):
        specimen_rollout("none", Letters(3, 2), memoryless(), 1, KeyedChooser(0))


@pytest.mark.parametrize("name", list(GROUP_SPECIMENS))
def test_a_specimen_checks_what_the_engine_checks(name):
    with pytest.raises(InputError, match="`n` must be"):
        specimen_rollout(name, Letters(3, 2), memoryless(), 0, KeyedChooser(0))
