"""The catalogue's plain notation as a reader expects it: `E_mu[W_(k)^2] <= d2` with Greek letters, sub- and superscripts.

Only what is written is set otherwise; nothing is parsed as mathematics. Words in backticks are code.
"""

from __future__ import annotations

import math
import re
from typing import Any

from theory.report_parts.markup import Markup, element, safe

LETTERS = {
    "mu": "μ", "pi": "π", "rho": "ρ", "nu": "ν", "xi": "ξ", "tau": "τ", "sigma": "σ", "delta": "δ", "eps": "ε",
    "lambda": "λ", "kappa": "κ", "phi": "φ", "pt": "p̃",
    "chi2": "χ²", "d2": "d₂", "D2": "D₂", "grad": "∇", "dtau": "dτ",
}  # fmt: skip
BEFORE_SCRIPT = {"sum": "∑", "prod": "∏"} | {
    word: word for word in ("max", "min", "sup", "TV", "KL", "BC", "Var", "tr")
}
GREEK = "|".join(sorted(LETTERS, key=len, reverse=True))
TOKEN = re.compile(
    rf"""(?P<name>(?<![A-Za-z0-9_])(?:(?:{GREEK})(?![A-Za-z0-9])
                  |(?:{"|".join(BEFORE_SCRIPT)}|[A-Za-z]|\d+)(?=[_^][A-Za-z0-9({{*])))
       |(?P<script>(?<=[\w)\]|}}*'+])[_^](?=[A-Za-z0-9({{*]))
       |(?P<root>(?<![A-Za-z])sqrt(?![A-Za-z])\s?)
       |(?P<plus>(?<=\))\+(?=[\s.,;:)\]/^]|$))
       |(?P<sum>(?<![A-Za-z])sum(?=\s(?:pt[_^]|[A-Za-z]\b(?!\s[a-z]{{2}})|\([a-z]-|sqrt)))
       |(?P<star>(?<![\w*])\*[a-z]+(?:\s[a-z]+)*\*(?![\w*]))
       |(?P<minus>(?:(?<=\b\w)|(?<=[)\]}}]))-(?=\w\b|\()|(?:^|(?<=[\s(\[=]))-(?=[A-Z\d(\[]))
       |(?P<power>(?<![\w.])\d+(?:\.\d+)?e[+-]?\d+(?![\w.]))
       |(?P<theorem>(?<![\w/])[SOKGCV]\d{{1,2}}(?![\w(]))
       |(?P<sign><=|>=|!=|->|\+-|(?<=\s)-(?=\s)|~|(?<=<\s)inf\b)""",
    re.VERBOSE,
)
SIGNS = {"<=": "≤", ">=": "≥", "!=": "≠", "->": "→", "+-": "±", "-": "−", "~": "∼", "inf": "∞"}
SHORT = re.compile(r"(?:mu|pi|nu|xi)\b|[A-Za-z]+\d*|\d+|\*")
CLOSES = {"(": ")", "{": "}"}


def prose(text: str) -> Markup:
    """Set a sentence with formulas in it.

    Examples
    --------
    >>> prose("E_mu[W_(k)^2] <= d2, see `spire`")
    'E<sub>μ</sub>[W<sub>(k)</sub><sup>2</sup>] ≤ d₂, see <code>spire</code>'
    """
    pieces = re.split(r"`([^`]+)`", text)
    return safe(*(element("code", piece) if i % 2 else _formulas(piece) for i, piece in enumerate(pieces)))


def _formulas(text: str) -> Markup:
    found: list[Markup] = []
    place, base = 0, -1  # `base` is where a script may follow a name; it may follow a closing bracket anywhere
    while match := TOKEN.search(text, place):
        found.append(safe(text[place : match.start()]))
        place = match.end()
        word = match[0]
        if word in ("d2", "D2") and text[place : place + 1] == "_":
            inner, place = _script(text, place + 1)
            found.append(safe(word[0], element("sub", "2,", inner)))
            base = place
        elif word == "chi2" and text[place : place + 1] == "^":
            found.append(Markup("(χ²)"))
            base = place
        elif match["name"]:
            found.append(safe(LETTERS.get(word) or BEFORE_SCRIPT.get(word, word)))
            base = place
        elif match["script"] and match.start() != base and text[match.start() - 1] not in ")]|}*'":
            found.append(safe(word))  # snake_case in a sentence is no formula
        elif match["script"]:
            inner, place = _script(text, place)
            found.append(element("sub" if word == "_" else "sup", inner))
            base = place
        elif match["root"]:
            found.append(Markup("√"))
        elif match["theorem"]:
            found.append(element("a", word, href=f"#{word}", class_="ref"))
        elif match["power"]:
            mantissa, exponent = word.split("e")
            found.append(
                safe(mantissa, Markup("&nbsp;×&nbsp;10"), element("sup", str(int(exponent)).replace("-", "−")))
            )
        elif match["sum"]:
            found.append(Markup("∑"))
        elif match["star"]:
            found.append(element("em", word[1:-1]))
        elif match["minus"]:
            found.append(Markup("−"))
        elif match["plus"]:
            found.append(element("sub", "+"))
            base = place
        else:
            found.append(Markup(SIGNS[word]))
    return safe(*found, text[place:])


def _script(text: str, place: int) -> tuple[Markup, int]:
    """What stands below or above, and where it ends: {braces} go, (parentheses) stay below only."""
    closing = CLOSES.get(text[place])
    if closing is None:
        match = SHORT.match(text, place)
        assert match is not None  # the token was matched with a letter, digit or star ahead
        return _formulas(match[0]), match.end()
    depth, end = 0, place
    for end in range(place, len(text)):
        depth += (text[end] == text[place]) - (text[end] == closing)
        if depth == 0:
            break
    inner = text[place + 1 : end + (depth > 0)].replace("-", "−")  # an open bracket ends with the text
    keep = closing == ")" and text[place - 1] == "_"
    return safe(*(("(", _formulas(inner), ")") if keep else (_formulas(inner),))), end + 1


def number(value: Any, digits: int = 4) -> Markup:
    """A number as a reader expects it; JSON's "inf" and "nan" included.

    Examples
    --------
    >>> number(0.0123456), number(1.5e-15, 2), number(0), number("inf"), number(None), number(12)
    ('0.01235', '1.5&nbsp;×&nbsp;10<sup>−15</sup>', '0', '∞', '–', '12')
    """
    if value is None:
        return Markup("–")
    real = float(value)
    if math.isnan(real):
        return Markup("not a number")
    sign = "−" if real < 0 else ""
    size = abs(real)
    if math.isinf(size):
        return Markup(sign + "∞")
    if size == 0 or (isinstance(value, int) and size < 1e7):
        return Markup(f"{sign}{size:.0f}")
    if 1e-3 <= size < 1e6:
        return Markup(sign + (f"{size:.{digits}g}" if size < 10**digits else f"{size:.0f}"))
    mantissa, exponent = f"{size:.{digits - 1}e}".split("e")
    mantissa = mantissa.rstrip("0").rstrip(".")
    power = int(exponent)
    return Markup(f"{sign}{mantissa}&nbsp;×&nbsp;10<sup>{'−' if power < 0 else ''}{abs(power)}</sup>")
