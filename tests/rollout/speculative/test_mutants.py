"""Bugs that speculative engines have had, planted in ours one by one: the law of the engine itself is off by the known distance.

The toy of every exact distance: p = (.4, .3, .2, .1) after any prefix, q = (.1, .2, .3, .4). The first token is drawn without a
draft and is right; the distance is that of what the first round writes. Beside the bugs stand changes that have been reported
as bugs and are none: the same numbers say nothing about them.
"""

from contextlib import nullcontext
from dataclasses import dataclass
from fractions import Fraction
from functools import partial

import pytest
import torch

from testbed import Truncated
from testbed.core.row_replay import walk_in_batches
from testbed.rollout.speculative import DraftTree, responses, speculative_rollout, verifiers
from testbed.rollout.speculative import tree as trees
from testbed.rollout.speculative.budget import Budget
from testbed.rollout.speculative.drafters import LawDrafter
from testbed.rollout.speculative.group_specimens import SharedFirstToken
from testbed.rollout.speculative.responses import Responses
from testbed.rollout.speculative.sampled_trees import drawn_tree
from testbed.rollout.speculative.specimens import specimen
from tests.rollout.speculative.batched_laws import branched_law
from tests.rollout.speculative.test_group_specimens import END, WORD, memoryless
from tests.rollout.speculative.test_group_specimens import P as LETTERS
from tests.rollout.speculative.test_node_laws import CASE, node_gap
from tests.rollout.speculative.test_tree import saturated
from tests.rollout.speculative.toy import P, Q, tv
from tests.rollout.speculative.worlds import (
    Letters,
    engine_law,
    finish_law,
    sequences_that_differ,
    speculative,
    target_law,
    total_variation,
)
from theory import speculative_bugs as bugs
from theory.planting import planted

TOY, HALF = [float(x) for x in P], [x * x / sum(y * y for y in P) for x in P]


class Stated(LawDrafter):
    """The same law after every prefix, or the same tokens."""

    def __init__(self, fan_out=(1,), tokens=(), law=Q):
        self.fan_out, self.tokens = fan_out, torch.tensor([tokens], dtype=torch.int64)
        self.law = torch.tensor([float(x) for x in law], dtype=torch.float64).log()

    def log_laws(self, frontier):
        return self.law.expand(len(frontier.rows), len(self.fan_out), -1)

    def draft(self, frontier, nodes):
        tokens = self.tokens.expand(len(frontier.rows), -1)
        one, zero = torch.ones_like(tokens), torch.zeros(tokens.shape, dtype=torch.float64)
        return DraftTree(tokens=tokens, parent=-one, depth=one, log_weight=zero, levels=1)


class Once(Budget):
    """Candidates in the first round only."""

    def __init__(self, count):
        self.count = count

    def nodes(self, active, gains):
        count, self.count = self.count, 0
        return count


# ------------------------------------------------------------------------------------------------ what is measured
def law_gap(verifier="token_rejection", length=1, fan_out=None, tokens=(), temperature=None):
    """Total variation of the engine's law from the target's, `length` tokens behind the first one."""
    env, policy = Letters(len(P), 1 + length), memoryless(tuple(TOY))
    policy = policy if temperature is None else Truncated(policy, temperature=temperature)
    drafter = Stated(fan_out or (1,) * length, tokens)
    nodes = len(tokens) or (fan_out or (length,))[0]
    law, _ = branched_law(env, policy, drafter=lambda: drafter, nodes=lambda: Once(nodes), verifier=verifier)
    assert sum(law.values()) == pytest.approx(1.0, abs=1e-12)
    return total_variation(law, target_law(env, policy, 1))


def pair_gap():
    """Total variation of the first tokens of two responses from independent ones."""
    env, policy = Letters(len(P), 1), memoryless(tuple(TOY))
    return total_variation(engine_law(env, policy, 2), target_law(env, policy, 2))


def finish_gap():
    """Total variation of (length, reason to end), one of two responses with a draft per round."""
    env, policy = Letters(3, 3, END), memoryless()
    law = engine_law(env, policy, 2, drafter=lambda: Stated((1,), (WORD,)), nodes=1)
    return total_variation(finish_law(law, END), finish_law(target_law(env, policy, 1), END))


def accepted(verifier):
    """Expected number of accepted tokens of the first round, with one candidate drawn from q."""

    def run(chooser, n):
        rounds = []
        options = {"drafter": Stated(), "nodes": Once(1), "verifier": verifier, "watch": rounds.append}
        speculative_rollout(Letters(len(P), 3), memoryless(tuple(TOY)), n, chooser, **options)
        return rounds[0].run.accepted.tolist()

    return sum(count * probability for count, probability in walk_in_batches(run, merged=True))


def pathwise():
    """Responses that are not those of the token-by-token engine, in one case per kind of tree."""
    cases = [{**CASE, "drafter": drafter} for drafter in ("greedy", "static", "untaught", "scrambled")]
    return sum(sequences_that_differ(case, speculative(case)) for case in cases)


def orphans():
    """Whether a tree chosen among equal weights is none."""
    return float(trees.largest(trees.RankPaths.product((4, 3, 2)).drafted(saturated()), 2).problem() != "")


# ------------------------------------------------------------------------------------------------ what is planted
def rule(name):
    """A wrong rule in place of the one asked for."""
    return lambda: planted(verifiers, "verify", lambda right: lambda _, *args: specimen(name)(*args))


def drafts(make):
    """Other drafts: `make` gets what `drawn_tree` gets, and the right function."""
    return lambda: planted(verifiers, "drawn_tree", lambda right: partial(make, right))


def drawn_from(law):
    """Tokens come from another law than the one that the verifier is told."""

    def wrong(right, laws, *args, **options):
        other = torch.tensor([float(x) for x in law], dtype=torch.float64).log().expand_as(laws)
        tree, told = right(other, *args, **options)
        return tree, laws[:, :1].expand_as(told)

    return drafts(wrong)


def unfiltered():
    """The rule sees the target's law before the temperature."""

    def make(right):
        def wrong(rule, draft, laws, draws):
            return right(rule, draft, (laws / 2).log_softmax(-1) if draft[0].nodes else laws, draws)

        return wrong

    return planted(responses, "settled", make)


def stopped(right):
    """The whole batch ends with one of its responses."""
    return lambda self, last: right(self, last) & (self.position < self.most).all()


def deepest_first():
    """Among equal weights the last place is taken."""

    def wrong(candidates):
        return (
            candidates.nodes
            - 1
            - torch.sort(candidates.log_weight.flip(1), dim=1, descending=True, stable=True).indices
        )

    return planted(trees, "order_of_weights", lambda right: wrong)


def drawn_for_any_rule():
    """Candidates are drawn from q, and their law is forgotten."""

    def drafted(_, drafter, frontier, nodes, draws):
        keys = draws.chooser, draws.rows, draws.position
        laws = drafter.log_laws(frontier)
        return drawn_tree(laws, drafter.fan_out, nodes, *keys, distinct=False)[0], None

    return planted(verifiers, "drafted", lambda right: drafted)


@dataclass(frozen=True)
class Planted:
    """A bug, what sees it, and by how much; None = not in closed form."""

    plant: object
    seen_by: object
    distance: Fraction | None = None


TOP_TWO = [0, 0, Fraction(3, 7), Fraction(4, 7)]
SHARP = [x * x / sum(y * y for y in Q) for x in Q]
MUTANTS = {
    "argmax drafts, softmax as q": Planted(drawn_from([0, 0, 0, 1]), law_gap, Fraction(5, 16)),
    "drafts from the top two, all of q told": Planted(drawn_from(TOP_TWO), law_gap, Fraction(11, 70)),
    "drafts at another temperature than q": Planted(drawn_from(SHARP), law_gap, Fraction(1, 24)),
    "temperature not applied to the target": Planted(unfiltered, partial(law_gap, temperature=0.5), Fraction(2, 15)),
    "coin 0: always accepted": Planted(rule("always_accepted"), law_gap, Fraction(2, 5)),
    "coin of the rejection reused": Planted(
        rule("coin_reused"), partial(law_gap, "point_mass", tokens=(0,)), Fraction(1, 5)
    ),
    "block by the token rule": Planted(
        rule("block_with_token_rule"), partial(law_gap, "block", length=2), Fraction(24, 100)
    ),
    "continued from p, not from the residual": Planted(rule("spec_rl"), law_gap, Fraction(14, 100)),
    "redraw after a miss": Planted(
        rule("redraw_after_miss"), partial(law_gap, "point_mass", tokens=(0, 3)), Fraction(1, 4)
    ),
    "stale q without replacement": Planted(
        rule("stale_drafter_law"), partial(law_gap, "sequoia", fan_out=(2,)), Fraction(17, 392)
    ),
    "first token shared by the group": Planted(
        lambda: planted(Responses, "first_run", lambda right: SharedFirstToken.first_run), pair_gap, Fraction(7, 10)
    ),
    "batch stopped as a whole": Planted(
        lambda: planted(Responses, "goes_on", stopped),
        finish_gap,
        LETTERS[1] * (1 - LETTERS[END]) ** 2 * LETTERS[WORD],
    ),
    "siblings see each other": Planted(bugs.sibling_visible, partial(node_gap, CASE)),
    "depth off by one": Planted(bugs.depth_off_by_one, partial(node_gap, CASE)),
    "cache not compacted": Planted(bugs.cache_not_compacted, partial(node_gap, CASE)),
    "orphans among equal weights": Planted(deepest_first, orphans, Fraction(1)),
}  # name -> what is planted, the number that sees it, its exact value


@pytest.mark.parametrize("name", list(MUTANTS))
def test_a_bug_is_seen_at_its_distance_by_the_number_made_for_it(name):
    mutant = MUTANTS[name]
    with mutant.plant():
        found = mutant.seen_by()
    if mutant.distance is None:
        assert found > 1e-3
    else:
        assert found == pytest.approx(float(mutant.distance), rel=1e-12)


@pytest.mark.parametrize("name", list(MUTANTS))
def test_without_the_bug_the_same_number_is_nought(name):
    assert MUTANTS[name].seen_by() <= (1e-10 if MUTANTS[name].distance is None else 1e-12)


@pytest.mark.parametrize("plant", [bugs.sibling_visible, bugs.depth_off_by_one, bugs.cache_not_compacted])
def test_bugs_of_the_pass_change_tokens_too(plant):
    with plant():
        assert pathwise() > 0


def test_the_distances_that_follow_from_the_two_laws():
    """What a misinformed token rule emits: d min(1, p/q) + (sum d (1 - min(1, p/q))) (p - q)+ / sum."""
    for drawn, distance in (([0, 0, 0, 1], Fraction(5, 16)), (TOP_TWO, Fraction(11, 70)), (SHARP, Fraction(1, 24))):
        accept = [min(1, p / q) for p, q in zip(P, Q, strict=True)]
        missed = sum(d * (1 - a) for d, a in zip(drawn, accept, strict=True))
        over = [max(p - q, 0) for p, q in zip(P, Q, strict=True)]
        law = [d * a + missed * o / sum(over) for d, a, o in zip(drawn, accept, over, strict=True)]
        assert tv(law, P) == distance
    assert tv(P, HALF) == Fraction(2, 15)


# ------------------------------------------------------------------------------------------------ reported, and no bias
CONTROLS = {
    "a drawn token compared with a sample of the target": (
        drawn_for_any_rule,
        partial(law_gap, "membership", length=2),
    ),
    "a drawn token whose q was not kept": (drawn_for_any_rule, partial(law_gap, "point_mass", length=2)),
    "drawn siblings whose q was not kept": (drawn_for_any_rule, partial(law_gap, "point_mass", fan_out=(2,))),
    "the best tokens with q set to 1": (nullcontext, partial(law_gap, "point_mass", tokens=(3, 2))),
    "the best tokens compared with a sample": (nullcontext, partial(law_gap, "membership", tokens=(3, 2))),
}


@pytest.mark.parametrize("name", list(CONTROLS))
def test_what_was_reported_as_a_bias_raises_no_alarm(name):
    plant, seen_by = CONTROLS[name]
    with plant():
        assert seen_by() <= 1e-12


def test_a_drawn_token_compared_with_a_sample_is_accepted_less_often():
    """The report's true part: with probability sum p q instead of sum min(p, q)."""
    with drawn_for_any_rule():
        matched = accepted("membership")
    assert matched == pytest.approx(float(sum(p * q for p, q in zip(P, Q, strict=True))), abs=1e-12)
    assert accepted("token_rejection") == pytest.approx(float(sum(map(min, P, Q))), abs=1e-12)
