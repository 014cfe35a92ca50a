"""Prompts for speculative drafts on the real model: forms of questions, each filled in ways to teach with and ways held out.

A head that is judged on prompts it was taught on is judged on what it remembers. Within a form, no two prompts are equal, and
a topic is either taught, in every form, or held out, in every form.
"""

from __future__ import annotations

from paper_repro.real_prompts import QUESTIONS
from testbed.core.errors import InputError
from testbed.core.seeds import SeedTree

NUMBERS = tuple(QUESTIONS[i] for i in (2, 4, 5, 6, 7))  # those that this model answers at some length
SUBJECTS = (
    "Explain in two sentences what {topic} is.",
    "Write a short poem about {topic}.",
    "Give three tips about {topic}.",
)
FORMS = NUMBERS + SUBJECTS
TOPICS = (
    "rain", "bread", "the moon", "gardening", "a bicycle", "music", "sleep", "chess", "the ocean", "a library", "tea", "winter",
    "a volcano", "friendship", "photography", "honey", "a bridge", "swimming", "a forest", "money", "glass", "a train",
    "running", "a clock",
)  # fmt: skip


def prompts_of(form: int, taught: int, held: int, seeds: SeedTree) -> tuple[list[str], list[str]]:
    """Return prompts of one form to teach with, and others held out.

    Parameters
    ----------
    form : int            index into FORMS
    taught, held : int    how many of each
    seeds : SeedTree      of operands from 10..99 and of the topics' order, which all forms share

    Raises
    ------
    InputError   more prompts than topics

    Examples
    --------
    >>> learn, judge = prompts_of(6, 2, 3, SeedTree("example"))
    >>> len(learn), len(judge), set(learn) & set(judge), learn[0][:25]
    (2, 3, set(), 'Write a short poem about ')
    """
    text, wanted = FORMS[form], taught + held
    if "{topic}" in text:
        if wanted > len(TOPICS):
            raise InputError(f"a form has at most {len(TOPICS)} prompts, one per topic", found=wanted)
        order = seeds["topics"].numpy_generator().permutation(len(TOPICS))[:wanted]
        filled = [text.format(topic=TOPICS[i]) for i in order]
    else:
        pairs = seeds["operands"][form].numpy_generator().choice(90 * 90, wanted, replace=False)
        filled = [text.format(a=10 + pair // 90, b=10 + pair % 90) for pair in pairs]
    return filled[:taught], filled[taught:]
