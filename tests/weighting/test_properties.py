"""Properties of the rules on arbitrary batches."""

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given

from testbed.weighting.granularity import GRANULARITIES, log_ratios
from testbed.weighting.rules import RULES, weigh
from tests.weighting.worlds import PAIRS, batch_with_ratios, random_batch, runnable

seeds = st.integers(0, 2**32 - 1)
scales = st.sampled_from([1e-3, 0.5, 3.0, 200.0])
# the tests that run for every pair share the budget of examples among the pairs
few = hypothesis.settings(max_examples=max(8, hypothesis.settings.default.max_examples // 6))


def batches(seed, scale=1.0):
    rng = np.random.default_rng(seed)
    return random_batch(rng, rows=int(rng.integers(2, 6)), horizon=int(rng.integers(1, 8)), scale=scale)


def run(rule, granularity, batch, **params):
    return weigh(rule, batch, granularity=granularity, **{**runnable(rule), **params})


@pytest.mark.parametrize(("rule", "granularity"), PAIRS)
@few
@given(seed=seeds)
def test_on_policy_weight_is_exactly_one(rule, granularity, seed):
    batch = batches(seed)
    on_policy = batch.replaced(logp_target=batch.logp_behavior, logp_proximal=batch.logp_behavior)
    w = run(rule, granularity, on_policy)
    assert torch.equal(w.value, batch.mask.to(w.value.dtype))
    assert torch.equal(w.gate, batch.mask)
    assert not w.acted.any()
    if w.objective is not None:
        assert torch.equal(w.objective, torch.where(batch.mask, batch.reward[:, None], 0.0))


@pytest.mark.parametrize(("rule", "params"), [("tis", {"cap": 0.5}), ("icepop", {"low": 1.5, "high": 5.0})])
def test_a_region_without_one_changes_on_policy_data(rule, params, rng):
    batch = random_batch(rng)
    w = weigh(rule, batch.replaced(logp_target=batch.logp_behavior), **params)
    assert (w.value[batch.mask] != 1.0).all()
    assert w.acted[batch.mask].all()


@pytest.mark.parametrize(("rule", "granularity"), PAIRS)
@few
@given(seed=seeds, scale=scales)
def test_rows_do_not_see_each_other(rule, granularity, seed, scale):
    batch = batches(seed, scale)
    order = torch.tensor(np.random.default_rng(seed).permutation(batch.batch_size))
    w, shuffled = run(rule, granularity, batch), run(rule, granularity, batch.select(order))
    assert torch.equal(shuffled.value, w.value[order])
    assert torch.equal(shuffled.acted, w.acted[order])
    for row in range(batch.batch_size):
        assert torch.equal(run(rule, granularity, batch.select([row])).value[0], w.value[row])


@pytest.mark.parametrize(("rule", "granularity"), PAIRS)
@few
@given(seed=seeds, scale=scales, left=st.integers(0, 3), right=st.integers(0, 3))
def test_padding_anywhere_changes_nothing(rule, granularity, seed, scale, left, right):
    batch = batches(seed, scale)

    def padded(x):
        return torch.nn.functional.pad(x, (left, right))

    fields = ("tokens", "mask", "segment", "logp_target", "logp_behavior", "logp_proximal")
    wider = batch.replaced(**{name: padded(getattr(batch, name)) for name in fields})
    w, wide = run(rule, granularity, batch), run(rule, granularity, wider)
    keep = slice(left, left + batch.horizon)
    assert torch.equal(wide.gate[:, keep], w.gate)
    torch.testing.assert_close(wide.value[:, keep], w.value, rtol=1e-10, atol=0)  # sums may group differently
    assert wide.saturated == w.saturated


@given(seed=seeds, scale=scales)
def test_segments_multiply_to_the_response(seed, scale):
    batch = batches(seed, scale)
    segment, through, whole, prefix, token, mean = (
        log_ratios(batch, g)
        for g in ("segment", "segment_prefix", "sequence_product", "prefix", "token", "sequence_geomean")
    )
    for b in range(batch.batch_size):
        real = batch.mask[b].nonzero().flatten()
        if not len(real):
            continue
        firsts = [t for i, t in enumerate(real) if i == 0 or batch.segment[b, t] != batch.segment[b, real[i - 1]]]
        last = real[-1]
        close = {"rtol": 1e-10, "atol": 1e-12 * max(scale, 1.0)}
        torch.testing.assert_close(segment[b, firsts].sum(), whole[b, last], **close)
        torch.testing.assert_close(token[b, real].sum(), whole[b, last], **close)
        torch.testing.assert_close(through[b, last], whole[b, last], **close)
        torch.testing.assert_close(prefix[b, last], whole[b, last], **close)
        torch.testing.assert_close(mean[b, last] * len(real), whole[b, last], **close)
        for t in firsts[1:]:
            torch.testing.assert_close(through[b, t] - segment[b, t], prefix[b, t] - token[b, t], **close)


@pytest.mark.parametrize("granularity", GRANULARITIES)
@few
@given(seed=seeds, scale=scales)
def test_an_infinite_bound_is_the_exact_ratio(granularity, seed, scale):
    batch = batches(seed, scale)
    exact = weigh("exact", batch, granularity=granularity)
    for rule, params in [
        ("tis", {"cap": np.inf}), ("mis", {"cap": np.inf}), ("icepop", {"low": 0.0, "high": np.inf}),
        ("band", {"low": 0.0, "high": np.inf}), ("cispo", {"eps_low": 1.0, "eps_high": np.inf}),
        ("ppo_clip", {"eps_low": 1.0, "eps_high": np.inf}),
        ("dual_clip", {"eps_low": 1, "eps_high": np.inf, "dual": np.inf}),
    ]:  # fmt: skip
        w = weigh(rule, batch, granularity=granularity, **params)
        assert torch.equal(w.value, exact.value), rule
        assert not w.acted.any()


@given(seed=seeds, scale=scales)
def test_infinite_bounds_of_the_rules_on_products(seed, scale):
    batch = batches(seed, scale)
    product = weigh("sequence_product", batch).value
    assert torch.equal(weigh("seq_tis", batch, cap=np.inf).value, product)
    assert torch.equal(weigh("seq_mis", batch, cap=np.inf).value, product)
    assert torch.equal(weigh("spire", batch, cap="none").value, weigh("segment_prefix", batch).value)
    prefix = weigh("prefix", batch).value
    vtrace = weigh("vtrace", batch, rho_cap=np.inf, c_cap=np.inf)
    torch.testing.assert_close(vtrace.value, prefix, rtol=1e-10, atol=0)
    assert not vtrace.acted.any()


@given(seed=seeds, scale=scales, cap=st.floats(0.1, 50.0))
def test_truncation_never_raises_a_weight(seed, scale, cap):
    """A one-sided cap is one-sided; the two-sided clamp, which is not, has another name."""
    batch = batches(seed, scale)
    for rule in ("tis", "seq_tis", "spire"):
        w = weigh(rule, batch, cap=cap)
        assert (w.value <= w.raw).all()
        assert (w.value <= cap).all()
        assert torch.equal(w.value[w.raw <= cap], w.raw[w.raw <= cap])


def test_a_two_sided_clamp_raises_small_weights_and_is_no_truncation():
    batch = batch_with_ratios(torch.log(torch.tensor([[0.2, 1.0, 9.0]], dtype=torch.float64)))
    assert weigh("tis", batch, cap=5.0).value[0].tolist() == pytest.approx([0.2, 1.0, 5.0])
    assert weigh("band", batch).value[0].tolist() == pytest.approx([0.5, 1.0, 5.0])


@given(seed=seeds, scale=scales, small=st.floats(0.1, 3.0), factor=st.floats(1.0, 5.0))
def test_a_larger_cap_never_lowers_a_weight(seed, scale, small, factor):
    batch = batches(seed, scale)
    for rule in ("tis", "mis", "seq_tis", "seq_mis", "spire"):
        assert (weigh(rule, batch, cap=small).value <= weigh(rule, batch, cap=small * factor).value).all()


@given(seed=seeds, scale=scales)
def test_one_segment_or_one_token_collapses_the_granularities(seed, scale):
    batch = batches(seed, scale)
    single = batch.replaced(segment=torch.zeros_like(batch.segment))
    whole = log_ratios(single, "sequence_product")
    for granularity in ("segment", "segment_prefix"):
        torch.testing.assert_close(log_ratios(single, granularity), whole, rtol=1e-12, atol=1e-12 * scale)
    first = torch.zeros_like(batch.mask)
    first[:, 0] = batch.mask[:, 0]
    short = batch.replaced(mask=first)
    for granularity in GRANULARITIES:
        assert torch.equal(log_ratios(short, granularity), log_ratios(short, "token"))


def test_every_rule_of_the_registry_is_covered():
    assert {rule for rule, _ in PAIRS} == set(RULES)
    assert len(PAIRS) == 10 * 6 + 31
