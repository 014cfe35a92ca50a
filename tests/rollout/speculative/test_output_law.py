"""The law of what the engine writes, by walking every choice it makes: one response, two responses, ends and caps."""

import pytest
import torch

from testbed.rollout.speculative import (
    FeatureDrafter,
    FeatureLayer,
    FutureHeads,
    HeadDrafter,
    PromptLookup,
    static_layout,
)
from testbed.rollout.speculative.verify.registry import VERIFIERS
from tests.rollout.speculative.worlds import (
    Coupled,
    Erratic,
    Learning,
    Letters,
    Scrambled,
    engine_law,
    finish_law,
    target_law,
    tiny,
    total_variation,
)

EXACT = 1e-12


def heads(vocab_size, fan_out):
    return lambda: HeadDrafter(FutureHeads.of(tiny(vocab_size), len(fan_out)), fan_out)


def medusa():
    layout = static_layout(torch.tensor([[0.5, 0.3, 0.1], [0.4, 0.3, 0.2]]), 6)
    return HeadDrafter(FutureHeads.of(tiny(3), 2), layout=layout)


def learning(vocab_size):
    """Learns after every round, from all rows and what they have shown so far."""
    return lambda: Learning(FeatureLayer.of(tiny(vocab_size)), tiny(vocab_size), rate=0.3)


MEMBERSHIP = {
    "no drafts": ({}, 1),
    "heads": ({"drafter": heads(3, (2, 2)), "nodes": 4}, 1),
    "full tree": ({"drafter": heads(3, (3, 3, 3)), "nodes": 39}, 1),
    "medusa": ({"drafter": medusa, "nodes": 6}, 1),
    "features": ({"drafter": lambda: FeatureDrafter(FeatureLayer.of(tiny(3))), "nodes": 4}, 1),
    "learning": ({"drafter": learning(3), "nodes": 4}, 1),
    "learning, with and without drafts": ({"drafter": learning(3), "nodes": Erratic}, 1),
    "lookup": ({"drafter": lambda: PromptLookup(match=1), "nodes": 3}, 1),
    "scrambled": ({"drafter": lambda: Scrambled(3), "nodes": Erratic}, 1),
}


@pytest.mark.parametrize("name", MEMBERSHIP)
def test_one_response_has_the_policys_law(name):
    options, n = MEMBERSHIP[name]
    env, policy = Letters(3, 4, eos=2), tiny(3)
    law = engine_law(env, policy, n, **options)
    assert abs(sum(law.values()) - 1) < EXACT
    assert total_variation(law, target_law(env, policy, n)) <= EXACT


@pytest.mark.parametrize("verifier", [name for name in VERIFIERS if name != "membership"])
def test_every_verifier_gives_the_policys_law(verifier):
    env, policy = Letters(2, 3, eos=1), tiny(2)
    chain = VERIFIERS[verifier].drafts == "chain"
    fan_out, nodes = ((1, 1), 2) if chain else ((2,), 2)
    law = engine_law(env, policy, 1, drafter=heads(2, fan_out), nodes=nodes, verifier=verifier)
    assert total_variation(law, target_law(env, policy, 1)) <= EXACT


# ------------------------------------------------------------------------------------------------ two responses
@pytest.mark.parametrize(
    "drafter", [heads(2, (2, 1)), lambda: Coupled(2), learning(2)], ids=["heads", "coupled", "learning"]
)
def test_two_responses_are_independent(drafter):
    env, policy = Letters(2, 3, eos=1), tiny(2)
    law = engine_law(env, policy, 2, drafter=drafter, nodes=3)
    assert total_variation(law, target_law(env, policy, 2)) <= EXACT


# ------------------------------------------------------------------------------------------------ ends and caps
@pytest.mark.parametrize("cap", range(4))
def test_lengths_and_reasons_to_end_have_the_policys_law(cap):
    env, policy, caps = Letters(3, 3, eos=2), tiny(3), torch.tensor([cap])
    plain = dict(target_law(Letters(3, cap, eos=2), policy, 1).items()) if cap else {((),): 1.0}
    law = engine_law(env, policy, 1, drafter=heads(3, (2, 2)), nodes=5, max_tokens=caps)
    assert total_variation(finish_law(law, 2), finish_law(plain, 2)) <= EXACT
    assert total_variation(law, plain) <= EXACT


def test_a_row_ends_for_its_own_reasons_whatever_its_batch_does():
    env, policy, caps = Letters(2, 3, eos=1), tiny(2), torch.tensor([3, 2])
    law = engine_law(env, policy, 2, drafter=heads(2, (2, 1)), nodes=2, max_tokens=caps)
    for row, cap in enumerate((3, 2)):
        alone = target_law(Letters(2, cap, eos=1), policy, 1)
        assert total_variation(finish_law(law, 1, row), finish_law(alone, 1)) <= EXACT


def test_two_prompts_keep_their_laws():
    """Rows of different prompts and lengths in one batch: each has the law that it has alone."""
    from testbed.policies.transformer import TransformerPolicy

    policy = TransformerPolicy(tiny(2).model, torch.tensor([[0, 1, 1], [1, 0, 0]]), torch.tensor([3, 1]))
    env, group = Letters(2, 2), torch.tensor([0, 1])
    law = engine_law(env, policy, 2, drafter=heads(2, (2,)), nodes=2, group=group)
    with torch.no_grad():
        every = torch.cartesian_prod(*[torch.arange(2)] * 2)
        single = [policy.at(torch.full((4,), g)).score(every).sum(1).exp().tolist() for g in (0, 1)]
    names = [tuple(row) for row in every.tolist()]
    joint = {
        (a, b): p * q for a, p in zip(names, single[0], strict=True) for b, q in zip(names, single[1], strict=True)
    }
    assert total_variation(law, joint) <= EXACT
