"""Whether a mismatch of engines costs any reward where arms are compared: if not, no correction has anything to repair."""

from __future__ import annotations

from collections.abc import Sequence

from paper_repro.cis_settings import Place, dense_places
from paper_repro.cis_verdicts import Runs, difference_of, signed
from paper_repro.comparison import Check
from paper_repro.lab_tables import LEVEL, NOISE, NOT, REPRODUCED, compare, judged_better
from paper_repro.study import Setting

EACH = 1 - (1 - LEVEL) / 8  # level of one place: three sizes of two models, two sizes of lasting noise
HARM = {REPRODUCED: True, NOT: False, NOISE: None}
ELSEWHERE = (
    "whether the mismatch costs reward at each size (see the statements) is judged on the runs of the study mismatch, whose "
    "settings these are: this study has no runs whose engines agree. Arms that both studies have, and CIS at its defaults, are "
    "the same runs in both (same settings, same seeds), so that a verdict on them is no second one"
)


def harm(place: Place) -> Check:
    """Whether there is anything to repair: runs whose engines agree end above those without correction."""
    holds, found = judged_harm(place.values("final", "no_mismatch"), place.values("final", "none"), place.key)
    return _check(place.words, holds, found)


def harm_of_all(places: Sequence[Place]) -> Check:
    """Whether there is anything to repair over several places together."""
    agree, none = (runs_of(places, arm) for arm in ("no_mismatch", "none"))
    found = difference_of(agree, none, "harm")
    return _check(
        "all places together", HARM[judged_better(found.interval)], f"engines agree - no correction {signed(found)}"
    )


def harm_by_size(setting: Setting) -> dict[str, Check]:
    """Size of the mismatch -> whether there is anything to repair, of the dense model."""
    return {place.noise: harm(place) for place in dense_places(setting)}


def judged_harm(agree: Sequence[float], none: Sequence[float], *address: str) -> tuple[bool | None, str]:
    """Judge whether a mismatch does harm: True, False (surely less than the margin) or None.

    Every claim about a place hangs on this, and places are many: the interval is at `EACH`, so that all hold together.

    Examples
    --------
    >>> [judged_harm([0.9] * 10, none, "doc")[0] for none in ([0.5] * 10, [0.9] * 10)]
    [True, False]
    """
    found = compare(agree, none, "harm", *address, level=EACH)
    return HARM[judged_better(found.difference.interval)], f"engines agree - no correction {found}; {found.to_tell}"


def runs_of(places: Sequence[Place], arm: str) -> Runs:
    """Final rewards of an arm by seed, place by place."""
    return {place.key: place.values("final", arm) for place in places}


def _check(where: str, holds: bool | None, found: str) -> Check:
    return Check(statement=f"ours: without correction, the mismatch costs reward ({where})", holds=holds, found=found)
