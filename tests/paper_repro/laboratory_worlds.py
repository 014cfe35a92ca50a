"""Planted results: a row for every run of a study, its numbers made by a function of levels and seed."""

from __future__ import annotations

from itertools import product

from paper_repro.lab_results import Results, bundled
from testbed.core.seeds import SeedTree
from testbed.training.study import Study

SEEDS = 10


def wobble(levels, seed, size):
    """A small number of a run's own, the same whenever it is asked for."""
    generator = SeedTree("planted")[str(sorted(levels.items()))][seed].numpy_generator()
    return float(generator.uniform(-size, size))


def planted(name, number, *, spread=0.02, collapsed=lambda levels, seed: False, shape=None, seeds=SEEDS, keep=None):
    """Results of a bundled study in which a run's final reward and area are `number(levels, seed)`, give or take `spread`.

    Parameters
    ----------
    collapsed : (levels, seed) -> bool
    shape : (levels, seed) -> dict     further columns
    keep : dict                        factor -> levels, for fewer combinations
    """
    study: Study = bundled(name)
    factors = {
        f: {k: v for k, v in found.items() if k in (keep or {}).get(f, found)} for f, found in study.factors.items()
    }
    combos = [c for c in study.combinations() if all(level in factors[f] for f, level in c.items())]
    rows = []
    for seed, levels in product(range(seeds), combos):
        value = number(levels, seed) + wobble(levels, seed, spread)
        rows.append(
            {
                **{f"factor_{factor}": level for factor, level in levels.items()}, "seed": seed, "final": value, "area": value,
                "best": 1.0, "start": 0.5,
                "collapsed": collapsed(levels, seed), "outcome": "finished", "updates": 100,
                "curve_reward": [value, value],
                "curve_segments": [1.0, 2.0], "curve_staleness": [0.0, 4.0], **(shape(levels, seed) if shape else {}),
            }
        )  # fmt: skip
    about = {
        "study": name, "seeds": seeds, "base": dict(study.base), "factors": factors, "kind": study.kind, "limits": study.limits,
    }  # fmt: skip
    return Results(name=name, about=about, rows=rows, source="planted")
