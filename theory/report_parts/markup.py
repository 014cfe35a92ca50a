"""HTML without templates: text is escaped unless it is already markup, so that nothing a record says can become a tag."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from typing import Any

VOID = {"img", "meta", "br"}


class Markup(str):
    """A string that is already HTML."""


Piece = str | Iterable["Piece"] | None


def safe(*pieces: Piece) -> Markup:
    """Join pieces; plain strings are escaped, None is nothing.

    Examples
    --------
    >>> safe("a < b ", Markup("<b>c</b>"), None, ["d", "&"])
    'a &lt; b <b>c</b>d&amp;'
    """
    found: list[str] = []
    for piece in pieces:
        if piece is None:
            continue
        if isinstance(piece, Markup):
            found.append(piece)
        elif isinstance(piece, str):
            found.append(html.escape(piece, quote=False))
        else:
            found.append(safe(*piece))
    return Markup("".join(found))


def element(name: str, /, *pieces: Piece, **attributes: Any) -> Markup:
    """One element; `class_` and `data_label` become `class` and `data-label`, attributes that are None are left out.

    Examples
    --------
    >>> element("p", "1 < 2", class_="note", id=None)
    '<p class="note">1 &lt; 2</p>'
    """
    written = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{html.escape(str(value))}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in VOID:
        return Markup(f"<{name}{written}>")
    return Markup(f"<{name}{written}>{safe(*pieces)}</{name}>")


def table(
    header: Sequence[Piece],
    rows: Iterable[Sequence[Piece]],
    *,
    numbers: Sequence[int] = (),
    lines: Sequence[int] = (),
    stack: bool = True,
) -> Markup:
    """A table whose rows become cards on a narrow screen (`stack`), or else scrolls sideways.

    Parameters
    ----------
    header : one piece per column    plain strings, if `stack`: each labels its cell
    rows : rows of as many pieces
    numbers : columns that are right-aligned
    lines : columns that get a line of their own in a card, without their label

    Examples
    --------
    >>> "data-label" in table(("a", "b"), [("1", "2")])
    True
    """
    look = ["number" if i in numbers else "line" if i in lines else None for i in range(len(header))]
    labels = [name if stack and name and i not in lines else None for i, name in enumerate(header)]
    head = element("tr", *(element("th", name, scope="col", class_=c) for name, c in zip(header, look, strict=True)))
    body = [
        element(
            "tr",
            *(
                element("td", cell, class_=c, data_label=label)
                for cell, c, label in zip(row, look, labels, strict=True)
            ),
        )
        for row in rows
    ]
    whole = element("table", element("thead", head), element("tbody", *body), class_="stack" if stack else None)
    return whole if stack else element("div", whole, class_="scroll", tabindex="0")


def name_code(name: str) -> Markup:
    """A name in code type that a narrow column may break after its underscores, and nowhere else.

    Examples
    --------
    >>> name_code("two_segments")
    '<code>two_<wbr>segments</code>'
    """
    return element(
        "code",
        *(safe(part, Markup("<wbr>") if part.endswith("_") else None) for part in re.findall("[^_]*_|[^_]+", name)),
    )


def folded(summary: Piece, *pieces: Piece, open_: bool = False) -> Markup:
    """Something a reader unfolds; on paper it is unfolded."""
    return element("details", element("summary", summary), *pieces, open=open_ or None)
