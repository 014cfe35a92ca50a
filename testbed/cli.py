"""Command line of the testbed. Numerical libraries are imported inside the commands, so that `--help` is instant."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(
    name="testbed", no_args_is_help=True, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False,
    help="Diagnose the off-policy correction of a training run from its recorded log-probabilities.",
)  # fmt: skip

SAMPLE = "sample"
Json = Annotated[Path | None, typer.Option("--json", metavar="PATH", help="Write the record here as JSON.")]


@app.command()
def diagnose(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A .parquet, .jsonl or .npz dump, or `sample`.")],
    target: Annotated[str | None, typer.Option(metavar="COL", help="Column of the target's log-probs.")] = None,
    behavior: Annotated[str | None, typer.Option(metavar="COL", help="Column of the behavior's log-probs.")] = None,
    json: Json = None,
    seed: Annotated[int, typer.Option(help="Seed of the bootstrap intervals; nothing else is random.")] = 0,
    cost_fresh: Annotated[float, typer.Option(metavar="X", help="Cost of a fresh response, any unit.")] = 1.0,
    cost_replay: Annotated[
        float, typer.Option(metavar="X", help="Cost of a replayed one; it skips generation.")
    ] = 0.25,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing; for use with --json.")] = False,
) -> None:
    """Read a run's log-probs: gaps, weights, faults, rules, advice.

    Says how far the policies are apart, what each correction would do about it, and which cap and replay share to set.

    FILE has one row per drawn token: sequence, position (0, 1, 2, ...), logp_behavior, logp_target (nats), reward; and,
    where recorded, token, segment, prompt, logp_proximal, version, engine, token_reward, action_value. Rows may also be
    whole responses that hold lists.
    """
    from testbed.core.records import require_writable
    from testbed.diagnosis.dump import load_dump
    from testbed.diagnosis.printed import report_sections
    from testbed.diagnosis.report import diagnose as diagnose_batch
    from testbed.diagnosis.sections import print_sections

    if json is not None:
        require_writable(json)
    path = _sample_path() if file == SAMPLE and not Path(file).exists() else Path(file)
    record = diagnose_batch(
        load_dump(path, target, behavior), seed=seed, cost_fresh=cost_fresh, cost_replay=cost_replay
    )
    columns = {"target": target or "logp_target", "behavior": behavior or "logp_behavior"}
    _write(json, {"file": path.name, "columns": columns, **record}, seed)
    if not quiet:
        print_sections(report_sections(record))


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
    from testbed.diagnosis.rule_catalog import list_rules, one_rule
    from testbed.diagnosis.sections import print_sections

    sections, records = list_rules() if name is None else one_rule(name)
    _write(json, {"rules": records}, None)
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
