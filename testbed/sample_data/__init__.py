"""The bundled real rollouts of a small language model; what is in the files is told in README.md beside them."""

from testbed._lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "next_token": ["BEHAVIORS", "RecordedLaws", "next_token_laws"],
        "rollouts": ["partial_rollouts_path"],
    },
)
