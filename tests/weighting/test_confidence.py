"""Displacement, confidence cap, and coin divergences against 50 digits; where they end; what ties do."""

import math

import mpmath
import pytest
import torch

from testbed.core.errors import InputError
from testbed.weighting import confidence
from testbed.weighting.binary_divergence import binary_kl
from testbed.weighting.confidence import CAP_FORMS, confidence_log_cap, displacement, truncate_displacement
from testbed.weighting.rules import RULES, weigh
from tests.weighting.formulas.confidence import coin_divergence, log_odds_shift
from tests.weighting.grid import pairs
from tests.weighting.transcription import close
from tests.weighting.worlds import batch_of

INF = math.inf
BOTH = [torch.float32, torch.float64]


def columns(dtype=torch.float64, certain=True):
    """Log p and log q of the grid; without the pairs in which one of them is 1 unless `certain`."""
    kept = [(p, q) for p, q in pairs() if certain or (p < 0 and q < 0)]
    return (torch.tensor(x, dtype=dtype) for x in zip(*kept, strict=True))


# ------------------------------------------------------------------------------------------- displacement
def shift_errors(shift):
    """Pairs of the grid where a displacement is off by more than 1e-10 of its value, to which 1 - p contributes in full."""
    target, behavior = columns(certain=False)
    found = shift(target, behavior)
    return [
        (p, q, got)
        for p, q, got in zip(target.tolist(), behavior.tolist(), found.tolist(), strict=True)
        if not close(got, log_odds_shift(mpmath.mpf(p), mpmath.mpf(q)))
    ]


def test_displacement_equals_its_definition():
    assert shift_errors(displacement) == []


@pytest.mark.parametrize(
    "wrong",
    [
        lambda p, q: torch.logit(p.exp()) - torch.logit(q.exp()),
        lambda p, q: p - q,
        lambda p, q: p - torch.log1p(-p.exp()) - q + torch.log1p(-q.exp()),
        lambda p, q: (
            p - torch.log(-torch.expm1(p)) - q + torch.log(-torch.expm1(q))
        ),  # stable ends, unstable difference
    ],
    ids=["logits", "log_ratio", "naive_complement", "difference_of_logits"],
)
def test_a_wrong_displacement_is_seen(wrong):
    assert len(shift_errors(wrong)) > 10


@pytest.mark.parametrize("dtype", BOTH)
def test_displacement_at_certain_and_impossible_tokens(dtype):
    p = torch.tensor([0.0, 0.0, -1.0, -INF, -1.0, -INF, 0.0, -INF, -1e-45, -700.0], dtype=dtype)
    q = torch.tensor([0.0, -1.0, 0.0, -1.0, -INF, -INF, -INF, 0.0, -1e-45, -700.0], dtype=dtype)
    assert displacement(p, q).tolist() == [0.0, INF, -INF, -INF, INF, 0.0, INF, -INF, 0.0, 0.0]
    assert displacement(p, q).dtype == dtype


def test_displacement_is_antisymmetric_and_never_nan():
    target, behavior = columns()
    there, back = displacement(target, behavior), displacement(behavior, target)
    assert torch.equal(there, -back)
    assert not there.isnan().any()
    assert torch.equal(there.sign(), (target - behavior).sign())


def test_single_precision_resolves_a_token_whose_probability_is_one_in_it():
    p, q = torch.tensor([-1e-9]), torch.tensor([-2e-9])
    assert float(displacement(p, q)) == pytest.approx(math.log(2.0), rel=1e-6)


# ------------------------------------------------------------------------------------------- the cap
def cap_errors(cap, lam, floor, cap_form):
    target, _ = columns()
    target = torch.unique(target)
    wrong = []
    for logp, got in zip(target.tolist(), cap(target, lam, floor, cap_form).tolist(), strict=True):
        phi = max(-mpmath.expm1(mpmath.mpf(logp)), mpmath.mpf(floor))
        lam_ = mpmath.mpf(lam)
        want = {"odds": 1 + phi * mpmath.expm1(lam_), "linear": 1 + lam_ * phi, "loglinear": mpmath.exp(lam_ * phi)}
        if not close(got, mpmath.log(want[cap_form])):
            wrong.append((logp, got))
    return wrong


@pytest.mark.parametrize("floor", [0.0, 5e-3, 1.0])
@pytest.mark.parametrize("lam", [0.0, 1e-20, 2.3, 1000.0])
@pytest.mark.parametrize("cap_form", CAP_FORMS)
def test_the_log_cap_equals_its_formula(cap_form, lam, floor):
    """Relative to the log cap itself: at p = 1 - 1e-12 without a floor it is 1e-11, and 1 - exp(log p) would be 1e-4 off."""
    assert cap_errors(confidence_log_cap, lam, floor, cap_form) == []


@pytest.mark.parametrize("cap_form", CAP_FORMS)
def test_a_naive_complement_shows_in_the_log_cap(cap_form, monkeypatch):
    monkeypatch.setattr(confidence.torch, "expm1", lambda x: x.exp() - 1.0)
    assert cap_errors(confidence_log_cap, 2.3, 0.0, cap_form) != []


@pytest.mark.parametrize("cap_form", CAP_FORMS)
def test_an_infinite_threshold_is_no_cap_unless_nothing_is_in_doubt(cap_form):
    logp = torch.tensor([-1.0, 0.0], dtype=torch.float64)
    assert confidence_log_cap(logp, INF, 0.0, cap_form).tolist() == [INF, 0.0]
    assert confidence_log_cap(logp, INF, 1e-3, cap_form).tolist() == [INF, INF]


def test_the_cap_tightens_with_confidence_and_its_forms_are_ordered():
    logp = -torch.logspace(-9, 2, 300, dtype=torch.float64)
    odds, linear, loglinear = (confidence_log_cap(logp, 2.3, 0.0, form) for form in CAP_FORMS)
    for cap in (odds, linear, loglinear):
        assert (cap.diff() >= 0).all() and (cap > 0).all()
    assert (linear <= loglinear * (1 + 1e-12)).all() and (loglinear <= odds * (1 + 1e-12)).all()


def test_the_published_numbers_of_each_form():
    logp = torch.log(torch.tensor([0.26, 0.5, 0.9, 0.95, 0.99, 1.0], dtype=torch.float64))
    for form, wanted in {
        "odds": [7.64, 5.49, 1.90, 1.45, 1.09, 1.0449],
        "linear": [2.70, 2.15, 1.23, 1.115, 1.023, 1.0115],
        "loglinear": [5.48, 3.16, 1.26, 1.12, 1.023, 1.0116],
    }.items():
        assert confidence_log_cap(logp, cap_form=form).exp().tolist() == pytest.approx(wanted, abs=6e-3)


def test_cis_without_its_floor_is_a_threshold_on_the_displacement():
    target, behavior = columns()
    cut = truncate_displacement(target, behavior, 2.3)
    batch = batch_of(target[:, None], behavior[:, None])
    torch.testing.assert_close(weigh("cis", batch, floor=0.0).value[:, 0], cut, rtol=1e-12, atol=0)
    acted = weigh("cis", batch, floor=0.0).acted[:, 0]
    assert torch.equal(acted, displacement(target, behavior) > 2.3)
    with pytest.raises(InputError, match="`lam` must be >= 0"):
        truncate_displacement(target, behavior, -1.0)


def test_the_cap_is_the_trainers_confidence_and_not_the_samplers():
    batch = batch_of([[math.log(0.5)]], [[math.log(0.01)]])
    assert float(weigh("cis", batch).value) == pytest.approx(1 + 0.5 * math.expm1(2.3))


def test_the_reading_is_marked_wherever_the_rule_is_described():
    rule = RULES["cis"]
    assert "a reading" in rule.summary and "READING" in rule.source
    for text in (confidence.__doc__, confidence_log_cap.__doc__, confidence.weigh_cis.__doc__):
        assert "reading" in (text or "").lower()


# ------------------------------------------------------------------------------------------- the bound from below
def low_errors(low_of, low):
    """Probabilities of the grid at which the bound is off by more than 1e-10 of its value."""
    target, _ = columns()
    target = torch.unique(target)
    wrong = []
    for logp, got in zip(target.tolist(), low_of(target, low).exp().tolist(), strict=True):
        p = mpmath.exp(mpmath.mpf(logp))
        want = p + (1 - p) * mpmath.mpf(low) if logp > -INF else mpmath.mpf(0)
        if not close(got, want):
            wrong.append((logp, got))
    return wrong


@pytest.mark.parametrize("low", [0.0, 1e-25, 0.5, 1.0])
def test_the_bound_from_below_equals_its_formula(low):
    assert low_errors(confidence.confidence_log_low, low) == []


@pytest.mark.parametrize(
    "wrong",
    [
        lambda logp, low: torch.log1p(torch.expm1(logp) * (1.0 - low)),  # an impossible token gets a weight
        lambda logp, low: torch.where(torch.isneginf(logp), logp, torch.log1p(torch.expm1(logp) * (1.0 - low))),
    ],
    ids=["impossible_token", "complement_of_a_complement"],
)
def test_a_wrong_bound_from_below_is_seen(wrong):
    assert low_errors(wrong, 1e-25) != []


def test_the_two_sided_band_raises_what_lies_below_minus_log_two():
    """The paper's (1+p)/2 is the ratio of a displacement of -log 2; without it CIS raises nothing."""
    target, behavior = columns(certain=False)
    batch, eps = batch_of(target[:, None], behavior[:, None]), displacement(target, behavior)
    one, two = (weigh("cis", batch, floor=0.0, low=low) for low in (0.0, 0.5))
    below = (eps < -math.log(2.0) - 1e-9)[:, None]
    assert 50 < int(below.sum()) < below.numel() - 50
    torch.testing.assert_close(two.value[below], 0.5 + 0.5 * target[:, None][below].exp(), rtol=1e-12, atol=0)
    above = (eps > -math.log(2.0) + 1e-9)[:, None]
    assert torch.equal(one.value[above], two.value[above]) and torch.equal(one.acted[above], two.acted[above])
    assert not one.acted[below].any()
    assert torch.equal(two.acted[below], two.value[below] != one.value[below])
    assert two.acted[below].float().mean() > 0.9


def test_no_odds_below_which_to_raise_is_the_rule_without_the_band():
    target, behavior = columns()
    batch = batch_of(target[:, None], behavior[:, None])
    assert torch.equal(weigh("cis", batch).value, weigh("cis", batch, low=0.0).value)
    assert (confidence.confidence_log_low(target, 0.0) <= (target - behavior).nan_to_num(0.0) + 1e-12).all()


# ------------------------------------------------------------------------------------------- coins
def test_coin_divergence_equals_its_formula():
    target, behavior = columns()
    for first, second in ((target, behavior), (behavior, target)):
        got = binary_kl(first, second)
        for a, b, value in zip(first.tolist(), second.tolist(), got.tolist(), strict=True):
            want = coin_divergence(mpmath.exp(mpmath.mpf(a)), mpmath.exp(mpmath.mpf(b)))
            assert abs(mpmath.mpf(value) - want) <= mpmath.mpf("1e-12") * (1 + abs(want)), (a, b)


def test_coin_divergence_at_its_ends():
    a = torch.tensor([0.0, -INF, -INF, -1.0, -INF], dtype=torch.float64)
    b = torch.tensor([0.0, -INF, -1.0, -INF, 0.0], dtype=torch.float64)
    got = binary_kl(a, b).tolist()
    assert got[:2] == [0.0, 0.0] and got[3] == INF
    assert got[2] == pytest.approx(-math.log1p(-math.exp(-1.0))) and got[4] == pytest.approx(-math.log(1e-8))


@pytest.mark.parametrize(
    ("p", "high", "digit"),
    [(0.99, 2.36, 0.01), (0.9, 11.8, 0.1), (0.7, 28.9, 0.1), (0.5, 108.69, 0.01), (0.3, 1805, 1), (0.1, 1.3e9, 1e8)],
)
def test_kpop_admits_the_published_ratios(p, high, digit):
    """Up to the bound every ratio passes, past it none, and the bound rises without end as p falls."""
    for ratio, kept in ((high - digit, True), (high + digit, False), (1.0, True)):
        batch = batch_of([[math.log(p)]], [[math.log(p / ratio)]])
        assert weigh("kpop", batch).gate.item() is kept, ratio


# ------------------------------------------------------------------------------------------- ties
@pytest.mark.parametrize("dtype", BOTH)
def test_ties_of_the_probability_change_are_kept(dtype):
    for p, q, sign in ((0.7, 0.5, 1.0), (0.5, 0.7, -1.0), (0.25, 0.05, 1.0), (0.999, 0.799, 1.0)):
        batch = batch_of([[math.log(p)]], [[math.log(q)]], reward=[sign], dtype=dtype)
        assert weigh("dppo_tv", batch).gate.all()
        assert weigh("dppo_tv", batch, eps_low=0.1999, eps_high=0.1999).gate.any().item() is False


@pytest.mark.parametrize("dtype", BOTH)
@pytest.mark.parametrize(("rule", "names"), [("kpop", ("phi",)), ("dppo_kl", ("eps_low", "eps_high"))])
def test_ties_of_the_coin_divergence_are_kept(rule, names, dtype):
    """The bound put where the exact divergence is: kept; a thousandth below: dropped."""
    for p, q, sign in ((0.7, 0.4, 1.0), (0.3, 0.6, -1.0), (0.9, 0.5, 1.0)):
        a, b = mpmath.mpf(p), mpmath.mpf(q)
        size = coin_divergence(b, a) if rule == "dppo_kl" else max(coin_divergence(a, b), coin_divergence(b, a))
        batch = batch_of([[math.log(p)]], [[math.log(q)]], reward=[sign], dtype=dtype)
        for scale, kept in ((1.0, True), (0.999, False)):
            assert weigh(rule, batch, **dict.fromkeys(names, float(size) * scale)).gate.item() is kept
