"""Table 2 of the CIS paper: what of CIS matters, its dependence on confidence, its one side, its floor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paper_repro.cis_averages import gap_of, in_the_paper
from paper_repro.cis_harm import ELSEWHERE, harm_by_size, harm_of_all
from paper_repro.cis_settings import FEW, SIZES, Place, dense_places, places_of
from paper_repro.cis_verdicts import Runs, above, by_chance, collapses, needs_harm, pooled
from paper_repro.lab_cis import FRESH, NAMES, NO_COUNTERPART, READING, average_of, rows_of
from paper_repro.lab_results import mean_of_curve, results_of
from paper_repro.lab_tables import CRITERION, TINY, settled
from paper_repro.study import Finding, Setting

CONTROLS_STUDY = "mismatch_controls"
MEAN, SHARE = "mean cap of CIS at this size", "as often as CIS at this size"
MATCHED = {  # size of the mismatch -> what is matched there -> the constant cap
    "paper": {MEAN: "mean_x1", SHARE: "share_x1"},
    "x8": {MEAN: "mean_x8", SHARE: "share_x8"},
    "x24": {MEAN: "mean_x24", SHARE: "share_x24"},
}
FIXED = ("tis", "tis_113", "band", "kappa_0.1", "kappa_0")  # controls that are the same at every size
CONTROLS = ("cis", "tis", "tis_113", *(arm for arms in MATCHED.values() for arm in arms.values()), *FIXED[2:])
RUINOUS = ("band", "tis_113")
ALL = "all sizes together"


def table2(setting: Setting) -> Finding:
    """CIS beside caps that do not depend on confidence, a bound from below, and other floors."""
    results = results_of(CONTROLS_STUDY, setting, FEW)
    finding, places = Finding(sources={"runs": results.source}), places_of(results)
    harms = harm_by_size(setting)
    finding.checks += [*harms.values(), harm_of_all(dense_places(setting))]
    for place in places:
        finding.rows += control_rows(place)
    for arm in CONTROLS[1:]:
        matched = [place for place in places if arm not in _matched_elsewhere(place)]
        finding.claims += [needs_harm(control(place, arm), harms[place.noise].holds) for place in matched]
    finding.claims += [needs_harm(claim, finding.checks[-1].holds) for claim in in_all(places)]
    for arm in RUINOUS:
        finding.claims += [ruinous(place, arm) for place in places]
    finding.claims = settled(finding.claims, results.about["seeds"])
    finding.remarks += [
        f"Verdicts. {CRITERION}",
        by_chance(finding.claims),
        ELSEWHERE + "; that a control collapses is its own doing, and is judged at every size",
        NO_COUNTERPART,
        'the caps "mean cap of CIS" and "as often as CIS" are from pilots of CIS under the same settings on seeds that the '
        "study does not have, at each size of the mismatch: the mean over tokens of the cap that CIS gives them, and the "
        "constant that as many of these tokens exceed as exceed their own cap (numbers: mismatch_controls.toml). The pilots "
        "had one warm start, that of seed 0",
        READING,
        FRESH,
        TINY,
        results.about["limits"].strip(),
    ]
    return finding


def control_rows(place: Place) -> list[dict[str, str]]:
    """Rows of the controls at one size of the mismatch, with the share of tokens acted on."""
    printed = {arm: average_of(arm) for arm in CONTROLS}
    title = f"Controls, {SIZES[place.noise]}; reference: CIS"
    rows = rows_of(place.results, "arm", printed, "cis", title, NAMES, noise=place.noise)
    acted = {NAMES[arm]: [100 * share for share in place.values(share_acted, arm)] for arm in CONTROLS}
    return [row | {"acted on": f"{sum(acted[row['arm']]) / len(acted[row['arm']]):.2f}%"} for row in rows]


def control(place: Place, arm: str) -> dict[str, str]:
    """Verdict on "CIS ends above this control"."""
    ours, theirs = average_of("cis"), average_of(arm)
    paper = in_the_paper(ours, theirs) if theirs else "not in the paper"
    claim = f"CIS ends above {NAMES[arm]} ({SIZES[place.noise]})"
    cis, other = place.values("final", "cis"), place.values("final", arm)
    return above(claim, cis, other, paper, place.key, arm, gap=gap_of(ours, theirs))


def in_all(places: Sequence[Place]) -> list[dict[str, str]]:
    """Verdicts on "CIS ends above this control" over all sizes together; matched caps are those of each size."""
    cis, out = {place.key: place.values("final", "cis") for place in places}, []
    for arm in FIXED:
        runs: Runs = {place.key: place.values("final", arm) for place in places}
        ours, theirs = average_of("cis"), average_of(arm)
        claim = f"CIS ends above {NAMES[arm]} ({ALL})"
        out.append(pooled(claim, cis, runs, in_the_paper(ours, theirs), "control", arm, gap=gap_of(ours, theirs)))
    for name in (MEAN, SHARE):
        runs = {place.key: place.values("final", MATCHED[place.noise][name]) for place in places}
        out.append(pooled(f"CIS ends above TIS, {name} ({ALL})", cis, runs, "not in the paper", "control", name))
    return out


def ruinous(place: Place, arm: str) -> dict[str, str]:
    """Verdict on "this control collapses, CIS does not"."""
    ours, theirs = average_of("cis"), average_of(arm)
    claim = f"{NAMES[arm]} collapses, CIS does not ({SIZES[place.noise]})"
    (low, fell), (cis, stood) = ([place.values(name, one) for name in ("final", "collapsed")] for one in (arm, "cis"))
    paper = in_the_paper(ours, theirs)
    return collapses(claim, low, fell, cis, stood, paper, place.key, arm, gap=gap_of(ours, theirs))


def _matched_elsewhere(place: Place) -> set[str]:
    return {arm for noise, arms in MATCHED.items() if noise != place.noise for arm in arms.values()}


def share_acted(row: Mapping[str, Any]) -> float:
    """Share of tokens that a run's rule acted on, over the whole run.

    Examples
    --------
    >>> share_acted({"curve_acted": [0.1, 0.3]})
    0.2
    """
    return mean_of_curve(row, "acted")
