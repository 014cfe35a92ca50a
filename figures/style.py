"""One look for every figure: sizes, fonts, and a line per weighting rule that survives a greyscale print.

A rule's line is a color and a dash pattern. The seven colors differ in lightness, so that they stay apart in grey; the
six patterns tell apart the rules that share a color. Files are saved without dates or program names: the same records
give the same bytes. Beside each image stands a JSON file with the numbers that were drawn.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from testbed.core.errors import InputError
from testbed.core.records import write_json_atomic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PALETTE = 256  # colors of a PNG
WIDTHS = {"column": 3.4, "page": 6.9}  # inches

SETTINGS: dict[str, Any] = {
    "font.family": "DejaVu Sans",  # shipped with matplotlib, hence the same on every machine
    "mathtext.fontset": "dejavusans",
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "legend.fontsize": 7,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.linewidth": 0.4,
    "grid.color": "#d9d9d9",
    "lines.linewidth": 1.4,
    "legend.frameon": False,
    "figure.dpi": 100,
    "savefig.dpi": 200,
    "pdf.fonttype": 42,
    "svg.hashsalt": "figures",
}

# dark to light in steps of ten or more in lightness (0 to 100), and none so light that it fades on white
COLORS = ("#000000", "#4d0f6b", "#8f1e35", "#2066b6", "#d6561f", "#1fad83", "#e0ab24")
DASHES: tuple[Any, ...] = ("-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 3)))
RULES = (
    *(
        "none",
        "exact",
        "tis",
        "prefix",
        "segment_prefix",
        "sequence_product",
        "spire",
    ),  # what is compared most: one dash
    *("icepop", "mis", "band", "cis", "kpop", "ppo_clip", "segment"),
    *("cispo", "gspo", "seq_tis", "seq_mis", "geo_mask", "decoupled_ppo", "dual_clip"),
    *("ais", "sis", "minpro", "pnpo", "m2po", "topr", "vespo"),
    *("obrs", "vtrace", "opsm", "veto", "k1_token", "k2_token", "k3_token"),
    *("k1_sequence", "k2_sequence", "k3_sequence", "dppo_tv", "dppo_kl", "mu_grpo"),
)


@dataclass(frozen=True, slots=True)
class Line:
    """How a rule is drawn: `ax.plot(x, y, **line.keywords())`."""

    color: str
    dash: Any

    def keywords(self) -> dict[str, Any]:
        """Return the keyword arguments for matplotlib's `plot`."""
        return {"color": self.color, "linestyle": self.dash}


def rule_line(rule: str) -> Line:
    """Return the line of a weighting rule, the same in every figure.

    Raises
    ------
    InputError   for a name that is no rule

    Examples
    --------
    >>> rule_line("none").color, rule_line("icepop").dash
    ('#000000', '--')
    """
    if rule not in RULES:
        raise InputError("a line belongs to a weighting rule", found=repr(rule), hint="`python -m testbed rules`")
    place = RULES.index(rule)
    return Line(COLORS[place % len(COLORS)], DASHES[place // len(COLORS)])


def lightness(color: str) -> float:
    """CIE lightness L* of a "#rrggbb" color, 0 (black) to 100 (white): what a greyscale print keeps of it.

    Examples
    --------
    >>> round(lightness("#000000"), 6), round(lightness("#ffffff"), 6)
    (0.0, 100.0)
    """
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    return 116 * luminance ** (1 / 3) - 16 if luminance > 0.008856 else 903.3 * luminance


@contextlib.contextmanager
def drawing(width: str = "column", height: float = 2.4, **layout: Any) -> Iterator[tuple[Figure, Any]]:
    """Open a figure in the project's look, without touching matplotlib's global state.

    Parameters
    ----------
    width : str      "column" or "page"
    height : float   inches
    layout           passed to `Figure.subplots`

    Returns
    -------
    (figure, axes)   save it with `save` inside the block, so that the look still holds
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    if width not in WIDTHS:
        raise InputError(f"`width` must be one of {sorted(WIDTHS)}", found=repr(width))
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(SETTINGS)
        figure = Figure(figsize=(WIDTHS[width], height), layout="constrained")
        FigureCanvasAgg(figure)
        yield figure, figure.subplots(**layout)


def save(figure: Figure, name: str, drawn: dict[str, Any], out: Path) -> list[Path]:
    """Write NAME.pdf, NAME.png and NAME.json (the numbers drawn) into `out`; equal input gives equal bytes."""
    out.mkdir(parents=True, exist_ok=True)
    pdf, png = out / f"{name}.pdf", out / f"{name}.png"
    figure.savefig(pdf, metadata={"Creator": None, "Producer": None, "CreationDate": None})
    _write_small(figure, png)
    return [pdf, png, write_json_atomic(out / f"{name}.json", drawn)]


def _write_small(figure: Figure, png: Path) -> None:
    """Write an image with a palette: line drawings lose nothing to the eye and two thirds of their bytes."""
    from PIL import Image

    full = io.BytesIO()
    figure.savefig(full, format="png", metadata={"Software": None})
    with Image.open(full) as image:
        flat = image.convert("RGB").quantize(PALETTE, dither=Image.Dither.NONE)
        flat.save(png, optimize=True, dpi=(SETTINGS["savefig.dpi"],) * 2)
