"""The committed measurement on the real model: two compact parquet files, written once, read by every table.

`real_mismatch.parquet` has a row per drawn token, `real_logit_noise.parquet` a row per kept logit; `results/README.md`
names the columns. Log-probabilities are stored in float32 after they were computed in float64, logit perturbations in
float16: their rounding is some thousandths of what they measure.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from paper_repro.mismatch_samples import Array, NoiseSample, TokenSample
from testbed.core.errors import InputError

RESULTS = Path(__file__).parent / "results"
TOKENS, NOISE = "real_mismatch.parquet", "real_logit_noise.parquet"
TOKEN_TYPES = {
    "part": np.uint8, "response": np.uint16, "position": np.uint8, "token": np.uint16,
    "logp_behavior": np.float32, "logp_target_float32": np.float32, "logp_target_bfloat16": np.float32, "one": np.uint8,
}  # fmt: skip
NOISE_TYPES = {
    "part": np.uint8, "response": np.uint16, "position": np.uint8, "token": np.uint16, "drawn": bool, "logq": np.float16,
    **{f"{what}_{trainer}": np.float16 for what in ("delta", "normalizer", "shift") for trainer in ("float32", "bfloat16")},
}  # fmt: skip
SPLIT = [name for name, kind in TOKEN_TYPES.items() if kind is np.float32]
TRAINERS = ("float32", "bfloat16")


def write_results(parts: Sequence[dict[str, Array]], about: dict[str, Any], folder: Path) -> list[Path]:
    """Join measured parts into the two files, `about` in their metadata."""
    folder.mkdir(parents=True, exist_ok=True)
    tokens = [{**part, "part": np.full(len(part["token"]), n)} for n, part in enumerate(parts)]
    noise = [
        {name.removeprefix("noise_"): values for name, values in part.items() if name.startswith("noise_")}
        | {"part": np.full(len(part["noise_token"]), n)}
        for n, part in enumerate(parts)
    ]
    written = []
    for name, rows, types in ((TOKENS, tokens, TOKEN_TYPES), (NOISE, noise, NOISE_TYPES)):
        columns = {column: np.concatenate([row[column] for row in rows]).astype(kind) for column, kind in types.items()}
        table = pa.table(columns).replace_schema_metadata({"about": json.dumps(about)})
        floats = [column for column in SPLIT if column in types]
        pq.write_table(
            table,
            folder / name,
            compression="zstd",
            compression_level=19,
            use_byte_stream_split=floats or False,
            use_dictionary=[column for column in types if column not in floats],
        )
        written.append(folder / name)
    return written


@cache
def _read(name: str, folder: Path) -> tuple[dict[str, Array], dict[str, Any]]:
    path = folder / name
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise InputError("the measurement on the real model must be readable", found=f"{path}: {error}") from None
    about = json.loads((table.schema.metadata or {}).get(b"about", b"{}"))
    return {column: table[column].to_numpy() for column in table.column_names}, about


def about(folder: Path | None = None) -> dict[str, Any]:
    """Return what produced the measurement: plan, questions, versions, seconds."""
    return _read(TOKENS, folder or RESULTS)[1]


def token_samples(folder: Path | None = None, limit: int | None = None) -> list[TokenSample]:
    """Return the drawn tokens as seen by each trainer, float32 first.

    Parameters
    ----------
    folder : Path | None   where the files are; None = RESULTS
    limit : int | None     only this many responses
    """
    columns, _ = _read(TOKENS, folder or RESULTS)
    response, keep = _responses(columns, limit)
    return [
        TokenSample(
            name=f"real model, {trainer} trainer",
            model="Dense",
            response=response[keep],
            logp_target=columns[f"logp_target_{trainer}"][keep].astype(np.float64),
            logp_behavior=columns["logp_behavior"][keep].astype(np.float64),
            finite=(columns["one"][keep] & (1 | 2 << number)) == 0,
        )
        for number, trainer in enumerate(TRAINERS)
    ]


def noise_samples(folder: Path | None = None, limit: int | None = None) -> list[list[NoiseSample]]:
    """Return the kept perturbations as seen by each trainer, float32 first, each in two readings.

    The first reading is the difference of logits, the second that of log-probabilities: the same without the change of the
    log-sum, which all logits of a position share and which moves no law. The paper does not say which of them it prints.
    """
    columns, _ = _read(NOISE, folder or RESULTS)
    response, keep = _responses(columns, limit)
    position = (response * 256 + columns["position"])[keep]
    rank = np.arange(len(position)) % np.unique(position, return_counts=True)[1].max()  # kept likeliest first

    def reading(trainer: str, what: str, delta: Array) -> NoiseSample:
        return NoiseSample(
            name=f"real model, {trainer} trainer, {what}",
            model="Dense",
            entries=f"{what} of the 20 tokens the sampler finds likeliest, at every 24th position; trainer minus sampler",
            response=response[keep],
            position=position,
            delta=delta[keep],
            rank=rank,
        )

    found = []
    for trainer in TRAINERS:
        delta, normalizer = (columns[f"{name}_{trainer}"].astype(np.float64) for name in ("delta", "normalizer"))
        found.append([reading(trainer, "logits", delta), reading(trainer, "log-probabilities", delta - normalizer)])
    return found


def _responses(columns: dict[str, Array], limit: int | None) -> tuple[Array, Array]:
    response = columns["part"].astype(np.int64) * 65536 + columns["response"]
    chosen = np.unique(response)
    if limit is not None:
        chosen = chosen[:: max(1, len(chosen) // limit)][:limit]
    return response, np.isin(response, chosen)
