"""The numerics contract through the loss: every rule x granularity x normalizer x denominator."""

import math

import pytest
import torch

from testbed import InputError, policy_loss, weigh
from tests.weighting.worlds import PAIRS, batch_of, runnable

NORMALIZERS = ("token_mean", "sequence_mean", "constant")
DENOMINATORS = ("original", "kept")
POISON = (math.nan, math.inf, -math.inf, 1e30)
MASK = [[1, 1, 1, 0], [0, 1, 0, 1], [0, 0, 0, 0], [1, 1, 1, 1]]


def example(fill=0.0, mask=MASK, dtype=torch.float64, **changes):
    """Return (log-probs of the trained policy with a graph, batch); `fill` stands in all padding."""
    mask = torch.tensor(mask, dtype=torch.bool)
    target = torch.log(torch.tensor([[0.5, 0.2, 0.9, 1], [1, 0.3, 1, 0.1], [1, 1, 1, 1], [0.7, 0.6, 0.5, 0.4]]))
    behavior = torch.log(torch.tensor([[0.11, 0.41, 0.8, 1], [1, 0.2, 1, 0.15], [1, 1, 1, 1], [0.5, 0.9, 0.5, 0.2]]))
    target = changes.get("target", target).to(dtype)
    target, behavior = torch.where(mask, target, fill), torch.where(mask, behavior.to(dtype), fill)
    batch = batch_of(
        torch.where(mask, target, 0.0),
        behavior,
        mask=mask,
        dtype=dtype,
        proximal=(target + behavior) / 2,
        segment=torch.where(mask, torch.tensor([[0, 0, 2, 0], [0, 1, 0, 4], [0, 0, 0, 0], [0, 1, 1, 2]]), 9),
        reward=[1.0, -1.0, 0.0, -0.5],
    )
    return target.clone().requires_grad_(True), batch


def loss_and_gradient(logp, batch, rule, granularity, normalizer="token_mean", denominator="original", **kw):
    loss = policy_loss(
        logp,
        batch,
        rule,
        normalizer=normalizer,
        denominator=denominator,
        granularity=granularity,
        **runnable(rule),
        **kw,
    )
    assert loss.shape == ()
    return loss.detach(), torch.autograd.grad(loss, logp)[0]


@pytest.mark.parametrize("denominator", DENOMINATORS)
@pytest.mark.parametrize("normalizer", NORMALIZERS)
@pytest.mark.parametrize(("rule", "granularity"), PAIRS)
def test_contract_through_every_reduction(rule, granularity, normalizer, denominator):
    logp, batch = example()
    want, gradient = loss_and_gradient(logp, batch, rule, granularity, normalizer, denominator)

    # the declared gradient, -w A / D, from the weights alone
    w = weigh(rule, batch, granularity=granularity, **runnable(rule))
    counted = batch.mask if denominator == "original" or w.objective is not None else w.gate
    per_token = -w.value * batch.reward[:, None]
    if normalizer == "token_mean":
        expected = per_token / counted.sum().clamp(min=1)
    elif normalizer == "constant":
        expected = per_token / batch.mask.numel()
    else:
        expected = per_token / counted.sum(1, keepdim=True).clamp(min=1) / counted.any(1).sum().clamp(min=1)
    torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=0)
    assert w.value.any() == bool(gradient.any())

    # padding, whatever stands in it
    for poison in POISON:
        dirty = example(fill=poison)
        assert all(
            torch.equal(a, b)
            for a, b in zip(
                loss_and_gradient(*dirty, rule, granularity, normalizer, denominator), (want, gradient), strict=True
            )
        )

    # rows without tokens are in no mean
    if normalizer != "constant":
        kept = torch.tensor([0, 1, 3])
        fewer = logp.detach()[kept].requires_grad_(True)
        value, slope = loss_and_gradient(fewer, batch.select(kept), rule, granularity, normalizer, denominator)
        torch.testing.assert_close(value, want, rtol=1e-12, atol=0)
        torch.testing.assert_close(slope, gradient[kept], rtol=1e-12, atol=0)

    # nothing left: 0, connected
    empty = example(mask=[[0] * 4] * 4)
    value, slope = loss_and_gradient(*empty, rule, granularity, normalizer, denominator)
    assert value == 0
    assert not slope.any()

    # log ratios of +-1e4 and a target of probability 0: never NaN, and no inf where the rule bounds its weight
    for extreme in (-1e4, -math.inf):
        target = example()[0].detach().clone()
        target[3, 2] = extreme
        value, slope = loss_and_gradient(*example(target=target), rule, granularity, normalizer, denominator)
        assert slope.isfinite().all()
        assert not value.isnan()
    logp, batch = example()
    far = batch.replaced(logp_behavior=torch.where(batch.mask & (batch.segment == 2), -1e4, batch.logp_behavior))
    value, slope = loss_and_gradient(logp, far, rule, granularity, normalizer, denominator)
    assert not value.isnan()
    assert not slope.isnan().any()


@pytest.mark.parametrize(("rule", "granularity"), PAIRS)
def test_float32_and_sixteen_bit_agree_with_float64(rule, granularity):
    want = loss_and_gradient(*example(), rule, granularity)
    for dtype, rtol in ((torch.float32, 1e-5), (torch.bfloat16, None)):
        logp, batch = example(dtype=dtype)
        loss, gradient = loss_and_gradient(logp, batch, rule, granularity)
        assert loss.dtype == torch.float32
        assert gradient.dtype == dtype
        if rtol is not None:
            torch.testing.assert_close(gradient.double(), want[1], rtol=rtol, atol=1e-7)


def test_denominators_are_told_apart():
    """BR-09: kept 2 of 5 tokens."""
    lr = torch.tensor([[0.1, -1.5, 0.8, -10, 0.3]], dtype=torch.float64)
    behavior = torch.full((1, 5), -1.0, dtype=torch.float64)
    batch = batch_of(lr - 11, behavior - 10)
    logp = (lr - 11).requires_grad_(True)
    for denominator, want in (("original", 0.491006), ("kept", 1.227515)):
        loss = policy_loss(logp, batch, "icepop", low=0.5, high=2.0, denominator=denominator)
        (gradient,) = torch.autograd.grad(loss, logp)
        assert float(-gradient.sum()) == pytest.approx(want, abs=5e-7)


def test_surrogates_have_ppos_value():
    """BR-45: r = 10, A = -1: PPO's loss is 10, dual clip's is 3."""
    logp = torch.tensor([[-1.0]], dtype=torch.float64, requires_grad=True)
    batch = batch_of([[-1.0]], [[-1.0 - math.log(10)]], reward=[-1.0])
    assert policy_loss(logp, batch, "ppo_clip").item() == pytest.approx(10.0, rel=1e-12)
    assert policy_loss(logp, batch, "dual_clip").item() == pytest.approx(3.0, rel=1e-12)
    clipped = batch_of([[-1.0]], [[-1.0 - math.log(10)]], reward=[2.0])
    loss = policy_loss(logp, clipped, "ppo_clip", normalizer="sequence_mean")
    assert loss.item() == pytest.approx(-2.4, rel=1e-12)  # a clipped token still counts in the value
    assert not torch.autograd.grad(loss, logp)[0].any()


def test_weights_follow_the_policy_being_trained():
    """The weight is taken at `logp`, not at the log-probs recorded when the batch was made."""
    batch = batch_of([[-1.0]], [[-1.0]])
    logp = torch.tensor([[-0.5]], dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(policy_loss(logp, batch, "exact"), logp)
    assert float(gradient[0, 0]) == pytest.approx(-math.exp(0.5), rel=1e-12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"normalizer": "mean"}, "`normalizer` must be"),
        ({"denominator": "all"}, "`denominator` must be"),
        ({"constant": 3.0}, "`constant` must be"),
        ({"normalizer": "constant", "constant": -1.0}, "`constant` must be"),
        ({"advantage": torch.ones(4, 1)}, r"`advantage` must have shape \(4,\) or \(4, 4\); found \(4, 1\)"),
        ({"advantage": torch.full((4,), math.nan)}, "advantage"),
        ({"rule": "tiss"}, "tis"),
        ({"cap": -1.0}, "cap"),
        ({"caps": 1.0}, "caps"),
    ],
)
@pytest.mark.usefixtures("untyped")
def test_bad_input_is_one_sentence(options, message):
    logp, batch = example()
    with pytest.raises(InputError, match=message):
        policy_loss(logp, batch, **{"rule": "tis", "normalizer": "token_mean", **options})


@pytest.mark.parametrize("rule", ["exact", "sequence_product", "ppo_clip", "gspo", "decoupled_ppo"])
def test_an_overflowing_weight_gives_a_model_a_finite_gradient(rule):
    """Through log_softmax an infinite slope would come back as inf - inf."""
    logits = torch.zeros(2, 3, 4, dtype=torch.float32, requires_grad=True)
    logp = torch.log_softmax(logits, -1)[..., 0]
    recorded = torch.full((2, 3), -1e4)
    batch = batch_of(logp.detach(), recorded, proximal=recorded, reward=[1.0, -1.0], dtype=torch.float32)
    loss = policy_loss(logp, batch, rule, advantage=torch.tensor([1.0, -1.0]))
    (gradient,) = torch.autograd.grad(loss, logits)
    assert loss.isfinite()
    assert gradient.isfinite().all()
    if rule == "exact":
        assert weigh(rule, batch).saturated == 6
        assert gradient.any()
