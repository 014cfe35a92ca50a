"""Verdicts on two arms and on many: each comes out each way, and the seeds that would tell are as many as the bound asks."""

from __future__ import annotations

import numpy as np
import pytest

from paper_repro.cis_harm import judged_harm
from paper_repro.cis_orders import agreement, highest, judged_agreement, ordered
from paper_repro.cis_verdicts import above, by_chance, collapses, difference_of, near, needs_harm, per_place, pooled
from paper_repro.lab_cis import ranks
from paper_repro.lab_tables import claim_row, compare, judged_better
from testbed.core.errors import InputError
from testbed.stats.interval import Interval
from testbed.stats.runs import Estimate

REPRODUCED, NOISE, NOT = "reproduced", "within noise", "not reproduced"
ENDS = [(0.001, 0.2), (-0.1, 0.2), (-0.1, 0.03), (-0.1, 0.004), (-0.1, 0.0), (-0.2, -0.1), (0.0, 0.0)]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, [REPRODUCED, NOISE, NOT, NOT, NOT, NOT, NOT]),
        ({"gap": 0.006}, [REPRODUCED, NOISE, NOISE, NOT, NOT, NOT, NOT]),
        ({"gap": 0.3}, [REPRODUCED, NOISE, NOT, NOT, NOT, NOT, NOT]),
        ({"gap": -0.01}, [REPRODUCED, NOISE, NOISE, NOISE, NOT, NOT, NOT]),
        ({"margin": 0.0}, [REPRODUCED, NOISE, NOISE, NOISE, NOT, NOT, NOT]),
    ],
    ids=["margin", "small_gap", "large_gap", "the_paper_has_it_the_other_way", "sign"],
)
def test_what_refutes_a_lead(given, words):
    assert [judged_better(Interval(*ends, 0.95, ""), **given) for ends in ENDS] == words


def test_the_papers_gap_reaches_the_verdict():
    other = np.linspace(0.4, 0.6, 12).tolist()
    lead = [x + 0.02 * (-1) ** k for k, x in enumerate(other)]
    assert above("a", lead, other, "", "gap")["verdict"] == NOT
    assert above("a", lead, other, "", "gap", gap=0.006)["verdict"] == NOISE
    assert above("a", lead, other, "", "gap", margin=0.0)["verdict"] == NOISE
    assert pooled("a", {"one": lead}, {"one": other}, "", "gap")["verdict"] == NOT
    assert pooled("a", {"one": lead}, {"one": other}, "", "gap", gap=0.006)["verdict"] == NOISE


def test_a_planted_bug_in_pairing_flips_a_verdict():
    """Seeds differ by more than arms do: only seed by seed can the arms be told apart."""
    easy = np.linspace(0.1, 0.9, 10).tolist()
    assert above("a", [x + 0.06 for x in easy], easy, "", "paired")["verdict"] == REPRODUCED
    assert above("a", [x + 0.06 for x in easy][::-1], easy, "", "paired")["verdict"] == NOISE
    both = {"one": easy, "other": easy}
    ahead = {"one": [x + 0.06 for x in easy], "other": [x + 0.05 for x in easy]}
    assert pooled("a", ahead, both, "", "paired")["verdict"] == REPRODUCED
    assert pooled("a", {place: runs[::-1] for place, runs in ahead.items()}, both, "", "paired")["verdict"] == NOISE


def test_places_are_strata():
    """Each place knows its own difference exactly: the mix of places must not be drawn anew."""
    zero = {"one": [0.0] * 6, "other": [0.0] * 6}
    row = pooled("a", {"one": [0.3] * 6, "other": [-0.1] * 6}, zero, "", "strata")
    assert row["verdict"] == REPRODUCED and "+0.100 [+0.100, +0.100]" in row["found"]
    worse = [
        pooled("a", {"one": [x] * 6, "other": [x] * 6}, zero, "", "w", worse=True)["verdict"] for x in (-0.04, -0.06)
    ]
    assert worse == [REPRODUCED, NOT]


@pytest.mark.parametrize(
    ("fell", "stood", "low", "verdict"),
    [
        ([1] * 10, [0] * 10, 0.1, REPRODUCED),
        ([0] * 10, [0] * 10, 0.1, NOT),
        ([1] * 10, [1] * 10, 0.1, NOT),
        ([1] * 10, [0] * 10, 0.9, NOT),
        ([1] * 6 + [0] * 4, [0] * 10, 0.1, NOISE),
        ([1] * 10, [1] * 4 + [0] * 6, 0.1, NOISE),
    ],
    ids=["as_claimed", "stands", "both_fall", "ends_above", "falls_at_times", "the_other_falls_at_times"],
)
def test_a_collapse_has_three_parts(fell, stood, low, verdict):
    row = collapses("a", [low] * 10, fell, [0.8] * 10, stood, "", "test")
    assert row["verdict"] == verdict
    assert (row["to tell"] == "told apart") == (verdict != NOISE)
    if verdict == NOISE:  # the part that is open, and what it needs: some hundred runs tell a share of .6 from .5
        part, number = row["to tell"].split(": about ")
        assert part == ("its collapses" if sum(fell) == 6 else "the other's") and 100 < int(number.split()[0]) < 400


def test_no_loss():
    good = [0.9, 0.91, 0.9, 0.89] * 3
    assert [near("a", [x - d for x in good], good, "", "t")["verdict"] for d in (0.04, 0.06)] == [REPRODUCED, NOT]
    torn = [x - d for x, d in zip(good, [0.0, 0.1] * 6, strict=True)]
    assert near("a", torn, good, "", "t")["verdict"] == NOISE


# ------------------------------------------------------------------------------------------------ many arms
def test_the_first_of_many_allows_for_their_number():
    """A lead that a comparison by itself would call sure is not when it is one of many, and is the least of them."""
    zero = {"place": [0.0] * 12}
    lead = {"place": [0.0, 0.0, 0.0, 0.05] * 3}
    others = {str(k): zero for k in range(7)}
    one = highest("a", lead, {"0": zero}, {"0": None}, "many")
    many = highest("a", lead, others, dict.fromkeys(others), "many")
    width = [float(row["found"].split("[")[1].split("]")[0].split(", ")[1]) for row in (one, many)]
    assert width[1] > width[0] and "(intervals at 99.3%)" in many["found"]


def test_rank_agreement_counts_pairs():
    rewards = {"a": [1.0, 1.0, 1.0], "b": [2.0, 2.0, 2.0], "c": [1.5, 1.5, 1.5]}
    value, interval = agreement(rewards, {"a": 1.0, "b": 2.0, "c": 3.0}, "test")
    assert value == pytest.approx(1 / 3) == interval.low  # two of three pairs agree, in every draw
    assert ranks({"a": 1.0, "b": 2.0, "c": 2.0}) == {"b": 1, "c": 1, "a": 3}
    words = [judged_agreement(Interval(low, low + 0.2, 0.95, "")) for low in np.linspace(-1, 0.8, 19)]
    places = [(NOT, NOISE, REPRODUCED).index(word) for word in words]
    assert places == sorted(places)


def test_an_order_that_cannot_be_told_says_how_many_seeds_would():
    """Seeds that differ as much as arms do leave the order open; a number of seeds, not "more", is what it takes."""
    swing = np.array([0.4, -0.4, 0.3, -0.3, 0.2, -0.2, 0.1, -0.1, 0.35, -0.25])
    finals = {name: (0.5 + 0.02 * k + swing * (-1) ** k).tolist() for k, name in enumerate("abcd")}
    row = ordered("a", finals, {name: float(k) for k, name in enumerate("abcd")}, "test")
    assert row["verdict"] == NOISE and row["to tell"].startswith("about ") and row["to tell"].endswith(" seeds")
    assert int(row["to tell"].split()[1].replace(",", "")) >= 10
    sure = ordered(
        "a",
        {name: [0.1 * k] * 5 for k, name in enumerate("abcd")},
        {name: float(k) for k, name in enumerate("abcd")},
        "t",
    )
    assert (sure["verdict"], sure["to tell"]) == (REPRODUCED, "told apart")


# ------------------------------------------------------------------------------------------------ what verdicts rest on
def test_seeds_to_tell_are_those_of_the_nearer_bound():
    """Normal theory: with se = sd / sqrt(n), n = ((1.96 + 1.28) sd / distance)^2."""
    z, sd, runs = 1.959964, 0.15, 12
    for value, bounds, away in ((0.04, (0.0, 0.05), 0.04), (0.01, (0.0, 0.05), 0.04), (-0.02, (-0.05,), 0.03)):
        half = z * sd / runs**0.5
        found = Estimate(value=value, interval=Interval(value - half, value + half, 0.95, ""), runs=runs)
        want = int(np.ceil(((z + 1.281552) * sd / away) ** 2))
        assert per_place(found, bounds, {"one": [0.0] * runs}) == f"about {want} seeds"
        places = {"one": [0.0] * 6, "other": [0.0] * 6}
        assert abs(int(per_place(found, bounds, places).removesuffix(" seeds per place").split()[1]) - want / 2) <= 1


def test_what_would_tell_follows_the_bound_that_is_judged():
    """Differences of -.02, give or take .1: .02 from 0, .07 from what refutes a lead of .05, .03 from too large a loss."""
    other = [0.5] * 16
    lead = [0.48 + 0.1 * (-1) ** k for k in range(16)]
    rows = [
        above("a", lead, other, "", "b"),
        near("a", lead, other, "", "b"),
        above("a", lead, other, "", "b", margin=0.0),
    ]
    assert {row["verdict"] for row in rows} == {NOISE}
    seeds = [int(row["to tell"].split()[1].replace(",", "")) for row in rows]
    assert seeds[1] / seeds[0] == pytest.approx((7 / 3) ** 2, rel=0.1) and seeds[2] / seeds[0] == pytest.approx(
        3.5**2, rel=0.1
    )


def test_chance_counts_the_verdicts_that_are_given():
    rows = [claim_row("a", REPRODUCED, "", "")] * 40
    assert by_chance(rows).startswith("of 40 claims, 0 not judged") and "1.0 of 40, and" in by_chance(rows)
    some = [needs_harm(row, None) for row in rows[:20]] + rows[20:]
    assert by_chance(some).startswith("of 40 claims, 20 not judged") and "0.5 of 20, and" in by_chance(some)


# ------------------------------------------------------------------------------------------------ what gates and pairs
def test_harm_is_judged_so_that_it_holds_in_all_places_together():
    """A loss that one interval at 95 % tells from 0 and one of eight together does not: no harm is said to be seen."""
    none, agree = [0.5] * 12, [0.45] * 2 + [0.52 + 0.02 * place for place in range(10)]
    assert compare(agree, none, "harm").difference.interval.low > 0
    assert judged_harm(agree, none)[0] is None


def test_arms_of_other_seeds_are_not_paired():
    with pytest.raises(InputError, match="same seeds; found 5 and 1 runs"):
        difference_of({"a": [0.5] * 5}, {"a": [0.1]}, "doc")
