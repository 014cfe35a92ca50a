"""Every wrong rule is told from the target's law, by exactly the distance that its formula or its enumeration gives."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import partial

import pytest

from testbed.rollout.speculative import specimens
from testbed.rollout.speculative.specimens import SPECIMENS, specimen
from testbed.rollout.speculative.verify import token_rejection
from testbed.rollout.speculative.verify.enumeration import one_draft, round_law
from tests.rollout.speculative.toy import P, Q, constant, drafted_for, misstated, share, tv

ALPHA = share(P, Q)
TARGET = constant(P)
# name -> (distance of the first `length` tokens, length of the draft, children where the draft is chosen)
DISTANCES = {
    "spec_rl": (Fraction(14, 100), 1, ()),
    "redraw_after_miss": (Fraction(1, 4), 1, (0, 3)),
    "coin_reused": (Fraction(1, 5), 1, (0,)),
    "token_coin_reused": (Fraction(3, 40), 1, ()),
    "residual_not_subtracted": (Fraction(196, 1000), 1, ()),
    "stale_drafter_law": (Fraction(17, 392), 1, ()),
    "block_with_token_rule": (Fraction(24, 100), 2, ()),
    "typical_acceptance": (Fraction(2, 5), 1, ()),
    "always_accepted": (Fraction(2, 5), 1, ()),
    "argmax_draft": (Fraction(5, 16), 1, ()),
}


@pytest.mark.parametrize("name", list(SPECIMENS))
def test_every_specimen_is_noticed_at_its_distance(name):
    exact, length, tree = DISTANCES[name]
    drafts = drafted_for(SPECIMENS[name].drafts, length, tree)
    law = round_law(specimen(name), drafts)
    assert sum(law.emitted.values()) == pytest.approx(1.0, abs=1e-12)
    assert law.distance(TARGET, length) == pytest.approx(float(exact), rel=1e-12)


def test_the_list_of_distances_is_complete():
    assert set(DISTANCES) == set(SPECIMENS)


def test_spec_rl_by_formula_and_repaired():
    drafts = drafted_for("chain")
    accepted = [min(p, q) for p, q in zip(P, Q, strict=True)]
    law = [a + (1 - ALPHA) * p for a, p in zip(accepted, P, strict=True)]
    assert tv(law, P) == sum(abs(a - ALPHA * p) for a, p in zip(accepted, P, strict=True)) / 2 == Fraction(14, 100)
    found = round_law(specimens.spec_rl, drafts).completed(TARGET, 1)
    assert found.tolist() == pytest.approx([float(x) for x in law], rel=1e-12)
    for length in (1, 2):
        repaired = round_law(specimens.spec_rl_repaired, drafted_for("chain", length))
        assert repaired.distance(TARGET, length + 1) < 1e-14
    assert round_law(specimens.spec_rl, drafted_for("chain", 2)).distance(TARGET, 2) > 0.14  # more tokens, more bias


def test_spec_rl_with_lenience():
    lenient = [min(float(q), math.exp(0.5) * float(p)) for p, q in zip(P, Q, strict=True)]
    law = [a + (1 - sum(lenient)) * float(p) for a, p in zip(lenient, P, strict=True)]
    found = round_law(partial(specimens.spec_rl, lenience=0.5), drafted_for("chain"))
    assert found.distance(TARGET, 1) == pytest.approx(tv(law, [float(p) for p in P]), rel=1e-12)
    assert found.distance(TARGET, 1) == pytest.approx(0.235, abs=5e-4)


@pytest.mark.parametrize("tree", [(0,), (3,), (0, 3), (1, 2), (0, 1, 2)])
def test_a_redraw_costs_the_variance_of_a_hit(tree):
    mass = sum(P[x] for x in tree)
    law = round_law(specimens.redraw_after_miss, one_draft(TARGET, tree, [-1] * len(tree)))
    assert law.distance(TARGET, 1) == pytest.approx(float(mass * (1 - mass)), rel=1e-12)


def test_a_reused_coin_by_intervals():
    """The child 0 takes u < .4; what is left, (.3, .2, .1) / .6, is asked with u in (.4, 1) only."""
    found = round_law(specimens.coin_reused, one_draft(TARGET, [0], [-1])).completed(TARGET, 1)
    assert found.tolist() == pytest.approx([0.4, 0.5 - 0.4, 5 / 6 - 0.5, 1 - 5 / 6], rel=1e-12)


def test_with_one_child_an_unsubtracted_residual_is_spec_rl():
    drafts = drafted_for("chain", 2)
    one, other = round_law(specimens.residual_not_subtracted, drafts), round_law(specimens.spec_rl, drafts)
    assert one.emitted == pytest.approx(other.emitted, abs=1e-14)


def test_typical_acceptance_of_an_unlikely_draft():
    """Token 3 has probability .1, above .09 exp(-H) = .025: always accepted."""
    law = round_law(specimens.typical_acceptance, drafted_for("argmax"))
    assert law.distance(TARGET, 1) == pytest.approx(0.9, rel=1e-12)
    strict = partial(specimens.typical_acceptance, scale=0.5)  # .5 exp(-H) = .14: never
    assert round_law(strict, drafted_for("argmax")).expected_accepted == 0


def test_block_coins_of_single_tokens_are_right_for_one_token_only():
    assert round_law(specimens.block_with_token_rule, drafted_for("chain", 1)).distance(TARGET, 2) < 1e-14


# ------------------------------------------------------------------------------------------------ a right rule, misinformed
SQUARED = [p * p / sum(x * x for x in P) for p in P]


@pytest.mark.parametrize(
    ("drawn_from", "stated", "distance"),
    [
        ([0, 0, Fraction(3, 7), Fraction(4, 7)], Q, None),  # drawn from the top two, scored with all
        ([q * q / sum(x * x for x in Q) for q in Q], Q, Fraction(1, 24)),  # drawn at temperature 1/2, scored at 1
        ([0, 0, 0, 1], Q, Fraction(5, 16)),  # argmax
    ],
)
def test_the_law_that_was_drawn_from_matters(drawn_from, stated, distance):
    accept = [min(1, p / q) for p, q in zip(P, stated, strict=True)]
    missed = sum(d * (1 - a) for d, a in zip(drawn_from, accept, strict=True))
    over = [max(p - q, 0) for p, q in zip(P, stated, strict=True)]
    law = [d * a + missed * o / sum(over) for d, a, o in zip(drawn_from, accept, over, strict=True)]
    assert distance is None or tv(law, P) == distance
    found = round_law(token_rejection.token_rejection, misstated(drawn_from, stated))
    assert found.distance(TARGET, 1) == pytest.approx(float(tv(law, P)), rel=1e-12)
    assert found.distance(TARGET, 1) > 0.04


def test_the_target_must_be_the_law_in_use():
    """Verified against temperature 1 where temperature 1/2 is asked for."""
    found = round_law(token_rejection.token_rejection, drafted_for("chain"))
    assert found.distance(constant(SQUARED), 1) == pytest.approx(float(tv(P, SQUARED)), rel=1e-12)
    assert tv(P, SQUARED) == Fraction(2, 15)
