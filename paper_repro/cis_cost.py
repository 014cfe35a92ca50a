"""Table 14 of the CIS paper: what a correction costs, phase by phase of a training step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paper_repro.comparison import Check
from paper_repro.lab_results import RESULTS
from paper_repro.peers.timing import quartiles
from paper_repro.reported_tables import reported
from paper_repro.study import Finding, Setting
from testbed.core.errors import InputError
from testbed.core.records import RunRecord

FILE, NONE, LITTLE = "cost.json", "No correction", 0.01
PRINTED = ("Rollout", "Rescore", "Train step", "Advantage", "Total", "vs. no corr.", "Length")  # columns of the paper
OURS = "from the paper's numbers, ours"
PER_TOKEN = f"ms per token of a response ({OURS})"
RULED = ("Exact ratio", "KPop", "IcePop", "TIS", "Seq-TIS")  # rows with a correction that the text we had shows


def table14(setting: Setting) -> Finding:
    """Seconds of each phase, the paper's and ours at every size, and the share of a step that a correction adds."""
    record = recorded(setting)
    result, about, finding = record.result, record.provenance, Finding()
    finding.rows += printed_rows()
    for size in result["sizes"]:
        finding.rows += [_row(size, arm) for arm in size["arms"]]
        finding.checks += checks_of(size)
        finding.sources[size["size"]] = (
            f"{size['parameters']:,} weights, {size['responses']} responses of {size['length']:.1f} tokens; load average "
            f"{size['load'][0]:g} before, {size['load'][1]:g} after"
        )
    finding.sources["machine"] = (
        f"{result['threads']} thread of {result['cores']} cores, {result['repeats']} repeats, {about.get('platform')}"
    )
    finding.checks.append(by_token())
    finding.remarks += [
        "medians over repeats and, in brackets, quartiles. All rules are timed in turn on the same batch, so a share is of one "
        "machine at one load; seconds are not, where the load is above 1",
        "a step with a correction is rollout, rescore, weights, advantages and train step; without one there is nothing to score "
        "again. Weights are made within the train step too: their own column says how much of it they are",
        "the paper's column `vs. no corr.` compares runs whose responses differ in length by a quarter (321 tokens without "
        "correction, 250 with one); that no correction of single tokens costs more than 3.5% of a step is what it prints. "
        f"{OURS}: by the token, a correction costs what scoring again costs",
        "our rollouts are drawn by the same transformer on the same core and not in the background, as the paper's 0.44 s "
        "must be",
    ]
    return finding


def recorded(setting: Setting) -> RunRecord:
    """Return the committed measurement; at smoke, a small one made now.

    Raises
    ------
    InputError   no measurement, with the command that makes it
    """
    if setting.smoke:
        from paper_repro.cost_phases import measure_cost_and_write

        return RunRecord.load(measure_cost_and_write(setting.out or Path("out"), smoke=True))
    path = RESULTS / FILE
    try:
        return RunRecord.load(path)
    except FileNotFoundError:
        hint = "`python -m paper_repro measure cost --out paper_repro/results` makes it; --smoke shows that everything runs"
        raise InputError("the table of costs needs its measurement", found=f"no {path}", hint=hint) from None
    except (ValueError, KeyError) as error:
        raise InputError("a measurement must be readable", found=f"{path}: {error!r}") from None


def printed_rows() -> list[dict[str, str]]:
    """Return the paper's table, and what we make of it for one token of a response."""
    printed = reported(14)
    rows = []
    for arm in printed.rows():
        row = {"table": "The paper: seconds per step on eight A100 GPUs", "arm": arm}
        row |= {column: printed[arm, column].printed or "not shown" for column in PRINTED}
        shown = printed[arm, "Total"].mean is not None
        milliseconds = 1e3 * printed.value(arm, "Total") / printed.value(arm, "Length") if shown else None
        rows.append(row | {PER_TOKEN: "" if milliseconds is None else f"{milliseconds:.1f}"})
    return rows


def step_seconds(size: dict[str, Any], arm: str) -> list[float]:
    """Seconds of a whole step, repeat by repeat.

    Examples
    --------
    >>> size = {"shared": {"Rollout": [1.0], "Rescore": [0.5], "Advantage": [0.1]},
    ...         "arms": {"TIS": {"Weights": [0.01], "Train step": [2.0]}, "No correction": {"Weights": [0], "Train step": [2.0]}}}
    >>> step_seconds(size, "TIS"), step_seconds(size, "No correction")
    ([3.6], [3.1])
    """
    phases = ["Rollout", "Advantage"] + (["Rescore"] if arm != NONE else [])
    columns = [size["shared"][phase] for phase in phases] + [size["arms"][arm]["Train step"]]
    return [sum(column) for column in zip(*columns, strict=True)]


def shares(size: dict[str, Any], arm: str, reference: list[float] | None = None) -> list[float]:
    """Weights of a rule as a share of a whole step without correction, repeat by repeat."""
    whole = step_seconds(size, NONE) if reference is None else reference
    return [own / all_ for own, all_ in zip(size["arms"][arm]["Weights"], whole, strict=True)]


def _row(size: dict[str, Any], arm: str) -> dict[str, str]:
    step, none = step_seconds(size, arm), step_seconds(size, NONE)
    more = [100 * (one / other - 1) for one, other in zip(step, none, strict=True)]
    rescore = [0.0] if arm == NONE else size["shared"]["Rescore"]
    return {
        "table": f"Ours, {size['size']}: milliseconds per step",
        "arm": arm,
        "Rollout": _spread([1e3 * x for x in size["shared"]["Rollout"]]),
        "Rescore": _spread([1e3 * x for x in rescore]),
        "Train step": _spread([1e3 * x for x in size["arms"][arm]["Train step"]]),
        "Advantage": _spread([1e3 * x for x in size["shared"]["Advantage"]]),
        "Weights": _spread([1e3 * x for x in size["arms"][arm]["Weights"]]),
        "Total": _spread([1e3 * x for x in step]),
        "vs. no corr.": "" if arm == NONE else _spread(more, "%"),
        "weights / step": _spread([100 * share for share in shares(size, arm)], "%"),
        "Length": f"{size['length']:.1f}",
    }


def checks_of(size: dict[str, Any]) -> list[Check]:
    """Judge two statements at one size: the arithmetic of rules is free, and CIS costs no more than TIS."""
    upper = {arm: quartiles([100 * share for share in shares(size, arm)])[2] for arm in size["arms"]}
    worst = max(upper, key=lambda arm: upper[arm])
    gap = quartiles([100 * (a - b) for a, b in zip(shares(size, "CIS, odds"), shares(size, "TIS"), strict=True)])
    most = 100 * LITTLE
    return [
        Check(
            statement=f"{size['size']}: the arithmetic of every rule takes less than {most:g}% of a step",
            holds=upper[worst] < most,
            found=f"the most by {worst}: upper quartile {upper[worst]:.3f}%",
        ),
        Check(
            statement=f"{size['size']}: CIS takes less than {most / 10:g}% of a step more than TIS",
            holds=True if gap[2] < most / 10 else False if gap[0] >= most / 10 else None,
            found=f"CIS - TIS: median {gap[1]:+.3f}%, quartiles {gap[0]:+.3f}% and {gap[2]:+.3f}%",
        ),
    ]


def by_token() -> Check:
    """Judge, from the paper's numbers by a division that is ours, what corrections cost once responses are equally long."""
    printed = reported(14)
    per = {arm: printed.value(arm, "Total") / printed.value(arm, "Length") for arm in (NONE, *RULED)}
    more = {arm: 100 * (per[arm] / per[NONE] - 1) for arm in RULED}
    return Check(
        statement=f"{OURS}: by the token of a response, no correction of single tokens costs more than 3.5% of a step",
        holds=all(value <= 3.5 for arm, value in more.items() if arm != "Seq-TIS"),
        found="seconds per token of a response against no correction: "
        + ", ".join(f"{arm} {value:+.0f}%" for arm, value in more.items()),
    )


def _spread(values: list[float], unit: str = "") -> str:
    low, middle, high = quartiles(values)
    return f"{middle:.3g}{unit} [{low:.3g}, {high:.3g}]"
