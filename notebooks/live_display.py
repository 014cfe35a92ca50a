"""A figure that is redrawn in place while something runs: an output that is cleared and shown again, and no widget.

In a notebook that is executed without anybody watching it works as well, and leaves the last figure. Run as plain Python it
draws once, at the end.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from checked_panels import Picture
from classroom import show


class Live:
    """Call it as often as you like while something runs; call `last` when it is over.

    Parameters
    ----------
    draw : () -> Picture     the figure as things stand now
    seconds : float          least time between two figures: a training run should train
    """

    def __init__(self, draw: Callable[[], Picture], seconds: float = 3.0) -> None:
        from IPython import get_ipython

        self.draw, self.seconds, self.watched = draw, seconds, get_ipython() is not None
        self.shown = time.monotonic()

    def __call__(self) -> None:
        """Show the figure anew, if anybody can see it and the last one has stood for long enough."""
        if self.watched and time.monotonic() - self.shown > self.seconds:
            self._replace(self.draw())
            self.shown = time.monotonic()

    def last(self) -> Picture:
        """Show the figure for good, and return it."""
        image = self.draw()
        self._replace(image)
        return image

    def _replace(self, image: Picture) -> None:
        if self.watched:
            from IPython.display import clear_output

            clear_output(wait=True)
        show(image)
