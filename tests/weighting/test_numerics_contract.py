"""The numerics contract, clause by clause, for every rule at every granularity it accepts."""

import math

import numpy as np
import pytest
import torch

from testbed.core.errors import InputError
from testbed.weighting.granularity import log_ratios
from testbed.weighting.rules import weigh
from tests.weighting.worlds import OPERATOR_FREE, PAIRS, SURROGATES, batch_of, batch_with_ratios, ready, same

POISON = [math.nan, math.inf, -math.inf, 1e30]
LOG_PROBS = ("logp_target", "logp_behavior", "logp_proximal")
# largest value a rule may give to a huge ratio; clip-type rules: (positive, negative advantage)
LIMIT = {
    "none": 1.0, "tis": 2.0, "mis": 0.0, "icepop": 0.0, "band": 5.0, "seq_tis": 2.0, "seq_mis": 0.0, "geo_mask": 0.0,
    "cispo": 5.0, "spire": 3.0, "vtrace": 1.0, "cis": 1.04488, "kpop": 0.0,
    "k1_token": 0.0, "k2_token": 0.0, "k3_token": 0.0, "k1_sequence": 0.0, "k2_sequence": 0.0, "k3_sequence": 0.0,
    "veto": 1.0, "opsm": 1.0, "sis": 1.0, "obrs": 2.0, "topr": 1.0, "vespo": 0.0,
    "m2po": (0.0, math.inf), "mu_grpo": (0.0, math.inf), "dppo_tv": (0.0, 3.0), "dppo_kl": (0.0, 3.0),
    "ppo_clip": (0.0, math.inf), "gspo": (0.0, math.inf), "dual_clip": (0.0, 0.0), "decoupled_ppo": (0.0, math.inf),
}  # fmt: skip
# the edges of each rule's gate as (ratio on the edge, ratio just past it, advantage)
TIES = {
    "mis": [(3.0, 3.0003, 1)], "icepop": [(5.0, 5.0005, 1), (0.5, 0.49995, 1)],
    "seq_mis": [(3.0, 3.0003, 1)], "geo_mask": [(1.001, 1.00101, 1), (0.999, 0.99899, 1)],
    "gspo": [(1.0004, 1.00041, 1), (0.9997, 0.99969, -1)], "ppo_clip": [(1.2, 1.20001, 1), (0.8, 0.79999, -1)],
    "dual_clip": [(1.2, 1.20001, 1), (0.8, 0.79999, -1), (3.0, 3.0003, -1)],
    "decoupled_ppo": [(1.2, 1.20001, 1), (0.8, 0.79999, -1)],
    "k1_token": [(5.0, 5.0005, 1), (0.5, 0.49995, 1)], "k1_sequence": [(1.001, 1.00101, 1), (0.999, 0.99899, 1)],
    "k2_token": [(math.exp(s * math.sqrt(0.5)), math.exp(s * math.sqrt(0.5001)), 1) for s in (1, -1)],
    "k2_sequence": [(math.exp(s * math.sqrt(0.02)), math.exp(s * math.sqrt(0.02001)), 1) for s in (1, -1)],
    # the roots of r - 1 - log r = threshold
    "k3_token": [(1.88271475258259476, 1.8829, 1), (0.448782026484624602, 0.44874, 1)],
    "k3_sequence": [(1.14816512237939474, 1.14828, 1), (0.865165248933165313, 0.86508, 1)],
    "m2po": [(math.exp(0.5), math.exp(0.5001), 1), (math.exp(-0.5), math.exp(-0.5001), -1)],
    "mu_grpo": [(2.0, 2.0002, 1), (0.5, 0.49995, -1)],
    "veto": [(1e-4, 0.999e-4, 1)], "opsm": [(math.exp(-1e-4), math.exp(-1.1e-4), -1)],
}  # fmt: skip
UNIT = (  # a weight of 1 is what these give to a token they leave alone
    "none", "geo_mask", "k1_token", "k2_token", "k3_token", "k1_sequence", "k2_sequence", "k3_sequence", "veto", "opsm",
)  # fmt: skip
CAPS = {"tis": 2.0, "band": 5.0, "cispo": 5.0, "seq_tis": 2.0, "spire": 3.0, "vtrace": 1.0, "decoupled_ppo": 5.0}


def run(rule, granularity, batch, advantage=None):
    batch, params = ready(rule, batch)
    return weigh(rule, batch, advantage=advantage, granularity=granularity, **params)


def example(fill=0.0, empty_reward=0.0, dtype=torch.float64):
    """Return a batch of four rows: padding on either side and in the middle, an empty row, a skipped label.

    The ratios of row 1 are 1.1 and its inverse, so that rules on the whole response have a row to keep.
    """
    mask = np.array([[1, 1, 1, 0], [0, 1, 0, 1], [0, 0, 0, 0], [1, 1, 1, 1]], dtype=bool)
    target = np.log([[0.5, 0.2, 0.9, 1], [1, 0.3, 1, 0.1], [1, 1, 1, 1], [0.7, 0.6, 0.5, 0.4]])
    behavior = np.log([[0.1, 0.4, 0.8, 1], [1, 0.3 / 1.1, 1, 0.11], [1, 1, 1, 1], [0.5, 0.9, 0.5, 0.2]])
    target, behavior = (np.where(mask, x, fill) for x in (target, behavior))
    segment = np.where(mask, [[0, 0, 2, 0], [0, 1, 0, 4], [0, 0, 0, 0], [0, 1, 1, 2]], 999)
    reward = [1.0, -1.0, empty_reward, -0.5]
    return batch_of(
        target, behavior, mask=mask, segment=segment, proximal=(target + behavior) / 2, reward=reward, dtype=dtype
    )


def assert_clean(w):
    for field in (w.value, w.raw, *([] if w.objective is None else [w.objective])):
        assert not field.isnan().any()
        assert not field.requires_grad


def padding_has_no_effect(rule, granularity):
    clean = example()
    want = run(rule, granularity, clean)
    assert_clean(want)
    assert want.value[clean.mask].any()
    for poison in POISON:
        assert same(run(rule, granularity, example(poison, poison)), want)
    spread = clean.reward[:, None].expand(4, 4)
    for poison in POISON:
        assert same(run(rule, granularity, clean, torch.where(clean.mask, spread, poison)), want)


def nan_on_a_real_token_is_refused(rule, granularity):
    batch = example()
    for name in LOG_PROBS:
        broken = getattr(batch, name).clone()
        broken[3, 1] = broken[3, 2] = math.nan
        with pytest.raises(ValueError, match=rf"`{name}`.*2 NaN, first at \(3, 1\)"):
            run(rule, granularity, batch.replaced(**{name: broken}))


def positive_log_probs_are_refused_or_clipped(rule, granularity):
    batch = example()
    for name in LOG_PROBS:
        broken = getattr(batch, name).clone()
        broken[0, 0] = 0.5
        with pytest.raises(ValueError, match="did you pass a probability or a logit"):
            run(rule, granularity, batch.replaced(**{name: broken}))
        broken[0, 0] = 5e-7
        repaired = batch.replaced(**{name: broken})
        assert repaired.facts.clipped == {name: 1}
        broken[0, 0] = 0.0
        assert same(run(rule, granularity, repaired), run(rule, granularity, batch.replaced(**{name: broken})))


def an_impossible_draw_is_refused(rule, granularity):
    batch = example()
    broken = batch.logp_behavior.clone()
    broken[1, 3] = -math.inf
    with pytest.raises(ValueError, match=r"cannot have drawn.*first at \(1, 3\)"):
        run(rule, granularity, batch.replaced(logp_behavior=broken))


def an_impossible_target_weighs_nothing(rule, granularity):
    batch = example()
    target = batch.logp_target.clone()
    target[0, 1] = target[3, 3] = -math.inf
    for sign in (1.0, -1.0):
        for proximal in (batch.logp_proximal, torch.where(target == -math.inf, -math.inf, batch.logp_proximal)):
            changed = batch.replaced(logp_target=target, logp_proximal=proximal, reward=torch.full((4,), sign))
            assert changed.facts.support_mismatches == 2
            w = run(rule, granularity, changed)
            assert_clean(w)
            assert w.value[0, 1] == w.value[3, 3] == 0.0
            assert w.value.isfinite().all()
            untouched = torch.tensor([1])
            alone, before = (run(rule, granularity, x.select(untouched)) for x in (changed, batch))
            if sign < 0:  # the row's own reward in `example`
                assert same(alone, before)


def huge_ratios_stay_defined(rule, granularity):
    for dtype in (torch.float32, torch.float64):
        for advantage in (1.0, 0.0, -1.0):
            reward = [advantage] * 3
            up = batch_with_ratios([[1e4, 1e4], [0.1, 1e4], [1e4, -1e4]], reward=reward, dtype=dtype)
            w = run(rule, granularity, up)
            assert_clean(w)
            assert w.saturated == int(w.raw.isinf().sum()) >= 3
            limit = LIMIT.get(rule, math.inf)
            if isinstance(limit, tuple):
                limit = limit[0] if advantage > 0 else limit[1] if advantage < 0 else math.inf
            assert float(w.value[0].max()) <= limit
            if rule in OPERATOR_FREE:
                assert w.value[0].isinf().all()
            if rule == "decoupled_ppo":  # all of the gap in the mismatch: the cap holds for either sign
                assert_clean(w := run(rule, granularity, up.replaced(logp_proximal=up.logp_target)))
            if rule in CAPS:
                assert float(w.value[0, 0]) == CAPS[rule]
            if w.objective is not None and advantage >= 0:
                assert w.objective.isfinite().all()
            down = run(rule, granularity, batch_with_ratios([[-1e4, -1e4]], reward=[advantage], dtype=dtype))
            assert_clean(down)
            assert down.saturated == 0
            kept = 0.0 if advantage < 0 else 1.0
            floor = {"none": 1.0, "band": 0.5, "opsm": kept, "topr": kept, "ais": 0.5}.get(rule, 0.0)
            assert (down.value == floor).all()
            assert (down.acted | down.gate).all()  # a token rejected at ratio 0 counts as acted on


def empty_parts_contribute_nothing(rule, granularity):
    batch = example()
    w = run(rule, granularity, batch)
    assert not w.value[2].any()
    assert not w.gate[2].any()
    kept = torch.tensor([0, 1, 3])
    without = run(rule, granularity, batch.select(kept))
    assert torch.equal(without.value, w.value[kept])
    relabeled = torch.where(batch.segment > 1, batch.segment + 5, batch.segment)
    assert same(run(rule, granularity, batch.replaced(segment=relabeled)), w)
    for nothing in (batch.replaced(mask=torch.zeros_like(batch.mask)), batch.select(torch.tensor([2]))):
        none_left = run(rule, granularity, nothing)
        assert_clean(none_left)
        assert not none_left.value.any()
        assert not none_left.raw.any()
        assert not none_left.gate.any()
        assert none_left.saturated == 0


def confident_tokens_are_kept(rule, granularity):
    for dtype in (torch.float32, torch.float64):
        sure = [[-1e-9, -1e-12, 0.0, -1e-45]]
        w = run(rule, granularity, batch_of(sure, sure, dtype=dtype))
        assert (w.value == 1.0).all()
        assert w.gate.all()
        assert not w.acted.any()
        close = run(rule, granularity, batch_of(sure, [[0.0, -1e-9, -1e-9, 0.0]], dtype=dtype))
        assert close.gate.all()
        torch.testing.assert_close(close.value, torch.ones_like(close.value), rtol=1e-7, atol=0)


def sixteen_bits_are_widened_and_reported(rule, granularity):
    for narrow in (torch.bfloat16, torch.float16):
        batch = example(dtype=narrow)
        assert set(batch.facts.low_precision) == set(LOG_PROBS)
        w = run(rule, granularity, batch)
        assert w.value.dtype == torch.float32
        wide = {name: getattr(batch, name).float() for name in LOG_PROBS}
        assert same(run(rule, granularity, batch.replaced(**wide)), w)


def ties_are_kept(rule, granularity):
    for dtype in (torch.float32, torch.float64):
        for edge, past, sign in TIES.get(rule, []):
            for log_behavior in (0.0, -0.1, -2.302585092994046):
                base = log_behavior - max(math.log(past), 0.0)
                rows = [[base + math.log(edge)], [base + math.log(past)]]
                behavior = [[base], [base]]
                w = run(rule, granularity, batch_of(rows, behavior, reward=[sign, sign], dtype=dtype))
                assert w.gate.flatten().tolist() == [True, False]
                assert w.value[1, 0] == 0.0
        if rule in CAPS:
            cap = CAPS[rule]
            tie = batch_of([[0.0]], [[-math.log(cap)]], proximal=[[0.0]], dtype=dtype)
            w = run(rule, granularity, tie)
            assert float(w.value[0, 0]) == pytest.approx(cap, rel=4 * torch.finfo(dtype).eps)
            assert w.gate.all()


def raw_and_applied_are_told_apart(rule, granularity):
    batch = example()
    for sign in (1.0, -1.0):
        w = run(rule, granularity, batch, torch.full((4,), sign))
        ratio = torch.where(batch.mask, log_ratios(batch, w.granularity).exp(), 0.0)
        assert torch.equal(w.raw, ratio)
        changed = (w.value - w.raw).abs() > 1e-12 * w.raw
        if rule in UNIT:
            changed[:] = False
        assert torch.equal(w.acted, (changed & w.gate) | (batch.mask & ~w.gate))
        assert torch.equal(w.gate & ~batch.mask, torch.zeros_like(batch.mask))
        assert not w.value[~w.gate].any()
        assert (w.objective is not None) == (rule in SURROGATES)


def weights_carry_no_graph(rule, granularity):
    batch = example()
    tracked = {name: getattr(batch, name).clone().requires_grad_() for name in LOG_PROBS}
    advantage = batch.reward.clone().requires_grad_()
    w = run(rule, granularity, batch.replaced(**tracked), advantage)
    assert_clean(w)
    assert same(w, run(rule, granularity, batch))
    assert_clean(run(rule, granularity, batch.replaced(**tracked, reward=advantage)))


CLAUSES = [
    padding_has_no_effect, nan_on_a_real_token_is_refused, positive_log_probs_are_refused_or_clipped,
    an_impossible_draw_is_refused, an_impossible_target_weighs_nothing, huge_ratios_stay_defined,
    empty_parts_contribute_nothing, confident_tokens_are_kept, sixteen_bits_are_widened_and_reported, ties_are_kept,
    raw_and_applied_are_told_apart, weights_carry_no_graph,
]  # fmt: skip


@pytest.mark.parametrize("clause", CLAUSES, ids=lambda clause: clause.__name__)
@pytest.mark.parametrize(("rule", "granularity"), PAIRS)
def test_contract(rule, granularity, clause):
    clause(rule, granularity)


def test_errors_are_input_errors():
    batch = example()
    with pytest.raises(InputError):
        batch.replaced(logp_target=batch.logp_target + math.nan)
