"""`testbed train`: one run, its checkpoint, its record. Numerical libraries are imported inside, so that `--help` is instant."""

from __future__ import annotations

import hashlib
import json as jsonlib
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from testbed.core.errors import InputError

if TYPE_CHECKING:
    from testbed.training.grpo import GRPORun
    from testbed.training.grpo_config import GRPOConfig

RUNS = Path("out") / "train"


def train(
    config: Annotated[str, typer.Argument(metavar="CONFIG", help="A .toml file, or the name of a bundled study.")],
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="Change a field, e.g. system_params.ahead=4; repeatable."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything but the warm start.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Checkpoint, weights, record; else out/train/NAME-sSEED-HASH.", show_default=False
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint in DIR.")] = False,
    json: Annotated[Path | None, typer.Option("--json", metavar="PATH", help="Write the record here, too.")] = None,
) -> None:
    """Train a small transformer with GRPO, by any rule and system.

    CONFIG holds fields of testbed.training.grpo_config.GRPOConfig, or is a study, whose base is taken; --set also takes
    FACTOR=LEVEL of a study. The warm start is made once and kept. Ctrl-C ends the update under way and leaves a
    checkpoint; a run gone on with has the bits of one never interrupted.
    """
    from testbed.core.records import RunRecord, provenance, require_writable
    from testbed.training.config_file import config_path, load_config
    from testbed.training.possible import require_possible
    from testbed.training.run_printed import kept_line, result_lines
    from testbed.training.run_result import run_result
    from testbed.training.warm_start import one_thread

    path = config_path(config)
    settings = load_config(path, changes or ())
    folder = default_folder(path, settings, seed) if out is None else out
    for asked in (folder / "record.json", *([] if json is None else [json])):
        require_writable(asked)
    checkpoint = folder / "checkpoint.pt"
    if resume and not checkpoint.exists() and (folder / "record.json").is_file():
        found, hint = f"{folder / 'record.json'} of one that has ended", "read it, or start anew without --resume"
        raise InputError("a run to resume must be under way", found=found, hint=hint)
    if checkpoint.exists() and not resume:
        hint = "go on with --resume, or name another --out"
        raise InputError("a new run needs a folder without a run under way", found=str(checkpoint), hint=hint)
    with one_thread():
        require_possible([settings])
        about = provenance(seed)
        run = advanced(settings, seed, checkpoint, resume)
    result = {"config": settings.plain(), "seed": seed, **run_result(run)}
    record = RunRecord(result=result, provenance=about)
    record.save(folder / "record.json")
    if json is not None:
        record.save(json)
    run.model.save(folder / "weights.npz")
    checkpoint.unlink(missing_ok=True)
    typer.echo(
        "\n".join([*result_lines(result, settings.updates), kept_line(folder / "record.json", folder / "weights.npz")])
    )


def advanced(settings: GRPOConfig, seed: int, checkpoint: Path, resume: bool) -> GRPORun:
    """Return the run at its end, with progress on the way.

    Raises
    ------
    KeyboardInterrupt   Ctrl-C, after the update under way and its checkpoint; at once during the warm start
    """
    from testbed.training.checkpoints import load_checkpoint
    from testbed.training.interruption import deferred_interrupt
    from testbed.training.lab import train_grpo
    from testbed.training.progress import counted_progress
    from testbed.training.run_printed import run_words
    from testbed.training.starts import missing_starts

    done = load_checkpoint(checkpoint)["step"] if resume else 0
    if missing_starts([settings]):
        typer.echo(f"warm start of {settings.warm_steps} updates, which later runs share")
    with ExitStack() as stack:
        report = stack.enter_context(counted_progress("update", settings.updates, done))
        pressed = []

        def asked() -> bool:  # called before the first update and after every other: the warm start may be interrupted
            if not pressed:
                pressed.append(stack.enter_context(deferred_interrupt()))
            return pressed[0]()

        try:
            run = train_grpo(
                settings, seed, checkpoint=checkpoint, resume=resume, asked=asked,
                progress=lambda run: report(run.done, run_words(run)),
            )  # fmt: skip
        except KeyboardInterrupt:
            if not checkpoint.exists():
                print("stopped before the first update: there is nothing to go on from, begin again", file=sys.stderr)
            raise
    if run.outcome == "running":
        print(f"stopped after update {run.done} of {settings.updates}; --resume goes on from here", file=sys.stderr)
        raise KeyboardInterrupt
    return run


def default_folder(path: Path, settings: GRPOConfig, seed: int) -> Path:
    """Return a folder of these settings' own."""
    content = jsonlib.dumps(settings.plain(), sort_keys=True)
    return RUNS / f"{path.stem}-s{seed}-{hashlib.sha256(content.encode()).hexdigest()[:8]}"
