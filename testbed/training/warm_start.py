"""Cached warm starts: the policy that reinforcement learning begins with, right often enough to learn from its own answers.

A run of maximum likelihood may stop at a wanted reward, so that something is left to learn. Studies start hundreds of cells
from the same few policies: each is trained once and kept under the hash of everything that it depends on.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from testbed.core.choices import RandomChooser
from testbed.core.errors import InputError
from testbed.core.seeds import SeedTree
from testbed.environments.verifiable import VerifiableTask
from testbed.policies.transformer.config import TransformerConfig
from testbed.policies.transformer.model import Transformer
from testbed.rollout.engine import rollout
from testbed.training.held_out import split_prompts
from testbed.training.recipe import Recipe
from testbed.training.small_models import first_weights
from testbed.training.supervised import WarmStart
from testbed.training.warm_start_files import content_key, default_cache, read_start, require_cache, write_start

FORMAT = 1  # raise it when the same ingredients make other weights: a change of the training itself, not of its data
HELD_OUT = 500  # problems, or a quarter of a smaller task


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmStarted:
    """A warm start: the model, its reward at temperature 1 on problems held out, and what it took.

    `seconds` is CPU time of the training, whenever that was; `cached` says that it was not now.
    """

    model: Transformer
    reward: float
    steps: int
    seconds: float
    key: str
    cached: bool


def warm_started(
    task: VerifiableTask,
    config: TransformerConfig,
    recipe: Recipe,
    seed: int = 0,
    *,
    until: float | None = None,
    every: int = 10,
    cache: Path | str | None = None,
) -> Transformer:
    """Return the model of `warm_start_result`, which has the same arguments.

    Examples
    --------
    >>> import tempfile
    >>> from testbed.environments import make_task
    >>> from testbed.training import small_config
    >>> task = make_task("sorting", digits=3)
    >>> config, recipe = small_config(task, width=16, layers=1), Recipe(steps=4, batch=8)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     one, same = (warm_started(task, config, recipe, seed=0, cache=folder) for _ in range(2))
    >>> torch.equal(one.vector(), same.vector())
    True
    """
    return warm_start_result(task, config, recipe, seed, until=until, every=every, cache=cache).model


def warm_start_result(
    task: VerifiableTask,
    config: TransformerConfig,
    recipe: Recipe,
    seed: int = 0,
    *,
    until: float | None = None,
    every: int = 10,
    cache: Path | str | None = None,
) -> WarmStarted:
    """Train a transformer on what a task demonstrates, or take it from the cache.

    Parameters
    ----------
    task : VerifiableTask
    config : TransformerConfig   such as `small_config` makes
    recipe : Recipe
    seed : int                   of the first weights and of the order of the problems; the held-out problems are the same for all
    until : float | None         stop at this mean reward of one response, drawn at temperature 1, to each held-out problem
                                 (None: after all steps of the recipe); a recipe of too few steps ends below it, see `reward`
    every : int                  steps between looks at the reward
    cache : Path | str | None    folder of kept warm starts (None: in the user's cache, see `default_cache`)

    Raises
    ------
    InputError   fewer than 4 problems, or than a batch needs; a context too short for them; `until` outside (0, 1]; `every` < 1;
                 weights that do not stay finite; a cache that cannot be written

    Gives        the same weights for the same arguments, from the cache or not; it trains on one thread for that
    """
    if until is not None and not 0 < until <= 1:
        raise InputError("`until` must lie in (0, 1], or be None", found=until)
    if every < 1:
        raise InputError("`every` must be >= 1", found=every)
    if task.n_prompts < 4:
        raise InputError("a warm start needs at least 4 problems, a quarter of which is held out", found=task.n_prompts)
    folder = require_cache(default_cache() if cache is None else Path(cache))
    key = content_key(ingredients(task, config, recipe, seed, until, every))
    path = folder / f"{key}.start"
    kept = read_start(path, key, config)
    if kept is not None:
        model, facts = kept
        return WarmStarted(model=model, **facts, key=key, cached=True)
    with one_thread():
        model, facts = _trained(task, config, recipe, seed, until, every)
    write_start(path, key, model, facts)
    return WarmStarted(model=model, **facts, key=key, cached=False)


def ingredients(
    task: VerifiableTask, config: TransformerConfig, recipe: Recipe, seed: int, until: float | None, every: int
) -> dict[str, Any]:
    """Everything a warm start depends on, as plain values; large tensors by their hash.

    The problems, their demonstrations, the split and the first weights are here as data: a change of the code that makes them
    is seen without a word from its author.
    """
    train, held = _split(task)
    data = [task.prompt_tokens(task.prompts()), task.prompt_lengths(task.prompts()), train, held]
    return {
        "format": FORMAT,
        "torch": torch.__version__,
        "task": {"name": task.name, **task.params, "origin": task.origin()},
        "data": _digest([*data, *task.demonstration(train)]),
        "model": asdict(config),
        "weights": _digest([first_weights(config, seed).vector()]),
        "recipe": {**asdict(recipe), "betas": list(recipe.betas)},
        "seed": seed,
        "until": until,
        "every": every if until is not None else None,
    }


def sampled_reward(task: VerifiableTask, run: WarmStart, held: Tensor, seed: SeedTree) -> float:
    """Mean reward of one response, drawn at temperature 1, to each of some problems.

    Raises
    ------
    InputError   weights that are not finite
    """
    if not bool(run.model.vector().isfinite().all()):
        found, hint = f"NaN or infinity after {run.step} steps", "lower the recipe's rate"
        raise InputError("a warm start must keep its weights finite", found=found, hint=hint)
    with torch.no_grad():
        batch = rollout(task, run.policy, len(held), RandomChooser(seed["reward"][run.step]), group=held)
    return float(batch.reward.mean())


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread: sums do not depend on how many the caller has, and small matrices gain nothing from more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _trained(
    task: VerifiableTask, config: TransformerConfig, recipe: Recipe, seed: int, until: float | None, every: int
) -> tuple[Transformer, dict[str, Any]]:
    started, tree = time.process_time(), SeedTree(seed)
    train, held = _split(task)
    model = first_weights(config, seed)
    run = WarmStart(model, task, train, recipe, seed)
    reward = None
    while run.step < recipe.steps:
        run.advance()
        reward = None
        if until is not None and run.step % every == 0:
            reward = sampled_reward(task, run, held, tree)
            if reward >= until:
                break
    reward = sampled_reward(task, run, held, tree) if reward is None else reward
    return model, {"reward": reward, "steps": run.step, "seconds": time.process_time() - started}


def _split(task: VerifiableTask) -> tuple[Tensor, Tensor]:
    return split_prompts(task, min(HELD_OUT, task.n_prompts // 4))


def _digest(tensors: list[Tensor]) -> str:
    """SHA-256 of shapes, types and contents."""
    state = hashlib.sha256()
    for tensor in tensors:
        array = tensor.detach().cpu().contiguous().numpy()
        state.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
    return state.hexdigest()
