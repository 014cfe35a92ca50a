"""Table 11, the training part of Table 12 and Figure 6 of the CIS paper: its threshold lambda and its floor kappa."""

from __future__ import annotations

from typing import Any

from paper_repro.cis_averages import gap_of, in_the_paper
from paper_repro.cis_harm import ELSEWHERE, harm_by_size, harm_of_all
from paper_repro.cis_settings import FEW, SIZES, dense_places
from paper_repro.cis_verdicts import above, by_chance, collapses, near, needs_harm, pooled
from paper_repro.lab_cis import FRESH, NO_COUNTERPART, READING, rows_of
from paper_repro.lab_results import Results, results_of
from paper_repro.lab_tables import CRITERION, TINY, iqm, settled
from paper_repro.reported_tables import Reported, reported
from paper_repro.study import Finding, Setting

SWEPT = {"lam": ("mismatch_lambda", 11, "2.3"), "kappa": ("mismatch_kappa", 12, "5e-3")}  # study, table, default
GREEK = {"lam": "lambda", "kappa": "kappa"}
RUINED, BELOW = ("lam", "0"), ("0", "0.1")  # levels that are said to collapse, or to end below the default
ALL = "all sizes together"


def averages(factor: str) -> dict[str, Reported | None]:
    """Level of the sweep -> the paper's average.

    Examples
    --------
    >>> {level: cell.mean for level, cell in averages("lam").items() if cell}
    {'0': 8.75, '0.45': 33.85, '0.89': 34.08, '1.6': 33.89, '2.3': 34.78, '3.1': 33.35}
    """
    _, number, _ = SWEPT[factor]
    return {row.split(" ")[0]: cell for (row, column), cell in reported(number).items() if column == "Avg"}


def table11(setting: Setting) -> Finding:
    """Thresholds of CIS: is 0 ruinous, is the rest flat, is the default best."""
    return swept("lam", setting)


def swept(factor: str, setting: Setting) -> Finding:
    """Rows of a sweep at every size of the mismatch, and the claims about its ends and its middle."""
    study, _, default = SWEPT[factor]
    results, printed, name = results_of(study, setting, FEW), averages(factor), GREEK[factor]
    finding, harms = Finding(sources={f"runs of {study}": results.source}), harm_by_size(setting)
    finding.checks += [*harms.values(), harm_of_all(dense_places(setting))]
    for noise in results.levels("noise"):
        title = f"Training, {SIZES[noise]}; reference: {name} = {default}"
        rows = rows_of(results, factor, printed, default, title, None, noise=noise)
        finding.rows += [{name if key == factor else key: text for key, text in row.items()} for row in rows]
        finding.claims += claims_of(results, factor, printed, noise, harms[noise].holds)
    finding.claims += claims_in_all(results, factor, printed, finding.checks[-1].holds)
    finding.claims = settled(finding.claims, results.about["seeds"])
    finding.remarks += [
        f"Verdicts. {CRITERION}",
        by_chance(finding.claims),
        ELSEWHERE + ". That a level collapses is its own doing, and is judged at every size; that it loses nothing says "
        "something only where there is something to lose",
        NO_COUNTERPART, READING, FRESH, TINY, results.about["limits"].strip(),
    ]  # fmt: skip
    return finding


def claims_of(
    results: Results, factor: str, printed: dict[str, Reported | None], noise: str, harm: bool | None
) -> list[dict[str, str]]:
    """What the paper's numbers say of a sweep, judged at one size of the mismatch, where it does harm or does not."""
    _, _, default = SWEPT[factor]
    name, where = GREEK[factor], SIZES[noise]
    finals = {level: results.values("final", **{factor: level}, noise=noise) for level in results.levels(factor)}
    out = []
    for level, values in finals.items():
        if level == default:
            continue
        paper, gap = in_the_paper(printed[default], printed[level]), gap_of(printed[default], printed[level])
        address = (results.name, level, noise)
        if (factor, level) == RUINED:
            fell, stood = (results.values("collapsed", lam=one, noise=noise) for one in (level, default))
            claim = f"{name} = 0 collapses, {default} does not ({where})"
            out.append(collapses(claim, values, fell, finals[default], stood, paper, *address, gap=gap))
        elif level in BELOW:
            claim = f"{name} = {level} ends below the default {default} ({where})"
            out.append(needs_harm(above(claim, finals[default], values, paper, *address, gap=gap), harm))
        else:
            claim = f"{name} = {level} loses nothing against {default} ({where})"
            out.append(needs_harm(near(claim, values, finals[default], paper, *address), harm))
    return out


def claims_in_all(
    results: Results, factor: str, printed: dict[str, Reported | None], harm: bool | None
) -> list[dict[str, str]]:
    """Return the claims about rewards over all sizes of the mismatch together."""
    _, _, default = SWEPT[factor]
    name, out = GREEK[factor], []

    def runs(level: str) -> dict[str, list[float]]:
        return {noise: results.values("final", **{factor: level}, noise=noise) for noise in results.levels("noise")}

    for level in results.levels(factor):
        if level == default:
            continue
        ours, paper = (printed[default], printed[level]), in_the_paper(printed[default], printed[level])
        address = (results.name, level)
        if level in BELOW:
            claim = f"{name} = {level} ends below the default {default} ({ALL})"
            out.append(pooled(claim, runs(default), runs(level), paper, *address, gap=gap_of(*ours)))
        else:
            claim = f"{name} = {level} loses nothing against {default} ({ALL})"
            out.append(pooled(claim, runs(level), runs(default), paper, *address, worse=True))
    return [needs_harm(claim, harm) for claim in out]


def figure6(setting: Setting) -> Finding:
    """Final reward and the paper's average against threshold and floor."""
    finding = Finding()
    for factor, (study, _, default) in SWEPT.items():
        results = results_of(study, setting, FEW)
        finding.sources[study] = results.source
        finding.curves[factor] = curve_of(results, factor) | {"default": default}
        finding.remarks.append(f"{study}: {results.about['limits'].strip()}")
    finding.remarks += [NO_COUNTERPART, READING, FRESH]
    return finding


def curve_of(results: Results, factor: str) -> dict[str, Any]:
    """Return what a panel draws: levels, the paper's averages, and our rewards at every size of the mismatch."""
    printed = averages(factor)
    levels = results.levels(factor)
    ours = {}
    for noise in results.levels("noise"):
        found = [iqm(results.values("final", **{factor: level}, noise=noise), factor, level, noise) for level in levels]
        ours[noise] = {
            "reward": [one.value for one in found],
            "low": [one.interval.low for one in found],
            "high": [one.interval.high for one in found],
            "collapsed": [sum(results.values("collapsed", **{factor: level}, noise=noise)) for level in levels],
            "label": SIZES[noise],
        }
    cells = [printed[level] for level in levels]
    return {
        "levels": levels,
        "paper": [cell.mean if cell else None for cell in cells],
        "paper sd": [cell.sd if cell else None for cell in cells],
        "ours": ours,
        "seeds": results.about["seeds"],
    }
