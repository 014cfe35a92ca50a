"""Where the bundled partial rollouts are: one row per drawn token, in the layout `testbed diagnose` reads."""

from __future__ import annotations

from pathlib import Path


def partial_rollouts_path() -> Path:
    """Path of the parquet file with 128 responses that two behaviors wrote in turn.

    Examples
    --------
    >>> partial_rollouts_path().name
    'smollm2_partial_rollouts.parquet'
    """
    return Path(__file__).with_name("smollm2_partial_rollouts.parquet")
