"""The printed sections as one self-contained page: no script, no file or font from elsewhere, readable on a phone."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from html import escape
from pathlib import Path

from testbed.core.records import require_writable
from testbed.core.sections import Section

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --faint: #5b6570; --line: #d5dae0; --paper: #fff; --alarm: #a61b1b; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e8ec; --faint: #9aa5b1; --line: #343c45; --paper: #14181c; --alarm: #ff8f8f; } }
body { margin: 0 auto; max-width: 60rem; padding: 1rem; color: var(--ink); background: var(--paper);
  font: 1rem/1.5 system-ui, sans-serif; }
h1 { font-size: 1.3rem; } h2 { font-size: 1rem; letter-spacing: .04em; margin: 2rem 0 .3rem; }
.says { font-weight: 600; margin: 0 0 .5rem; } .remark { color: var(--faint); margin: .3rem 0; font-size: .9rem; }
.fault { color: var(--alarm); }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .7rem .2rem 0; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line);
  vertical-align: top; }
th { color: var(--faint); font-weight: 600; } .text { text-align: left; }
td.text.last { white-space: normal; min-width: 14rem; }
"""


def html_page(title: str, sections: Sequence[Section]) -> str:
    """Return the page.

    Examples
    --------
    >>> page = html_page("dump.npz", [Section(title="A < B", says="One.", header=("x", "y"), rows=[("a", "1")])])
    >>> "<h2>A &lt; B</h2>" in page, "<td>1</td>" in page, "http" in page
    (True, True, False)
    """
    body = "\n".join(_section(section) for section in sections)
    name = escape(title)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Diagnosis of {name}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        f"<h1>Diagnosis of {name}</h1>\n{body}\n</main>\n</body>\n</html>\n"
    )


def write_page(path: str | Path, title: str, sections: Sequence[Section]) -> Path:
    """Write the page beside its target, then rename.

    Raises
    ------
    InputError   a path that cannot be written
    """
    real = require_writable(path)
    text = html_page(title, sections)
    if real.exists() and not real.is_file():
        real.write_text(text, encoding="utf-8")
        return Path(path)
    handle, name = tempfile.mkstemp(dir=real.parent, prefix=f".{real.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(name, 0o666 & ~mask)
        os.replace(name, real)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return Path(path)


def _section(section: Section) -> str:
    parts = [f"<section>\n<h2>{escape(section.title)}</h2>", f'<p class="says">{escape(section.says)}</p>']
    if section.header:
        left = [i == 0 or name in section.text for i, name in enumerate(section.header)]
        last = len(left) - 1
        kinds = [("text last" if i == last and i else "text") if to else "" for i, to in enumerate(left)]
        rows = [_row("th", section.header, kinds), *(_row("td", row, kinds) for row in section.rows)]
        parts.append('<div class="wide"><table>\n' + "\n".join(rows) + "\n</table></div>")
    parts += [
        f'<p class="remark{" fault" if remark.startswith("FAULT ") else ""}">{escape(remark)}</p>'
        for remark in section.remarks
    ]
    return "\n".join(parts) + "\n</section>"


def _row(tag: str, cells: Sequence[str], kinds: Sequence[str]) -> str:
    marked = (
        f'<{tag} class="{kind}">{escape(cell)}</{tag}>' if kind else f"<{tag}>{escape(cell)}</{tag}>"
        for cell, kind in zip(cells, kinds, strict=True)
    )
    return "<tr>" + "".join(marked) + "</tr>"
