"""What every notebook shares: predictions, controls with a static stand-in, tables, and the FAST profile.

A control shows sliders and a figure where a kernel runs; in a file read without one, the figure at the start values
stands in their place. Run as plain Python, the notebooks print their sentences and draw without showing.
"""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

torch.set_num_threads(1)  # the tables here have a few dozen entries: a second thread only makes the first one wait

DOTS = 130  # per inch, on screen


def fast() -> bool:
    """Whether NOTEBOOK_FAST asks for few points: the profile of the tests, at most 20 s a notebook on two cores."""
    return os.environ.get("NOTEBOOK_FAST", "0") not in ("", "0")


def grid(low: float, high: float, steps: int) -> list[float]:
    """Evenly spaced values from low to high, `steps` intervals of them, or four in the FAST profile."""
    count = min(steps, 4) if fast() else steps
    return [low + (high - low) * i / count for i in range(count + 1)]


def _in_kernel() -> bool:
    from IPython import get_ipython

    return get_ipython() is not None


def say(text: str) -> None:
    """Show Markdown, with the numbers already in it; plain Python prints it."""
    from IPython.display import Markdown, display

    if _in_kernel():
        display(Markdown(text))
    else:
        print(text)


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Show a table; numbers come formatted."""
    lines = ["| " + " | ".join(map(str, row)) + " |" for row in [header, ["---"] * len(header), *rows]]
    say("\n".join(lines))


def reveal(prediction: float | None, answer: float, because: str, within: float = 0.005) -> None:
    """Show the answer to a question: folded away while there is no prediction, compared with it once there is."""
    value = str(int(answer)) if answer == int(answer) else f"{answer:.4f}"
    if prediction is None:
        summary = "No prediction yet. Unfold for the answer, or put yours into the cell above first."
        say(f"<details><summary>{summary}</summary>\n\n**{value}**. {because}\n\n</details>")
        return
    verdict = "right" if abs(prediction - answer) <= within else f"off by {prediction - answer:+.4f}"
    say(f"You said {prediction:g}: **{verdict}**. The answer is **{value}**. {because}")


def png(figure: Any) -> bytes:
    """Return a figure as an image without date or program name."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DOTS, metadata={"Software": None})
    return buffer.getvalue()


def show(image: bytes) -> None:
    """Show an image; plain Python only drew it."""
    if _in_kernel():
        from IPython.display import Image, display

        display(Image(image))


class Choice(NamedTuple):
    """One slider (numbers) or one menu (words): its label, the values in order, the one to start from."""

    label: str
    values: Sequence[Any]
    start: Any


class Control:
    """Sliders and menus over an exact computation: every move redraws the figure and says the number.

    Parameters
    ----------
    draw : (**values) -> (image, sentence)
    choices : Choice by the keyword of `draw` it sets
    """

    def __init__(self, draw: Callable[..., tuple[bytes, str]], **choices: Choice) -> None:
        import ipywidgets

        self.draw, self.choices = draw, choices
        self.widgets = {name: _widget(ipywidgets, choice) for name, choice in choices.items()}
        self.image = ipywidgets.Image(format="png", layout=ipywidgets.Layout(max_width="100%", object_fit="contain"))
        self.sentence = ipywidgets.HTML()
        self.box = ipywidgets.VBox([*self.widgets.values(), self.sentence, self.image])
        self.update()
        for widget in self.widgets.values():
            widget.observe(self.update, names="value")

    def update(self, change: object = None) -> None:
        """Draw at the present values."""
        self.image.value, self.sentence.value = self.draw(**{n: w.value for n, w in self.widgets.items()})

    def show(self) -> None:
        """Show the control; the figure as it is now is what a reader without a kernel sees."""
        if not _in_kernel():
            print(self.sentence.value)
            return
        from IPython.display import display

        live = self.box._repr_mimebundle_()
        display({**live, "image/png": base64.b64encode(self.image.value).decode()}, raw=True)


def _widget(ipywidgets: Any, choice: Choice) -> Any:
    words = isinstance(choice.start, str)
    options = list(choice.values) if words else [(f"{value:g}", value) for value in choice.values]
    build = ipywidgets.Dropdown if words else ipywidgets.SelectionSlider
    layout = ipywidgets.Layout(width="36em")
    return build(
        options=options,
        value=choice.start,
        description=choice.label,
        layout=layout,
        style={"description_width": "18em"},
    )
