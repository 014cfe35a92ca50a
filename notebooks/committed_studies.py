"""What the committed studies of the training laboratory say, if there are any: one row per study."""

from __future__ import annotations

from pathlib import Path

from testbed.core.seeds import SeedTree
from testbed.stats.runs import estimate
from testbed.training.results_file import read_results

FOLDER = Path(__file__).resolve().parents[1] / "paper_repro" / "results"


def studies(folder: Path = FOLDER) -> list[Path]:
    """Results files of studies, in the order of their names."""
    return sorted(folder.glob("study_*.parquet"))


def summary(path: Path) -> list[str]:
    """Name of a study, its runs, the share that collapsed, and the final reward of all: interquartile mean with interval."""
    about, rows = read_results(path)
    collapsed = sum(row["collapsed"] for row in rows) / len(rows)
    final = estimate([[row["final"] for row in rows]], seeds=SeedTree("committed")[about["study"]])
    return [f"`{about['study']}`", about["title"], f"{len(rows)}", f"{collapsed:.1%}", f"{final.value:.3f}"]


def by_hand(path: Path) -> tuple[int, float, float]:
    """Find the three numbers of a study again, from the columns of its file."""
    import pyarrow.parquet as pq

    columns = pq.read_table(path, columns=["collapsed", "final"]).to_pydict()
    ordered, count = sorted(columns["final"]), len(columns["final"])
    kept = ordered[count // 4 : count - count // 4]
    return count, columns["collapsed"].count(True) / count, sum(kept) / len(kept)
