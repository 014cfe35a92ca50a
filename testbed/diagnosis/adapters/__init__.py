"""The dumps of RL trainers, one file per trainer: which fields it writes, how they are aligned, what they mean here."""

from testbed._lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "registry": ["FORMATS", "NATIVE", "choose_format"],
    },
)
