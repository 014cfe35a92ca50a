"""Checkpoints: the state of a training run in one file that is always whole, and that loads without running code."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import torch

from testbed.core.errors import InputError


def save_checkpoint(path: str | Path, state: dict[str, Any]) -> Path:
    """Write a state beside the target, then rename: a reader sees the earlier checkpoint or the whole later one.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     load_checkpoint(save_checkpoint(Path(folder) / "run.pt", {"step": 3, "w": torch.ones(2)}))["step"]
    3
    """
    path = Path(path)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        torch.save(state, beside)
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    return path


def load_checkpoint(path: str | Path) -> dict[str, Any]:
    """Read a state: tensors and plain values, nothing that could run.

    Raises
    ------
    InputError   no such file, or none that `save_checkpoint` wrote
    """
    try:
        state = torch.load(path, weights_only=True)
    except FileNotFoundError:
        raise InputError("a run to resume must have left a checkpoint", found=f"no file {path}") from None
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError) as error:
        raise InputError("a checkpoint must be a file that training wrote", found=f"{path}: {error}") from None
    if not isinstance(state, dict) or "step" not in state:
        raise InputError("a checkpoint must be a file that training wrote", found=f"{path} without a step")
    return state
