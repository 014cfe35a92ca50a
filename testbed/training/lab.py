"""A run from its settings alone: task, warm start, system, rule, and a checkpoint that it can be picked up from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from testbed.core.seeds import SeedTree
from testbed.environments.tasks import make_task
from testbed.environments.verifiable import VerifiableTask
from testbed.policies.transformer.config import TransformerConfig
from testbed.policies.transformer.model import Transformer
from testbed.training.checkpoints import load_checkpoint, save_checkpoint
from testbed.training.controls import ControlSource
from testbed.training.grpo import GRPORun
from testbed.training.grpo_config import GRPOConfig
from testbed.training.recipe import Recipe
from testbed.training.run_result import run_result
from testbed.training.small_models import first_weights, small_config
from testbed.training.sources import ClockSource, OnPolicySource, Source
from testbed.training.study import Cell
from testbed.training.warm_start import warm_started

RUN = SeedTree("grpo")


def run_of(config: GRPOConfig, seed: int, *, cache: Path | None = None) -> GRPORun:
    """Return a run that has not begun.

    Parameters
    ----------
    config : GRPOConfig
    seed : int              of everything but the warm start, which has its own
    cache : Path | None     folder of warm starts (None: the user's cache)

    Raises
    ------
    InputError   a task, system, model or warm start that does not exist or does not fit
    """
    task = make_task(config.task, **config.task_params)
    return GRPORun(config, task, first_policy(config, task, cache), source_of, RUN[seed])


def first_policy(config: GRPOConfig, task: VerifiableTask, cache: Path | None = None) -> Transformer:
    """Weights that a run begins with: the warm start's, or random ones without one."""
    shape = shape_of(config, task)
    if not config.warm_steps:
        return first_weights(shape, config.warm_seed)
    return warm_started(task, shape, recipe_of(config, task), config.warm_seed, cache=cache)


def shape_of(config: GRPOConfig, task: VerifiableTask) -> TransformerConfig:
    """Return the sizes of a run's transformer.

    Raises
    ------
    InputError   sizes that do not fit each other
    """
    return small_config(task, config.experts, config.width, config.layers, config.heads, config.hidden)


def recipe_of(config: GRPOConfig, task: VerifiableTask) -> Recipe:
    """Return how a run's warm start is made, of at least one update."""
    most = task.n_prompts - min(500, task.n_prompts // 4)  # what is held out is not shown
    return Recipe(steps=config.warm_steps, batch=min(64, most), corruption=config.warm_corruption)


def source_of(run: GRPORun) -> Source:
    """Return the source of a run's batches, by its settings."""
    kind = ClockSource if run.config.engine == "plain" else OnPolicySource
    if run.config.control:
        kind = ControlSource
    return kind(run.config, run.env, run.sampler(), run.prompts, run.seed["source"])


def train_grpo(
    config: GRPOConfig,
    seed: int,
    *,
    cache: Path | None = None,
    checkpoint: Path | None = None,
    every: int = 50,
    resume: bool = False,
    progress: Callable[[GRPORun], None] | None = None,
    asked: Callable[[], bool] = lambda: False,
) -> GRPORun:
    """Run to the end, or until asked to stop.

    Parameters
    ----------
    config, seed, cache     as `run_of`
    checkpoint : Path | None   where to keep the run; written every `every` updates and when asked to stop
    resume : bool           go on from the checkpoint
    progress : callable     (run), after every update
    asked : callable        whether to stop after the update under way

    Raises
    ------
    InputError   what `run_of` refuses; a checkpoint of another run
    """
    run = run_of(config, seed, cache=cache)
    if resume and checkpoint is not None:
        run.restore(load_checkpoint(checkpoint))
    going = run.outcome == "running"
    while going and not asked():
        going = run.advance()
        if progress is not None:
            progress(run)
        if checkpoint is not None and going and run.done % every == 0:
            save_checkpoint(checkpoint, run.state())
    if checkpoint is not None:
        save_checkpoint(checkpoint, run.state())
    return run


def cell_result(cell: Cell) -> dict[str, Any]:
    """Result of a study's cell: what a sweep's worker computes."""
    return run_result(train_grpo(cell.config, cell.seed))
