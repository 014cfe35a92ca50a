"""Every verification rule by name, with what it asks of the draft, where it comes from and what is proved about it.

A rule is looked up by name at every call, so a replaced function is seen at once.
"""

from __future__ import annotations

import difflib
import importlib
from dataclasses import dataclass
from typing import Literal

from testbed.core.choices import Chooser
from testbed.core.errors import InputError
from testbed.rollout.speculative.verify.protocol import Proposal, Verified

Drafts = Literal["any", "chain", "independent", "distinct"]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierEntry:
    """A verification rule.

    Parameters
    ----------
    name : str            what `verify` takes
    drafts : str          the drafts for which the rule is exact. any: every tree chosen without the rule's draws; chain: a drawn
                          chain; independent, distinct: a tree whose siblings were drawn with, without replacement
    exact : str           what is claimed about the law of what it emits
    accepted : str        expected number of accepted tokens
    source : str          where the rule was published
    theorems : tuple      catalogue entries that decide the claims
    home : str            module of this package
    """

    name: str
    drafts: Drafts
    exact: str
    accepted: str
    source: str
    theorems: tuple[str, ...]
    home: str

    @property
    def needs_drafter(self) -> bool:
        """Whether the rule needs the law that the draft was drawn from."""
        return self.drafts != "any"


EXACT = "the target's law, for every such draft"
_ENTRIES = (
    VerifierEntry(
        name="membership", drafts="any", exact=EXACT, accepted="sum of the target's path probabilities over the nodes",
        source="Medusa, exact variant (arXiv 2401.10774); FastGRPO (arXiv 2509.21792)", theorems=("V2", "V3", "V4", "V5"),
        home="membership",
    ),
    VerifierEntry(
        name="point_mass", drafts="any", exact=EXACT, accepted="as membership",
        source="EAGLE-2 (arXiv 2406.16858)", theorems=("V3", "V4"), home="point_mass",
    ),
    VerifierEntry(
        name="token_rejection", drafts="chain", exact=EXACT, accepted="sum over prefixes of prod min(p_i, q_i)",
        source="arXiv 2211.17192, arXiv 2302.01318", theorems=("V1", "V3", "V4"), home="token_rejection",
    ),
    VerifierEntry(
        name="block", drafts="chain", exact=EXACT, accepted="sum over prefixes of m_i = min(m_{i-1} p_i, q_1 ... q_i)",
        source="arXiv 2403.10444", theorems=("V3", "V4"), home="block",
    ),
    VerifierEntry(
        name="specinfer", drafts="independent", exact=EXACT, accepted="recursion over rounds and depths (`expected`)",
        source="SpecInfer (arXiv 2305.09781)", theorems=("V3", "V4"), home="specinfer",
    ),
    VerifierEntry(
        name="sequoia", drafts="distinct", exact=EXACT, accepted="recursion over rounds and depths (`expected`)",
        source="Sequoia (arXiv 2402.12374)", theorems=("V3", "V4"), home="sequoia",
    ),
    VerifierEntry(
        name="traversal", drafts="independent", exact=EXACT, accepted="recursion over nodes and depths (`expected`)",
        source="arXiv 2505.12398; the updates are our own completion", theorems=("V3", "V4"), home="traversal",
    ),
    VerifierEntry(
        name="traversal_without_replacement", drafts="distinct", exact=EXACT,
        accepted="recursion over nodes and depths (`expected`)",
        source="arXiv 2505.12398; the updates are our own completion", theorems=("V3", "V4"), home="traversal",
    ),
)  # fmt: skip

VERIFIERS: dict[str, VerifierEntry] = {entry.name: entry for entry in _ENTRIES}


def find_verifier(name: object) -> VerifierEntry:
    """Return the rule of this name.

    Raises
    ------
    InputError   naming the nearest known names

    Examples
    --------
    >>> find_verifier("sequoia").drafts
    'distinct'
    >>> find_verifier("blocks")
    Traceback (most recent call last):
    ...
    testbed.core.errors.InputError: unknown verification rule; found 'blocks' (did you mean block?)
    """
    if isinstance(name, str) and name in VERIFIERS:
        return VERIFIERS[name]
    near = difflib.get_close_matches(str(name), VERIFIERS, n=2)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(VERIFIERS)}"
    raise InputError("unknown verification rule", found=repr(name), hint=hint)


def verify(rule: str, proposal: Proposal, chooser: Chooser) -> Verified:
    """Settle one round: which drafted tokens are accepted, and what is emitted after them.

    Parameters
    ----------
    rule : str            a key of VERIFIERS
    proposal : Proposal   drafts of B rows with the laws at their nodes
    chooser : Chooser     the only source of randomness

    Returns
    -------
    Verified

    Raises
    ------
    InputError   an unknown rule, or a proposal without what the rule needs
    Assumes      the draft is of the kind VERIFIERS[rule].drafts names, and was made without seeing the rule's draws
    Gives        what VERIFIERS[rule].exact says: followed by further rounds or plain sampling, the target's law of a response

    Examples
    --------
    >>> import torch
    >>> from testbed.core.choices import RandomChooser
    >>> from testbed.rollout.speculative.verify.protocol import chain
    >>> sure = torch.tensor([[[0.0, 1.0], [1.0, 0.0]]]).log()
    >>> verify("membership", chain(torch.tensor([[1]]), target=sure), RandomChooser(0)).emitted()
    [(1, 0)]
    """
    entry = find_verifier(rule)
    module = importlib.import_module(f"testbed.rollout.speculative.verify.{entry.home}")
    return getattr(module, entry.name)(proposal, chooser)
