"""The exact cap against brute force, closed forms against their definitions, degenerate laws, refusals."""

import math
import pickle
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.optimize import minimize_scalar
from scipy.stats import lognorm

import testbed
from testbed.core.errors import InputError
from testbed.core.seeds import SeedTree
from testbed.weighting.cap_bounds import segment_bound
from testbed.weighting.cap_exact import second_moment_cap
from testbed.weighting.cap_law import cap_law
from testbed.weighting.optimal_cap import capped_error, error_slopes, local_minima, optimal_cap, segment_caps
from testbed.weighting.weight_families import Finite, LogNormal, TwoPoint, UniformRatio

GRID = 100_000


def random_law(rng, mean_one=True):
    """Return weights (ties, zeros and one-point laws included) and probabilities."""
    count = int(rng.integers(1, 30))
    w = np.exp(rng.normal(0.0, rng.uniform(0.01, 3.0), count))
    if count > 3:
        w[1] = w[2]
        w[0] *= rng.random() < 0.7
    p = rng.dirichlet(np.ones(count))
    return (w / (p @ w) if mean_one else w), p


def errors_at(caps, w, p, n, f):
    """Exact mean squared error at each cap, from the definition: the variance about the mean, which cannot cancel."""
    bias = np.zeros((len(caps), f.shape[1]))
    mean, variance = np.zeros_like(bias), np.zeros(len(caps))
    for weight, prob, signal in zip(w, p, f, strict=True):
        kept = np.minimum(weight, caps)
        bias += prob * (kept - weight)[:, None] * signal
        mean += prob * kept[:, None] * signal
    for weight, prob, signal in zip(w, p, f, strict=True):
        variance += prob * ((np.minimum(weight, caps)[:, None] * signal - mean) ** 2).sum(1)
    return (bias**2).sum(1) + variance / n


@pytest.mark.parametrize(("signals", "laws"), [("constant", 200), ("scalar", 200), ("vector", 60)])
def test_no_cap_on_a_fine_grid_or_at_an_atom_is_better(signals, laws):
    root = SeedTree("optimal_cap against a grid")[signals]
    for number in range(laws):
        rng = root[number].numpy_generator()
        w, p = random_law(rng)
        n = int(rng.choice([1, 2, 3, 8, 64, 1024]))
        f = {"constant": None, "scalar": rng.normal(size=len(w)), "vector": rng.normal(size=(len(w), 3))}[signals]
        cap = optimal_cap(torch.tensor(w), torch.tensor(p), n, signal=None if f is None else torch.tensor(f))
        columns = np.ones((len(w), 1)) if f is None else f.reshape(len(w), -1)
        caps = np.concatenate([np.linspace(0.0, 1.05 * w.max(), GRID), w, [np.inf]])
        best = errors_at(caps, w, p, n, columns).min()
        assert cap.mse <= best * (1 + 1e-10) + 1e-15
        at_cap = errors_at(np.array([float(cap)]), w, p, n, columns)[0]
        assert cap.mse == pytest.approx(at_cap, rel=1e-9, abs=1e-15)


@given(st.integers(0, 2**32 - 1), st.integers(1, 10**6))
def test_the_cap_is_the_root_in_exact_arithmetic(seed, n):
    rng = np.random.default_rng(seed)
    count = int(rng.integers(2, 9))
    weights = [Fraction(int(x), 8) for x in rng.integers(0, 60, count)]
    parts = [int(x) for x in rng.integers(1, 9, count)]
    probs = [Fraction(x, sum(parts)) for x in parts]
    mean = sum(a * b for a, b in zip(probs, weights, strict=True))
    if mean == 0 or len(set(weights)) == 1:
        return
    weights = [w / mean for w in weights]
    root = next(
        c
        for low, high in zip([0, *sorted(weights)], [*sorted(weights), 10**9], strict=True)
        for over in [[(p, w) for p, w in zip(probs, weights, strict=True) if w >= high]]
        for c in [(1 + (n - 1) * sum(p * w for p, w in over)) / (1 + (n - 1) * sum((p for p, _ in over), Fraction(0)))]
        if low <= c <= high
    )
    cap = optimal_cap([float(w) for w in weights], [float(p) for p in probs], n)
    assert float(cap) == pytest.approx(float(root), rel=1e-12)
    assert cap.bias == pytest.approx(
        -float(sum(p * max(w - root, 0) for p, w in zip(probs, weights, strict=True))), rel=1e-9
    )


@given(st.integers(0, 2**32 - 1), st.integers(1, 500))
def test_a_constant_signal_is_no_special_case(seed, n):
    w, p = random_law(np.random.default_rng(seed))
    plain, found = optimal_cap(w, p, n), optimal_cap(w, p, n, signal=np.full(len(w), -2.0))
    assert min(float(found), w.max()) == pytest.approx(min(float(plain), w.max()), rel=1e-9)
    assert found.mse == pytest.approx(4.0 * plain.mse, rel=1e-9, abs=1e-18)
    assert (plain.theorem, found.theorem) == ("O1", "O2")


@pytest.mark.parametrize("n", [1, 2, 16, 1000, 10**6])
@pytest.mark.parametrize("sigma", [1e-3, 0.3, 1.2, 3.0])
def test_log_normal_cap_minimizes_the_error_by_quadrature(sigma, n):
    cap = optimal_cap(LogNormal(sigma), n=n)
    law = lognorm(sigma, scale=math.exp(-(sigma**2) / 2))
    tail = quad(lambda z: (math.exp(sigma * z - sigma**2 / 2) - cap) * math.exp(-z * z / 2) / math.sqrt(2 * math.pi),
                math.log(cap) / sigma + sigma / 2, 40.0, epsabs=0, epsrel=1e-11, limit=400)[0]  # fmt: skip
    assert cap.bias == pytest.approx(-tail, rel=1e-9)
    assert float(cap) == pytest.approx(1.0 + (n - 1) * tail, rel=1e-9)
    assert law.mean() == pytest.approx(1.0)


@pytest.mark.parametrize(
    "family", [TwoPoint(0.0, 2.0), TwoPoint(0.96, 41.0), UniformRatio(0.7), LogNormal(1.2)], ids=str
)
@pytest.mark.parametrize("n", [2, 8, 100])
def test_families_against_a_minimizer(family, n):
    cap = optimal_cap(family, n=n)
    top = min(family.supremum, 1e3)
    found = minimize_scalar(lambda c: capped_error(family, cap=c, n=n).mse, bounds=(0, top), options={"xatol": 1e-9})
    assert float(cap) == pytest.approx(found.x, abs=1e-4)
    assert cap.mse <= found.fun * (1 + 1e-12)
    assert 1.0 <= cap < family.supremum


def test_finite_families_and_lists_are_one():
    law = ([0.0, 0.5, 2.5], [0.25, 0.4375, 0.3125])
    a, b = optimal_cap(Finite(*law), n=9), optimal_cap(*law, n=9)
    assert (float(a), a.mse, a.bias) == (float(b), b.mse, b.bias)
    assert float(optimal_cap(TwoPoint(0.0, 2.0), n=8)) == pytest.approx(16 / 9, rel=1e-15)


# ---------------------------------------------------------------------------------------------- degenerate laws
def test_one_draw_gives_one():
    for weights, probs in (
        ([0.0, 2.0], [0.5, 0.5]),
        ([0.1, 7.0], None),
        (LogNormal(2.0), None),
        (TwoPoint(1, 1), None),
    ):
        assert float(optimal_cap(weights, probs, 1)) == 1.0


@pytest.mark.parametrize("n", [1, 2, 100])
def test_on_policy_no_cap_acts(n):
    for weights, probs in (([1.0] * 4, [0.25] * 4), ([1.0] * 4, None), (LogNormal(0), None), (UniformRatio(0), None)):
        cap = optimal_cap(weights, probs, n)
        assert (float(cap), cap.bias, cap.variance, cap.mse) == (1.0, 0.0, 0.0, 0.0)


def test_equal_weights_of_a_sample_are_left_alone():
    assert float(optimal_cap([3.0, 3.0, 3.0])) == 3.0
    assert float(optimal_cap([0.2, 0.2, 0.2])) == 1.0
    assert float(optimal_cap([0.2, 0.5, 0.9])) == 1.0
    assert optimal_cap([0.0, 0.0]).mse == 0.0


def test_zero_is_the_answer_for_a_signal_of_mean_zero():
    cap = optimal_cap([0.5, 1.5], [0.5, 0.5], 10, signal=[3.0, -1.0])
    assert (float(cap), cap.mse) == (0.0, 0.0)


def test_no_cap_is_the_answer_where_large_weights_are_right():
    cap = optimal_cap([0.0, 1.0, 5.0], [0.4, 0.5, 0.1], 10, signal=[1.0, 1.0, 0.1])
    assert float(cap) == cap.cap == math.inf
    assert cap.bias == 0.0


# ---------------------------------------------------------------------------------------------- several minima
def test_local_minima_are_all_there():
    root = SeedTree("local minima")
    kinds = set()
    for number in range(60):
        rng = root[number].numpy_generator()
        w, p = random_law(rng)
        f, n = rng.normal(size=(len(w), 1)), int(rng.choice([1, 3, 30]))
        minima = local_minima(w, p, n=n, signal=f)
        kinds |= {m.kind for m in minima}
        for m in minima:
            near = [max(m.cap * (1 + step), 0.0) for step in (-1e-7, 1e-7)] if 0 < m.cap < math.inf else [1e-7]
            if m.cap < math.inf:
                assert all(m.mse <= capped_error(w, p, cap=c, n=n, signal=f).mse * (1 + 1e-12) + 1e-30 for c in near)
            left, right = error_slopes(w, p, cap=min(m.cap, w.max()), n=n, signal=f)
            scale = 1e-9 * (1 + abs(left))
            assert {
                "root": abs(left) < scale,
                "atom": left < 0 < right,
                "zero": right >= -scale,
                "none": left <= scale,
            }[m.kind]
        caps = np.linspace(0, w.max(), 4001)
        errors = errors_at(caps, w, p, n, f)
        dips = (
            np.flatnonzero((errors[1:-1] < errors[:-2] * (1 - 1e-12)) & (errors[1:-1] < errors[2:] * (1 - 1e-12))) + 1
        )
        for dip in dips:
            assert any(caps[dip - 1] <= m.cap <= caps[dip + 1] for m in minima)
    assert kinds == {"root", "atom", "zero", "none"}


def test_slopes_are_derivatives():
    w, p, f = [0.25, 1.0, 3.0], [0.5, 0.3125, 0.1875], [1.0, -2.0, 0.5]
    for cap in (0.1, 0.7, 1.0, 2.0, 3.0, 5.0):
        left, right = error_slopes(w, p, cap=cap, n=7, signal=f)
        at, before, after = (capped_error(w, p, cap=c, n=7, signal=f).mse for c in (cap, cap - 1e-6, cap + 1e-6))
        assert left == pytest.approx((at - before) / 1e-6, abs=1e-5)
        assert right == pytest.approx((after - at) / 1e-6, abs=1e-5)


def test_second_moment_in_place_of_variance():
    for n in (1, 4, 50):
        assert second_moment_cap(cap_law([1.0], [1.0]), n) == pytest.approx(n / (n + 1), rel=1e-15)
        w, p = random_law(SeedTree("second moment")[n].numpy_generator())
        law = cap_law(w, p)
        cap = second_moment_cap(law, n)
        caps = np.linspace(0, w.max(), 20001)
        objective = [
            np.sum(p * np.maximum(w - c, 0)) ** 2 + np.sum(p * np.minimum(w, c) ** 2) / n for c in (cap, *caps)
        ]
        assert objective[0] <= min(objective) * (1 + 1e-12)


# ---------------------------------------------------------------------------------------------- closed forms, samples
def test_closed_forms():
    w, p = [0.0, 4.0], [0.75, 0.25]  # d2 = 4
    assert float(optimal_cap(w, p, 4, "d2")) == 2.0
    assert float(optimal_cap(w, p, 24, "chi2")) == pytest.approx(4.0, rel=1e-15)
    assert float(optimal_cap(w, p, 4, "sharp")) == pytest.approx(1 + 0.75 * math.sqrt(3), rel=1e-15)
    assert [optimal_cap(w, p, 4, m).theorem for m in ("exact", "d2", "chi2", "sharp")] == ["O1", "O3", "O4", "O9"]
    assert float(optimal_cap(LogNormal(30.0), n=4, method="d2")) == math.inf


@given(st.lists(st.floats(1.0, 50.0), min_size=1, max_size=4), st.integers(1, 1000))
def test_segment_caps_are_stationary(d2, n):
    caps = segment_caps(d2, n)
    best = segment_bound(d2, n, caps)
    for k in range(len(d2)):
        for factor in (0.9, 1.1):
            moved = caps.clone()
            moved[k] *= factor
            assert segment_bound(d2, n, moved) > best


def test_a_sample_uses_the_mean_it_knows():
    sample = torch.tensor([0.2, 0.5, 0.7, 2.6])
    cap = optimal_cap(sample)
    assert cap.n == 4
    assert float(cap) == pytest.approx(1 + 3 * (2.6 - cap) / 4, rel=1e-6)
    assert float(optimal_cap(sample.double(), n=100)) == pytest.approx(
        1 + 99 * (2.6 - float(optimal_cap(sample, n=100))) / 4
    )


def test_the_interval_of_a_sample_holds_its_cap_and_says_its_level(rng):
    sample = torch.tensor(rng.lognormal(-0.5, 1.0, 60))
    for signal in (None, torch.tensor(rng.choice([0.0, 1.0], 60))):
        cap = optimal_cap(sample, n=60, signal=signal, interval=True, level=0.9, resamples=200)
        assert cap.interval.level == 0.9
        assert min(float(cap), float(sample.max())) in cap.interval
        again = optimal_cap(sample, n=60, signal=signal, interval=True, level=0.9, resamples=200)
        assert again.interval == cap.interval
    other = optimal_cap(sample, n=60, interval=True, seeds=SeedTree("other"), resamples=200)
    assert other.interval != optimal_cap(sample, n=60, interval=True, resamples=200).interval


def test_vector_bias_and_round_trips():
    f = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    cap = optimal_cap([0.5, 1.0, 2.0], [0.5, 0.25, 0.25], 20, signal=f)
    assert cap.bias.shape == (2,)
    assert pickle.loads(pickle.dumps(cap)).mse == cap.mse
    assert testbed.optimal_cap is optimal_cap


def test_single_precision_laws_are_accepted():
    w, p = random_law(SeedTree("single")["law"].numpy_generator())
    single = optimal_cap(torch.tensor(w, dtype=torch.float32), torch.tensor(p, dtype=torch.float32), 8)
    assert float(single) == pytest.approx(float(optimal_cap(w, p, 8)), rel=1e-5)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: optimal_cap([], n=4), "at least one weight"),
        (lambda: optimal_cap([1.0], [0.0], 4), "probability law"),
        (lambda: optimal_cap([1.0, math.inf], n=4), "`weights` must be finite; found 1 inf"),
        (lambda: optimal_cap([1.0, math.nan], n=4), "NaN"),
        (lambda: optimal_cap([1.0, -1.0], n=4), "`weights` must be >= 0"),
        (lambda: optimal_cap([1.0, 2.0], [0.5, 0.5], 4), "mean of the weights of an exact law must be 1; found 1.5"),
        (lambda: optimal_cap([1.0, 1.0], [0.5, 0.6], 4), "total 1.1"),
        (lambda: optimal_cap([1.0, 1.0], [1.5, -0.5], 4), "probability law"),
        (lambda: optimal_cap([1.0, 1.0], [1.0], 4), "one entry per weight"),
        (lambda: optimal_cap([0.0, 2.0], [0.5, 0.5]), "`n` is needed"),
        (lambda: optimal_cap(LogNormal(1.0)), "`n` is needed"),
        (lambda: optimal_cap([1.0], n=0), "`n` must be >= 1"),
        (lambda: optimal_cap([1.0], n=math.inf), "`n` must be finite"),
        (lambda: optimal_cap([1.0], n=math.nan), "`n` must be a number"),
        (lambda: optimal_cap([1.0], n=2, method="D2"), "did you mean d2"),
        (lambda: optimal_cap([1.0], n=2, signal=[1.0, 2.0]), "one number or one vector per weight"),
        (lambda: optimal_cap([1.0], n=2, signal=[math.inf]), "`signal` must be finite"),
        (lambda: optimal_cap(LogNormal(1.0), n=2, signal=[1.0]), "`signal` does not go"),
        (lambda: optimal_cap(UniformRatio(1.0), [1.0], 2), "`probs` does not go"),
        (lambda: optimal_cap(TwoPoint(0, 2), [1.0], 2), "own probabilities"),
        (lambda: optimal_cap([0.0, 2.0], [0.5, 0.5], 4, interval=True), "an interval is for a sample"),
        (lambda: capped_error([1.0], cap=-1.0, n=4), "`cap`"),
        (lambda: segment_caps([], 4), "`d2_per_segment`"),
        (lambda: segment_caps([1.0, math.inf], 4), "`d2_per_segment`"),
    ],
)  # fmt: skip
def test_refusals(call, words):
    with pytest.raises(InputError, match=words):
        call()
