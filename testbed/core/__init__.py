"""The types everything stands on: batches, choices, numerics, seeds, records, errors."""

from testbed._lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "batch": ["BatchFacts", "SegmentedBatch"],
        "choices": ["Chooser", "KeyedChooser", "RandomChooser", "ReplayChooser"],
        "errors": ["InputError", "MissingField", "TooLarge"],
        "missing_log_probs": ["resolve_missing"],
        "records": ["RunRecord", "provenance", "write_json_atomic"],
        "seeds": ["SeedTree"],
    },
)
