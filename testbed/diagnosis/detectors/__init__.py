"""Faults of recording that a dump gives away by name: one file each, with its power and false alarms measured."""

from testbed._lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "registry": ["DETECTORS", "findings"],
    },
)
