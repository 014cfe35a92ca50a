"""Writes pareto_k.json with arviz-stats or arviz, each in an environment of its own (neither is a dependency).

    python make_pareto_k.py arviz-stats     # Python 3.12 or later, pip install arviz-stats==1.3.3
    python make_pareto_k.py arviz           # pip install arviz==0.23.4; adds its answers to the same inputs

Inputs are drawn by the first run and stored rounded, so that no answer hangs on a random stream. The two programs choose
tails of different length (down and up), which the file records; sign conventions differ too: arviz-stats takes minus
log-weights.
"""

import json
import math
import platform
import sys
from importlib.metadata import version
from pathlib import Path

FILE = Path(__file__).with_name("pareto_k.json")


def inputs():
    import numpy as np

    rng = np.random.Generator(np.random.PCG64(20250219))
    cases = {
        "normal_50": rng.normal(size=50),
        "normal_100": rng.normal(size=100),
        "normal_wide_230": 3.0 * rng.normal(size=230),
        "normal_1000": rng.normal(size=1000),
        "pareto_half_400": 0.5 * rng.exponential(size=400),
        "pareto_one_400": 1.0 * rng.exponential(size=400),
        "uniform_300": np.log(rng.uniform(size=300)),
        "shifted_200": 4000.0 + rng.normal(size=200),
        "random_walk_150": rng.normal(scale=0.3, size=(150, 64)).sum(1),
    }
    return {name: [round(float(x), 6) for x in values] for name, values in cases.items()}


def answers(program, log_weights):
    import numpy as np

    x = np.asarray(log_weights)
    if program == "arviz-stats":
        from arviz_stats.base import array_stats

        smoothed, k = array_stats.psislw(-x)
        tail = len(x) // 5 if len(x) <= 225 else math.floor(3 * math.sqrt(len(x)))
    else:
        import arviz

        smoothed, k = arviz.psislw(x.copy())
        tail = math.ceil(min(len(x) / 5, 3 * math.sqrt(len(x))))
    return {"tail": tail, "k": float(k), "log_weights": [float(f"{value:.12g}") for value in smoothed]}


def main(program):
    record = json.loads(FILE.read_text()) if FILE.exists() else {"made_by": {}, "cases": {}}
    for name, values in inputs().items() if not record["cases"] else []:
        record["cases"][name] = {"log_weights": values, "answers": {}}
    for case in record["cases"].values():
        case["answers"][program] = answers(program, case["log_weights"])
    versions = {name: version(name) for name in (program, "numpy", "scipy")}
    record["made_by"][program] = {**versions, "python": platform.python_version(), "script": Path(__file__).name}
    FILE.write_text(json.dumps(record) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
