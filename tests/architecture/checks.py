"""The rules about the tree, each a function from text or paths to complaints, so that each can be shown to fail."""

from __future__ import annotations

import ast
import re
import statistics
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("testbed", "theory", "paper_repro", "figures")
MOST_LINES, MOST_MEDIAN, MOST_BYTES = 400, 150, 2**20
HEAVY = ("torch", "scipy", "sympy", "pandas")
UNSEEN = {".git", ".venv", ".venv-repro", "out", "build", "dist", "__pycache__"}


def tree_files(root: Path = ROOT) -> list[Path]:
    """Return the project's files: what git tracks or would track; outside a checkout, all but caches and outputs."""
    done = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        check=False,
    )
    if done.returncode == 0:
        paths = [root / name for name in done.stdout.decode().split("\0") if name]
    else:
        paths = [path for path in root.rglob("*") if not UNSEEN & set(path.relative_to(root).parts)]
    return sorted(path for path in paths if path.is_file())


def too_long(lines: dict[str, int], limit: int = MOST_LINES) -> list[str]:
    """Complain about each file of more than `limit` lines."""
    return [f"{name} has {count} lines, more than {limit}" for name, count in lines.items() if count > limit]


def long_median(lines: dict[str, int], limit: int = MOST_MEDIAN) -> list[str]:
    """Complain if half of the files have `limit` lines or more."""
    median = statistics.median(lines.values())
    return [f"the median file has {median} lines, not below {limit}"] if median >= limit else []


def too_big(sizes: dict[str, int], limit: int = MOST_BYTES) -> list[str]:
    """Complain about each file of more than `limit` bytes."""
    return [f"{name} has {size} bytes, more than {limit}" for name, size in sizes.items() if size > limit]


def vague_names(paths: list[str]) -> list[str]:
    """Complain about modules whose name says nothing: a concept is a file."""
    return [f"{path}: name the concept" for path in paths if Path(path).stem in {"utils", "util", "helpers", "misc"}]


def lonely_notebooks(paths: list[str]) -> list[str]:
    """Complain about each notebook without the .py source of the same name beside it."""
    known = set(paths)
    return [f"{path} has no .py twin" for path in paths if path.endswith(".ipynb") and path[:-5] + "py" not in known]


def global_randomness(source: str) -> list[str]:
    """Complain about each call that touches global random state, or draws from an unseeded generator."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            last = name.rsplit(".", 1)[-1]
            unseeded = last in {"default_rng", "Random"} and not (node.args or node.keywords)
            seeds_torch = re.match(r"torch\.(\w+\.)?(manual_seed|manual_seed_all|seed)$", name)
            of_numpy = re.match(r"(np|numpy)\.random\.[a-z]", name) and last != "default_rng"
            if unseeded or seeds_torch or of_numpy or re.match(r"random\.[a-z]\w+$", name):
                found.append(f"line {node.lineno}: {name}")
    return found


def heavy_imports(report: str, heavy: tuple[str, ...] = HEAVY) -> list[str]:
    """Return the heavy packages in the output of `python -X importtime`."""
    modules = [line.rsplit("|", 1)[-1].strip() for line in report.splitlines() if line.startswith("import time:")]
    return sorted({module.split(".")[0] for module in modules} & set(heavy))


# the patterns are written so that they do not match this file
MACHINE = re.compile(
    r"(?<![\w.~])/(?:roo[t]|hom[e]|wor[k]|User[s]|tm[p])/\S"  # folders of somebody's machine
    r"|index-ur[l]|pypi\.or[g]|pythonhosted\.or[g]|download\.pytorc[h]|registry\.npmj[s]"  # package registries
)


def machine_traces(text: str) -> list[str]:
    """Complain about each line that names a folder of somebody's machine or a package registry's address."""
    lines = enumerate(text.splitlines(), 1)
    return [f"line {number}: {match[0]}" for number, line in lines if (match := MACHINE.search(line))]


def readme_commands(text: str) -> list[tuple[str, int]]:
    """Return the commands of the fenced sh blocks with the exit status each must have: "# exit 1" at its end says so."""
    commands = []
    for block in re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        for line in block.replace("\\\n", " ").splitlines():
            if line.strip() and not line.lstrip().startswith("#"):
                status = re.search(r"#\s*exit (\d+)", line)
                commands.append((line.strip(), int(status[1]) if status else 0))
    return commands


def uncovered_folders(folders: set[str], forbidden: set[str]) -> list[str]:
    """Complain about folders of testbed that figures may import although they are neither core nor data."""
    return sorted(folders - {"core", "sample_data"} - {name.removeprefix("testbed.") for name in forbidden})


def ambiguous_exports(exports: set[str], submodules: set[str]) -> list[str]:
    """Complain about exports named like a submodule: importing the submodule would put it in the export's place."""
    return sorted(exports & submodules)
