"""The decoder of slots: laws of ragged responses, bits in step, weights that change under a cache, a state."""

import pytest
import torch

from testbed import Numerics, Transformer, TransformerConfig, TransformerPolicy
from testbed.core.errors import InputError
from testbed.policies.transformer.slot_decoder import SlotDecoder

CONFIG = TransformerConfig(vocab_size=5, width=16, heads=2, layers=2, hidden=16, context=12)
PROMPTS, LENGTHS = torch.tensor([[1, 2, 3], [4, 0, 0], [2, 1, 0]]), torch.tensor([3, 1, 2])


def policy(seed=0, **numerics):
    model = Transformer.random(CONFIG, seed=seed, sharpness=2.0)
    return TransformerPolicy(model, PROMPTS, LENGTHS, numerics=Numerics(**numerics))


def empty(count):
    return torch.zeros(count, 4, dtype=torch.int64), torch.zeros(count, dtype=torch.int64)


def expected(pi, group, tokens):
    """Law after a response, by a full forward pass."""
    return (
        pi.at(torch.tensor([group]))
        .next_log_probs(torch.tensor([tokens], dtype=torch.int64).reshape(1, -1))[0]
        .detach()
    )


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("cached", [True, False])
def test_in_step_the_bits_are_those_of_the_cached_decoder(dtype, cached):
    pi, group = policy(dtype=dtype, cached=cached), torch.tensor([0, 2, 1, 0])
    reference, held, slots = pi.decoder(group), SlotDecoder(pi, 4, 4), torch.arange(4)
    held.admit(slots, group, *empty(4))
    tokens = torch.zeros(4, 0, dtype=torch.int64)
    rows = slots
    for t in range(4):
        law = held.next_log_probs(rows)
        assert torch.equal(law, reference.next_log_probs(tokens[rows], rows))
        assert law.dtype == torch.float64
        drawn = torch.tensor([0, 3, 1, 4]).roll(t)
        held.append(rows, drawn[rows])
        tokens = torch.cat([tokens, drawn[:, None]], 1)
        rows = rows[:-1] if t == 1 else rows  # one response ends


@pytest.mark.parametrize("cached", [True, False])
def test_ragged_responses_have_the_laws_of_full_passes(cached):
    pi, held = policy(cached=cached), SlotDecoder(policy(cached=cached), 3, 4)
    held.admit(torch.tensor([2]), torch.tensor([0]), *empty(1))
    responses = {2: (0, [])}
    for t, drawn in enumerate([4, 1, 0]):
        slots = torch.tensor(sorted(responses))
        laws = held.next_log_probs(slots)
        for slot, law in zip(slots.tolist(), laws, strict=True):
            assert torch.allclose(law, expected(pi, *responses[slot]), rtol=0, atol=1e-12)
        held.append(slots, torch.full_like(slots, drawn))
        for _, written in responses.values():
            written.append(drawn)
        if t == 0:  # a new response, and one that was paused after two tokens
            held.admit(
                torch.tensor([0, 1]), torch.tensor([1, 2]), torch.tensor([[0] * 4, [3, 2, 0, 0]]), torch.tensor([0, 2])
            )
            responses |= {0: (1, []), 1: (2, [3, 2])}


def test_a_slot_is_used_again():
    pi, held, slot = policy(), SlotDecoder(policy(), 1, 4), torch.tensor([0])
    held.admit(slot, torch.tensor([0]), torch.tensor([[4, 4, 4, 0]]), torch.tensor([3]))
    held.next_log_probs(slot)
    held.admit(slot, torch.tensor([1]), *empty(1))
    assert torch.allclose(held.next_log_probs(slot)[0], expected(pi, 1, []), rtol=0, atol=1e-12)


def test_new_weights_on_a_stale_cache_and_on_one_read_again():
    old, new, slot = policy(0), policy(1), torch.tensor([0])
    held = SlotDecoder(old, 1, 4)
    held.admit(slot, torch.tensor([0]), *empty(1))
    held.next_log_probs(slot)
    held.append(slot, torch.tensor([4]))
    held.take(new)
    saved = held.state()
    stale = held.next_log_probs(slot)[0]
    assert (stale - expected(new, 0, [4])).abs().max() > 1e-3 and (stale - expected(old, 0, [4])).abs().max() > 1e-3
    held.restore(saved)
    assert torch.equal(held.next_log_probs(slot)[0], stale)
    held.forget()
    assert torch.allclose(held.next_log_probs(slot)[0], expected(new, 0, [4]), rtol=0, atol=1e-12)


def test_without_context_there_is_nothing_stale():
    """One token of context: the law after the start id does not depend on what a cache holds."""
    bare = [TransformerPolicy(Transformer.random(CONFIG, seed=seed)) for seed in (0, 1)]
    held, slot = SlotDecoder(bare[0], 1, 4), torch.tensor([0])
    held.admit(slot, torch.tensor([0]), *empty(1))
    held.take(bare[1])
    law = bare[1].next_log_probs(torch.zeros(1, 0, dtype=torch.int64))
    assert torch.allclose(held.next_log_probs(slot), law, rtol=0, atol=1e-12)


def test_a_state_is_not_changed_by_what_follows():
    held, slot = SlotDecoder(policy(), 2, 4), torch.tensor([0])
    held.admit(slot, torch.tensor([0]), *empty(1))
    first = held.next_log_probs(slot)
    held.append(slot, torch.tensor([3]))
    saved = held.state()
    once = held.next_log_probs(slot)
    held.append(slot, torch.tensor([2]))
    held.next_log_probs(slot)
    other = SlotDecoder(policy(), 2, 4)
    other.restore(saved)
    assert torch.equal(other.next_log_probs(slot), once) and not torch.equal(once, first)
    other.append(slot, torch.tensor([1]))
    again = SlotDecoder(policy(), 2, 4)
    again.restore(saved)
    assert torch.equal(again.next_log_probs(slot), once)


def test_refusals():
    pi = policy()
    with pytest.raises(InputError, match="without `at`"):
        SlotDecoder(pi.at(torch.tensor([0])), 1, 4)
    with pytest.raises(InputError, match="must fit 12 positions"):
        SlotDecoder(pi, 1, 10)
    SlotDecoder(pi, 1, 9)
    with pytest.raises(InputError, match="same model and engine"):
        SlotDecoder(pi, 1, 4).take(pi.under(Numerics(dtype="float32")))
