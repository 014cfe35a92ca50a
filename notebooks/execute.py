"""Execute notebooks from their percent-format sources, or check that the executed files still match them.

`python notebooks/execute.py [NAME ...]` writes NN_slug.ipynb beside each NN_slug.py, one kernel after the other;
`--check` executes nothing and exits 1, naming the first cell that differs from its source. Cell ids are positions, and
times, versions and live widget views are dropped: a rerun changes only what changed.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import jupytext
import nbformat

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
SECONDS = 60  # the most one notebook may take, cell by cell
LIVE_VIEW = "application/vnd.jupyter.widget-view+json"  # names a model of the kernel that is gone when a file is read


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
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook.metadata = nbformat.from_dict({"kernelspec": kernel, "language_info": {"name": "python"}})
    for place, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{place:03d}"
    return notebook


def kernel_environment() -> dict[str, str]:
    """Return the environment of a kernel: the tree importable without installation, and never the FAST profile."""
    kept = {name: value for name, value in os.environ.items() if name != "NOTEBOOK_FAST"}
    paths = [str(ROOT), *filter(None, [kept.get("PYTHONPATH")])]
    return {**kept, "PYTHONPATH": os.pathsep.join(paths)}


def static_outputs(outputs: list[Any]) -> list[Any]:
    """Drop live views from the outputs of a cell; what stands for them without a kernel, a figure, stays.

    Output of which nothing but a plain-text name would remain is dropped altogether.
    """
    kept = []
    for output in outputs:
        data = output.get("data", {})
        if data.pop(LIVE_VIEW, None) is None or set(data) - {"text/plain"}:
            kept.append(output)
    return kept


def execute(path: Path) -> Path:
    """Run one source from top to bottom and write the notebook; an error in a cell stops with its traceback."""
    from nbclient import NotebookClient
    from traitlets.config import Config

    notebook = read_source(path)
    metadata = dict(notebook.metadata)
    with tempfile.TemporaryDirectory() as sockets:
        settings = Config()
        if os.name == "posix":  # socket files instead of ports, which another process could take
            settings.KernelManager.transport, settings.KernelManager.ip = "ipc", os.path.join(sockets, "kernel")
        client = NotebookClient(
            notebook,
            config=settings,
            timeout=SECONDS,
            kernel_name="python3",
            resources={"metadata": {"path": str(HERE)}},
            record_timing=False,
            store_widget_state=False,
            coalesce_streams=True,  # where a kernel happens to flush must not show
        )
        client.execute(env=kernel_environment())
    notebook.metadata = nbformat.from_dict(metadata)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = static_outputs(cell.outputs)
    target = path.with_suffix(".ipynb")
    nbformat.write(notebook, target)
    return target


def stale(path: Path) -> str | None:
    """Say in what a notebook's cells first differ from its source, or return None."""
    target = path.with_suffix(".ipynb")
    if not target.exists():
        return f"{target.name} does not exist"
    fresh, written = read_source(path).cells, nbformat.read(target, as_version=4).cells
    for ours, theirs in zip(fresh, written, strict=False):
        if (ours.cell_type, ours.source) != (theirs.cell_type, theirs.source):
            return f"{target.name}: {ours['id']} ({_first_line(ours)}) differs from {path.name}"
        if theirs.cell_type == "code" and theirs.source and theirs.execution_count is None:
            return f"{target.name}: {ours['id']} ({_first_line(ours)}) was never executed"
    if len(fresh) != len(written):
        number = min(len(fresh), len(written))
        where = "ends before" if len(written) < len(fresh) else "goes on after"
        return f"{target.name}: {where} cell-{number:03d}, {len(written)} cells for {len(fresh)} in {path.name}"
    return None


def _first_line(cell: Any) -> str:
    return repr(cell.source.split("\n")[0][:60])


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Execute notebooks from their sources.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="stems of the sources; none means all")
    parser.add_argument("--check", action="store_true", help="compare only, and exit 1 on a difference")
    options = parser.parse_args()
    if options.check:
        found = [sentence for path in sources(options.names) if (sentence := stale(path))]
        print("\n".join([*found, "run `make notebooks`"]) if found else "every notebook matches its source")
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
