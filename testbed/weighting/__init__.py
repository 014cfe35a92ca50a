"""Weights of off-policy tokens: a granularity (which ratio) and an operator (what is done to it), in named pairs."""

from testbed._lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "adaptive": ["ais_alpha"],
        "binary_divergence": ["binary_kl"],
        "cap_bounds": [
            "chi2_bound",
            "chi2_cap",
            "d2_bound",
            "d2_cap",
            "segment_bound",
            "segment_caps",
            "sharp_cap",
            "sharp_excess",
        ],
        "cap_exact": ["second_moment_cap"],
        "cap_law": ["CapLaw", "CappedError", "capped_error"],
        "cap_signal": ["CapMinimum", "error_slopes", "local_minima"],
        "clip": ["clip_gate", "clip_objective"],
        "confidence": ["confidence_log_cap", "displacement", "truncate_displacement"],
        "granularity": ["GRANULARITIES", "log_ratios"],
        "mask": ["mask_band"],
        "obrs": ["log_kept_share"],
        "registry": ["PLANNED", "RULES"],
        "rule": ["Rule"],
        "rules": ["weigh"],
        "selective": ["head_log_bound"],
        "weight_families": ["Finite", "LogNormal", "TwoPoint", "UniformRatio"],
        "weight_family": ["WeightFamily"],
        "weights": ["Weights"],
    },
)
