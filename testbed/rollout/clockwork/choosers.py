"""A chooser from a seed, and where its stream stands, so that a run can go on with the same draws."""

from __future__ import annotations

from torch import Tensor

from testbed.core.choices import Chooser, KeyedChooser, RandomChooser
from testbed.core.errors import InputError
from testbed.core.seeds import SeedTree


def chooser_of(source: Chooser | SeedTree | int) -> Chooser:
    """Return the chooser, or one that samples from this seed.

    Raises
    ------
    InputError   neither a chooser nor a seed
    """
    if isinstance(source, Chooser):
        return source
    if isinstance(source, SeedTree) or (isinstance(source, int) and not isinstance(source, bool)):
        return RandomChooser(source)
    raise InputError("`chooser` must draw, or be a seed", found=type(source).__name__, hint="RandomChooser(seed)")


def stream_of(chooser: Chooser) -> Tensor | None:
    """Return where the stream of random numbers stands; None for keyed noise, which has no stream.

    Raises
    ------
    InputError   a chooser of another kind
    """
    if isinstance(chooser, RandomChooser):
        return chooser.generator.get_state()
    if isinstance(chooser, KeyedChooser):
        return None
    raise InputError("a clock can save a RandomChooser or a KeyedChooser", found=type(chooser).__name__)


def set_stream(chooser: Chooser, stream: Tensor | None) -> None:
    """Put the stream where `stream_of` found it.

    Raises
    ------
    InputError   a chooser of another kind than the one that was saved
    """
    if isinstance(chooser, RandomChooser) != (stream is not None):
        raise InputError("a clock goes on with the kind of chooser it was saved with", found=type(chooser).__name__)
    if isinstance(chooser, RandomChooser) and stream is not None:
        chooser.generator.set_state(stream)
