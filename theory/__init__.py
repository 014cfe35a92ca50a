"""Theorems about off-policy correction, decided: algebra, enumeration and sampling must agree, and every mutant must die."""

from testbed._lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "judge": ["verify", "break_mutant"],
        "theorem": ["Claim", "Mutant", "Theorem"],
        "verdict": ["Verdict"],
    },
)
