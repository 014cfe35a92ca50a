"""Finished figures inside the page, each under the theorem it helps with."""

from __future__ import annotations

import base64
import struct
from pathlib import Path

from testbed.core.errors import InputError
from theory.report_parts.markup import Markup, element
from theory.report_parts.notation import prose

SIGNATURE = b"\x89PNG\r\n\x1a\n"
WIDE = 1000  # pixels: a wider image scrolls on a narrow screen
OVERVIEW = "mutant_margins"
SHOWN = {"S4": "bias_readings", "S10": "bound_vs_moment", "O1": "mse_vs_cap", "K1": "mse_vs_share", "K5": "equilibrium"}
CAPTIONS = {
    "mutant_margins": "By how much every mutant misses the tolerance of its theorem. The dashed line is what counts as caught; "
    "a surviving mutant would be an open square.",
    "bias_readings": "Exact bias of the gradient in a world where the target was trained: three segments, each by a staler "
    "checkpoint than the next. The full product and the readings with the target's critic are unbiased to rounding (lower "
    "panel); the same products with the bare reward are not, and simpler weights are worse.",
    "bound_vs_moment": "Exact second moment of a response's weight. The product of the largest d2 bounds it; the product of "
    "averages falls below it in the first world (shaded) and just happens not to in the second.",
    "mse_vs_cap": "Exact mean squared error of a capped mean, for three laws of the weight and three numbers of draws n. The "
    "choices that know only a second moment stay close to the exact optimum.",
    "mse_vs_share": "Mean squared error against the share of replay, over its value without replay. Dots: optima; cross: "
    "the stationary point that is the worst mixture; shaded: ruled out. Prices are the multipliers.",
    "equilibrium": "Best share of replay given the ages that the share in use causes. It meets the dotted line once, never, "
    "twice or three times; where it leaps over the line there is no equilibrium.",
}


def picture(name: str | None, folder: Path | None) -> Markup | None:
    """The image NAME.png of the folder with its caption, or None where there is none.

    Raises
    ------
    InputError   a file of that name that is no PNG image
    """
    path = folder / f"{name}.png" if folder is not None and name is not None else None
    if path is None or not path.is_file():
        return None
    data = path.read_bytes()
    if data[:8] != SIGNATURE or len(data) < 24:
        raise InputError("a figure must be a PNG image", found=path, hint="`python -m figures` draws them")
    width, height = struct.unpack(">II", data[16:24])
    source = "data:image/png;base64," + base64.b64encode(data).decode()
    caption = CAPTIONS.get(str(name), str(name))
    image = element("img", src=source, alt=caption, width=width // 2, height=height // 2)
    sheet = element("div", image, class_="sheet", tabindex="0" if width > WIDE else None)
    return element("figure", sheet, element("figcaption", prose(caption)), class_="wide" if width > WIDE else None)
