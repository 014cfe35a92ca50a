"""The committed measurement of speculation on the real model: two compact parquet files, written once.

`real_speculation.parquet` has a row per response and kind of drafts, the ledger of near ties in it, and
`real_speculation_heads.parquet` a row per response and law. `results/README.md` names the columns.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from paper_repro.real_speculation import DRAFTS, TOP, Unit
from paper_repro.speculation_arrays import Arrays
from paper_repro.speculation_rounds import COUNTED
from paper_repro.speculation_subject import Plan
from testbed.core.errors import InputError
from testbed.rollout.speculative.near_ties import NEAR

RESULTS = Path(__file__).parent / "results"
RESPONSES, LAWS = "real_speculation.parquet", "real_speculation_heads.parquet"
WHOLE = ("rounds", "accepted", "hits")  # counts; the other sums are float32
LEDGER = ("parted", "token_loop", "token_drafts", "gap_loop", "gap_drafts", "gap_float64")
OWN, UNTAUGHT, TAUGHT = "the model's own", "untaught head", "taught head"


def response_rows(found: Mapping[Unit, Arrays], plan: Plan) -> Arrays:
    """Return a row per response and kind of drafts: the sums over its rounds, and where it parts from the loop's response."""
    rows: dict[str, list[np.ndarray]] = {}
    for unit, arrays in found.items():
        if unit.kind not in ("draft", "fixed") or "rounds" not in arrays:
            continue
        fixed, count = unit.kind == "fixed", len(arrays["group"])
        loop = found[Unit("fixed", 0, 0) if fixed else Unit("loop", unit.number)]
        drawn = np.arange(loop["gaps"].shape[1]) < np.minimum(arrays["compared"] + 1, loop["mask"].sum(1))[:, None]
        entry = {
            "sums": np.full(count, "fixed" if fixed else "library"),
            "drafts": np.full(count, "taught heads" if fixed else DRAFTS[unit.draft]),
            "response": np.arange(count) + unit.number * count,
            "form": arrays["group"] // (plan.taught + plan.held),
            "tokens": arrays["mask"].sum(1),
            **{name: arrays[name] for name in COUNTED},
            "compared": arrays["compared"],
            "apart": arrays["apart"],
            "closest": arrays["closest"],
            "near": ((loop["gaps"] < NEAR) & drawn).sum(1),
            "parted": arrays["parted"],
            "token_loop": arrays["parted_tokens"][:, 0],
            "token_drafts": arrays["parted_tokens"][:, 1],
            "gap_loop": arrays["parted_gaps"][:, 0],
            "gap_drafts": arrays["parted_gaps"][:, 1],
            "gap_float64": arrays["parted_exact"],
        }
        for name, values in entry.items():
            rows.setdefault(name, []).append(values)
    return _narrow({name: np.concatenate(values) for name, values in rows.items()})


def law_rows(found: Mapping[Unit, Arrays], plan: Plan) -> Arrays:
    """Return a row per response and law: how often the written token was among the law's most probable, and its surprise."""
    laws = [(OWN, 0), *((kind, k) for kind in (UNTAUGHT, TAUGHT) for k in range(1, plan.heads + 1))]
    rows: dict[str, list[np.ndarray]] = {}
    for unit, arrays in found.items():
        if unit.kind != "heads":
            continue
        group = found[Unit("loop", unit.number)]["group"]
        for column, (kind, head) in enumerate(laws):
            entry = {
                "response": np.arange(len(group)) + unit.number * len(group),
                "form": group // (plan.taught + plan.held),
                "law": np.full(len(group), kind),
                "head": np.full(len(group), head),
                **{name: arrays[name][:, column] for name in ("count", *(f"top{k}" for k in TOP), "surprise")},
            }
            for name, values in entry.items():
                rows.setdefault(name, []).append(values)
    return _narrow({name: np.concatenate(values) for name, values in rows.items()})


def _narrow(columns: Arrays) -> Arrays:
    """Whole numbers in 32 bits, tokens and positions among them; everything else that is a number in float32."""
    whole = {*WHOLE, "count", *(f"top{k}" for k in TOP)}
    out = {}
    for name, values in columns.items():
        if values.dtype.kind in "US":
            out[name] = values
        else:
            out[name] = values.astype(np.int32 if values.dtype.kind in "iu" or name in whole else np.float32)
    return out


def write_speculation(found: Mapping[Unit, Arrays], plan: Plan, about: dict[str, Any], folder: Path) -> list[Path]:
    """Write both files, `about` in their metadata."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, rows in ((RESPONSES, response_rows(found, plan)), (LAWS, law_rows(found, plan))):
        table = pa.table(rows).replace_schema_metadata({"about": json.dumps(about)})
        pq.write_table(table, folder / name, compression="zstd", compression_level=19)
        written.append(folder / name)
    return written


@cache
def read(name: str, folder: Path | None = None) -> tuple[Arrays, dict[str, Any]]:
    """Return the columns of a file and what it says of itself.

    Raises
    ------
    InputError   a file that cannot be read
    """
    path = (folder or RESULTS) / name
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise InputError("the measurement of speculation must be readable", found=f"{path}: {error}") from None
    about = json.loads((table.schema.metadata or {}).get(b"about", b"{}"))
    return {column: table[column].to_numpy() for column in table.column_names}, about


def about(folder: Path | None = None) -> dict[str, Any]:
    """Return what produced the measurement: plan, prompts, versions, seconds."""
    return read(RESPONSES, folder)[1]
