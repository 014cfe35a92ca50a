"""Command line of the testbed. Numerical libraries are imported inside the commands, so that `--help` is instant."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from testbed.training.recipe import Recipe
from testbed.training.sweep_command import sweep
from testbed.training.train_command import train

app = typer.Typer(
    name="testbed", no_args_is_help=True, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False,
    help="Diagnose off-policy corrections from recorded log-probabilities, and train small models under any of them.",
)  # fmt: skip

SAMPLE = "sample"
RECIPE = Recipe()
Json = Annotated[Path | None, typer.Option("--json", metavar="PATH", help="Write the record here as JSON.")]


@app.command()
def diagnose(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A .parquet, .jsonl, .npz or .pt dump, or `sample`.")],
    target: Annotated[str | None, typer.Option(metavar="COL", help="Column of the target's log-probs.")] = None,
    behavior: Annotated[str | None, typer.Option(metavar="COL", help="Column of the behavior's log-probs.")] = None,
    format_name: Annotated[
        str | None,
        typer.Option("--format", metavar="NAME", help="testbed, verl, trl, areal, openrlhf; else by fields."),
    ] = None,
    json: Json = None,
    html: Annotated[Path | None, typer.Option("--html", metavar="PATH", help="Write the report as a page.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the bootstrap intervals; nothing else is random.")] = 0,
    cost_fresh: Annotated[float, typer.Option(metavar="X", help="Cost of a fresh response, any unit.")] = 1.0,
    cost_replay: Annotated[
        float, typer.Option(metavar="X", help="Cost of a replayed one; it skips generation.")
    ] = 0.25,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing; with --json or --html.")] = False,
) -> None:
    """Read a run's log-probs: gaps, weights, faults, rules, advice.

    Says how far the policies are apart, what each correction would do about it, and which cap and replay share to set.

    FILE has one row per response, its tokens in lists, or one row per token. Both need logp_behavior, logp_target (nats)
    and reward; rows of tokens also need sequence and position (0, 1, 2, ...). Optional in both: segment (else all is one),
    prompt (else each response is its own group), token, logp_proximal, version, engine, token_reward, action_value; checks
    that lack a column are reported as not made. Dumps of verl, TRL, AReaL and OpenRLHF are recognized by their fields.

    A complete JSONL file (more in testbed/diagnosis/README.md):

    {"logp_behavior": [-0.5, -1.2], "logp_target": [-0.4, -1.3], "reward": 1}

    {"logp_behavior": [-0.7, -0.1], "logp_target": [-0.8, -0.1], "reward": 0}

    {"logp_behavior": [-1.1], "logp_target": [-1.0], "reward": 1}
    """
    from testbed.core.records import require_writable
    from testbed.core.sections import print_sections
    from testbed.diagnosis.dump import read_dump
    from testbed.diagnosis.html_page import write_page
    from testbed.diagnosis.printed import report_sections
    from testbed.diagnosis.report import diagnose as diagnose_batch

    for asked in (json, html):
        if asked is not None:
            require_writable(asked)
    path = _sample_path() if file == SAMPLE and not Path(file).exists() else Path(file)
    dump = read_dump(path, target, behavior, format_name=format_name)
    columns = {"target": dump.columns["logp_target"], "behavior": dump.columns["logp_behavior"]}
    reading = {"file": path.name, "columns": columns, "format": dump.format, "format_notes": dump.notes}
    record = reading | diagnose_batch(dump.batch, seed=seed, cost_fresh=cost_fresh, cost_replay=cost_replay)
    _write(json, record, seed)
    sections = report_sections(record)
    if html is not None:
        write_page(html, path.name, sections)
    if not quiet:
        print_sections(sections)


@app.command()
def rules(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="One rule, with everything known about it.")
    ] = None,
    json: Json = None,
) -> None:
    """List the weighting rules and their defaults.

    Each with granularity, parameters, theorems and source; NAME adds the formula and how frameworks differ.
    """
    from testbed.core.sections import print_sections
    from testbed.diagnosis.rule_catalog import list_rules, one_rule

    sections, records = list_rules() if name is None else one_rule(name)
    _write(json, {"rules": records}, None)
    print_sections(sections)


@app.command()
def noise(json: Json = None) -> None:
    """Print how the calibrated engine noise fits what was reported.

    Two laws of the noise on logits, of a dense model and of a mixture of experts, against a paper's tables: reported,
    made, relative error, and what cannot be fitted.
    """
    from testbed.core.sections import print_sections
    from testbed.diagnosis.noise_fit import noise_fit

    sections, record = noise_fit()
    _write(json, record, None)
    print_sections(sections)


@app.command()
def pretrain(
    out: Annotated[Path | None, typer.Option(metavar="PATH", help="Write the weights here (.npz).")] = None,
    experts: Annotated[int, typer.Option(metavar="N", help="Experts per layer, e.g. 8; 0 is dense.")] = 0,
    max_operand: Annotated[int, typer.Option(metavar="N", help="Operands run over 0..N, at most 999.")] = 99,
    steps: Annotated[int, typer.Option(metavar="N", help="Updates.")] = RECIPE.steps,
    batch: Annotated[int, typer.Option(metavar="N", help="Problems per update.")] = RECIPE.batch,
    rate: Annotated[float, typer.Option(metavar="X", help="Peak learning rate.")] = RECIPE.rate,
    schedule: Annotated[str, typer.Option(metavar="NAME", help="cosine or constant, after the warm-up.")] = "cosine",
    seed: Annotated[int, typer.Option(help="Seed of the first weights and of the order of problems.")] = 0,
    threads: Annotated[int, typer.Option(metavar="N", min=1, help="CPU threads; these matrices are small.")] = 1,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint beside --out.")] = False,
    json: Json = None,
) -> None:
    """Warm-start a small transformer on addition.

    Learns the shortest right answers to "a+b=" by maximum likelihood and prints the share of held-out problems that it
    answers exactly when decoded greedily. Ctrl-C ends the step under way and leaves a checkpoint beside --out.
    """
    import torch

    from testbed.core.records import require_writable
    from testbed.environments.arithmetic import ArithmeticTask
    from testbed.training.pretrain import pretrain as warm_start

    if json is not None:
        require_writable(json)
    torch.set_num_threads(threads)
    recipe = Recipe(steps=steps, batch=batch, rate=rate, schedule=schedule)  # pyright: ignore[reportArgumentType]
    done = warm_start(ArithmeticTask(max_operand), recipe, experts=experts, seed=seed, out=out, resume=resume)
    _write(json, done.record(), seed)
    typer.echo("\n".join(done.lines()))


app.command()(train)
app.command()(sweep)


@app.command()
def systems(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="One system, with every value.")] = None,
    json: Json = None,
) -> None:
    """List the systems that deliver batches to a trainer.

    Each with its bound on staleness, what a push of weights does, and source; `train` takes one as `system`.
    """
    from testbed.core.sections import print_sections
    from testbed.diagnosis.systems_printed import list_systems, one_system

    sections, records = list_systems() if name is None else one_system(name)
    _write(json, {"systems": records}, None)
    print_sections(sections)


@app.command()
def tasks(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="One task, with its parameters.")] = None,
    json: Json = None,
) -> None:
    """List the tasks whose answers a program checks.

    Each with its defaults, an example, and the reward of its warm start; `train` takes one as `task`.
    """
    from testbed.core.sections import print_sections
    from testbed.training.tasks_printed import list_tasks, one_task

    sections, records = list_tasks() if name is None else one_task(name)
    _write(json, {"tasks": records}, None)
    print_sections(sections)


@app.command()
def engines(
    weights: Annotated[
        Path | None, typer.Argument(metavar="[WEIGHTS]", help="Weights of `pretrain --out`; else two random models.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of random weights, prompts and draws.")] = 0,
    json: Json = None,
) -> None:
    """Print which part of an engine's arithmetic makes how much mismatch.

    A sampler (bfloat16, int8, another order of summation, its own router, cached steps) draws responses, a float32 trainer
    scores them, and each difference is then made alone. For experts, also how many layers route differently.
    """
    from testbed.core.records import require_writable
    from testbed.core.sections import print_sections
    from testbed.diagnosis.engine_mismatch import engine_report, untrained
    from testbed.policies.transformer import Transformer

    if json is not None:
        require_writable(json)
    if weights is None:
        models = {"random": untrained(0, seed), "random experts": untrained(8, seed)}
    else:
        models = {weights.stem: Transformer.load(weights)}
    sections, record = engine_report(models, seed)
    _write(json, record, seed)
    print_sections(sections)


@app.command()
def sample() -> None:
    """Print the path of the bundled rollouts.

    `diagnose sample` reads them as well.
    """
    typer.echo(_sample_path())


def _sample_path() -> Path:
    from testbed.sample_data import partial_rollouts_path

    return partial_rollouts_path()


def _write(path: Path | None, result: dict[str, Any], seed: int | None) -> None:
    if path is None:
        return
    from testbed.core.records import RunRecord, provenance

    RunRecord(result=result, provenance=provenance(seed)).save(path)
