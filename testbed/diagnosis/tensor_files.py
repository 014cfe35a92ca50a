"""Reading what `torch.save` wrote, tensors and plain values only: no code in the file is ever run."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from testbed.core.errors import InputError
from testbed.diagnosis.tables import Column, Table

PLAIN = "a dictionary of tensors and lists, or a list of such dictionaries"


def read_tensors(file: Path) -> Table:
    """Read a dictionary of tensors, or a list of them whose rows are put together (as AReaL's trajectories are).

    Raises
    ------
    InputError   a damaged file; one that holds objects; something other than dictionaries of tensors
    """
    import torch

    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, OSError, KeyError, AttributeError) as error:
        objects = "weights_only" in str(error) or "Unsupported" in str(error) or "GLOBAL" in str(error)
        raise InputError(
            f"'{file.name}' must be readable by torch.load with weights_only=True",
            found="objects other than tensors" if objects else type(error).__name__,
            hint=f"save {PLAIN}, e.g. torch.save(dict(batch), path)" if objects else "is it cut short or corrupt?",
        ) from error
    parts = [content] if isinstance(content, Mapping) else content
    if not isinstance(parts, list) or not parts or not all(isinstance(part, Mapping) for part in parts):
        raise InputError(f"'{file.name}' must hold {PLAIN}", found=type(content).__name__)
    names = [str(name) for name in parts[0] if all(name in part for part in parts)]

    def column(name: str) -> Column:
        columns = [_column(name, part[name]) for part in parts]
        values = np.concatenate([each.values for each in columns])
        lengths = [each.lengths for each in columns if each.lengths is not None]
        if not lengths:
            return Column(values)
        if len(lengths) != len(columns):
            raise InputError(f"`{name}` must have the same dimensions in every part", found="one and two")
        return Column(values, np.concatenate(lengths), "padded" if len(parts) == 1 else None)

    return Table(names, column)


def _column(name: str, value: Any) -> Column:
    import torch

    if isinstance(value, list) and value and all(isinstance(each, torch.Tensor) and each.dim() == 1 for each in value):
        lengths = np.array([len(each) for each in value], dtype=np.int64)
        return Column(_numbers(torch.cat(value)), lengths)
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return Column(np.array(value, dtype=object))
    if isinstance(value, list) and all(isinstance(each, int | float) for each in value):
        return Column(np.array(value))
    if not isinstance(value, torch.Tensor) or value.dim() > 2 or value.is_complex():
        found = f"shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
        raise InputError(f"`{name}` must be a tensor of one or two dimensions, or a list", found=found)
    if value.dim() < 2:
        return Column(_numbers(value.reshape(-1)))
    return Column(_numbers(value.reshape(-1)), np.full(value.shape[0], value.shape[1], dtype=np.int64), "padded")


def _numbers(value: Any) -> np.ndarray:
    import torch

    plain = value.detach()
    return (plain.float() if plain.dtype == torch.bfloat16 else plain).numpy()
