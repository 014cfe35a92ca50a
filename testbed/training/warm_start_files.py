"""Warm starts kept on disk: one file each, named by what it depends on, written whole, and believed only if its hash is right."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from testbed.core.errors import InputError
from testbed.policies.transformer.config import TransformerConfig
from testbed.policies.transformer.model import Transformer, unflatten


def content_key(made_of: Mapping[str, Any]) -> str:
    """SHA-256 of plain values in one order of their names: what depends on the same has the same key.

    Examples
    --------
    >>> content_key({"a": 1, "b": [2.0]}) == content_key({"b": [2.0], "a": 1})
    True
    """
    text = json.dumps(made_of, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def default_cache() -> Path:
    """Folder of warm starts in the user's cache: `$XDG_CACHE_HOME`, or `~/.cache`."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "spire-testbed" / "warm_starts"


def require_cache(folder: Path) -> Path:
    """Make the folder and return it; ask before the work, not after it.

    Raises
    ------
    InputError   it cannot be made or written to
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        hint = "name another folder with `cache`, or set XDG_CACHE_HOME"
        rule = "the cache of warm starts must be a folder that can be written"
        raise InputError(rule, found=f"{folder}: {error.strerror}", hint=hint) from None
    return folder


def write_start(path: Path, key: str, model: Transformer, facts: Mapping[str, Any]) -> None:
    """Write weights and facts beside the target, then rename: a reader sees no file or a whole one, whoever else writes it.

    The first line is the SHA-256 of everything behind it: a line of JSON with key and facts, then the flat weight vector in
    float32.
    """
    vector = model.vector().cpu().numpy().astype("<f4")
    body = json.dumps({"key": key, **facts}, sort_keys=True).encode() + b"\n" + vector.tobytes()
    handle, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
        os.replace(beside, path)
    except BaseException:
        Path(beside).unlink(missing_ok=True)
        raise


def read_start(path: Path, key: str, config: TransformerConfig) -> tuple[Transformer, dict[str, Any]] | None:
    """Read what `write_start` wrote under this key; None if there is no such file, or it is not whole or another's."""
    try:
        digest, _, body = path.read_bytes().partition(b"\n")
    except OSError:
        return None
    if hashlib.sha256(body).hexdigest().encode() != digest:
        return None
    head, _, weights = body.partition(b"\n")
    facts = json.loads(head)
    if facts.pop("key", None) != key or len(weights) != 4 * config.parameter_count():
        return None
    vector = torch.from_numpy(np.frombuffer(weights, dtype="<f4").astype(np.float32))
    return Transformer(config, unflatten(vector, config)), facts
