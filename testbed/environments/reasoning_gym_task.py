"""Tasks of the package `reasoning-gym`, written in characters and judged by the package's own checkers.

The package is optional and imported on first use. Its data sets are functions of name, size, seed and options, and each brings
the checker of its answers, `score_answer`, which may give part of the reward.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from importlib import metadata
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from testbed.core.errors import InputError
from testbed.environments.parameters import require_whole
from testbed.environments.verifiable import VerifiableTask

MODULE, PACKAGE = "reasoning_gym", "reasoning-gym"


class ReasoningGymTask(VerifiableTask):
    """A data set of `reasoning-gym` as prompts in characters.

        prompt x = question of entry x;  R(y) = score_answer(what stands before the first end token, entry x) in [0, 1]

    The vocabulary is what occurs in the questions and answers, one character a token. A response that does not end in time earns
    0, and so does one on which the package's checker fails with an exception; `failures` counts those.

    Parameters
    ----------
    dataset : str                name in the package, such as "chain_sum"
    size : int                   prompts, 1..100000
    seed : int                   of the data set, >= 0
    options : mapping | None     further settings of the data set
    horizon : int | None         most response tokens, end included (None: just enough for the longest answer)

    Raises
    ------
    InputError   the package is not installed; it refuses the name or an option; an entry without a question or an answer
    """

    name = "reasoning_gym"

    def __init__(
        self,
        dataset: str = "chain_sum",
        size: int = 2000,
        seed: int = 0,
        options: Mapping[str, Any] | None = None,
        horizon: int | None = None,
    ) -> None:
        size, seed = require_whole("size", size, 1, 100_000), require_whole("seed", seed, 0)
        if not (options is None or isinstance(options, Mapping)):
            raise InputError("`options` must be a table of settings of the data set", found=repr(options))
        self.source = _created(dataset, size, seed, dict(options or {}))
        self.entries = [_checked(self.source[i], i) for i in range(size)]
        self.failures = 0
        questions, answers = ([entry[key] for entry in self.entries] for key in ("question", "answer"))
        self._take_symbols(*sorted(set().union(*questions, *answers)))
        self.n_prompts, self.prompt_length = size, max(map(len, questions))
        enough = max(map(len, answers)) + 1
        self.horizon = require_whole("horizon", enough if horizon is None else horizon, 2)
        self._prompts, self._lengths = self._packed(questions, self.prompt_length, self.pad)
        self._answers, self._answer_lengths = self._packed([[*a, self.symbols[self.end]] for a in answers], enough, 0)
        self.params = {"dataset": dataset, "size": size, "seed": seed, "options": dict(options or {})}
        self.params["horizon"] = self.horizon

    def origin(self) -> str:
        """Version of the package, which the data set depends on."""
        return f"{PACKAGE} {_version()}"

    def prompt_tokens(self, group: Int64[Tensor, " B"]) -> Int64[Tensor, "B L"]:
        """Token ids of the questions, `pad` behind the shorter ones."""
        self.require_prompts(group)
        return self._prompts[group]

    def prompt_lengths(self, group: Int64[Tensor, " B"]) -> Int64[Tensor, " B"]:
        """Characters of each question."""
        self.require_prompts(group)
        return self._lengths[group]

    def solution(self, group: Int64[Tensor, " B"]) -> tuple[Int64[Tensor, "B T"], Bool[Tensor, "B T"]]:
        """Return the data set's own answer, of which it is not known that none is shorter, and its mask.

        Raises
        ------
        InputError   if the horizon is too short for one of them
        """
        self.require_prompts(group)
        tokens, length = self._answers[group], self._answer_lengths[group]
        if length.numel() and int(length.max()) > self.horizon:
            raise InputError("the horizon must hold the answer and the end token", found=self.horizon)
        tokens = torch.nn.functional.pad(tokens, (0, max(0, self.horizon - tokens.shape[1])))[:, : self.horizon]
        return tokens, torch.arange(self.horizon) < length[:, None]

    def scores(
        self, tokens: Int64[Tensor, "B T"], answer: Bool[Tensor, "B T"], group: Int64[Tensor, " B"]
    ) -> Float[Tensor, " B"]:
        """What the package's checker gives for each answer; one call a row, for it reads text.

        Raises
        ------
        InputError   a score outside [0, 1]
        """
        self.require_prompts(group)
        rows = zip(tokens.tolist(), answer.tolist(), group.tolist(), strict=True)
        texts = [(self.decode([i for i, on in zip(ids, kept, strict=True) if on]), x) for ids, kept, x in rows]
        return torch.tensor([self._score(text, x) for text, x in texts], dtype=torch.float64)

    def verified(
        self, tokens: Int64[Tensor, "B T"], answer: Bool[Tensor, "B T"], group: Int64[Tensor, " B"]
    ) -> Bool[Tensor, " B"]:
        """Whether the answer earns the whole reward."""
        return self.scores(tokens, answer, group) == 1

    def reward(
        self, tokens: Int64[Tensor, "B T"], mask: Bool[Tensor, "B T"], group: Int64[Tensor, " B"]
    ) -> Float[Tensor, " B"]:
        """Score of what stands before the first end token, 0 without one; what follows it is ignored."""
        end = mask & (tokens == self.end)
        ended = end.any(1)
        score = self.scores(tokens[ended], (mask & (end.cumsum(1) == 0))[ended], group[ended])
        return torch.zeros(len(tokens), dtype=torch.float64).masked_scatter(ended, score)

    def _score(self, text: str, prompt: int) -> float:
        try:
            score = float(self.source.score_answer(text, self.entries[prompt]))
        except Exception:  # a checker may stumble over a text that no one foresaw: such a text is not right
            self.failures += 1
            return 0.0
        if not (math.isfinite(score) and 0 <= score <= 1):
            raise InputError("a checker must give a score in [0, 1]", found=f"{score} for {text!r} to prompt {prompt}")
        return score

    def _packed(self, texts: list[Any], width: int, fill: int) -> tuple[Tensor, Tensor]:
        """Token ids of texts packed from the left, and how many each has."""
        number = {symbol: i for i, symbol in enumerate(self.symbols)}
        rows = [[number[c] for c in text] + [fill] * (width - len(text)) for text in texts]
        return torch.tensor(rows, dtype=torch.int64), torch.tensor([len(text) for text in texts])


def _created(dataset: str, size: int, seed: int, options: dict[str, Any]) -> Any:
    """Ask the package for a data set.

    Raises
    ------
    InputError   it is not installed, or refuses
    """
    try:
        package = importlib.import_module(MODULE)
    except ImportError as error:
        rule = f"a task of `{PACKAGE}` needs that package"
        raise InputError(rule, found=f"{error}", hint=f"pip install {PACKAGE}") from None
    try:
        return package.create_dataset(dataset, size=size, seed=seed, **options)
    except (ValueError, TypeError, AssertionError) as error:
        found = f"{dataset!r} with {options}: {error}" if options else f"{dataset!r}: {error}"
        raise InputError(f"`dataset` and `options` must be what `{PACKAGE}` knows", found=found) from None


def _checked(entry: Any, number: int) -> Any:
    for key in ("question", "answer"):
        if not (isinstance(entry.get(key), str) and entry[key]):
            found = f"{entry.get(key)!r} in entry {number}"
            raise InputError(f"every entry must have a text as its {key}", found=found)
    return entry


def _version() -> str:
    try:
        return metadata.version(PACKAGE)
    except metadata.PackageNotFoundError:
        return "of unknown version"
