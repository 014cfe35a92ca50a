"""The warm start as a command: train on a verifiable task, keep checkpoints, judge by problems never seen."""

from __future__ import annotations

import math
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from testbed.core.errors import InputError
from testbed.core.records import require_writable
from testbed.environments.arithmetic import ArithmeticTask
from testbed.environments.verifiable import VerifiableTask
from testbed.policies.transformer.model import Transformer
from testbed.training.checkpoints import load_checkpoint, save_checkpoint
from testbed.training.held_out import exact_match, split_prompts
from testbed.training.interruption import deferred_interrupt
from testbed.training.progress import steps_progress
from testbed.training.recipe import Recipe
from testbed.training.small_models import first_weights, small_config
from testbed.training.supervised import WarmStart

HELD_OUT = 500  # problems, or a quarter of a smaller task
MOST_PROMPTS = 10**6  # every problem and its answer is kept: some hundred bytes each
EVERY = 200  # steps between checkpoints


@dataclass(frozen=True, slots=True, kw_only=True)
class Pretrained:
    """What a warm start gives: the model, its share of exact answers to problems held out, and what it took."""

    model: Transformer
    task: VerifiableTask
    recipe: Recipe
    exact_match: float
    held_out: int
    loss: float
    seconds: float
    cpu_seconds: float
    out: Path | None = None

    def record(self) -> dict[str, Any]:
        """Everything but the weights, as plain values."""
        return {
            "model": {**asdict(self.model.config), "parameters": self.model.parameter_count},
            "task": {"name": self.task.name, **self.task.params, "prompts": self.task.n_prompts},
            "recipe": asdict(self.recipe),
            "exact_match": self.exact_match,
            "held_out": self.held_out,
            "loss": self.loss,
            "seconds": self.seconds,
            "cpu_seconds": self.cpu_seconds,
        }

    def lines(self) -> list[str]:
        """Say it to a reader."""
        config, right = self.model.config, round(self.exact_match * self.held_out)
        kind = f"{config.experts} experts" if config.experts else "dense"
        lines = [
            f"exact match on {self.held_out} held-out problems: {100 * self.exact_match:.1f} % ({right} right, greedy)",
            f"{kind}, {config.layers} layers, {self.model.parameter_count:,} parameters; "
            f"{self.recipe.steps} steps of {self.recipe.batch} in {self.seconds:.1f} s ({self.cpu_seconds:.1f} s of CPU)",
        ]
        return lines if self.out else [*lines, "no weights were kept: --out PATH writes them"]


def pretrain(
    task: VerifiableTask,
    recipe: Recipe,
    *,
    experts: int = 0,
    seed: int = 0,
    out: Path | None = None,
    resume: bool = False,
) -> Pretrained:
    """Train a small transformer from scratch, or from where it was interrupted.

    Parameters
    ----------
    task : VerifiableTask
    recipe : Recipe
    experts : int         0 = dense
    seed : int            of the first weights and of the order of the problems; the split is the same for all seeds
    out : Path | None     where the weights go (.npz); until then a checkpoint lies beside it
    resume : bool         go on from that checkpoint

    Raises
    ------
    InputError            `out` cannot be written; nothing to resume, or another run's checkpoint; a task too small or
                          of more than 10^6 problems
    KeyboardInterrupt     Ctrl-C, after the step under way and its checkpoint

    Gives        with one seed and number of threads, a resumed run ends with the bits of one never interrupted
    """
    if resume and out is None:
        raise InputError("a run to resume is named by `out`", found="none", hint="where its weights were to go")
    require_learnable(task)
    train, held = split_prompts(task, min(HELD_OUT, task.n_prompts // 4))
    model = first_weights(small_config(task, experts), seed)
    run = WarmStart(model, task, train, recipe, seed)
    checkpoint = None if out is None else checkpoint_path(require_writable(out))
    if resume and checkpoint is not None:
        run.restore(load_checkpoint(checkpoint))
    started, cpu = time.perf_counter(), time.process_time()
    loss = advance_all(run, checkpoint)
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu
    if out is not None and checkpoint is not None:
        model.save(out)
        checkpoint.unlink(missing_ok=True)
    share = exact_match(task, run.policy, held)
    return Pretrained(
        model=model,
        task=task,
        recipe=recipe,
        exact_match=share,
        held_out=len(held),
        loss=loss,
        seconds=seconds,
        cpu_seconds=cpu_seconds,
        out=out,
    )


def require_learnable(task: VerifiableTask) -> None:
    """Raise InputError unless the task has enough problems to hold some out, and few enough to keep all of them.

    Examples
    --------
    >>> require_learnable(ArithmeticTask(0))
    Traceback (most recent call last):
    testbed.core.errors.InputError: a task to learn must have at least 4 problems, a quarter of which is held out; \
found 1, with operands 0..0 (set --max-operand to 1 or more)
    """
    found, more, fewer = f"{task.n_prompts:,}", "", ""
    if isinstance(task, ArithmeticTask):
        found += f", with operands 0..{task.max_operand}"
        more = "set --max-operand to 1 or more"
        fewer = f"set --max-operand to at most {math.isqrt(MOST_PROMPTS) - 1}"
    if task.n_prompts < 4:
        rule = "a task to learn must have at least 4 problems, a quarter of which is held out"
        raise InputError(rule, found=found, hint=more)
    if task.n_prompts > MOST_PROMPTS:
        raise InputError(f"a task to learn must have at most {MOST_PROMPTS:,} problems", found=found, hint=fewer)


def advance_all(run: WarmStart, checkpoint: Path | None) -> float:
    """Make the updates that remain, with a checkpoint now and then and one on Ctrl-C; return the last loss."""
    loss, total = float("nan"), run.recipe.steps
    with deferred_interrupt() as interrupted, steps_progress(total, run.step) as report:
        while run.step < total:
            loss = run.advance()
            report(run.step, loss)
            if checkpoint is not None and (interrupted() or run.step % EVERY == 0):
                save_checkpoint(checkpoint, run.state())
            if interrupted():
                kept = "nothing is kept without --out" if checkpoint is None else "--resume goes on from here"
                print(f"stopped after step {run.step} of {total}; {kept}", file=sys.stderr)
                raise KeyboardInterrupt
    return loss


def checkpoint_path(out: Path) -> Path:
    """Return where the checkpoint of a run lies: beside its weights."""
    return out.with_name(out.name + ".checkpoint")
