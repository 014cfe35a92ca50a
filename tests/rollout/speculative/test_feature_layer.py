"""The feature layer and its lessons: the stated block, the stated loss, and that nothing of the target moves."""

import pytest
import torch

from testbed import KeyedChooser
from testbed.core.errors import InputError
from testbed.policies.transformer import Numerics
from testbed.policies.transformer.forward import full_place, next_token_laws
from testbed.rollout import rollout
from testbed.rollout.speculative import (
    FeatureDrafter,
    FeatureLayer,
    FeatureRecipe,
    FeatureRecord,
    online_optimizer,
    online_step,
    speculative_rollout,
    teach_features,
)
from testbed.rollout.speculative.feature_training import feature_loss
from tests.rollout.speculative.worlds import CAPS, GROUP, NOISE, ROWS, Letters, env_of, policy_of, tiny


def sample(n=60, kind="dense", eos=6):
    policy = policy_of(kind)
    return policy, rollout(Letters(7, 10, eos), policy, n, KeyedChooser(4), group=torch.arange(n) % 5)


def randomized(layer, seed=0, scale=0.3):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for w in layer.parameters():
            w.add_(scale * torch.randn(w.shape, generator=generator, dtype=w.dtype))
    return layer


# ------------------------------------------------------------------------------------------------ the layer
def by_hand(layer, features, tokens, embedding):
    """The layer on one row without a cache: fuse, rotated causal attention, gated unit, each added to the stream."""
    w = {name.removeprefix("layer0."): x.detach() for name, x in layer.weights.items()}
    heads, half = layer.config.heads, layer.config.head_width // 2

    def normed(x, scale):
        return x / (x.square().mean(-1, keepdim=True) + layer.config.epsilon).sqrt() * scale

    def turned(x):  # [c, heads, 2 half] by angles position * base^(-i / half)
        angle = torch.arange(len(x))[:, None] * layer.config.rope_base ** (-torch.arange(half, dtype=x.dtype) / half)
        z = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angle), angle)[:, None]
        return torch.cat([z.real, z.imag], -1)

    x = torch.cat([embedding[tokens], features], 1) @ w["fuse"].T
    inner = normed(x, w["attention_norm"])
    q, k, v = ((inner @ w[name].T).reshape(len(x), heads, -1) for name in ("query", "key", "value"))
    mixed = []
    for t in range(len(x)):
        score = (turned(q)[t] * turned(k)[: t + 1]).sum(-1) / (2 * half) ** 0.5
        mixed.append((score.softmax(0)[..., None] * v[: t + 1]).sum(0).flatten())
    x = x + torch.stack(mixed) @ w["output"].T
    inner = normed(x, w["feed_forward_norm"])
    gate = inner @ w["gate"].T
    return x + (gate * gate.sigmoid() * (inner @ w["up"].T)) @ w["down"].T


@pytest.mark.parametrize("kind", ["dense", "mixture"])
def test_the_layer_is_the_stated_block(kind):
    policy = policy_of(kind)
    layer = randomized(FeatureLayer.of(policy))
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(9, 16, generator=generator, dtype=torch.float64)
    tokens = torch.randint(7, (9,), generator=generator)
    with torch.no_grad():
        weights = policy.weights()
        out = layer.predicted(features[None], tokens[None], weights, full_place(1, 9, features.device))[0]
        expected = by_hand(layer, features, tokens, weights["embedding"])
        assert torch.allclose(out, expected, rtol=0, atol=1e-10)
        law = layer.log_laws(out, weights)
    assert torch.equal(law, next_token_laws(out, weights, policy.config, Numerics()))
    assert layer.config.experts == 0 and layer.config.layers == 1
    assert layer.config.hidden == (16 if kind == "mixture" else 12)


def test_an_untaught_layer_passes_the_feature_on():
    policy = policy_of("dense")
    features = torch.randn(2, 3, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    with torch.no_grad():
        tokens, place = torch.zeros(2, 3, dtype=torch.int64), full_place(2, 3, features.device)
        out = FeatureLayer.of(policy).predicted(features, tokens, policy.weights(), place)
    assert torch.equal(out, features)


def test_starts_are_addressed_by_seeds_and_copies_are_apart():
    policy = tiny(3)
    a, b, c = (FeatureLayer.of(policy, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(a.weights["layer0.query"], b.weights["layer0.query"])
    assert not torch.equal(a.weights["layer0.query"], c.weights["layer0.query"])
    copy = randomized(a).copy()
    assert all(torch.equal(a.weights[name], copy.weights[name]) for name in a.weights)
    randomized(a)
    assert not torch.equal(a.weights["fuse"], copy.weights["fuse"])
    assert FeatureLayer.of(policy.under(Numerics(dtype="bfloat16"))).weights["fuse"].dtype == torch.float32


# ------------------------------------------------------------------------------------------------ the record
@pytest.mark.parametrize("kind", ["dense", "mixture"])
@pytest.mark.parametrize("cap", ["horizon", "ragged", "short"])
def test_a_rollout_shows_what_a_pass_over_its_responses_shows(kind, cap):
    policy, drafter = policy_of(kind), FeatureDrafter(randomized(FeatureLayer.of(policy_of(kind))))
    batch = speculative_rollout(
        env_of("six"), policy, ROWS, NOISE, drafter=drafter, nodes=4, group=GROUP, max_tokens=CAPS[cap]
    )
    began = CAPS[cap] > 0
    mine, full = drafter.record, FeatureRecord.of(policy, batch.select(began))
    # a response that ended with its first token was in no round, which shows nothing to learn from
    seen = torch.where(batch.lengths[began] > 1, full.known, full.first)
    assert torch.equal(mine.known, seen) and torch.equal(mine.first, full.first)
    assert torch.equal(mine.learnable()[:, :-1], full.learnable())
    slot = torch.arange(full.context.shape[1])
    written = slot < seen[:, None]
    assert torch.equal(torch.where(written, mine.context[:, :-1], 0), torch.where(written, full.context, 0))
    gap = (mine.states[:, :-1] - full.states).abs().amax(-1)[slot < seen[:, None] - 1]
    assert int(full.learnable().sum()) > 0 or cap == "short"
    assert float(gap.max()) < 1e-10


# ------------------------------------------------------------------------------------------------ the loss
def test_the_loss_is_the_stated_mean():
    policy, batch = sample(8)
    layer = randomized(FeatureLayer.of(policy))
    record, weights = FeatureRecord.of(policy, batch), policy.weights()
    loss = float(feature_loss(layer, record, weights).detach())
    with torch.no_grad():
        place = full_place(8, record.context.shape[1] - 1, record.states.device)
        guess = layer.predicted(record.states[:, :-1], record.context[:, 1:], weights, place)
        means = []
        for row in range(8):
            terms = []
            for s in range(int(record.first[row]), int(record.known[row]) - 1):
                x = guess[row, s - 1] - record.states[row, s]
                smooth = torch.where(x.abs() < 1, x**2 / 2, x.abs() - 0.5).mean()
                both = torch.stack([record.states[row, s], guess[row, s - 1]])
                p, q = next_token_laws(both, weights, policy.config, Numerics())
                terms.append(2.0 * float(smooth) - 0.1 * float((p.exp() * q).sum()))
            means += [sum(terms) / len(terms)] if terms else []
    assert len(means) > 2 and abs(loss - sum(means) / len(means)) < 1e-12


def test_what_stands_beyond_a_response_or_in_its_prompt_is_not_learned():
    policy, batch = sample(20)
    layer = randomized(FeatureLayer.of(policy))
    record, weights = FeatureRecord.of(policy, batch), policy.weights()
    slot = torch.arange(record.context.shape[1])
    states = record.states.clone()
    states[slot >= record.known[:, None] - 1] = 1e3
    spoiled = FeatureRecord(context=record.context, states=states, first=record.first, known=record.known)
    assert torch.equal(feature_loss(layer, record, weights), feature_loss(layer, spoiled, weights))
    assert not bool(record.learnable()[slot < record.first[:, None]].any())


# ------------------------------------------------------------------------------------------------ teaching
def test_teaching_is_deterministic_lowers_the_loss_and_leaves_the_model_alone():
    policy, batch = sample()
    for weight in policy.model.parameters():
        weight.grad = None  # other tests share the policy
    before, runs = policy.model.vector(), []
    for _ in range(2):
        layer = FeatureLayer.of(policy)
        losses = teach_features(layer, policy, batch, FeatureRecipe(steps=25, rate=1e-2, batch=20), seed=3)
        runs.append((losses, layer))
    assert runs[0][0] == runs[1][0] and torch.equal(runs[0][1].weights["fuse"], runs[1][1].weights["fuse"])
    assert sum(runs[0][0][-5:]) < sum(runs[0][0][:5]) * 0.6
    assert torch.equal(policy.model.vector(), before)
    assert all(w.grad is None for w in policy.model.parameters())
    assert (
        teach_features(FeatureLayer.of(policy), policy, batch, FeatureRecipe(steps=25, batch=20), seed=4) != runs[0][0]
    )


def test_an_online_step_is_one_step_of_adamw_on_the_rollouts_own_features():
    policy, layer = policy_of("dense"), randomized(FeatureLayer.of(policy_of("dense")), scale=0.05)
    for weight in policy.model.parameters():
        weight.grad = None  # other tests share the policy
    drafter = FeatureDrafter(layer)
    batch = speculative_rollout(env_of("six"), policy, ROWS, NOISE, drafter=drafter, nodes=4, group=GROUP)
    record, weights = FeatureRecord.of(policy, batch), policy.weights()
    expected = {name: w.detach().clone().requires_grad_(True) for name, w in layer.weights.items()}
    twin = layer.copy()
    twin.weights = expected
    value = feature_loss(twin, record, weights)
    gradients = torch.autograd.grad(value, list(expected.values()))
    loss = online_step(layer, online_optimizer(layer), policy, drafter.record)
    assert abs(loss - float(value.detach())) < 1e-10
    for (name, start), g in zip(expected.items(), gradients, strict=True):
        moved = layer.weights[name].detach() - start.detach()  # Adam's first step: rate times g / (|g| + 1e-8)
        assert torch.allclose(moved, -1e-4 * g / (g.abs() + 1e-8), rtol=0, atol=1e-8)
    assert float(feature_loss(layer, record, weights).detach()) < loss
    assert all(w.grad is None for w in policy.model.parameters())


def test_bad_numbers_are_refused():
    for change in (
        {"steps": 0},
        {"batch": 0},
        {"rate": 0.0},
        {"law_weight": -1.0},
        {"feature_weight": 0.0, "law_weight": 0.0},
    ):
        with pytest.raises(InputError):
            FeatureRecipe(**change)
    with pytest.raises(InputError, match="hidden"):
        FeatureLayer.of(tiny(3), hidden=0)
    policy, batch = sample(4)
    short = batch.replaced(mask=batch.mask & (torch.arange(10) < 1))
    with pytest.raises(InputError, match="two tokens"):
        teach_features(FeatureLayer.of(policy), policy, short)
    layer = FeatureLayer.of(policy)
    with pytest.raises(InputError, match="two tokens"):
        online_step(layer, online_optimizer(layer), policy, FeatureRecord.of(policy, short))
