"""What a figure, a sentence or a table says, read back so that it can be compared with numbers found another way.

A panel returns a `Picture`, which remembers the words drawn into it; `told` joins them with the sentence of a control;
`says` compares the numbers in such a text, in order and to the digits that are printed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from classroom import Control, png

SKIPPED = re.compile(r"\$[^$]*\$|`[^`]*`|<[^>]*>")  # formulas, names in code, tags
NUMBER = re.compile(r"(?<![\w.^/-])([+-]?)(?:(\d[\d,]*)(\.\d*)?(?:e([+-]?\d+))?|inf\b)(%?)")
HALF = 0.5 + 1e-6  # units of the last digit: a value on the edge may be rounded either way


class Picture(bytes):
    """An image as bytes, with the titles, annotations and legend entries that were drawn into it."""

    words: str = ""


def picture(figure: Any) -> Picture:
    """Return a figure as an image that remembers its words: titles, annotations, legends."""
    found = [text for ax in figure.axes for text in (ax.title, *ax.texts)]
    legends = [*(ax.get_legend() for ax in figure.axes), *figure.legends]
    found += [text for legend in legends if legend for text in legend.get_texts()]
    image = Picture(png(figure))
    image.words = "; ".join(text.get_text() for text in found)
    return image


def told(control: Control, **values: Any) -> str:
    """Everything a control says at these values: the words of its figure, then its sentence."""
    image, sentence = control.draw(**values)
    return f"{getattr(image, 'words', '')}; {sentence}"


def settings(control: Control) -> list[dict[str, Any]]:
    """Where a control is checked: at its start values, and with each slider or menu at either end."""
    start = {name: choice.start for name, choice in control.choices.items()}
    ends = [{**start, name: choice.values[i]} for name, choice in control.choices.items() for i in (0, -1)]
    return [start, *ends]


def says(printed: Any, *expected: Any) -> bool:
    """Whether the numbers in a text or in the cells of a table are these, as far as their digits go.

    Parameters
    ----------
    printed : str, or (nested) sequences of cells   numbers in formulas, in names and in exponents are not read
    expected : numbers, or (nested) sequences of them, in the order of printing; 0.5 for "50%"

    Raises
    ------
    AssertionError   more or fewer numbers, or one that differs (and says which)
    """
    text = " | ".join(map(str, _flat(printed)))
    found, wanted = list(_numbers(text)), [float(value) for value in _flat(expected)]
    if len(found) != len(wanted):
        raise AssertionError(f"{len(found)} numbers stand where {len(wanted)} are expected: {text!r}")
    for (written, value, unit), number in zip(found, wanted, strict=True):
        if not (value == number or abs(value - number) <= HALF * unit):
            raise AssertionError(f"{written} stands where {number!r} is expected: {text!r}")
    return True


def _numbers(text: str) -> Iterator[tuple[str, float, float]]:
    """Each number as written, its value, and one unit of its last digit."""
    for match in NUMBER.finditer(SKIPPED.sub(" ", text)):
        sign, whole, decimals, exponent, percent = match.groups()
        scale = 10.0 ** int(exponent or 0) / (100 if percent else 1)
        size = float("inf") if whole is None else float(whole.replace(",", "") + (decimals or "")) * scale
        yield match[0], -size if sign == "-" else size, scale * 10.0 ** -max(len(decimals or "") - 1, 0)


def _flat(nested: Any) -> Iterator[Any]:
    nested = nested.tolist() if hasattr(nested, "tolist") else nested
    if isinstance(nested, str) or not hasattr(nested, "__iter__"):
        yield nested
        return
    for part in nested:
        yield from _flat(part)
