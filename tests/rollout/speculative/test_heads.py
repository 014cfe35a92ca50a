"""Future-token heads: what they are at the start, what they learn, and that nothing else moves."""

import pytest
import torch

from testbed import KeyedChooser
from testbed.core.errors import InputError
from testbed.rollout import rollout
from testbed.rollout.speculative import FutureHeads, HeadRecipe, teach_heads
from testbed.rollout.speculative.head_training import future_tokens, head_loss
from tests.rollout.speculative.worlds import Letters, policy_of, tiny


def sample(n=60, eos=6):
    policy = policy_of("dense")
    return policy, rollout(Letters(7, 10, eos), policy, n, KeyedChooser(4), group=torch.arange(n) % 5)


def test_untaught_heads_repeat_the_models_law():
    policy, batch = sample()
    with torch.no_grad():
        states = policy.at(batch.group).hidden_states(batch.tokens)
        laws = FutureHeads.of(policy).log_laws(states, policy.weights())
        own = policy.at(batch.group).log_probs(batch.tokens)
    assert laws.shape[2] == 3 and float((laws - own[:, :, None]).abs().max()) < 1e-12


def test_a_head_is_the_stated_block():
    policy, heads = tiny(3), FutureHeads.of(tiny(3), 2)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for x in heads.parameters():
            x.copy_(torch.randn(x.shape, generator=generator, dtype=x.dtype))
        state = torch.randn(5, 4, generator=generator, dtype=torch.float64)
        normed = state / (state.square().mean(1, keepdim=True) + policy.config.epsilon).sqrt()
        for k in range(2):
            inner = normed @ heads.matrix[k].T + heads.bias[k]
            expected = state + inner * torch.sigmoid(inner)
            assert torch.allclose(heads.moved(state)[:, k], expected, rtol=0, atol=1e-12)


def test_head_k_is_scored_on_the_token_k_places_on():
    tokens = torch.tensor([[3, 1, 4, 0], [5, 2, 0, 0]])
    mask = torch.tensor([[True] * 4, [True, True, False, False]])
    target, real = future_tokens(tokens, mask, 3)
    assert target[0, 0].tolist() == [1, 4, 0] and real[0, 0].tolist() == [True, True, True]
    assert real[0, 2].tolist() == [True, False, False] and real[1, 0].tolist() == [True, False, False]
    assert not bool(real[1, 1].any())
    laws = torch.randn(2, 4, 3, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64).log_softmax(-1)
    loss = 0.0
    for k in range(3):
        terms = [
            -float(laws[b, t, k, tokens[b, t + k + 1]])
            for b, length in enumerate((4, 2))
            for t in range(length - k - 1)
        ]
        loss += 0.8**k * sum(terms) / len(terms)
    assert abs(float(head_loss(laws, target, real)) - loss) < 1e-12


def test_teaching_is_deterministic_lowers_the_loss_and_leaves_the_model_alone():
    policy, batch = sample()
    for weight in policy.model.parameters():
        weight.grad = None  # other tests share the policy
    before, runs = policy.model.vector(), []
    for _ in range(2):
        heads = FutureHeads.of(policy)
        losses = teach_heads(heads, policy, batch, HeadRecipe(steps=30, rate=1e-2, batch=20), seed=3)
        runs.append((losses, heads))
    assert runs[0][0] == runs[1][0] and torch.equal(runs[0][1].matrix, runs[1][1].matrix)
    assert sum(runs[0][0][-5:]) / 5 < sum(runs[0][0][:5]) / 5 - 0.1
    assert torch.equal(policy.model.vector(), before)
    assert all(w.grad is None for w in policy.model.parameters())


def test_copies_are_apart():
    heads = FutureHeads.of(tiny(3))
    copy = heads.copy()
    with torch.no_grad():
        heads.matrix.add_(1.0)
    assert not bool(copy.matrix.any()) and copy.parameter_count == 3 * (16 + 4)


def test_bad_numbers_are_refused():
    with pytest.raises(InputError, match="count"):
        FutureHeads.of(tiny(3), 0)
    for change in ({"steps": 0}, {"batch": 0}, {"rate": 0.0}, {"discount": 0.0}, {"discount": 1.5}):
        with pytest.raises(InputError):
            HeadRecipe(**change)
    policy, batch = sample(4)
    with pytest.raises(InputError, match="two tokens"):
        teach_heads(FutureHeads.of(policy), policy, batch.replaced(mask=batch.mask & (torch.arange(10) < 1)))
