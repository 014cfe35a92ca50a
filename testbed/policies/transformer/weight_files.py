"""Files of a transformer's weights: one .npz with the config and every named tensor, read without running code."""

from __future__ import annotations

import json
import struct
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from testbed.core.errors import InputError
from testbed.policies.transformer.config import TransformerConfig

RULE = "weights must be a file that `Transformer.save` or `pretrain --out` wrote"
DAMAGE = (EOFError, KeyError, OSError, RuntimeError, TypeError, ValueError)
ARCHIVE_DAMAGE = (struct.error, zipfile.BadZipFile, zlib.error)


def write_weights(path: Path | str, config: TransformerConfig, weights: Mapping[str, Tensor]) -> None:
    """Write config and weights to one .npz file."""
    arrays = {name: w.detach().cpu().numpy() for name, w in weights.items()}
    with open(path, "wb") as file:
        np.savez(file, config=np.array(json.dumps(asdict(config))), **arrays)  # pyright: ignore


def read_weights(path: Path | str) -> tuple[TransformerConfig, dict[str, Tensor]]:
    """Read what `write_weights` wrote.

    Raises
    ------
    InputError   no such file, a folder, a damaged file, or one with something else in it

    Examples
    --------
    >>> read_weights("nowhere.npz")
    Traceback (most recent call last):
    testbed.core.errors.InputError: weights must be a file that `Transformer.save` or `pretrain --out` wrote; \
found no such file: 'nowhere.npz' (check the path)
    """
    if not Path(path).exists():
        raise InputError(RULE, found=f"no such file: '{path}'", hint="check the path")
    if Path(path).is_dir():
        raise InputError(RULE, found=f"a folder: '{path}'", hint="name the .npz file in it")
    try:
        with open(path, "rb") as file:
            data = np.load(file, allow_pickle=False)
            if isinstance(data, np.ndarray):
                raise _foreign(path, "one array")
            if "config" not in data:
                raise _foreign(path, "no config")
            config = TransformerConfig(**json.loads(str(data["config"])))
            return config, {name: _floating(path, name, data[name]) for name in data.files if name != "config"}
    except InputError:
        raise
    except (*DAMAGE, *ARCHIVE_DAMAGE) as error:
        found = f"'{path}', which cannot be read: {type(error).__name__}"
        raise InputError(RULE, found=found, hint="is it cut short or another program's?") from error


def _floating(path: Path | str, name: str, array: np.ndarray) -> Tensor:
    if array.dtype.kind != "f":
        raise _foreign(path, f"`{name}` of dtype {array.dtype}")
    return torch.from_numpy(array)


def _foreign(path: Path | str, what: str) -> InputError:
    return InputError(RULE, found=f"'{path}' with {what}", hint="is it another program's?")
