"""Run records: a result together with what produced it, written so that an interruption loses nothing."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from testbed.core.errors import InputError


def _git(*words: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *words], cwd=Path(__file__).parent, capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def provenance(seed: object = None) -> dict[str, Any]:
    """Describe what is running: version, git commit and dirtiness, library versions, platform, seed, start time (UTC).

    Examples
    --------
    >>> sorted(provenance(0))[:4]
    ['dirty', 'git', 'numpy', 'platform']
    """
    status = _git("status", "--porcelain", "--untracked-files=no")
    return {
        "version": _version("spire-testbed"),
        "git": _git("rev-parse", "HEAD"),
        "dirty": None if status is None else bool(status),
        "python": sys.version.split()[0],
        **{name: _version(name) for name in ("torch", "numpy", "scipy", "sympy")},
        "platform": platform.platform(),
        "seed": seed,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def require_writable(path: str | Path) -> Path:
    """Return the file a record is to go to (links followed), its folder made; ask before the work, not after it.

    Raises
    ------
    InputError   the folder cannot be made or written to, or the path is a folder
    """
    real = Path(os.path.realpath(path))
    try:
        real.parent.mkdir(parents=True, exist_ok=True)
        if not real.exists() or real.is_file():  # the record is written beside its target, then renamed
            tempfile.TemporaryFile(dir=real.parent).close()
    except OSError as error:
        raise InputError("the output must be a file that can be written", found=f"{path}: {error.strerror}") from None
    if real.is_dir():
        raise InputError("the output must be a file", found=f"{path}: a folder")
    return real


def write_json_atomic(path: str | Path, content: Any) -> Path:
    """Write JSON beside the target, then rename: a reader sees the earlier file or the whole later one.

    NaN and infinities are written as the strings "nan", "inf", "-inf" (plain JSON has no such numbers).
    """
    asked, path = Path(path), require_writable(path)
    text = json.dumps(_plain(content), indent=1, allow_nan=False)
    if path.exists() and not path.is_file():  # a device or a pipe: there is nothing to replace
        path.write_text(text + "\n")
        return asked
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text + "\n")
        # mkstemp makes the file private; a record should be as readable as any other file of the user's
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(name, 0o666 & ~mask)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return asked


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(v) for v in value]
    if hasattr(value, "tolist"):  # numpy and torch scalars and arrays
        return _plain(value.tolist())
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    if isinstance(value, bool | int | str) or value is None:
        return value
    if isinstance(value, float):
        return float(value)
    return str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """A result and its provenance.

    Examples
    --------
    >>> RunRecord(result={"x": 1.0}).result
    {'x': 1.0}
    """

    result: dict[str, Any]
    provenance: dict[str, Any] = field(default_factory=provenance)

    def save(self, path: str | Path) -> Path:
        """Write the record atomically as JSON."""
        return write_json_atomic(path, asdict(self))

    @staticmethod
    def load(path: str | Path) -> RunRecord:
        """Read a record written by `save`."""
        content = json.loads(Path(path).read_text())
        return RunRecord(result=content["result"], provenance=content["provenance"])
