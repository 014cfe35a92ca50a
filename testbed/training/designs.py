"""Which combinations of levels a study runs: all of them, one change at a time, or a fraction that confounds what it must.

A fraction of two-level factors keeps the combinations whose signs multiply to + in every defining word. Effects whose words
differ by a defining word cannot be told apart: `aliases` says which.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, product

from testbed.core.errors import InputError

KINDS = ("grid", "one_at_a_time", "fraction")
Levels = Mapping[str, Sequence[str]]


def grid(levels: Levels) -> Iterator[dict[str, str]]:
    """Every combination, the last factor fastest.

    Examples
    --------
    >>> len(list(grid({"a": "01", "b": "xyz"})))
    6
    """
    for combination in product(*levels.values()):
        yield dict(zip(levels, combination, strict=True))


def one_at_a_time(levels: Levels) -> Iterator[dict[str, str]]:
    """The first level of every factor, then each other level of each factor alone.

    Examples
    --------
    >>> [cell["b"] for cell in one_at_a_time({"a": "01", "b": "xyz"})]
    ['x', 'x', 'y', 'z']
    """
    center = {name: found[0] for name, found in levels.items()}
    yield center
    for name, found in levels.items():
        for level in found[1:]:
            yield center | {name: level}


def fraction(levels: Levels, words: Sequence[Sequence[str]]) -> Iterator[dict[str, str]]:
    """Combinations of two-level factors whose signs (first level -, second +) multiply to + in every defining word.

    Raises
    ------
    InputError   a factor without exactly two levels, or a word with a factor that does not exist

    Examples
    --------
    >>> [tuple(cell.values()) for cell in fraction({"a": "-+", "b": "-+", "c": "-+"}, [["a", "b", "c"]])]
    [('-', '-', '+'), ('-', '+', '-'), ('+', '-', '-'), ('+', '+', '+')]
    """
    for name, found in levels.items():
        if len(found) != 2:
            raise InputError("a fraction needs two levels of every factor", found=f"{len(found)} of {name}")
    for word in words:
        for name in word:
            if name not in levels:
                raise InputError(f"a defining word is made of factors: {', '.join(levels)}", found=repr(name))
    for cell in grid(levels):
        signs = {name: 1 if cell[name] == levels[name][1] else -1 for name in levels}
        if all(_sign(word, signs) == 1 for word in words):
            yield cell


def aliases(names: Sequence[str], words: Sequence[Sequence[str]], order: int = 2) -> dict[str, list[str]]:
    """Effects of at most `order` factors that a fraction cannot tell apart from each main effect and interaction.

    Examples
    --------
    >>> aliases(["a", "b", "c"], [["a", "b", "c"]])["a"]
    ['b x c']
    """
    group = _products(words)
    effects = [frozenset(c) for size in range(1, order + 1) for c in combinations(names, size)]

    def name(effect: frozenset[str]) -> str:
        return " x ".join(factor for factor in names if factor in effect)

    found = {}
    for effect in effects:
        same = [effect ^ word for word in group if word]
        found[name(effect)] = [name(other) for other in same if 0 < len(other) <= order]
    return found


def resolution(words: Sequence[Sequence[str]]) -> int:
    """Factors of the shortest effect that a fraction cannot tell from the mean; 0 if it tells all of them.

    An effect of k factors is seen together with effects of no fewer than so many less k.

    Examples
    --------
    >>> resolution([["a", "b", "c", "d"], ["c", "d", "e"]]), resolution([])
    (3, 0)
    """
    return min((len(word) for word in _products(words) if word), default=0)


def _products(words: Sequence[Sequence[str]]) -> list[frozenset[str]]:
    """Every product of defining words; the empty one is the mean."""
    group = [frozenset[str]()]
    for word in words:
        group += [element ^ frozenset(word) for element in group]
    return group


def _sign(word: Sequence[str], signs: Mapping[str, int]) -> int:
    out = 1
    for name in word:
        out *= signs[name]
    return out
