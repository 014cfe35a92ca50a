"""The law of what the engine writes in worlds of up to five tokens and five positions, every choice of the engine walked."""

import pytest
import torch

from testbed.rollout.speculative import FutureHeads, HeadDrafter, PromptLookup
from testbed.rollout.speculative.budget import Budget
from testbed.rollout.speculative.verify.registry import VERIFIERS
from tests.rollout.speculative.batched_laws import Hashed, branched_law
from tests.rollout.speculative.worlds import Erratic, Letters, engine_law, finish_law, target_law, tiny, total_variation

EXACT = 1e-12
OTHERS = [name for name in VERIFIERS if name != "membership"]


def heads(vocab_size, *fan_out):
    return lambda: HeadDrafter(FutureHeads.of(tiny(vocab_size), len(fan_out)), fan_out)


class TwoThenOne(Budget):
    """Two candidates in the first round, one in every other."""

    def __init__(self):
        self.count = 2

    def nodes(self, active, gains):
        count, self.count = self.count, 1
        return count


def drawn(verifier, vocab_size, tree, nodes):
    """Options for a verifier: its drafts in a chain if it asks for one, else in a tree."""
    longest = nodes if isinstance(nodes, int) else 2
    shape = (1,) * longest if VERIFIERS[verifier].drafts == "chain" else tree
    return {"drafter": heads(vocab_size, *shape), "nodes": nodes, "verifier": verifier}


def ways(v):
    """Ways to speculate whose trees depend on the response's own past only."""
    every = v + v**2 + v**3
    return {
        "no drafts": {},
        "heads": {"drafter": heads(v, min(3, v), 2), "nodes": 6},
        "full tree": {"drafter": heads(v, v, v, v), "nodes": every, "width": 512 if v > 3 else 4096},
        "lookup": {"drafter": lambda: PromptLookup(match=1), "nodes": 3},
        "erratic": {"drafter": heads(v, min(3, v), 2), "nodes": Erratic},
        "any tree": {"drafter": lambda: Hashed(v), "nodes": Erratic},
    }


def described(law, branches, env, n=1, **options):
    """Say what was walked."""
    nodes = options.get("nodes", 0)
    shown = nodes if isinstance(nodes, int) else {Erratic: "0 to 5", TwoThenOne: "2, then 1"}[nodes]
    rule = options.get("verifier", "membership")
    end = "" if env.eos is None else ", an end token"
    return (
        f"{rule}, V = {env.vocab_size}, T = {env.horizon}{end}, {shown} nodes, {n} response(s): "
        f"{len(law)} outcomes, {branches} branches"
    )


def checked(says, env, n=1, **options):
    """The engine's law, which is the target's within 1e-12 in total variation."""
    policy = tiny(env.vocab_size)
    law, branches = branched_law(env, policy, n, **options)
    gap = total_variation(law, target_law(env, policy, n))
    says(f"{described(law, branches, env, n, **options)}, TV {gap:.1e}")
    assert gap <= EXACT
    return law


# ------------------------------------------------------------------------------------------------ side by side
@pytest.mark.parametrize("way", list(ways(2)))
def test_rows_side_by_side_have_the_law_of_a_response_alone(way):
    env, options = Letters(2, 3, eos=1), ways(2)[way]
    together, branches = branched_law(env, tiny(2), **options)
    options.pop("width", None)
    assert branches == len(together) == 4  # membership draws tokens only
    assert total_variation(together, engine_law(env, tiny(2), 1, **options)) <= EXACT


@pytest.mark.parametrize("verifier", OTHERS)
def test_and_so_they_have_under_every_verifier(verifier):
    env, options = Letters(2, 3, eos=1), drawn(verifier, 2, (2,), 2)
    together, branches = branched_law(env, tiny(2), **options)
    assert branches > len(together)
    assert total_variation(together, engine_law(env, tiny(2), 1, **options)) <= EXACT


def test_pairs_side_by_side_have_the_law_of_a_pair_alone():
    env, options = Letters(2, 2, eos=1), {"drafter": heads(2, 1), "nodes": 1}
    together, branches = branched_law(env, tiny(2), 2, width=5, **options)
    assert branches == 9
    assert total_variation(together, engine_law(env, tiny(2), 2, **options)) <= EXACT


# ------------------------------------------------------------------------------------------------ one response
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("way", list(ways(5)))
def test_one_response_of_five_tokens_and_positions_has_the_policys_law(way, says):
    assert len(checked(says, Letters(5, 5), **ways(5)[way])) == 5**5


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("verifier", OTHERS)
@pytest.mark.parametrize("size", [(5, TwoThenOne), (4, 2)], ids=["five tokens", "four tokens"])
def test_every_verifier_gives_the_law_of_five_positions(verifier, size, says):
    vocab_size, nodes = size
    assert len(checked(says, Letters(vocab_size, 5), **drawn(verifier, vocab_size, (2,), nodes))) == vocab_size**5


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("verifier", OTHERS)
def test_every_verifier_gives_the_law_with_deeper_drafts_and_an_end_token(verifier, says):
    checked(says, Letters(3, 5, eos=2), **drawn(verifier, 3, (2, 1), 3))


# ------------------------------------------------------------------------------------------------ groups
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("way", ["heads", "erratic", "any tree"])
def test_two_responses_of_four_tokens_and_positions_are_independent(way, says):
    assert len(checked(says, Letters(4, 4), 2, **ways(4)[way])) == 4**8


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_three_responses_are_independent(says):
    assert len(checked(says, Letters(3, 3, eos=2), 3, **ways(3)["any tree"])) == 15**3


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("verifier", OTHERS)
def test_two_responses_are_independent_under_every_verifier(verifier, says):
    assert len(checked(says, Letters(3, 3, eos=2), 2, **drawn(verifier, 3, (2,), 2))) == 15**2


# ------------------------------------------------------------------------------------------------ ends and caps
def finished(law, eos, rows):
    """Joint law of (length, reason) of every row."""
    out = {}
    for outcome, p in law.items():
        key = tuple((len(y), "end" if y and y[-1] == eos else "cap") for y in outcome)
        assert len(key) == rows
        out[key] = out.get(key, 0.0) + p
    return out


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("cap", range(1, 6))
@pytest.mark.parametrize("way", ["heads", "any tree"])
def test_lengths_and_reasons_to_end_have_the_policys_law(way, cap, says):
    env, policy = Letters(4, 5, eos=3), tiny(4)
    law, branches = branched_law(env, policy, caps=torch.tensor([cap]), **ways(4)[way])
    plain = target_law(Letters(4, cap, eos=3), policy, 1)
    gap = total_variation(finish_law(law, 3), finish_law(plain, 3))
    says(f"{described(law, branches, env, **ways(4)[way])}, cap {cap}, TV of (length, reason) {gap:.1e}")
    assert gap <= EXACT and total_variation(law, plain) <= EXACT


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("verifier", VERIFIERS)
def test_two_responses_with_caps_of_their_own_end_independently(verifier, says):
    env, policy, caps = Letters(3, 4, eos=2), tiny(3), torch.tensor([4, 2])
    options = drawn(verifier, 3, (2,), 2)
    law, branches = branched_law(env, policy, 2, caps=caps, **options)
    first, second = (target_law(Letters(3, int(cap), eos=2), policy, 1) for cap in caps)
    product = {(*a, *b): p * q for a, p in first.items() for b, q in second.items()}
    gap = total_variation(finished(law, 2, 2), finished(product, 2, 2))
    says(f"{described(law, branches, env, 2, **options)}, caps 4 and 2, TV of both (length, reason) {gap:.1e}")
    assert gap <= EXACT and total_variation(law, product) <= EXACT
