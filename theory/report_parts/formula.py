"""LaTeX lines of a derivation as MathML, which browsers draw without help from a network."""

from __future__ import annotations

import html
import re
from functools import lru_cache

from theory.report_parts.markup import Markup

WORDS = "|".join(
    ("Incl", "Below", "Ties", "kept", "bias", "fail", "mix", "MSE", "Var", "KL", "TV", "BC", "ok", "Kish", "bound")
)
LONGEST = 400  # characters of LaTeX: a longer line is an enumeration, and no reader follows it
WORD = re.compile(rf"(?<![\\A-Za-z])(?<!\\mathrm{{)(?<!\\text{{)(?:{WORDS})(?![A-Za-z])")
TIGHT = re.compile(r"<mo>(min|max|sup|exp|log)</mo>(?=<mo[^>]*>[(\[|‖])")
ENTITY = re.compile("&#x0*([0-9A-Fa-f]+);")
SINGLE = re.compile(r"<mrow>(<(m[ion])>[^<]*</\2>)</mrow>")  # a row of one
UPRIGHT = re.compile(r'<mrow>((?:<mi mathvariant="normal">[^<]</mi>){2,})</mrow>')


def printable(tex: str) -> bool:
    """Whether a line is short enough to be read."""
    return len(tex) <= LONGEST


@lru_cache(maxsize=2048)
def mathml(tex: str, display: str = "block") -> Markup:
    r"""One formula.

    Raises
    ------
    ValueError   LaTeX that the converter does not know

    Examples
    --------
    >>> mathml("a_1 < b")[:70]
    '<math display="block"><mrow><msub><mi>a</mi><mn>1</mn></msub><mo>&lt;<'
    """
    from latex2mathml.converter import convert

    found = convert(_plain_latex(tex), display=display).replace(' xmlns="http://www.w3.org/1998/Math/MathML"', "")
    found = ENTITY.sub(lambda m: html.escape(chr(int(m[1], 16))), found)
    found = found.replace(r">\|<", ">‖<")  # a norm with a size
    found = UPRIGHT.sub(lambda m: f"<mi>{''.join(re.findall('>([^<])<', m[1]))}</mi>", found)
    found = found.replace('<mo stretchy="false">|</mo>', '<mo stretchy="false" lspace="0" rspace="0">|</mo>')
    found = found.replace("<mo>/</mo>", '<mo lspace="0" rspace="0">/</mo>')
    found = TIGHT.sub(r'<mo lspace="0.17em" rspace="0">\1</mo>', found)
    found = SINGLE.sub(r"\1", found)
    if "\\" in found:
        raise ValueError(f"LaTeX that MathML cannot show: {tex}")
    return Markup(found)


def _plain_latex(tex: str) -> str:
    """Mark the words, which are taken for products of letters otherwise."""
    return WORD.sub(lambda match: rf"\mathrm{{{match[0]}}}", tex)
