"""Batches, worlds and reductions that several museum pieces share."""

import itertools
import math

import torch

from testbed import (
    RULES,
    PrefixSchedule,
    PrefixTree,
    SegmentedBatch,
    TabularPolicy,
    after_token,
    enumerate_law,
    policy_loss,
    weigh,
)
from testbed.diagnosis.report import diagnose
from tests.weighting.worlds import runnable

LOG_PROBS = ("logp_target", "logp_behavior", "logp_proximal")
NORMALIZERS = ("token_mean", "sequence_mean", "constant")
DENOMINATORS = ("original", "kept")
REDUCTIONS = list(itertools.product(NORMALIZERS, DENOMINATORS))
MASK = torch.tensor([[1, 1, 1, 0], [0, 1, 0, 1], [0, 0, 0, 0], [1, 1, 1, 1]]).bool()


def ragged(fill=0.0, mask=MASK, dtype=torch.float64, reward=(1.0, -1.0, 0.0, -0.5)):
    """Return a batch with padding on either side and inside, an empty row, and a skipped label; `fill` in all padding."""
    target = torch.tensor([[0.5, 0.2, 0.9, 1], [1, 0.3, 1, 0.1], [1, 1, 1, 1], [0.7, 0.6, 0.5, 0.4]], dtype=dtype).log()
    behavior = torch.tensor(
        [[0.1, 0.4, 0.8, 1], [1, 0.2, 1, 0.15], [1, 1, 1, 1], [0.5, 0.9, 0.5, 0.2]], dtype=dtype
    ).log()
    steps = torch.tensor([[0.25, 0.5, 0.25, 9], [9, -2, 9, 1], [9, 9, 9, 9], [0, 0.5, -1, 0]], dtype=dtype)
    label = torch.tensor([[0, 0, 2, 0], [0, 1, 0, 4], [0, 0, 0, 0], [0, 1, 1, 2]])

    def dirty(values):
        return torch.where(mask, values, torch.tensor(fill, dtype=dtype))

    return SegmentedBatch(
        tokens=torch.where(mask, label % 2, 10**9),
        mask=mask,
        segment=torch.where(mask, label, 999),
        logp_target=dirty(target),
        logp_behavior=dirty(behavior),
        logp_proximal=dirty((target + behavior) / 2),
        reward=torch.where(mask.any(1), torch.tensor(reward, dtype=dtype), fill),
        group=torch.tensor([0, 0, 1, 1]),
        version=torch.where(mask, label, -7),
        token_reward=dirty(steps),
        action_value=dirty(steps),
    )


def weights(rule, batch, granularity=None, advantage=None, **params):
    """Weigh with parameters under which the rule runs; the behavior stands in for a proximal policy not recorded."""
    if "logp_proximal" in RULES[rule].needs and batch.logp_proximal is None:
        batch = batch.replaced(logp_proximal=batch.logp_behavior)
    return weigh(rule, batch, advantage=advantage, granularity=granularity, **{**runnable(rule), **params})


def loss_and_gradient(batch, rule, granularity=None, reduction=REDUCTIONS[0], advantage=None, logp=None, **params):
    """Return (loss, its gradient in the log-probs being trained); these are the batch's own unless given."""
    logp = (batch.logp_target if logp is None else logp).clone().requires_grad_(True)
    normalizer, denominator = reduction
    loss = policy_loss(
        logp,
        batch,
        rule,
        advantage=advantage,
        normalizer=normalizer,
        denominator=denominator,
        granularity=granularity,
        **{**runnable(rule), **params},
    )
    (gradient,) = torch.autograd.grad(loss, logp)
    return loss.detach(), gradient


def contributing(batch, values):
    """Return the advantage [B, T] under which a token of weight w adds w * value to the loss."""
    return -values / torch.where(batch.mask & (batch.logp_target != 0), batch.logp_target, 1.0)


def exact_world(seed=0, vocabulary=2, horizon=3):
    """Return the law of responses that two behaviors wrote in turn, scored under a third policy, and the environment."""
    env = PrefixTree.random(vocabulary, horizon, seed)
    pi, *mus = (TabularPolicy.random(vocabulary, horizon, 10 * seed + k) for k in (1, 2, 3))
    return enumerate_law(env, pi, PrefixSchedule(mus, after_token(1))), env


def target_probs(law):
    """Probability of each row of a law under the target."""
    return law.batch.logp_target.sum(1).exp()


def last_real(values, batch):
    """Return the value at the last real token of each response (every response must have one)."""
    position = torch.arange(batch.horizon).expand_as(batch.mask)
    return values.gather(1, torch.where(batch.mask, position, -1).amax(1, keepdim=True))[:, 0]


def close(a, b, rel=1e-10):
    """Whether two numbers or tensors agree as exact arithmetic does."""
    a, b = torch.as_tensor(a, dtype=torch.float64), torch.as_tensor(b, dtype=torch.float64)
    return bool(((a - b).abs() <= rel * torch.maximum(a.abs(), b.abs()) + 1e-13).all()) and not math.isnan(
        float(a.sum())
    )


def fired(batch):
    """Return what the diagnosis complains about: name of the check -> its sentence."""
    return {found["check"]: found["says"] for found in diagnose(batch)["faults"] if found["fired"]}
