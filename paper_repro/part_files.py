"""Finished parts of a long measurement: one file each, written whole, so that an interruption loses the part at hand only."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import numpy as np

from testbed.core.errors import InputError


def save_part(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write arrays beside the target, then rename: a file of this name is a finished part."""
    unfinished = path.with_suffix(".unfinished")
    with unfinished.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
    os.replace(unfinished, path)


def load_part(path: Path) -> dict[str, np.ndarray]:
    """Read a finished part.

    Raises
    ------
    InputError   a file that cannot be read
    """
    try:
        with np.load(path) as stored:
            return {name: stored[name] for name in stored.files}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise InputError("a finished part must be readable", found=f"{path}: {error}", hint="delete it") from None
