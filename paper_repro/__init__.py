"""What the papers print, beside what this project finds."""

from testbed._lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "claims": ["Claim", "claims"],
        "verdicts": ["load_verdicts", "verdict_word"],
    },
)
