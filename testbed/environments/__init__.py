"""Worlds with a reward: trees small enough to enumerate, Markov chains of any length, and a verifiable task."""

from testbed._lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "arithmetic": ["ArithmeticTask"],
        "base": ["Environment"],
        "markov": ["MarkovEnvironment"],
        "prefix_tree": ["PrefixTree"],
    },
)
