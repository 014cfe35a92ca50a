"""What proposals refuse, how rules are found, and the keys of their draws."""

from __future__ import annotations

import pytest
import torch

from testbed import InputError, KeyedChooser, RandomChooser, TabularPolicy
from testbed.core.choices import ReplayChooser
from testbed.rollout.speculative.verify.drawing import draw_draft, proposal_of, shape_of
from testbed.rollout.speculative.verify.protocol import Proposal, chain
from testbed.rollout.speculative.verify.registry import VERIFIERS, find_verifier, verify

EVEN = torch.full((1, 3, 2), 0.5, dtype=torch.float64).log()
TOKENS = torch.tensor([[0, 1]])


def refused(says, **changes):
    given = {"tokens": TOKENS, "parent": torch.tensor([-1, 0]), "target": EVEN, **changes}
    with pytest.raises(InputError, match=says):
        Proposal(**given)


@pytest.mark.usefixtures("untyped")
def test_what_a_proposal_refuses():
    refused("drafted tokens must lie in 0..1", tokens=torch.tensor([[0, 2]]))
    refused("drafted tokens must lie in 0..1", tokens=torch.tensor([[-2, 1]]))
    refused("must be the root or a node before it; found parent 1 of place 1", parent=torch.tensor([-1, 1]))
    refused("must be the root or a node before it", parent=torch.tensor([-2, 0]))
    refused("must be the root or a node before it", tokens=torch.tensor([[-1, 1]]))
    refused("`target` must have shape", target=EVEN[:, :2])
    refused("`drafter` must have shape", drafter=EVEN[:, :2])
    refused("`parent` must have shape", parent=torch.tensor([-1]))
    refused("`response` must have shape", response=torch.tensor([0, 1]))
    blind = torch.tensor([[[0.0, 1.0], [0.5, 0.5], [0.5, 0.5]]]).log()
    refused("the law that the draft was drawn from; found probability 0 for token 0 at place 0", drafter=blind)
    refused("no node may be deeper than `levels`; found 2 > 1", levels=1)


def test_a_maker_may_vouch_for_what_needs_a_look_at_the_numbers():
    tree = {"tokens": TOKENS, "parent": torch.tensor([-1, -1]), "target": EVEN, "drafter": EVEN}
    with pytest.raises(InputError, match="this rule verifies chains"):
        verify("block", Proposal(**tree).select(torch.tensor([0])), RandomChooser(0))
    Proposal(**{**tree, "tokens": torch.tensor([[0, 2]])}, checked=True)
    vouched = Proposal(**tree, levels=2, checked=True).select(torch.tensor([0]))
    assert vouched.longest == 2 and verify("block", vouched, RandomChooser(0)).tokens.shape == (1, 3)
    with pytest.raises(InputError, match="`parent` must have shape"):  # shapes cost nothing
        Proposal(**{**tree, "parent": torch.tensor([-1])}, checked=True)


def test_empty_places_may_hold_anything():
    Proposal(tokens=torch.tensor([[0, -1]]), parent=torch.tensor([-1, 9]), target=EVEN)


@pytest.mark.parametrize("rule", [name for name, entry in VERIFIERS.items() if entry.needs_drafter])
def test_a_rule_asks_for_the_law_it_needs(rule):
    with pytest.raises(InputError, match="needs the law that the draft was drawn from"):
        verify(rule, chain(TOKENS, target=EVEN), RandomChooser(0))


@pytest.mark.parametrize("rule", [name for name, entry in VERIFIERS.items() if entry.drafts == "chain"])
def test_a_rule_for_chains_refuses_trees(rule):
    tree = Proposal(tokens=TOKENS, parent=torch.tensor([-1, -1]), target=EVEN, drafter=EVEN)
    with pytest.raises(InputError, match="this rule verifies chains"):
        verify(rule, tree, RandomChooser(0))


def test_an_unknown_rule_is_answered_with_the_nearest():
    with pytest.raises(InputError, match="did you mean membership"):
        find_verifier("member_ship")
    with pytest.raises(InputError, match="known: membership, "):
        find_verifier(None)


def test_every_entry_names_what_decides_it():
    for name, entry in VERIFIERS.items():
        assert entry.name == name and entry.source and entry.theorems and entry.exact and entry.accepted


class Recorder:
    """Passes draws on and notes their keys."""

    def __init__(self, inner):
        self.inner, self.keys = inner, []

    def choose(self, probs, key=None):
        self.keys += [tuple(k) for k in key.tolist()]
        return self.inner.choose(probs, key)


@pytest.mark.parametrize("rule", list(VERIFIERS))
def test_no_key_is_used_twice(rule):
    """Neither by the drafter's draws, nor by coins, nor by tokens, which alone have positions of the response."""
    pi, q = TabularPolicy.random(2, 6, 1), TabularPolicy.random(2, 6, 2)
    drafts = VERIFIERS[rule].drafts
    branching = (1, 1) if drafts == "chain" else (2, 2)
    seen = set()
    for start in (0, 1, 2):  # rounds that begin one position apart
        recorder = Recorder(RandomChooser(start))
        prefix = torch.zeros(20, start, dtype=torch.int64)
        draft = draw_draft(q, prefix, branching, recorder, distinct=drafts == "distinct")
        verified = verify(rule, proposal_of(pi, prefix, draft.tokens, draft.parent, draft.drafter), recorder)
        tokens = [key for key in recorder.keys if key[1] >= 0]
        others = [key for key in recorder.keys if key[1] < 0]
        last = {(row, start + n) for row, n in enumerate(verified.accepted.tolist())}
        assert last <= set(tokens) and len(set(tokens)) == len(tokens)
        assert len(set(others)) == len(others) and not seen & set(others)
        assert (-1 not in {key[1] for key in others}) and others  # -1 is the key of a schedule's branch
        seen |= set(others)


def test_membership_under_keyed_noise_is_the_autoregressive_path():
    pi = TabularPolicy.random(3, 6, 1)
    for seed in range(20):
        plain = torch.zeros(1, 0, dtype=torch.int64)
        for t in range(6):
            token = KeyedChooser(seed).choose(pi.next_log_probs(plain).exp(), torch.tensor([[0, t]]))
            plain = torch.cat([plain, token[:, None]], 1)
        fast = torch.zeros(1, 0, dtype=torch.int64)
        while fast.shape[1] < 4:
            parent, _ = shape_of((2, 1))
            tokens = torch.tensor([[0, 1, seed % 3, 1]])
            verified = verify("membership", proposal_of(pi, fast, tokens, torch.tensor(parent)), KeyedChooser(seed))
            fast = torch.cat([fast, torch.tensor([verified.emitted()[0]])], 1)
        assert fast[0].tolist() == plain[0, : fast.shape[1]].tolist()


def test_paths_name_the_accepted_places():
    sure = torch.tensor([[[0.0, 1.0]] * 5]).log()
    tree = Proposal(
        tokens=torch.tensor([[0, 1, 0, 1]]),
        parent=torch.tensor([-1, -1, 0, 1]),
        target=sure,
        drafter=EVEN[:, :1].expand(1, 5, 2),
    )
    for rule in ("membership", "point_mass", "specinfer", "sequoia", "traversal"):
        verified = verify(rule, tree, RandomChooser(0))
        assert verified.path.tolist() == [[1, 3, -1, -1]]
        assert verified.tokens.tolist() == [[1, 1, 1, -1, -1]]
        assert tree.depth.tolist() == [[1, 1, 2, 2]]


def test_drawing_without_replacement_ends_where_the_law_does():
    known = TabularPolicy.from_probs(torch.tensor([[0.5, 0.5, 0.0]]).repeat(4, 1))
    drawn = ReplayChooser.walk(
        lambda c: draw_draft(known, torch.zeros(1, 0, dtype=torch.int64), (3, 1), c, distinct=True)
    )
    assert {tuple(d.tokens[0, :3].tolist()) for d, _ in drawn} == {(0, 1, -1), (1, 0, -1)}
    assert all(d.tokens[0, 5] == -1 for d, _ in drawn)  # nothing below a place without a node
    for branching in [(), (0,), (2, 0)]:
        with pytest.raises(InputError, match="number of children"):
            shape_of(branching)
