"""Laws of the noise on logits: what an engine adds to each before the softmax, one law per file, and their calibration."""

from testbed._lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "calibration": ["dense_noise", "moe_noise"],
        "common_mode": ["CommonMode"],
        "confidence": ["ConfidenceScaled"],
        "flips": ["RoutingFlips", "flip_shares"],
        "gaussian": ["Gaussian"],
        "laplace": ["Laplace"],
        "law": ["MarginalLaw", "NoiseLaw"],
        "rounding": ["Rounding"],
        "scale_mixture": ["ScaleMixture"],
        "streams": ["NoiseStreams", "PrefixKey"],
        "student": ["StudentT"],
    },
)
