"""Weights of off-policy tokens: a granularity (which ratio) and an operator (what is done to it), in named pairs."""

from testbed._lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "clip": ["clip_gate", "clip_objective"],
        "granularity": ["GRANULARITIES", "log_ratios"],
        "mask": ["mask_band"],
        "registry": ["PLANNED", "RULES"],
        "rule": ["Rule"],
        "rules": ["weigh"],
        "weight_families": ["Finite", "LogNormal", "TwoPoint", "UniformRatio"],
        "weight_family": ["WeightFamily"],
        "weights": ["Weights"],
    },
)
