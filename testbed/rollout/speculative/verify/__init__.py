"""Verification rules of speculative rollouts: which drafted tokens a pass of the target keeps, and what it adds.

Every rule is a function `rule(proposal, chooser) -> Verified` (see `protocol`): a `Proposal` holds the draft, as places with
tokens and parents, with the target's log-laws after the root and after every place, and the drafter's where the rule needs
them; a `Verified` holds how many tokens were accepted and the tokens emitted. `verify(name, ...)` finds a rule by name, and
`VERIFIERS` says what each asks of the draft and what is proved about it.
"""

from testbed._lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "protocol": ["Proposal", "Verified", "chain"],
        "registry": ["VERIFIERS", "verify"],
        "enumeration": ["all_drafts", "one_draft", "round_law"],
    },
)
