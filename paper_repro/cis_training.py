"""Tables 1 and 2 of the CIS paper: rewards after training under each correction of a mismatch, and what of CIS matters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paper_repro.cis_settings import SIZES, Place, arms_studies, places_of
from paper_repro.comparison import Check
from paper_repro.lab_cis import (
    ARMS,
    FRESH,
    NO_COUNTERPART,
    READING,
    above,
    agreement,
    average_of,
    collapses,
    in_the_paper,
    judged_agreement,
    rows_of,
)
from paper_repro.lab_results import results_of
from paper_repro.lab_tables import CRITERION, NOISE, NOT, REPRODUCED, TINY, claim_row, compare, judged_better, settled
from paper_repro.study import Finding, Setting

CONTROLS_STUDY = "mismatch_controls"
TABLE1 = ("no_mismatch", "none", "exact", "kpop", "icepop", "tis", "seq_tis", "seq_mis", "cis", "cis_linear")
RIVALS = ("none", "exact", "kpop", "icepop", "tis")  # arms whose averages the text we had shows
MATCHED = {"x8": ("mean_x8", "share_x8"), "x24": ("mean_x24", "share_x24")}  # constant caps, matched at this size
CONTROLS = ("cis", "tis", "tis_113", *MATCHED["x8"], *MATCHED["x24"], "band", "kappa_0.1", "kappa_0")
NAMES = {arm: name for arm, (name, _) in ARMS.items()}


def table1(setting: Setting) -> Finding:
    """Arms of Table 1 for each model and size of the mismatch, and the order in which CIS is claimed to stand first."""
    studies = arms_studies(setting)
    finding = Finding(sources={f"runs of {results.name}": results.source for results in studies})
    places = [place for results in studies for place in places_of(results)]
    printed = {arm: average_of(arm) for arm in TABLE1}
    for place in places:
        title = f"{place.words[0].upper()}{place.words[1:]}; reference: no correction"
        finding.rows += rows_of(place.results, "arm", printed, "none", title, NAMES, noise=place.noise)
        finding.checks.append(harm(place))
    for arm in RIVALS:
        finding.claims += [ahead(place, arm) for place in places]
    finding.claims += [in_order(place, ("cis", *RIVALS)) for place in places]
    finding.claims = settled(finding.claims, min(results.about["seeds"] for results in studies))
    finding.remarks += [
        f"Verdicts. {CRITERION}",
        NO_COUNTERPART,
        READING,
        FRESH,
        "the paper trains three models of experts and prints, in the text we had, five arms of the first; the rows of CIS are "
        "from its Table 2, those of Seq-TIS and Seq-MIS are not shown, nor are the two other models",
        "where the mismatch costs nothing without correction (see the statements) there is nothing to repair and no arm can lead",
        TINY,
        *(f"{results.name}: {results.about['limits'].strip()}" for results in studies),
    ]
    return finding


def ahead(place: Place, arm: str) -> dict[str, str]:
    """Verdict on "CIS ends above this arm"."""
    paper = in_the_paper(average_of("cis"), average_of(arm))
    claim = f"CIS ends above {NAMES[arm]} ({place.words})"
    return above(claim, place.values("final", "cis"), place.values("final", arm), paper, place.key, arm)


def in_order(place: Place, arms: Sequence[str]) -> dict[str, str]:
    """Verdict on "the arms stand in the paper's order"."""
    paper = {arm: cell.mean for arm in arms if (cell := average_of(arm)) is not None and cell.mean is not None}
    value, interval = agreement({arm: place.values("final", arm) for arm in paper}, paper, place.key)
    verdict = judged_agreement(interval)
    found = f"Kendall's tau {value:+.2f} [{interval.low:+.2f}, {interval.high:+.2f}] over {len(paper)} arms"
    claim = f"the printed arms stand in the paper's order ({place.words})"
    return claim_row(claim, verdict, found, "more seeds" if verdict == NOISE else "told apart")


def harm(place: Place) -> Check:
    """Whether there is anything to repair: runs whose engines agree end above those without correction."""
    holds, found = judged_harm(place.values("final", "no_mismatch"), place.values("final", "none"), place.key)
    return Check(
        statement=f"ours: without correction, the mismatch costs reward ({place.words})", holds=holds, found=found
    )


def judged_harm(agree: Sequence[float], none: Sequence[float], *address: str) -> tuple[bool | None, str]:
    """Judge whether a mismatch does harm: True, False (surely less than the margin) or None.

    Examples
    --------
    >>> [judged_harm([0.9] * 10, none, "doc")[0] for none in ([0.5] * 10, [0.9] * 10)]
    [True, False]
    """
    found = compare(agree, none, "harm", *address)
    word = judged_better(found.difference.interval)
    return {REPRODUCED: True, NOT: False, NOISE: None}[word], f"engines agree - no correction {found}; {found.to_tell}"


def table2(setting: Setting) -> Finding:
    """CIS beside caps that do not depend on confidence, a bound from below, and other floors."""
    results = results_of(CONTROLS_STUDY, setting)
    finding = Finding(sources={"runs": results.source})
    for place in places_of(results):
        finding.rows += control_rows(place)
    for arm in CONTROLS[1:]:
        finding.claims += [control(place, arm) for place in places_of(results) if arm not in _matched_elsewhere(place)]
    for arm in ("band", "tis_113"):
        finding.claims += [ruinous(place, arm) for place in places_of(results)]
    finding.claims = settled(finding.claims, results.about["seeds"])
    finding.remarks += [
        f"Verdicts. {CRITERION}",
        NO_COUNTERPART,
        'the caps "mean cap of CIS" and "as often as CIS" are from pilots of CIS under the same settings on seeds that the '
        "study does not have, at either size of the mismatch: the mean over tokens of the cap that CIS gives them, and the "
        "constant that as many of these tokens exceed as exceed their own cap (numbers: mismatch_controls.toml)",
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
    paper = in_the_paper(average_of("cis"), average_of(arm)) if average_of(arm) else "not in the paper"
    claim = f"CIS ends above {NAMES[arm]} ({SIZES[place.noise]})"
    return above(claim, place.values("final", "cis"), place.values("final", arm), paper, place.key, arm)


def ruinous(place: Place, arm: str) -> dict[str, str]:
    """Verdict on "this control collapses, CIS does not"."""
    claim = f"{NAMES[arm]} collapses, CIS does not ({SIZES[place.noise]})"
    flags, finals, cis = place.values("collapsed", arm), place.values("final", arm), place.values("final", "cis")
    return collapses(claim, flags, finals, cis, in_the_paper(average_of("cis"), average_of(arm)), place.key, arm)


def _matched_elsewhere(place: Place) -> set[str]:
    return {arm for noise, arms in MATCHED.items() if noise != place.noise for arm in arms}


def share_acted(row: Mapping[str, Any]) -> float:
    """Share of tokens that a run's rule acted on, over the whole run.

    Examples
    --------
    >>> share_acted({"curve_acted": [0.1, 0.3]})
    0.2
    """
    return sum(row["curve_acted"]) / len(row["curve_acted"])
