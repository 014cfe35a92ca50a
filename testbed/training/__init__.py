"""Training of small transformers on a verifiable task, with the library's own policies, engine and rewards."""

from testbed._lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "held_out": ["exact_match", "split_prompts"],
        "recipe": ["Recipe"],
        "supervised": ["WarmStart", "arithmetic_policy", "solution_loss"],
    },
)
