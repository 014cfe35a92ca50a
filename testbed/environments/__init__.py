"""Worlds with a reward: trees small enough to enumerate, Markov chains of any length, and verifiable tasks."""

from testbed._lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "arithmetic": ["ArithmeticTask"],
        "base": ["Environment"],
        "markov": ["MarkovEnvironment"],
        "modular_sum": ["ModularSum"],
        "parity": ["Parity"],
        "prefix_tree": ["PrefixTree"],
        "reasoning_gym_task": ["ReasoningGymTask"],
        "sorting": ["Sorting"],
        "tasks": ["TASKS", "make_task"],
        "verifiable": ["VerifiableTask"],
        "worked_addition": ["WorkedAddition"],
    },
)
