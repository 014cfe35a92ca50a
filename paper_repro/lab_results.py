"""Results of the laboratory's studies: the committed file of a sweep, or a small sweep made now, to see that all of it runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paper_repro.study import Setting
from testbed.core.errors import InputError
from testbed.training.config_file import config_path
from testbed.training.fields import require_choice
from testbed.training.study import Study, load_study, merged

RESULTS = Path(__file__).parent / "results"
SMALL: dict[str, Any] = {  # settings of a smoke run: random weights, some updates, and everything that a study varies
    "width": 8, "layers": 1, "heads": 2, "hidden": 8, "warm_steps": 0, "updates": 2, "prompts": 2, "responses": 2,
    "minibatches": 1, "evaluate_every": 1, "evaluate_responses": 2,
}  # fmt: skip
SMALL_SEEDS = 2
Quantity = str | Callable[[Mapping[str, Any]], float]
Keep = Mapping[str, Collection[str]]
NOTHING: Keep = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """Runs of a study.

    Parameters
    ----------
    name : str      of the study
    about : dict    what the study was (title, question, limits, seeds, base, factors, kind), and provenance
    rows : list     a dictionary per run, see `testbed.training.results_file.row_of`
    source : str    where they are from, for the reader
    """

    name: str
    about: dict[str, Any]
    rows: list[dict[str, Any]]
    source: str

    def levels(self, factor: str) -> list[str]:
        """Names of a factor's levels, in the order of the study.

        Raises
        ------
        InputError   no such factor
        """
        require_choice(f"factor of study {self.name}", factor, self.about["factors"])
        return list(self.about["factors"][factor])

    def runs(self, **levels: str | int | float) -> list[dict[str, Any]]:
        """Rows of all runs with these levels, by the other factors and then by seed.

        Raises
        ------
        InputError   no such factor or level, or no such run

        Examples
        --------
        >>> about = {"factors": {"rule": {"tis": {}, "none": {}}}}
        >>> rows = [{"factor_rule": "tis", "seed": seed, "final": seed / 2} for seed in (1, 0)]
        >>> Results(name="x", about=about, rows=rows, source="").values("final", rule="tis")
        [0.0, 0.5]
        """
        for name, level in levels.items():
            require_choice(f"level of {name}", str(level), self.levels(name))
        wanted = {f"factor_{name}": str(level) for name, level in levels.items()}
        found = [row for row in self.rows if all(row[name] == level for name, level in wanted.items())]
        if not found:
            asked = ", ".join(f"{name} {level}" for name, level in levels.items())
            raise InputError(f"results of {self.name} must hold the runs that are asked for", found=f"none of {asked}")
        others = [f"factor_{name}" for name in self.about["factors"] if name not in levels]
        order = {f"factor_{name}": self.levels(name) for name in self.about["factors"]}
        return sorted(found, key=lambda row: (*(order[name].index(row[name]) for name in others), row["seed"]))

    def values(self, quantity: Quantity, **levels: str | int | float) -> list[float]:
        """One number of every run with these levels, in the order of `runs`: by seed, if every factor is given.

        Parameters
        ----------
        quantity : str | callable   a column (final, area, best, start, collapsed, ...), or (row) -> number
        levels                      factor = level

        Raises
        ------
        InputError   as `runs`
        """
        rows = self.runs(**levels)
        return [float(row[quantity] if isinstance(quantity, str) else quantity(row)) for row in rows]

    def base(self, name: str) -> Any:
        """Setting that all runs share, the library's default where the study names none."""
        from testbed.training.grpo_config import GRPOConfig

        return GRPOConfig.of(self.about["base"]).plain()[name]


def mean_of_curve(row: Mapping[str, Any], name: str) -> float:
    """Mean of a run's curve, which is thinned evenly; 0 for a run that ended before its first update was done.

    Examples
    --------
    >>> mean_of_curve({"curve_acted": [0.1, 0.3]}, "acted"), mean_of_curve({"curve_acted": []}, "acted")
    (0.2, 0.0)
    """
    values = row[f"curve_{name}"]
    return sum(values) / len(values) if len(values) else 0.0


def require_every_seed(name: str, about: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> None:
    """Refuse results in which a combination of levels lacks a seed: arms are compared seed by seed, in order.

    Raises
    ------
    InputError   naming the first combination and its seeds

    Examples
    --------
    >>> rows = [{"factor_rule": rule, "seed": seed} for rule, seed in (("a", 0), ("a", 1), ("b", 1))]
    >>> require_every_seed("x", {"factors": {"rule": {}}, "seeds": 2}, rows)
    Traceback (most recent call last):
    ...
    testbed.core.errors.InputError: results of x must have every seed of 2 for every combination; found seeds 1 of rule b
    """
    found: dict[tuple[str, ...], list[int]] = {}
    for row in rows:
        found.setdefault(tuple(row[f"factor_{factor}"] for factor in about["factors"]), []).append(int(row["seed"]))
    for levels, seeds in found.items():
        if sorted(seeds) != list(range(about["seeds"])):
            where = ", ".join(f"{factor} {level}" for factor, level in zip(about["factors"], levels, strict=True))
            rule = f"results of {name} must have every seed of {about['seeds']} for every combination"
            raise InputError(rule, found=f"seeds {', '.join(map(str, sorted(seeds)))} of {where}")


def bundled(name: str) -> Study:
    """Return a study that comes with the library."""
    return load_study(config_path(name))


def results_of(name: str, setting: Setting, keep: Keep = NOTHING) -> Results:
    """Results of a bundled study.

    Parameters
    ----------
    name : str          of the study, `testbed/training/studies/NAME.toml`
    setting : Setting   smoke: a small sweep is made now, into `setting.out`; else the committed file is read
    keep : mapping      factor -> the levels that a small sweep has, for factors of which it does not have all

    Raises
    ------
    InputError   no such file, with the command that makes it; a file of something else
    """
    from testbed.training.results_file import read_results

    study = bundled(name)
    if setting.smoke:
        return made_small(small(study, keep), setting.out or Path("out"))
    path = RESULTS / f"study_{name}.parquet"
    if not path.is_file():
        command = f"`python -m testbed sweep {name} --results paper_repro/results/{path.name}`"
        hint = f"{command} makes it; --smoke shows that everything runs"
        raise InputError("a study's table needs the results of its runs", found=f"no {path}", hint=hint)
    about, rows = read_results(path)
    require_every_seed(name, about, rows)
    made = about.get("provenance", {})
    source = f"{len(rows):,} runs, {about['seeds']} seeds, commit {str(made.get('git'))[:7]}"
    return Results(name=name, about=about, rows=rows, source=source + changed(study, about))


def changed(study: Study, about: Mapping[str, Any]) -> str:
    """Say whether results were made with other settings than the study has now; "" if not.

    Examples
    --------
    >>> study = bundled("smallest_staleness")
    >>> about = {"base": study.base, "factors": study.factors, "seeds": study.seeds, "kind": study.kind}
    >>> changed(study, about), changed(study, about | {"seeds": 3})
    ('', '; made with other seeds than the study has now')
    """
    now = {"base": study.base, "factors": study.factors, "seeds": study.seeds, "kind": study.kind}
    differs = [
        key
        for key, value in now.items()
        if json.dumps(value, sort_keys=True) != json.dumps(about.get(key), sort_keys=True)
    ]
    return f"; made with other {' and '.join(differs)} than the study has now" if differs else ""


def small(study: Study, keep: Keep = NOTHING) -> Study:
    """Return a study of combinations of these levels whose runs take next to nothing and mean nothing.

    Examples
    --------
    >>> study = small(bundled("smallest_staleness"))
    >>> study.seeds, {cell.config.updates for cell in study.cells()}, len(study.cells())
    (2, {2}, 18)
    >>> len(small(bundled("smallest_staleness"), {"rule": ("none", "exact")}).cells())
    12
    """
    factors = {
        factor: {
            level: {k: SMALL.get(k, v) for k, v in fields.items()}
            for level, fields in levels.items()
            if level in keep.get(factor, levels)
        }
        for factor, levels in study.factors.items()
    }
    return replace(study, seeds=SMALL_SEEDS, base=merged(study.base, SMALL), factors=factors)


def made_small(study: Study, out: Path) -> Results:
    """Run a small study in this process and read its results back."""
    from testbed.training.lab import cell_result
    from testbed.training.results_file import read_results, write_results
    from testbed.training.sweep import records, sweep

    folder, path = out / "runs" / study.name, out / f"study_{study.name}.parquet"
    sweep(study, folder, cell_result, jobs=1, resume=True)
    about, rows = read_results(write_results(study, iter(records(study, folder)), path))
    return Results(name=study.name, about=about, rows=rows, source=f"{len(rows):,} small runs of random weights")
