"""Small real transformers as policies, and the arithmetic of the engines that run them."""

from testbed._lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "attribution": ["Mismatch", "attribute"],
        "config": ["TransformerConfig"],
        "model": ["Transformer"],
        "numerics": ["Numerics"],
        "policy": ["TransformerPolicy"],
        "checkpoints": ["steps"],
        "stepwise": ["StepwisePolicy"],
        "routing": ["Routes", "flipped_layers"],
    },
)
