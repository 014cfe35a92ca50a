"""Teaching heads update by update: pieces, streams given from outside, and interruptions change nothing."""

import pytest
import torch

from testbed import KeyedChooser
from testbed.core.errors import InputError
from testbed.rollout import rollout
from testbed.rollout.speculative import FutureHeads, HeadRecipe, head_training, teach_heads
from testbed.rollout.speculative.head_training import HeadTeacher, future_tokens, head_loss
from tests.rollout.speculative.worlds import Letters, policy_of

RECIPE = HeadRecipe(steps=8, rate=1e-2, batch=20)


def sample(n=60):
    policy = policy_of("dense")
    return policy, rollout(Letters(7, 10, 6), policy, n, KeyedChooser(4), group=torch.arange(n) % 5)


def teacher_of(recipe=RECIPE, seed=3, **options):
    policy, batch = sample()
    return HeadTeacher(FutureHeads.of(policy), policy, batch, recipe, seed, **options)


def test_the_first_update_is_adam_on_the_stated_loss():
    policy, batch = sample()
    teacher, rows = teacher_of(), teacher_of().rows(0)
    heads = FutureHeads.of(policy)
    with torch.no_grad():
        states, weights = policy.at(batch.group).hidden_states(batch.tokens)[rows], policy.weights()
    target, real = future_tokens(batch.tokens[rows], batch.mask[rows], heads.count)
    loss = head_loss(heads.log_laws(states, weights, policy.numerics), target, real, RECIPE.discount)
    loss.backward()
    assert abs(teacher.advance() - float(loss.detach())) < 1e-12
    expected = -RECIPE.rate * heads.matrix.grad / (heads.matrix.grad.abs() + 1e-8)  # Adam's first step
    assert torch.allclose(teacher.heads.matrix, expected, rtol=1e-9, atol=1e-12)


def test_pieces_change_rounding_only(monkeypatch):
    whole, pieces = teacher_of(), teacher_of()
    expected = [whole.advance() for _ in range(8)]
    monkeypatch.setattr(head_training, "ENTRIES", 7 * 3 * 5)  # five positions at a time
    found = [pieces.advance() for _ in range(8)]
    assert torch.allclose(torch.tensor(found), torch.tensor(expected), rtol=1e-9)
    assert torch.allclose(pieces.heads.matrix, whole.heads.matrix, rtol=1e-6, atol=1e-9)
    assert float(whole.heads.matrix.detach().abs().max()) > 1e-3


def test_streams_that_are_known_need_no_pass(monkeypatch):
    policy, batch = sample()
    with torch.no_grad():
        states = policy.at(batch.group).hidden_states(batch.tokens)
    expected = teacher_of().advance()
    monkeypatch.setattr(type(policy), "hidden_states", lambda *_: pytest.fail("no pass was needed"))
    assert teacher_of(states=states).advance() == expected
    with pytest.raises(InputError, match="states"):
        teacher_of(states=states[:, 1:])


def test_an_interrupted_teaching_ends_where_it_would_have(tmp_path):
    whole, first, second = teacher_of(), teacher_of(), teacher_of()
    losses = [whole.advance() for _ in range(8)]
    begun = [first.advance() for _ in range(5)]
    torch.save(first.state(), tmp_path / "state.pt")
    second.restore(torch.load(tmp_path / "state.pt", weights_only=True))
    assert begun + [second.advance() for _ in range(3)] == losses
    assert torch.equal(second.heads.matrix, whole.heads.matrix) and torch.equal(second.heads.bias, whole.heads.bias)
    policy, batch = sample()
    heads = FutureHeads.of(policy)
    assert teach_heads(heads, policy, batch, RECIPE, seed=3) == losses
    assert torch.equal(heads.matrix, whole.heads.matrix)


def test_a_state_of_another_teaching_is_refused():
    state = teacher_of().state()
    for other in (teacher_of(seed=4), teacher_of(recipe=HeadRecipe(steps=8, rate=2e-2, batch=20))):
        with pytest.raises(InputError, match="checkpoint"):
            other.restore(state)
