"""The look of figures: lines that stay apart in grey, files that are equal when the records are."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys

import pytest

from figures import style
from testbed.core.errors import InputError


def test_every_rule_has_a_line_of_its_own():
    assert len(style.RULES) == len(set(style.RULES))
    lines = [style.rule_line(rule) for rule in style.RULES]
    assert len({(line.color, str(line.dash)) for line in lines}) == len(style.RULES)


def test_the_rules_are_the_library_s():
    from testbed.weighting.registry import PLANNED, RULES

    assert set(RULES) | set(PLANNED) == set(style.RULES)


def test_colors_stay_apart_in_grey_and_on_white():
    grey = [style.lightness(color) for color in style.COLORS]
    steps = [after - before for before, after in itertools.pairwise(grey)]
    assert min(steps) >= 9
    assert max(grey) <= 75


def test_an_unknown_rule_has_no_line():
    with pytest.raises(InputError, match="found 'spyre'"):
        style.rule_line("spyre")


def test_an_unknown_width_is_refused():
    with pytest.raises(InputError, match="`width`"), style.drawing("poster"):
        pass


def test_the_look_ends_with_the_drawing():
    import matplotlib

    before = dict(matplotlib.rcParams)
    with style.drawing() as (figure, axes):
        assert matplotlib.rcParams["font.size"] == 8
        assert figure.get_axes() == [axes]
    assert dict(matplotlib.rcParams) == before


PROGRAM = """
import sys; from pathlib import Path; from figures import style
with style.drawing() as (figure, axes):
    axes.plot([1, 2, 4], [1, 4, 2], **style.rule_line('spire').keywords(), label='spire')
    axes.legend(); axes.set_title(sys.argv[2])
    style.save(figure, 'one', {'x': [1, 2, 4]}, Path(sys.argv[1]))
"""


def drawn(folder, title):
    subprocess.run([sys.executable, "-c", PROGRAM, str(folder), title], check=True, timeout=100)
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_equal_drawings_give_equal_bytes_and_others_do_not(tmp_path):
    first, again, other = (drawn(tmp_path / name, title) for name, title in [("a", "t"), ("b", "t"), ("c", "u")])
    assert set(first) == {"one.pdf", "one.png", "one.json"}
    assert first == again
    assert first["one.png"] != other["one.png"]
    assert first["one.pdf"] != other["one.pdf"]
    assert json.loads(first["one.json"]) == {"x": [1, 2, 4]}
