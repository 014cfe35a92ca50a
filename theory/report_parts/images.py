"""Finished figures inside the page, each under the theorem it helps with."""

from __future__ import annotations

import base64
import struct
from pathlib import Path

from testbed.core.errors import InputError
from theory.report_parts.markup import Markup, element, safe
from theory.report_parts.notation import prose

SIGNATURE = b"\x89PNG\r\n\x1a\n"
WIDE = 1000  # pixels: a wider image scrolls on a narrow screen
OVERVIEW = "mutant_margins"
SHOWN = {  # theorem -> the figures under it
    "S4": ("bias_readings",), "S10": ("bound_vs_moment",), "O1": ("mse_vs_cap",), "K1": ("mse_vs_share",),
    "K5": ("equilibrium",), "C3": ("displacement_vs_confidence",), "C4": ("cap_vs_confidence",), "C6": ("truncation_bias",),
    "C17": ("displacement_tails", "flips"),
}  # fmt: skip
ELSEWHERE = {"C7": ("C4", "C6"), "C9": ("C4",), "C10": ("C6",), "C17": ("C3",)}  # theorem -> where more of it is shown
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
    "displacement_vs_confidence": "Displacement of drawn tokens against 1-p: bands hold 10 to 90 and 1 to 99 % of them. The laws "
    "are exact, the rollouts have bars (95 %, whole responses drawn anew); diamonds are the paper's Table 7. The spread of the "
    "displacement hardly depends on 1-p, that of log k falls with it.",
    "cap_vs_confidence": "Largest ratio that each token rule leaves alone, at its defaults. Caps of CIS tighten with the "
    "trainer's confidence until the floor; its odds reading crosses a cap of 2 at the dot. KPop's gate opens without bound for "
    "doubtful tokens, bands on the ratio ignore confidence.",
    "truncation_bias": "What caps and masks cut off, by confidence of the drawn token, exact under the calibrated noise of a "
    "mixture of experts. A constant cap of 2 takes more than CIS from doubtful tokens and less from sure ones. Below: what is "
    "left of the second moment, which has no bound without a cap.",
    "displacement_tails": "How often the perturbation of a logit and the displacement exceed x: calibrated laws, the bundled "
    "rollouts (bands: 95 %, whole positions or responses drawn anew), and the numbers printed in the paper's Tables 3, 5, 6.",
    "flips": "Spread of the perturbation of a logit by the number of layers that route the token to other experts. Bars: Table 4 "
    "by bin, most of whose last bin has little more than 7 layers; dashed: the dense model.",
}


def pictures(theorem: str, folder: Path | None) -> list[Markup]:
    """The images under one theorem, and a line of links to those under others; nothing where the folder has none."""
    found = [image for name in SHOWN.get(theorem, ()) if (image := picture(name, folder)) is not None]
    others = [
        other for other in ELSEWHERE.get(theorem, ())
        if folder is not None and any((folder / f"{name}.png").is_file() for name in SHOWN[other])
    ]  # fmt: skip
    if not others:
        return found
    links = [safe(", " if k else None, element("a", other, href=f"#{other}")) for k, other in enumerate(others)]
    return [*found, element("p", "More of it is in the figures under ", *links, ".", class_="soft")]


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
