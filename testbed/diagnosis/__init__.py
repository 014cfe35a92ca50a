"""What a trainer's recorded log-probabilities say about its off-policy correction: gaps, weights, faults, rules."""

from testbed._lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "dump": ["load_dump"],
        "report": ["diagnose"],
        "readings": ["applicable_readings"],
    },
)
