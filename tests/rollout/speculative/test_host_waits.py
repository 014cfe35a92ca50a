"""One transfer from device to host per round, whatever the verifier; and no more branches than rows have decisions."""

import pytest
import torch

from testbed.core.row_replay import walk_rows
from testbed.rollout.speculative import speculative_rollout, walk
from testbed.rollout.speculative.sampled_trees import drawn_tree
from testbed.rollout.speculative.tree import RankPaths
from testbed.rollout.speculative.verify import block, laws, point_mass, sequoia, specinfer, token_rejection, traversal
from testbed.rollout.speculative.verify.enumeration import all_drafts, one_draft
from testbed.rollout.speculative.verify.protocol import Proposal
from testbed.rollout.speculative.verify.registry import VERIFIERS, verify
from tests.rollout.speculative.host_waits import host_waits
from tests.rollout.speculative.test_planted_bugs import prefix_dependent
from tests.rollout.speculative.worlds import EOS, Letters, T, V, drafter_of, policy_of


class Quiet:
    """Draws without looking: noise added to log-probabilities, on whatever device they are."""

    def choose(self, probs, key=None):
        return (probs.double().log() - torch.empty_like(probs, dtype=torch.float64).exponential_().log()).argmax(-1)


def waits_per_round(verifier, drafter, policy="dense"):
    """What the host waited for in each round but the first, which also holds the start."""
    rounds = []
    with host_waits() as waits:

        def watch(finished):
            rounds.append(dict(waits))
            waits.clear()

        options = {"drafter": drafter_of(drafter, policy, None), "nodes": 6, "group": torch.arange(16) % 5}
        speculative_rollout(
            Letters(V, T, EOS), policy_of(policy), 16, Quiet(), verifier=verifier, watch=watch, **options
        )
    assert len(rounds) > 2
    return rounds[1:]


ONE = {"tolist": 1}
PAIRS = [
    (verifier, drafter)
    for verifier, entry in VERIFIERS.items()
    for drafter in ("greedy", "static", "medusa", "untaught", "lookup", "features")
    if not (entry.needs_drafter and drafter in ("lookup", "features"))  # which have no laws to draw from
]


@pytest.mark.parametrize(("verifier", "drafter"), PAIRS)
def test_a_round_waits_once(verifier, drafter):
    assert all(waits == ONE for waits in waits_per_round(verifier, drafter))


@pytest.mark.parametrize("policy", ["mixture", "nucleus"])
@pytest.mark.parametrize("verifier", ["membership", "traversal"])
def test_a_round_of_other_policies_waits_once(verifier, policy):
    assert all(waits == ONE for waits in waits_per_round(verifier, "greedy", policy))


def looks(tensor):
    """Nothing but a look at a tensor's contents."""
    assert bool(torch.isfinite(tensor).any())


HOMES = {
    "point_mass": (point_mass, "without"), "token_rejection": (token_rejection, "ended"), "block": (block, "successes"),
    "specinfer": (specinfer, "residual"), "sequoia": (sequoia, "without"), "traversal": (traversal, "residual"),
    "traversal_without_replacement": (traversal, "without"), "membership": (walk, "children_holding"),
}  # fmt: skip


@pytest.mark.parametrize("verifier", list(VERIFIERS))
def test_a_look_at_a_tensor_is_noticed_in_every_rule(verifier, monkeypatch):
    home, name = HOMES[verifier]
    right = getattr(home, name)

    def looking(*args, **options):
        looks(next(x for x in args if isinstance(x, torch.Tensor)))
        return right(*args, **options)

    monkeypatch.setattr(home, name, looking)
    assert all(sum(waits.values()) > 1 for waits in waits_per_round(verifier, "greedy"))


@pytest.mark.parametrize(
    "wait",
    [
        lambda x: bool(x.any()), lambda x: int(x.sum()), lambda x: x[0].item(), lambda x: x.tolist(), lambda x: x.cpu(),
        lambda x: x.numpy(), lambda x: x[x > 1], lambda x: x.nonzero(), lambda x: torch.where(x > 1), lambda x: x.unique(),
        lambda x: x.masked_select(x > 1), lambda x: x[x[0]], lambda x: torch.equal(x, x), lambda x: x.repeat_interleave(x),
        lambda x: x.masked_fill(x > 1, 0)[x == 0], lambda x: x.__setitem__(x > 1, torch.tensor([0])), lambda x: [*range(x[1])],
    ],
)  # fmt: skip
def test_every_kind_of_wait_is_counted(wait):
    x = torch.tensor([0, 1, 2])
    with host_waits() as waits:
        wait(x)
    assert sum(waits.values()) >= 1


def test_steps_on_full_rows_are_no_waits():
    x, at = torch.tensor([[0.5, 0.5], [0.1, 0.9]]), torch.tensor([1, 0])
    with host_waits() as waits:
        y = torch.where(x > 0.3, x, 0.0).gather(1, at[:, None])
        x[torch.arange(2), at] = y[:, 0]
        laws.certain_unless(at > 0, x).sort(1)
    assert not waits


# ------------------------------------------------------------------------------------------------ nothing there to look at
@pytest.mark.parametrize("verifier", list(VERIFIERS))
def test_drafting_and_verifying_need_shapes_only(verifier):
    """On a device whose tensors have shapes and no contents."""
    kind = VERIFIERS[verifier].drafts
    fan_out = (1, 1, 1) if kind == "chain" else (2, 2, 1)
    log_laws = torch.zeros(4, 3, 5, dtype=torch.float64, device="meta")
    rows = torch.zeros(4, dtype=torch.int64, device="meta")
    if kind == "any":
        tree, drawn_from = RankPaths.product(fan_out).drafted(log_laws), None
    else:
        tree, drawn_from = drawn_tree(log_laws, fan_out, 9, Quiet(), rows, rows, distinct=kind == "distinct")
    target = torch.zeros(4, tree.nodes + 1, 5, dtype=torch.float64, device="meta")
    given = {"tokens": tree.tokens, "parent": tree.parent, "target": target, "drafter": drawn_from}
    draft = Proposal(**given, response=rows, position=rows, levels=tree.levels, checked=True)
    settled = verify(verifier, draft, Quiet())
    assert settled.tokens.shape == (4, 4) and settled.path.shape == (4, 3) and settled.tokens.device.type == "meta"
    with pytest.raises(RuntimeError, match="meta"):
        looks(target)


# ------------------------------------------------------------------------------------------------ decisions
@pytest.mark.parametrize(
    ("rule", "branches"),
    [
        ("membership", 9), ("point_mass", 9), ("token_rejection", 135), ("block", 131), ("specinfer", 381), ("sequoia", 273),
        ("traversal", 414), ("traversal_without_replacement", 289),
    ],
)  # fmt: skip
def test_rows_that_are_not_asked_have_one_branch(rule, branches):
    """As many branches, over all drafts, as when only rows with something to decide were drawn for."""
    p, q = prefix_dependent()
    kind = VERIFIERS[rule].drafts
    branching = (1, 1, 1) if kind == "chain" else (2, 1)
    if kind == "any":
        drafts = one_draft(p, [0, 2, 1], [-1, -1, 0])
    else:
        drafts = all_drafts(p, q, branching, distinct=kind == "distinct")
    found = walk_rows(lambda c, rows: verify(rule, drafts.proposal.select(rows), c).emitted(), len(drafts.chance))
    assert sum(map(len, found)) == branches
