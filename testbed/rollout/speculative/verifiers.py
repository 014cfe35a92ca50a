"""How the engine drafts for a verifier and asks it: every rule of `verify.VERIFIERS`, and membership as a walk of its own."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from testbed.core.errors import InputError
from testbed.rollout.speculative.drafters import Drafter, Frontier, LawDrafter
from testbed.rollout.speculative.sampled_trees import drawn_tree
from testbed.rollout.speculative.tree import DraftTree
from testbed.rollout.speculative.verify.protocol import Proposal
from testbed.rollout.speculative.verify.registry import VerifierEntry, verify
from testbed.rollout.speculative.walk import Draws, Run, membership_walk

Draft = tuple[
    DraftTree, Float[Tensor, "b M V"] | None
]  # a tree, and the laws that its places' children were drawn from


def drafted(rule: VerifierEntry, drafter: Drafter, frontier: Frontier, nodes: int, draws: Draws) -> Draft:
    """Ask a drafter for candidates of the kind that a rule is exact for.

    Raises
    ------
    InputError   the rule needs drawn candidates, and the drafter has no laws to draw them from
    """
    if not rule.needs_drafter:
        return drafter.draft(frontier, nodes), None
    if not isinstance(drafter, LawDrafter):
        raise InputError(
            f"verifier `{rule.name}` needs a drafter with laws to draw from",
            found=type(drafter).__name__,
            hint="use HeadDrafter, or verifier='membership'",
        )
    laws = drafter.log_laws(frontier)
    fan_out = (1,) * len(drafter.fan_out) if rule.drafts == "chain" else drafter.fan_out
    keys = draws.chooser, draws.rows, draws.position
    return drawn_tree(laws, fan_out, nodes, *keys, distinct=rule.drafts == "distinct")


def settled(rule: VerifierEntry, draft: Draft, log_probs: Float[Tensor, "b M V"], draws: Draws) -> Run:
    """Apply a rule to a draft and the target's laws at root and places.

    Membership is walked here, never beyond an end token or cap. The other rules settle the whole draft; the engine drops what
    a response cannot hold. No rule waits for the device.
    """
    tree, laws = draft
    if rule.name == "membership" or not tree.nodes:
        return membership_walk(tree, log_probs, draws)
    proposal = Proposal(
        tokens=tree.tokens,
        parent=tree.parent,
        target=log_probs,
        drafter=laws,
        response=draws.rows,
        position=draws.position,
        levels=tree.levels,
        checked=True,  # a drafter's tree, of the kind the rule asks for: see `drafted`
    )
    done = verify(rule.name, proposal, draws.chooser)
    return Run(tokens=done.tokens, path=done.path + 1, accepted=done.accepted)
