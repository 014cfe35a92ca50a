"""What every table and figure of the CIS paper has in common: sources of samples, and the finding a run leaves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paper_repro.comparison import CRITERION, LEVEL, Cell, Check, cell, measured
from paper_repro.mismatch_samples import NoiseSample, TokenSample
from paper_repro.reported_tables import Reported
from paper_repro.studies import require_scale
from testbed.core.seeds import SeedTree

RESAMPLES, RESAMPLES_SMOKE, RESPONSES_SMOKE = 400, 40, 96
Found = dict[str, tuple[float, float, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How a study is run.

    Parameters
    ----------
    scale : str     "tiny": noise model and tiny transformers, made on the spot; "real": the recorded small language model
    smoke : bool    less of everything, to see that it runs
    out : Path      where the results go; None: `out`, where a study writes anything besides
    """

    scale: str
    smoke: bool = False
    out: Path | None = None

    def __post_init__(self) -> None:
        require_scale(self.scale)

    def pairs(self) -> list[tuple[TokenSample, list[NoiseSample]]]:
        """Every source of this scale: drawn tokens, and perturbed logits in each reading of what that means."""
        limit = RESPONSES_SMOKE if self.smoke else None
        if self.scale == "real":
            from paper_repro.real_records import noise_samples, token_samples

            return list(zip(token_samples(limit=limit), noise_samples(limit=limit), strict=True))
        from paper_repro import tiny_engines, tiny_noise

        prefixes = 4000 if self.smoke else tiny_noise.PREFIXES
        drawn = [tiny_noise.draw(name, prefixes) for name in tiny_noise.laws()]
        drawn += [tiny_engines.draw(model, self.smoke) for model in ("Dense", "MoE")]
        return [(tokens, [noise]) for tokens, noise in drawn]

    def tokens(self) -> list[TokenSample]:
        """Drawn tokens of every source."""
        return [tokens for tokens, _ in self.pairs()]

    def noise(self) -> list[NoiseSample]:
        """Perturbed logits of every source, in every reading."""
        return [noise for _, readings in self.pairs() for noise in readings]

    def measure(self, sample: Any, statistics: Callable[[Any], Mapping[str, float]]) -> Found:
        """Statistics of a sample with their intervals."""
        resamples = RESAMPLES_SMOKE if self.smoke else RESAMPLES
        return measured(sample, statistics, SeedTree("paper_repro")[sample.name], resamples)


@dataclass(slots=True, kw_only=True)
class Finding:
    """What a study found: cells beside the paper's, checks, remarks, curves to draw.

    `rows` are tables of another form, for studies that compare something other than numbers: the entry "table" of a row is
    the title of the table it belongs to. `claims` are rows of `lab_tables.claim_row`: what the paper claims, and the verdict.
    """

    cells: list[Cell] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    rows: list[dict[str, str]] = field(default_factory=list)
    claims: list[dict[str, str]] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    curves: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """Return the finding as the result of a record."""
        return {
            "criterion": CRITERION,
            "level": LEVEL,
            "sources": self.sources,
            "cells": [one.plain() for one in self.cells],
            "checks": [check.plain() for check in self.checks],
            "rows": self.rows,
            "claims": self.claims,
            "remarks": self.remarks,
            "curves": self.curves,
        }


def compared(
    source: str,
    printed: Mapping[str, Reported],
    found: Found | None,
    *,
    said: Mapping[str, str] | None = None,
    tolerances: Mapping[str, float] | None = None,
) -> list[Cell]:
    """Cells of one source beside one row or column of a printed table.

    Parameters
    ----------
    printed : mapping        statistic -> the paper's cell
    found : mapping | None   statistic -> (value, low, high), in the paper's unit; None = this source has no such thing
    said : mapping           statistic -> verdict, where there is nothing to judge
    tolerances : mapping     absolute tolerances of numbers near 0
    """
    cells = []
    for name, paper in printed.items():
        ours = None if found is None else found.get(name)
        verdict = None if ours is None else (said or {}).get(name)
        cells.append(cell(source, paper, ours, tolerance=(tolerances or {}).get(name), verdict=verdict))
    return cells


DENSE_REASON = (
    "the real model is dense and has 135 million parameters; the paper's dense model and its mixture of experts are larger, "
    "run on other kernels, and its trainer is likely bfloat16"
)
NOISE_REASON = (
    "the noise model knows only what it was calibrated on: it is symmetric, its prefixes are random laws over 64 tokens, and "
    "its share of nearly certain tokens is that of table 7 by construction, not their distance from 1"
)
ENGINE_REASON = (
    "the tiny transformer has random weights and 256 tokens; how large its mismatch is follows from how sharp its laws are "
    "(scale 6 of the last layer), so orders and dependences can be compared with the paper, sizes cannot"
)


def reasons(setting: Setting) -> list[str]:
    """Return why numbers differ at this scale."""
    return [DENSE_REASON] if setting.scale == "real" else [NOISE_REASON, ENGINE_REASON]
