"""Execute notebooks from their percent-format sources, or check that the executed files still match them.

`python notebooks/execute.py [NAME ...]` writes NN_slug.ipynb beside each NN_slug.py; `--check` compares cell sources
only and exits 1 on a difference. Cell ids are positions and times are dropped: a rerun changes only what changed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import jupytext
import nbformat

HERE = Path(__file__).resolve().parent


def sources(names: list[str]) -> list[Path]:
    """Return the sources to treat: all NN_slug.py, or those named."""
    found = sorted(HERE.glob("[0-9]*.py"))
    unknown = set(names) - {path.stem for path in found}
    if unknown:
        sys.exit(f"notebooks/execute.py: no source named {', '.join(sorted(unknown))}")
    return [path for path in found if not names or path.stem in names]


def read_source(path: Path) -> Any:
    """Read a percent-format source as a notebook for the kernel `python3`, cell ids being positions."""
    notebook = jupytext.read(path, fmt="py:percent")
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    for place, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{place:03d}"
    return notebook


def execute(path: Path) -> Path:
    """Run one source from top to bottom and write the notebook; an error in a cell stops with its traceback."""
    from nbclient import NotebookClient

    notebook = read_source(path)
    client = NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(HERE)}})
    client.execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
    notebook.metadata.pop("language_info", None)
    target = path.with_suffix(".ipynb")
    nbformat.write(notebook, target)
    return target


def stale(path: Path) -> str | None:
    """Say in what a notebook's cells differ from its source, or return None."""
    target = path.with_suffix(".ipynb")
    if not target.exists():
        return f"{target.name} does not exist"
    fresh = [(cell.cell_type, cell.source) for cell in read_source(path).cells]
    written = [(cell.cell_type, cell.source) for cell in nbformat.read(target, as_version=4).cells]
    return None if fresh == written else f"{target.name} was executed from another {path.name}"


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Execute notebooks from their sources.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="stems of the sources; none means all")
    parser.add_argument("--check", action="store_true", help="compare only, and exit 1 on a difference")
    options = parser.parse_args()
    if options.check:
        found = [sentence for path in sources(options.names) if (sentence := stale(path))]
        print("\n".join(found) or "every notebook matches its source")
        return 1 if found else 0
    for path in sources(options.names):
        print(f"executing {path.name}", flush=True)
        print(f"wrote {execute(path).relative_to(HERE.parent)}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
