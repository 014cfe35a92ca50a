"""`python -m paper_repro.readme`: the generated parts of README.md, the map of the tree, verdicts, and claims about training.

Each part stands between two HTML comments. The map is the first line of every module's docstring. The verdict table
joins the theorem catalogue with one run's verdicts; checking it runs no theorem, it compares ids, kinds, titles,
sources and numbers of mutants with the catalogue and refuses words that no verdict can have. The claims about training are those
of `results/training_claims.csv`, which is made from the tables' records.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from testbed.core.command import run_command
from testbed.core.errors import InputError
from theory.verdict_file import LEGAL_WORDS, load_verdicts, verdict_word

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("testbed", "theory", "paper_repro", "figures")
THEOREM = re.compile(r"\b[a-z]\d\d_\w+\.py$")
HEADER = "| id | kind | statement | source | verdict | mutants killed |"
app = typer.Typer(add_completion=False, rich_markup_mode=None)


# ------------------------------------------------------------------------------------------------ map of the tree
def first_line(source: str) -> str:
    r"""Return the first line of a module's docstring, or "" if it has none.

    Examples
    --------
    >>> first_line("'''One idea.\n\nMore.'''")
    'One idea.'
    """
    return (ast.get_docstring(ast.parse(source)) or "").split("\n")[0]


def tree_lines(folder: Path, depth: int = 0) -> list[tuple[str, str]]:
    """Return (indented name, first docstring line) for a package, its modules and its folders, in reading order."""
    start = folder / "__init__.py"
    lines = [("  " * depth + folder.name + "/", first_line(start.read_text()) if start.exists() else "")]
    for path in sorted(folder.iterdir(), key=lambda path: (path.is_dir(), path.name)):
        if path.suffix == ".py" and path.name != "__init__.py":
            lines.append(("  " * (depth + 1) + path.name, first_line(path.read_text())))
        elif path.is_dir() and any(path.rglob("*.py")):
            lines += tree_lines(path, depth + 1)
    return lines


def tree_block(root: Path) -> str:
    """Return the annotated map of the packages under `root`: the folders, then every module in a part that folds."""
    lines = [line for name in PACKAGES if (root / name).is_dir() for line in tree_lines(root / name)]
    folders = [line for line in lines if line[0].endswith("/")]
    modules = [line for line in lines if not THEOREM.search(line[0])]  # theorems have a table of their own
    return f"{_text(folders)}\n\n<details>\n<summary>Every module, one line each</summary>\n\n{_text(modules)}\n\n</details>"


def _text(lines: list[tuple[str, str]]) -> str:
    width = max(len(name) for name, _ in lines) + 2
    return "```text\n" + "\n".join(f"{name:{width}}{text}".rstrip() for name, text in lines) + "\n```"


# ------------------------------------------------------------------------------------------------ verdict table
@dataclass(frozen=True, slots=True)
class Row:
    """One line of the verdict table; `killed` and `total` count mutants."""

    id: str
    kind: str
    title: str
    source: str
    word: str
    killed: str
    total: str

    def facts(self) -> tuple[str, ...]:
        """Return what the catalogue alone determines."""
        return self.id, self.kind, self.title, self.source, self.total


def catalogue_rows(catalogue: Iterable[Any], verdicts: dict[str, dict[str, Any]]) -> list[Row]:
    """Join theorem objects with verdicts; a theorem that was not run says so."""
    rows = []
    for theorem in catalogue:
        verdict = verdicts.get(theorem.id)
        killed = "-" if verdict is None else str(sum(bool(mutant["killed"]) for mutant in verdict["mutants"]))
        source = f"{theorem.source} (reading)" if theorem.reading else theorem.source
        title, total = " ".join(theorem.headline.split()), str(len(theorem.mutants))
        rows.append(Row(theorem.id, theorem.kind, title, source, verdict_word(verdict), killed, total))
    return rows


def table_block(rows: list[Row]) -> str:
    """Return the rows as a Markdown table."""
    cells = [
        (
            row.id,
            row.kind,
            row.title,
            row.source,
            row.word,
            f"{row.killed} / {row.total}" if row.total != "0" else "none",
        )
        for row in rows
    ]
    return "\n".join([HEADER, "|---" * 6 + "|", *("| " + " | ".join(map(_escaped, line)) + " |" for line in cells)])


def parse_table(block: str) -> list[Row]:
    """Read a table written by `table_block`.

    Examples
    --------
    >>> rows = [Row("S1", "identity", "a | b", "ours", "holds", "3", "3")]
    >>> parse_table(table_block(rows)) == rows
    True
    """
    rows = []
    for line in block.strip().splitlines()[2:]:
        cells = [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line.strip())[1:-1]]
        if len(cells) != 6:
            raise InputError("a row of the verdict table must have six cells", found=repr(line))
        killed, _, total = cells[5].partition(" / ")
        rows.append(Row(*cells[:5], *((killed, total) if total else ("0" if cells[4] in LEGAL_WORDS else "-", "0"))))
    return rows


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|")


# ------------------------------------------------------------------------------------------------ README.md
def get_block(text: str, name: str) -> str:
    """Return what stands between the markers of a generated part."""
    match = _marked(name).search(text)
    if match is None:
        raise InputError(f"README.md must have the markers of the part {name!r}", found="none")
    return match[2]


def set_block(text: str, name: str, content: str) -> str:
    """Replace what stands between the markers of a generated part."""
    get_block(text, name)
    return _marked(name).sub(lambda match: f"{match[1]}\n{content}\n{match[3]}", text)


def _marked(name: str) -> re.Pattern[str]:
    return re.compile(rf"(<!-- {name}: generated[^>]*-->)\n(.*?)\n?(<!-- end of {name} -->)", re.DOTALL)


def complaints(text: str, tree: str, expected: list[Row], training: str) -> list[str]:
    """Return one sentence for each way in which README.md is out of date.

    Parameters
    ----------
    text : str             README.md
    tree : str             `tree_block` of the present tree
    expected : list[Row]   `catalogue_rows` of the present catalogue; only their `facts` are compared
    training : str         `claims_block` of the claims that are judged now
    """
    found = []
    if get_block(text, "tree") != tree:
        written, present = set(get_block(text, "tree").splitlines()), set(tree.splitlines())
        found += [f"map of the tree: stale line {line.strip()!r}" for line in sorted(written - present)]
        found += [f"map of the tree: missing line {line.strip()!r}" for line in sorted(present - written)]
        found = found or ["map of the tree: lines in another order"]
    if get_block(text, "training") != training:
        found.append("claims about training: not those of paper_repro/results/training_claims.csv")
    rows = parse_table(get_block(text, "verdicts"))
    for row in rows:
        if row.word not in LEGAL_WORDS:
            found.append(f"verdict table: {row.id} has the word {row.word!r}, which is no verdict")
        if not row.killed.isdigit() or int(row.killed) > int(row.total):
            found.append(f"verdict table: {row.id} has {row.killed} of {row.total} mutants killed")
    written_rows, present_rows = {row.id: row for row in rows}, {row.id: row for row in expected}
    for name in sorted(written_rows.keys() ^ present_rows.keys()):
        found.append(f"verdict table: {name} is {'not in the catalogue' if name in written_rows else 'missing'}")
    for name in written_rows.keys() & present_rows.keys():
        if written_rows[name].facts() != present_rows[name].facts():
            found.append(f"verdict table: {name} differs from the catalogue: {present_rows[name].facts()}")
    return found


@app.command()
def readme(
    write: Annotated[bool, typer.Option("--write", help="Write the generated parts into README.md.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Exit 1 if README.md is out of date.")] = False,
    verdicts: Annotated[Path | None, typer.Option(help="The verdicts.json to tabulate, with --write.")] = None,
    records: Annotated[
        Path | None, typer.Option(help="Records of tables whose claims to gather, with --write.")
    ] = None,
    path: Annotated[Path, typer.Option("--readme", help="The file to treat.")] = ROOT / "README.md",
) -> None:
    """Write or check the generated parts of README.md."""
    if write == check:
        raise InputError("exactly one of --write and --check must be given", found="both" if write else "neither")
    from paper_repro.training_claims import claims_block, judged_by, read_claims, write_claims
    from theory.catalogue import catalogue

    if write and records is not None:
        print(f"wrote {write_claims(judged_by(records))}")
    training = claims_block(read_claims())
    tree, text = tree_block(ROOT), path.read_text()
    if check:
        found = complaints(text, tree, catalogue_rows(catalogue(), {}), training)
        print("\n".join(found) or "README.md is up to date", file=sys.stderr if found else sys.stdout)
        raise typer.Exit(1 if found else 0)
    text = set_block(set_block(text, "tree", tree), "training", training)
    if verdicts is not None:
        text = set_block(text, "verdicts", table_block(catalogue_rows(catalogue(), load_verdicts(verdicts))))
    path.write_text(text)
    print(f"wrote {path}")


def main() -> int:
    """Run the command line."""
    return run_command(app, "python -m paper_repro.readme")


if __name__ == "__main__":
    sys.exit(main())
