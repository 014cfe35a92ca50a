"""The machinery that decides theorems, seen to fail: every way a theorem can be wrong makes its verdict false."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import sympy as sp

from testbed import InputError
from testbed.core import numerics
from theory.derivation import Derivation, Evaluator, Step, check_steps
from theory.judge import judge, judge_mutant, violation
from theory.planting import planted
from theory.theorem import Claim, Mutant, Theorem

X = sp.Symbol("x", positive=True)


@dataclass(frozen=True)
class Case:
    name: str
    x: float


def square_library(case):
    """A 'library': (1 + x)^2 computed through testbed's masked sum."""
    import torch

    parts = torch.tensor([1.0, 2 * case.x, case.x**2], dtype=torch.float64)
    return {"square": (1 + case.x) ** 2, "sum": numerics.masked_sum(parts, parts == parts)}


def derivation(wrong_step=False, wrong_library=False):
    chain = [
        Step("square", (1 + X) ** 2 + (1 if wrong_library else 0), "definition", quantity="square"),
        Step(
            "expand",
            1 + 2 * X + (3 if wrong_step else 1) * X**2 + (1 if wrong_library else 0),
            "binomial",
            quantity="sum",
        ),
    ]
    return Derivation([chain], lambda rng: {X: sp.Rational(rng.randint(1, 9), 7)}, lambda case: {X: case.x})


RIGHT = derivation()
THEOREM = Theorem(
    id="S0", kind="identity", title="binomial", hypotheses=("exponent 2",), statement="(1+x)^2 = 1+2x+x^2", source="literature",
    claims=(
        Claim("binomial", "equal", "square", "sum", "they agree"),
        Claim("positive", "at_most", "zero", "square", "a square"),
    ),
    instances=lambda: [Case("half", 0.5), Case("two", 2.0)],
    measure=lambda case: {**square_library(case), "zero": 0.0},
    derive=lambda case: RIGHT,
    outcome="algebra works",
    mutants=(
        Mutant(name="exponent_three", kind="hypothesis", breaks=("binomial",), why="another exponent",
               measure=lambda case: {**square_library(case), "square": (1 + case.x) ** 3, "zero": 0.0}),
        Mutant(name="sum_drops_last", kind="bug", breaks=("binomial",), why="the last term is lost",
               plant=lambda: planted(numerics, "masked_sum", lambda right: lambda x, m: right(x[:-1], m[:-1]))),
    ),
)  # fmt: skip


def problems(**changes):
    verdict = judge(replace(THEOREM, **changes))
    assert not verdict.holds
    return " / ".join(verdict.problems)


def test_a_right_theorem_is_decided():
    verdict = judge(THEOREM)
    assert verdict.holds
    assert verdict.problems == ()
    assert (verdict.lhs, verdict.rhs) == (9.0, 9.0)  # the larger of the two instances
    assert [m.killed for m in verdict.mutants] == [True, True]
    assert verdict.mutants[0].margin == pytest.approx((1.5**3 - 1.5**2) / 1.5**3) or verdict.mutants[0].margin > 0.3
    assert verdict.derivation.steps == 2
    assert verdict.record()["claims"][1]["slack"] == pytest.approx(1.0)


def test_a_false_claim_fails():
    assert "claim 'binomial' fails on" in problems(measure=lambda c: {**square_library(c), "sum": 7.0, "zero": 0.0})


def test_a_false_bound_fails():
    assert "claim 'positive' fails" in problems(measure=lambda c: {**square_library(c), "zero": 99.0})


def test_nan_is_never_equal():
    assert "claim 'binomial' fails" in problems(measure=lambda c: {"square": math.nan, "sum": math.nan, "zero": 0.0})


def test_a_step_that_does_not_follow_fails():
    wrong = derivation(wrong_step=True)
    assert "step 'expand' does not follow" in problems(derive=lambda c: wrong)


def test_a_derivation_of_something_else_fails():
    wrong = derivation(wrong_library=True)  # both lines wrong together: the algebra is consistent, the library differs
    assert check_steps(wrong) == ""
    assert "square is 2.25 in the library and 3.25 as derived" in problems(derive=lambda c: wrong)


def test_a_derivation_that_is_compared_with_nothing_fails():
    bare = Derivation([[Step("square", X**2, "definition")]], RIGHT.point, RIGHT.bind)
    assert "no derived quantity was compared" in problems(derive=lambda c: bare)


def test_an_instance_at_which_nothing_is_derived_fails():
    empty = Derivation((), RIGHT.point, RIGHT.bind)
    assert "two: nothing is derived" in problems(derive=lambda c: RIGHT if c.name == "half" else empty)


def test_an_instance_at_which_nothing_is_compared_is_named():
    bare = Derivation([[Step("square", X**2, "definition", quantity="unheard_of")]], RIGHT.point, RIGHT.bind)
    verdict = judge(replace(THEOREM, derive=lambda c: RIGHT if c.name == "half" else bare))
    assert verdict.derivation.silent == ("two",)
    assert judge(THEOREM).derivation.silent == ()


def test_sums_over_arrays_are_steps_like_any_other():
    p, y, n = sp.IndexedBase("p"), sp.Symbol("y", integer=True), sp.Symbol("n", integer=True)
    total = sp.Sum(p[y], (y, 0, n - 1))
    pairs = sp.Sum(sp.Sum(p[y] * p[sp.Symbol("z")], (sp.Symbol("z"), 0, n - 1)), (y, 0, n - 1))

    def point(rng):
        size = rng.randint(1, 4)
        return {n: sp.Integer(size), p.label: [sp.Rational(rng.randint(1, 9), 7) for _ in range(size)]}

    def bind(case):
        return {n: 1000, p.label: case.x * np.arange(1000.0)}

    right = Derivation([[Step("square", total**2, ""), Step("pairs", pairs, "", quantity="square")]], point, bind)
    wrong = Derivation(
        [[Step("square", total**2, ""), Step("squares", sp.Sum(p[y] ** 2, (y, 0, n - 1)), "")]], point, bind
    )
    assert check_steps(right) == ""
    assert "does not follow" in check_steps(wrong)
    [(name, values)] = Evaluator(right)(Case("half", 0.5))
    assert name == "square" and values == pytest.approx([(0.5 * 499_500) ** 2], rel=1e-14)


def test_an_inequality_step_is_checked_in_its_direction():
    right = Derivation([[Step("a", X, ""), Step("b", X + 1, "", relation="<=")]], RIGHT.point, RIGHT.bind)
    wrong = Derivation([[Step("a", X + 1, ""), Step("b", X, "", relation="<=")]], RIGHT.point, RIGHT.bind)
    assert check_steps(right) == ""
    assert "does not follow" in check_steps(wrong)
    assert "does not bind" in check_steps(Derivation([[Step("a", sp.Symbol("y"), "")]], RIGHT.point, RIGHT.bind))


def test_irrational_steps_are_compared_numerically():
    same = Derivation([[Step("a", sp.exp(sp.log(X) / 2), ""), Step("b", sp.sqrt(X), "")]], RIGHT.point, RIGHT.bind)
    other = Derivation(
        [[Step("a", sp.exp(X), ""), Step("b", sp.exp(X) + sp.Float("1e-25", 40), "")]], RIGHT.point, RIGHT.bind
    )
    assert check_steps(same) == ""
    assert "does not follow" in check_steps(other)


def test_rational_constants_stay_exact():
    """Printed as float division, a true step with thirds would be off by rounding and a false one could hide in it."""
    third = X / 3 + sp.Rational(2, 3)
    same = Derivation([[Step("a", third, ""), Step("b", (X + 2) / 3, "")]], RIGHT.point, RIGHT.bind)
    other = Derivation(
        [[Step("a", third, ""), Step("b", (X + 2) / 3 + sp.Rational(1, 10**30), "")]], RIGHT.point, RIGHT.bind
    )
    assert check_steps(same) == ""
    assert "does not follow" in check_steps(other)


def test_a_surviving_mutant_fails():
    harmless = Mutant(name="harmless", kind="bug", breaks=("binomial",), why="changes nothing",
                      plant=lambda: planted(numerics, "masked_sum", lambda right: right))  # fmt: skip
    assert "mutant 'harmless' survived" in problems(mutants=(*THEOREM.mutants, harmless))
    tiny = Mutant(name="tiny", kind="hypothesis", breaks=("binomial",), why="within 1000 tolerances",
                  measure=lambda c: {**square_library(c), "square": (1 + c.x) ** 2 + 1e-8, "zero": 0.0})  # fmt: skip
    assert not judge_mutant(THEOREM, tiny).killed


def test_a_mutant_that_breaks_too_much_fails():
    blunt = Mutant(name="blunt", kind="hypothesis", breaks=("binomial",), why="breaks everything",
                   measure=lambda c: {"square": 1.0, "sum": 2.0, "zero": 9.0})  # fmt: skip
    assert "also broke positive" in problems(mutants=(*THEOREM.mutants, blunt))


def test_both_kinds_of_mutant_are_required():
    assert "no bug mutant is named" in problems(mutants=THEOREM.mutants[:1])
    assert "no hypothesis mutant is named" in problems(mutants=THEOREM.mutants[1:])


def test_a_mutant_must_name_claims_of_its_theorem():
    with pytest.raises(InputError, match="must name claims"):
        judge_mutant(THEOREM, Mutant(name="m", kind="bug", breaks=("nothing",), why=""))


def test_a_claim_nobody_exercises_fails():
    extra = Claim("phantom", "equal", "absent", "sum", "never measured")
    assert "claim 'phantom' was exercised by no instance" in problems(claims=(*THEOREM.claims, extra))


def test_instances_need_distinct_names():
    with pytest.raises(InputError, match="distinct names"):
        judge(replace(THEOREM, instances=lambda: [Case("same", 1.0), Case("same", 2.0)]))


@pytest.mark.parametrize(
    ("relation", "left", "right", "expected"),
    [
        ("equal", [1.0, 2.0], [1.0, 2.0 + 2e-6], 1e-6),
        ("equal", 1e-4, 2e-4, 1e-2),  # below the floor of 0.01 differences count relative to the floor
        ("equal", math.inf, math.inf, 0.0),
        ("equal", math.inf, 1.0, math.inf),
        ("at_most", [1.0, 5.0], [2.0, 4.0], 0.2),
        ("at_most", 1.0, 2.0, 0.0),
        ("differs", 1.0, 1.0, 1e-3),
        ("differs", 1.0, 2.0, 0.0),
    ],
)
def test_violations(relation, left, right, expected):
    wrong, *_ = violation(Claim("c", relation, "l", "r", ""), {"l": np.array(left), "r": np.array(right)})
    assert wrong == pytest.approx(expected, rel=1e-5)


def test_planted_bugs_leave_no_trace():
    from testbed.estimators import loss

    original = numerics.masked_sum

    def interrupted():
        with planted(numerics, "masked_sum", lambda right: lambda *a: None):
            assert loss.masked_sum is numerics.masked_sum is not original  # importers see the bug too
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        interrupted()
    assert loss.masked_sum is numerics.masked_sum is original


def test_planted_bugs_do_not_stay_in_lazy_exports():
    import testbed
    from testbed.weighting import granularity

    vars(testbed).pop("log_ratios", None)  # as before the first access
    right = granularity.log_ratios
    with planted(granularity, "log_ratios", lambda f: lambda *a, **k: -f(*a, **k)):
        assert testbed.log_ratios is not right
    assert testbed.log_ratios is right


def test_pi_and_e_stay_exact():
    for constant in (sp.pi, sp.E):
        near = sp.Rational(sp.N(constant, 60))  # equal to 40 digits and more, not to the machine's 16
        same = Derivation([[Step("a", X * constant, ""), Step("b", X * near, "")]], RIGHT.point, RIGHT.bind)
        other = Derivation(
            [[Step("a", X * constant, ""), Step("b", X * (near + sp.Rational(1, 10**20)), "")]], RIGHT.point, RIGHT.bind
        )
        assert check_steps(same) == ""
        assert "does not follow" in check_steps(other)
