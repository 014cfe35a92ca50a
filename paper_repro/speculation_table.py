"""Drafts on the real model: how many are accepted, how good the heads are, and whether the tokens are the loop's.

Ours alone. The third paper's abstract prints speedups; this counts tokens and times nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from paper_repro.comparison import LEVEL, Check
from paper_repro.real_speculation import DRAFTS, TOP
from paper_repro.speculation_arrays import Arrays
from paper_repro.speculation_records import LAWS, OWN, RESPONSES, TAUGHT, UNTAUGHT, about, read
from paper_repro.study import RESAMPLES, Finding, Setting
from testbed.core.errors import InputError
from testbed.core.seeds import SeedTree
from testbed.rollout.speculative.near_ties import NEAR
from testbed.stats.intervals import bootstrap_interval

ENOUGH, LONG = 64, 48  # responses of so many tokens, at least, that the ledger must have seen under each kind of drafts
ALARM = 5.0  # standard errors
OURS = (
    "ours alone: no number of the paper stands beside these. Its abstract claims rollouts 1.26 to 2.15 times as fast, for models "
    "of 1.5 to 14 billion parameters and with drafts that go on adapting; here a model of 135 million writes at temperature 1, "
    "heads are taught once, on {positions:,} positions of its own samples, and tokens are counted, not seconds"
)
LEDGER = (
    f"near tie: the two largest of log p + noise are closer than {NEAR:g} nats in both engines and in float64. Rounding in "
    "single precision can then decide which is drawn; a response that parts anywhere else is a wrong law, and a failure"
)
INTERVALS = f"intervals: {LEVEL:.0%}, bootstrap over held-out prompts, one response to each"


def drafts(setting: Setting, folder: Path | None = None) -> Finding:
    """Table of accepted drafts, of the heads' accuracy, and of the ledger of near ties.

    Raises
    ------
    InputError   a scale other than real
    """
    if setting.scale != "real":
        raise InputError("this table is of the real model", found=setting.scale, hint="use --scale real")
    rows, laws, told = read(RESPONSES, folder)[0], read(LAWS, folder)[0], about(folder)
    finding = Finding()
    library = rows["sums"] == "library"
    for kind in DRAFTS:
        one = _only(rows, library & (rows["drafts"] == kind))
        over = f"{len(one['rounds'])} prompts, {int(one['rounds'].sum()):,} rounds"
        for quantity, top in (
            ("accepted drafts per round", "accepted"),
            ("expected, given the trees", "expected"),
            ("probability that the next token is a candidate", "root"),
        ):
            value, interval = ratio(setting, f"{kind}, {top}", [one[top]], [one["rounds"]])
            finding.rows.append(_row(quantity, kind, value, interval, over))
    for kind, number in dict.fromkeys(zip(laws["law"].tolist(), laws["head"].tolist(), strict=True)):
        one = _only(laws, (laws["law"] == kind) & (laws["head"] == number))
        name = "the model's own next law" if kind == OWN else f"{kind} {number}"
        over = f"{len(one['count'])} prompts, {int(one['count'].sum()):,} tokens"
        for k in TOP:
            value, interval = ratio(setting, f"{name}, top {k}", [one[f"top{k}"]], [one["count"]])
            finding.rows.append(
                _row(f"written token among the {k} most probable" if k > 1 else FIRST, name, value, interval, over)
            )
    finding.checks += [*ledger_checks(rows), fair(_only(rows, library)), *gains(setting, rows), *learned(setting, laws)]
    finding.remarks += [OURS.format(positions=told["positions"]), LEDGER, INTERVALS]
    finding.sources["real model"] = told["model"] + "; " + told["engines"]
    return finding


FIRST = "written token the most probable"


def _only(columns: Arrays, chosen: np.ndarray) -> Arrays:
    return {name: values[chosen] for name, values in columns.items()}


def _row(quantity: str, kind: str, value: float, interval: tuple[float, float], over: str) -> dict[str, str]:
    ends = f"[{interval[0]:.3f}, {interval[1]:.3f}]"
    return {"quantity": quantity, "of": kind, "ours": f"{value:.3f}", "interval": ends, "over": over}


def ratio(
    setting: Setting, name: str, over: Sequence[np.ndarray], under: Sequence[np.ndarray]
) -> tuple[float, tuple[float, float]]:
    """Ratio of two sums over responses, or the first such ratio less the second, with its interval.

    Parameters
    ----------
    over, under : one or two arrays each   per response; response i of all of them answers the same prompt
    """
    table = torch.from_numpy(np.stack([*over, *under], 1).astype(np.float64))
    half = len(over)

    def of(drawn: Tensor) -> float:
        total = drawn.sum(0)
        each = total[:half] / total[half:].clamp(min=1e-300)
        return float(each[0] - each[1]) if half > 1 else float(each[0])

    seeds = SeedTree("paper_repro")["real speculation"][name]
    interval = bootstrap_interval(table, of, seeds=seeds, level=LEVEL, resamples=100 if setting.smoke else RESAMPLES)
    return of(table), (interval.low, interval.high)


# ------------------------------------------------------------------------------------------------ checks
def failures(rows: Arrays) -> np.ndarray:
    """Which rows are responses that part from the loop's where there was no near tie.

    A gap that nobody computed cannot excuse a parting.
    """
    gaps = np.stack([rows["gap_loop"], rows["gap_drafts"], rows["gap_float64"]], 1)
    return (rows["parted"] >= 0) & ~(gaps < NEAR).all(1)


def ledger_checks(rows: Arrays) -> list[Check]:
    """Whether all responses are the loop's up to near ties, and without exception where sums have one order."""
    library, fixed = (_only(rows, rows["sums"] == name) for name in ("library", "fixed"))
    fewest = min(int((library["tokens"][library["drafts"] == kind] >= LONG).sum()) for kind in DRAFTS)
    checks = [
        Check(
            statement="token for token, every response with drafts is the autoregressive loop's, or parts from it at a near tie",
            holds=None if fewest < ENOUGH else not failures(library).any(),
            found=counted(library) + f"; of each kind of drafts at least {fewest} responses have {LONG} tokens or more",
        )
    ]
    if len(fixed["parted"]):
        checks.append(
            Check(
                statement="with sums in one order whatever a pass's shape, no response parts, and log-probabilities are equal",
                holds=not (fixed["parted"] >= 0).any() and not fixed["apart"].any(),
                found=counted(fixed),
            )
        )
    return checks


def counted(rows: Arrays) -> str:
    """What a ledger holds, in words: sequences, tokens, partings, largest gap."""
    parted = rows["parted"] >= 0
    gaps = np.stack([rows["gap_loop"], rows["gap_drafts"], rows["gap_float64"]], 1)[parted]
    found = (
        f"largest gap {gaps.max():.2g}, {int(failures(rows).sum())} where there was no near tie"
        if parted.any()
        else "none"
    )
    near = np.zeros(int(rows["response"].max()) + 1, dtype=np.int64)
    np.maximum.at(near, rows["response"], rows["near"])  # every kind of drafts meets the same draws of the loop
    return (
        f"{len(parted)} sequences, {int(rows['compared'].sum()):,} tokens equal; partings: {int(parted.sum())} ({found}); "
        f"near ties among the loop's own draws: {int(near.sum())}, the closest {rows['closest'].min():.2g}; "
        f"log-probabilities at most {rows['apart'].max():.2g} apart"
    )


def fair(rows: Arrays) -> Check:
    """Hits less coverage is a martingale whose variance is the sum of coverage (1 - coverage)."""
    excess = float((rows["hits"] - rows["coverage"]).sum() / np.sqrt(max(rows["variance"].sum(), 1e-300)))
    return Check(
        statement=f"candidates are drawn as often as the target says, within {ALARM:g} standard errors",
        holds=abs(excess) < ALARM,
        found=f"{int(rows['hits'].sum()):,} of {rows['coverage'].sum():,.0f} expected: {excess:+.2f} standard errors",
    )


def gains(setting: Setting, rows: Arrays) -> list[Check]:
    """Whether taught heads have more drafts accepted than untaught ones and than prompt lookup, on the same prompts."""
    by_kind = {kind: _only(rows, (rows["sums"] == "library") & (rows["drafts"] == kind)) for kind in DRAFTS}
    taught = by_kind["taught heads"]
    checks = []
    for kind in ("untaught heads", "prompt lookup"):
        other = by_kind[kind]
        value, (low, high) = ratio(
            setting, f"taught less {kind}", [taught["accepted"], other["accepted"]], [taught["rounds"], other["rounds"]]
        )
        checks.append(
            Check(
                statement=f"on prompts they were not taught on, taught heads have more drafts accepted per round than {kind}",
                holds=None if low <= 0 <= high else low > 0,
                found=f"{value:+.3f} [{low:+.3f}, {high:+.3f}]",
            )
        )
    return checks


def learned(setting: Setting, laws: Arrays) -> list[Check]:
    """Whether each taught head finds the token it speaks of more often than the model's next law, which it was before."""
    checks = []
    for head in sorted(set(laws["head"][laws["law"] == TAUGHT].tolist())):
        after, before = (_only(laws, (laws["law"] == kind) & (laws["head"] == head)) for kind in (TAUGHT, UNTAUGHT))
        value, (low, high) = ratio(
            setting, f"head {head}", [after["top1"], before["top1"]], [after["count"], before["count"]]
        )
        checks.append(
            Check(
                statement=f"head {head}: teaching raised the share of tokens that are its most probable one",
                holds=None if low <= 0 <= high else low > 0,
                found=f"{value:+.3f} [{low:+.3f}, {high:+.3f}]",
            )
        )
    return checks
