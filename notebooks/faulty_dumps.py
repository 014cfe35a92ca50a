"""What the notebook on diagnosis asks of the library: a run's last batch, mistakes in recording it, files, and their diagnosis.

The run is one of the notebook on stale training, with a longer task: parity with its working, written by a stream of which each
response ends under the weights that began it, so that a batch holds responses of two versions.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from stale_runs import Watched, watched

import testbed
from testbed.core.sections import Section, number, share
from testbed.diagnosis.detectors import temperature
from testbed.diagnosis.dump import read_dump
from testbed.diagnosis.printed import report_sections
from testbed.diagnosis.report import diagnose
from testbed.policies.transformer import TransformerPolicy
from testbed.policies.truncated import Truncated

RUN = {
    "task": "parity", "task_params": {"bits": 10}, "prompts": 16, "rate": 1e-3, "rule": "exact", "updates": 12,
    "evaluate_every": 12, "system": "dora", "system_params": {"ahead": 6, "slots": 24},
}  # fmt: skip
COOL, NUCLEUS = 0.8, 0.9
Batch = testbed.SegmentedBatch
Arrays = dict[str, np.ndarray]


# ------------------------------------------------------------------------------------------------ runs and their last batch
@cache
def run(**changes: float) -> Watched:
    """Train with these changes to the sampler; the weights of every version are kept."""
    return watched({**RUN, **changes}, seed=0, keep=range(12))


def last_batch(found: Watched) -> Batch:
    """Batch of the last update."""
    return batch_at(found, len(found.seen) - 1)


def batch_at(found: Watched, update: int) -> Batch:
    """Batch of an update: target = the trainer's log-probs before it, group = the number that the responses were drawn in."""
    seen = found.seen[update]
    return seen.batch.replaced(logp_proximal=None, group=seen.delivery.response // found.run.config.responses)


def with_proximal(found: Watched, update: int) -> Batch:
    """The same, with the log-probs of the weights that drew each token, in the trainer's arithmetic."""
    batch = found.seen[update].batch
    version, logp = batch.require("version", "with_proximal"), torch.zeros_like(batch.logp_target)
    with torch.no_grad():
        for v in version[batch.mask].unique().tolist():
            scores = found.policy(v).at(batch.group).score(batch.tokens).float()
            logp = torch.where(batch.mask & (version == v), scores, logp)
    return batch_at(found, update).replaced(logp_proximal=logp)


def scored(found: Watched, through: Callable[[TransformerPolicy], testbed.Policy]) -> torch.Tensor:
    """Log-probs of the last batch under the trainer's policy, seen through a temperature or a filter."""
    batch = found.seen[-1].batch
    trainer = through(found.policy(len(found.seen) - 1))
    with torch.no_grad():
        return torch.where(batch.mask, trainer.at(batch.group).score(batch.tokens), 0.0).float()


# ------------------------------------------------------------------------------------------------ mistakes, and their repair
def reversed_tags(batch: Batch) -> Batch:
    """Oldest and newest exchanged; groups not recorded, each response for itself."""
    version = batch.require("version", "reversed_tags")
    ends = version[batch.mask].min() + version[batch.mask].max()
    return batch.replaced(version=torch.where(batch.mask, ends - version, -1), group=torch.arange(batch.batch_size))


def late_by_one(batch: Batch) -> Batch:
    """Column of the trainer a place late."""
    return batch.replaced(logp_target=torch.where(batch.mask, batch.logp_target.roll(1, 1), 0.0))


def rounded(batch: Batch) -> Batch:
    """Sampler's column in 16 bits."""
    return batch.replaced(logp_behavior=batch.logp_behavior.bfloat16().float())


def recomputed(batch: Batch) -> Batch:
    """Sampler's column computed again by the trainer."""
    return batch.replaced(logp_behavior=batch.logp_target)


PLANTED: dict[str, Callable[[], Batch]] = {
    "nothing": lambda: last_batch(run()),
    "temperature": lambda: last_batch(run(temperature=COOL)),
    "top-p": lambda: last_batch(run(top_p=NUCLEUS)),
    "late by one": lambda: late_by_one(last_batch(run())),
    "recomputed": lambda: recomputed(last_batch(run())),
    "tags reversed": lambda: reversed_tags(last_batch(run())),
    "bfloat16": lambda: rounded(last_batch(run())),
}
NAMED = {  # what the checks call it
    "temperature": "temperature", "top-p": "truncated_mass", "late by one": "shift_by_one",
    "recomputed": "recomputed", "tags reversed": "version_tags", "bfloat16": "low_precision",
}  # fmt: skip


def repaired(fault: str) -> Batch:
    """Batch as it is once the mistake is repaired: the trainer's scores through the sampler's filter, or the true record."""
    if fault == "temperature":
        found = run(temperature=COOL)
        logp = scored(found, lambda policy: Truncated(policy, temperature=COOL))
    elif fault == "top-p":
        found = run(top_p=NUCLEUS)
        logp = scored(found, lambda policy: Truncated(policy, top_p=NUCLEUS))
    else:
        return last_batch(run())
    return last_batch(found).replaced(logp_target=logp)


# ------------------------------------------------------------------------------------------------ files
def plain(batch: Batch) -> Arrays:
    """What a trainer has at hand: arrays [B, T] and [B]."""
    version = batch.require("version", "plain")
    return {
        "rollout": batch.logp_behavior.numpy(), "trainer": batch.logp_target.numpy(), "mask": batch.mask.numpy(),
        "reward": batch.reward.numpy(), "group": batch.group.numpy(), "tokens": batch.tokens.numpy(),
        "version": version[:, 0].numpy(),
    }  # fmt: skip


def trl(at_hand: Arrays) -> dict[str, torch.Tensor]:
    """Dictionary as TRL's trainer holds it: it records no version. The group's number stands for the prompt's tokens."""
    names = {"rollout": "sampling_per_token_logps", "trainer": "old_per_token_logps", "mask": "completion_mask"}
    names |= {"reward": "rewards", "tokens": "completion_ids"}
    out = {name: torch.from_numpy(at_hand[field]) for field, name in names.items()}
    out["completion_mask"] = out["completion_mask"].long()
    return out | {"prompt_ids": torch.from_numpy(at_hand["group"])[:, None]}


def diagnosed(path: Path) -> dict[str, Any]:
    """Record of `testbed diagnose PATH`, from Python."""
    dump = read_dump(path)
    return {"format": dump.format, "format_notes": dump.notes} | diagnose(dump.batch)


def command_line(folder: Path, *words: str) -> str:
    """Run `testbed` in a folder as a shell would, and return what it prints."""
    run = [sys.executable, "-m", "testbed", *words]
    return subprocess.run(run, cwd=folder, capture_output=True, text=True, check=True).stdout


def same(saved: Any, record: Any) -> bool:
    """Whether a record read from JSON says what one in memory does, numbers up to rounding."""
    if isinstance(record, dict):
        return all(same(saved[str(name)], value) for name, value in record.items())
    if isinstance(record, list | tuple):
        return len(saved) == len(record) and all(map(same, saved, record))
    if isinstance(record, float) and isinstance(saved, float):
        return bool(np.isclose(saved, record, rtol=1e-6, atol=1e-9))
    return saved == record or isinstance(record, float)


# ------------------------------------------------------------------------------------------------ reports
def sections(record: dict[str, Any]) -> dict[str, Section]:
    """Sections of the report by title."""
    return {section.title: section for section in report_sections(record)}


def faults_of(printed: str) -> str:
    """Section of the checks in a printed report, up to the first note."""
    checks = next(part for part in printed.split("\n\n") if part.startswith("CHECKS"))
    return checks.split("\n  note")[0]


def fired(record: dict[str, Any], kind: str) -> list[str]:
    """Names of the faults, or of the notes, in a record."""
    return [check["check"] for check in record["faults"] if check["fired"] and check["kind"] == kind]


def accused_words(found: dict[int, list[str]]) -> str:
    """How many healthy batches are accused, of what, and since which update; `found` has the faults by update."""
    guilty, names = [u for u, of in found.items() if of], sorted({name for of in found.values() for name in of})
    since = f", of {', '.join(names)}; the first at update {guilty[0]}" if guilty else ""
    return f"Accused: {len(guilty)} of {len(found)} healthy batches{since}."


def confidence(record: dict[str, Any]) -> list[list[str]]:
    """Displacement by the trainer's confidence: range, tokens, median, MAD."""
    names = ("median", "mad_eps")
    return [[r["bin"], str(r["tokens"]), *[number(r.get(name), 2) for name in names]] for r in record["displacements"]]


def effects(record: dict[str, Any], rules: Sequence[str]) -> list[list[str]]:
    """What some rules would do: name, share of tokens acted on, mean weight, second moment."""
    by = {r["rule"]: r for r in record["rules"]["rules"]}
    names = ("mean_weight", "second_moment_applied")
    return [[rule, share(by[rule]["acted_share"]), *[number(by[rule][name]) for name in names]] for rule in rules]


def line_of(path: Path) -> tuple[float, float] | None:
    """Slope of displacement on log-odds, and the share it explains, as the detector of temperatures measures them, if it does."""
    found = temperature.measure(read_dump(path).batch)
    return (found["slope"], found["explained"]) if found else None


def mean_ratio(path: Path) -> float:
    """Mean ratio of the tokens."""
    batch = read_dump(path).batch
    return float(testbed.weigh("exact", batch).value.double()[batch.mask].mean())


def cap_words(cap: dict[str, Any]) -> list[str]:
    """Advised cap with its interval, and how many weights it acts on."""
    return [f"{cap['cap']:.2f} [{cap['interval']['low']:.2f}, {cap['interval']['high']:.2f}]", str(cap["above"])]


def share_words(found: dict[str, Any]) -> str:
    """Advised share of replay with its interval."""
    low, high = found["interval"]["low"], found["interval"]["high"]
    return f"Advised share of replay, by the proxy of theorem `K1`: {found['share']:.0%} [{low:.0%}, {high:.0%}]."


class Shelf:
    """A folder for dumps, gone with the session; every dump is written and diagnosed once."""

    def __init__(self, write: Callable[..., None]) -> None:
        self.folder, self.write = Path(tempfile.mkdtemp()), write
        self.records: dict[tuple[str, str], dict[str, Any]] = {}
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)

    def path(self, fault: str, layout: str) -> Path:
        """File of a planted mistake in a layout."""
        path = self.folder / f"{fault.replace(' ', '_')}.{'npz' if layout == 'verl' else 'pt'}"
        if not path.exists():
            at_hand = plain(PLANTED[fault]())
            if layout == "verl":
                self.write(path, **at_hand)
            else:
                torch.save(trl(at_hand), path)
        return path

    def record(self, fault: str, layout: str) -> dict[str, Any]:
        """Record of the diagnosis."""
        if (fault, layout) not in self.records:
            self.records[fault, layout] = diagnosed(self.path(fault, layout))
        return self.records[fault, layout]
