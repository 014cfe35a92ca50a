"""Rollouts: engines whose every random choice goes through a Chooser."""

from testbed._lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "clock": ["Clock"],
        "delivery": ["Delivery"],
        "engine": ["rollout"],
        "staleness": ["select_by_staleness"],
        "system": ["System"],
        "systems": ["SYSTEMS", "find_system", "steps_off"],
    },
)
