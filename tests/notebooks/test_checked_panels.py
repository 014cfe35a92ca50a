"""Numbers are read back from what a notebook prints, and one that is wrong, missing or too many is noticed."""

from __future__ import annotations

import sys

import pytest

from tests.architecture import checks

FOLDER = checks.ROOT / "notebooks"


@pytest.fixture
def panels(monkeypatch):
    """The module, importable as the notebooks import it."""
    monkeypatch.syspath_prepend(str(FOLDER))
    import checked_panels

    yield checked_panels
    for own in FOLDER.glob("*.py"):
        sys.modules.pop(own.stem, None)


@pytest.mark.parametrize(
    ("printed", "numbers"),
    [
        ("best <b>14.5444</b>, error 0.08159 (regret -107.28%)", [14.5444, 0.08159, -1.0728]),
        ("1,720.1 tokens, 4,096 words, 2.29e+04 and 5e-05%", [1720.1, 4096, 22900, 5e-7]),
        ("$d_2 = 3$, `v0_bf16`, W^2, S11, at_least_0, leave-one-out: 1, 2.", [1, 2]),
        ("[0.0, 1.0] to inf and -inf", [0, 1, float("inf"), float("-inf")]),
        (["a", 3, ["0.25", "-"]], [3, 0.25]),
        ("none", []),
    ],
)
def test_numbers_are_read_as_they_stand(panels, printed, numbers):
    assert panels.says(printed, numbers)
    for place, number in enumerate(numbers):
        wrong = 2 * number + 2 if abs(number) < float("inf") else 0.0
        with pytest.raises(AssertionError, match="stands where"):
            panels.says(printed, [*numbers[:place], wrong, *numbers[place + 1 :]])
    with pytest.raises(AssertionError, match="are expected"):
        panels.says(printed, numbers, 7)


def test_half_of_the_last_digit_is_allowed_and_no_more(panels):
    assert panels.says("0.33 and 67%", 1 / 3, 2 / 3)
    assert panels.says("0.12 or 0.13", 0.125, 0.125)
    with pytest.raises(AssertionError, match=r"0\.33 stands where"):
        panels.says("0.33", 0.336)
    with pytest.raises(AssertionError, match=r"1\.01 stands where"):
        panels.says("1.01", 1)


def test_a_picture_keeps_its_words(panels):
    from figures.style import drawing

    with drawing("page", 2.0, ncols=2) as (figure, axes):
        axes[0].plot([0, 1], [0, 1], label="drawn: 3")
        axes[0].set_title("first: 1")
        axes[1].set_title("second: 2")
        axes[1].annotate("gap 4", (0, 0))
        figure.legend(*axes[0].get_legend_handles_labels())
        image = panels.picture(figure)
    assert image.startswith(b"\x89PNG")
    assert panels.says(image.words, 1, 2, 4, 3)


def test_a_control_is_checked_at_its_start_and_at_both_ends_of_each_slider(panels):
    import classroom

    control = classroom.Control(
        lambda x, y: (panels.Picture(b"\x89PNG"), f"{x} and {y}"),
        x=classroom.Choice("x", [1, 2, 3], 2),
        y=classroom.Choice("y", [4, 5], 5),
    )
    places = [tuple(at.values()) for at in panels.settings(control)]
    assert places == [(2, 5), (1, 5), (3, 5), (2, 4), (2, 5)]
    assert panels.says(panels.told(control, x=3, y=4), 3, 4)
