"""Training of small transformers on a verifiable task, with the library's own policies, engine and rewards."""

from testbed._lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "held_out": ["exact_match", "split_prompts"],
        "recipe": ["Recipe"],
        "small_models": ["first_weights", "small_config"],
        "supervised": ["WarmStart", "arithmetic_policy", "solution_loss", "task_policy"],
        "warm_start": ["WarmStarted", "warm_start_result", "warm_started"],
        "warm_starts": ["WARM_STARTS"],
    },
)
