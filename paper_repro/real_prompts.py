"""Prompts of the measurement on a real model: short questions, most of them arithmetic.

Operands have two digits and this model writes each digit as a token, so all prompts of one question have one length and a
batch needs no padding.
"""

from __future__ import annotations

from testbed.core.seeds import SeedTree

QUESTIONS = (
    "What is {a} + {b}? Answer with the number.",
    "What is {a} - {b}? Answer with the number.",
    "Compute {a} times {b}.",
    "Is {a} larger than {b}? Explain briefly.",
    "A shop sells {a} apples in the morning and {b} in the afternoon. How many apples does it sell?",
    "Tom has {a} marbles and gives {b} away. How many are left? Think step by step.",
    "A train travels {a} miles in one hour. How far does it travel in {b} hours?",
    "Count from {a} to {b}.",
    "Write the numbers {a} and {b} in words.",
    "Explain in two sentences why the sky is blue.",
    "Write a short poem about rain.",
    "Name three countries and their capital cities.",
)


def questions(number: int, n: int, seeds: SeedTree) -> list[str]:
    """Return n instances of one question, operands drawn from 10..99.

    Examples
    --------
    >>> asked = questions(0, 2, SeedTree("example"))
    >>> len(asked), asked[0].startswith("What is "), questions(9, 1, SeedTree("example"))
    (2, True, ['Explain in two sentences why the sky is blue.'])
    """
    drawn = seeds["operands"].numpy_generator().integers(10, 100, size=(n, 2))
    return [QUESTIONS[number].format(a=a, b=b) for a, b in drawn]
