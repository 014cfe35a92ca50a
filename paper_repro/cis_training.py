"""Table 1 of the CIS paper: rewards after training under each correction of a mismatch, and whether CIS stands first."""

from __future__ import annotations

from collections.abc import Sequence

from paper_repro.cis_averages import gap_of, in_the_paper
from paper_repro.cis_harm import harm, harm_of_all, runs_of
from paper_repro.cis_orders import highest, ordered
from paper_repro.cis_settings import Place, arms_studies, places_of
from paper_repro.cis_verdicts import above, by_chance, difference_of, needs_harm, pooled, signed
from paper_repro.lab_cis import ARMS, BASE, FRESH, MODEL, NAMES, NO_COUNTERPART, READING, average_of, ranks, rows_of
from paper_repro.lab_power import pairing_in_words
from paper_repro.lab_tables import CRITERION, TINY, compare, iqm, iqm_of_strata, settled
from paper_repro.reported_tables import reported
from paper_repro.study import Finding, Setting

TABLE1 = ("no_mismatch", "none", "exact", "kpop", "icepop", "tis", "seq_tis", "seq_mis", "cis", "cis_linear")
RIVALS = ("none", "exact", "kpop", "icepop", "tis")  # arms whose averages the text we had shows
BASELINES = (*RIVALS, "seq_tis", "seq_mis")  # "the evaluated baselines" of the abstract
FORMS = ("cis", "cis_linear")
ALL = "all places together"


def table1(setting: Setting) -> Finding:
    """Arms of Table 1 for each model and size of the mismatch, and the order in which CIS is claimed to stand first."""
    studies = arms_studies(setting)
    finding = Finding(sources={f"runs of {results.name}": results.source for results in studies})
    places = [place for results in studies for place in places_of(results)]
    printed = {arm: average_of(arm) for arm in TABLE1}
    for place in places:
        title = f"{place.words[0].upper()}{place.words[1:]}; reference: no correction"
        finding.rows.append(base_row(place, title))
        finding.rows += rows_of(place.results, "arm", printed, "none", title, NAMES, noise=place.noise)
    finding.rows += pooled_rows(places)
    harms = {place.key: harm(place) for place in places}
    finding.checks += [*harms.values(), harm_of_all(places)]
    for form in FORMS:
        finding.claims += [needs_harm(first(form, [place], place.words), harms[place.key].holds) for place in places]
        finding.claims.append(needs_harm(first(form, places, ALL), finding.checks[-1].holds))
    for arm in RIVALS:
        finding.claims += [needs_harm(ahead(place, arm), harms[place.key].holds) for place in places]
        finding.claims.append(needs_harm(ahead_in_all(places, arm), finding.checks[-1].holds))
    finding.claims += [needs_harm(in_order(place, ("cis", *RIVALS)), harms[place.key].holds) for place in places]
    finding.claims = settled(finding.claims, min(results.about["seeds"] for results in studies))
    finding.remarks += [
        f"Verdicts. {CRITERION}",
        by_chance(finding.claims),
        NO_COUNTERPART,
        READING,
        FRESH,
        "the paper trains three models of experts and prints, in the text we had, five arms of the first; the rows of CIS are "
        "from its Table 2, those of Seq-TIS and Seq-MIS are not shown, nor are the two other models. That CIS has the highest "
        "average of all seven is from its abstract",
        "base model: reward before the first update, of the warm start that all runs of a seed share; it is not ranked",
        "all places together: interquartile mean over the runs of all models and sizes, with the places as strata. It leaves out "
        "a quarter of the runs at either end, hence much of a place that is unlike the others; a seed's runs in two "
        "places are drawn as if they had nothing in common",
        pairing_in_words({place.words: [place.values("final", arm) for arm in TABLE1] for place in places}),
        TINY,
        *(f"{results.name}: {results.about['limits'].strip()}" for results in studies),
    ]
    return finding


# ------------------------------------------------------------------------------------------------ rows
def base_row(place: Place, title: str) -> dict[str, str]:
    """Row of the policy that training starts from."""
    start, none = place.values("start", "none"), place.values("final", "none")
    found = compare(start, none, "base", place.key)
    return {
        "table": title,
        "arm": f"{BASE}; here: the warm start",
        "paper, average": reported(1)[MODEL + BASE, "Avg"].printed,
        "paper, rank": "",
        "our rank": "",
        "final reward": str(iqm(start, "base", place.key)),
        "area": "",
        "collapsed": "",
        "minus reference": str(found),
        "P(better)": str(found.improvement),
        "to tell": found.to_tell,
    }


def pooled_rows(places: Sequence[Place]) -> list[dict[str, str]]:
    """Rows of all arms over all places together."""
    runs = {arm: runs_of(places, arm) for arm in TABLE1}
    found = {arm: iqm_of_strata(strata, "table1", arm) for arm, strata in runs.items()}
    cells = {arm: average_of(arm) for arm in TABLE1}
    theirs = {arm: cell.mean for arm, cell in cells.items() if cell is not None and cell.mean is not None}
    printed, ours = ranks(theirs), ranks({arm: found[arm].value for arm in theirs})
    return [
        {
            "table": f"{ALL[0].upper()}{ALL[1:]}; reference: no correction",
            "arm": NAMES[arm],
            "paper, average": cell.printed if (cell := cells[arm]) is not None else "not shown",
            "paper, rank": str(printed.get(arm, "")),
            "our rank": str(ours.get(arm, "")),
            "final reward": str(found[arm]),
            "minus reference": "" if arm == "none" else signed(difference_of(runs[arm], runs["none"], "table1", arm)),
        }
        for arm in TABLE1
    ]


# ------------------------------------------------------------------------------------------------ claims
def first(form: str, places: Sequence[Place], where: str) -> dict[str, str]:
    """Verdict on "CIS has the highest average among the evaluated baselines"."""
    others = {ARMS[arm][0]: runs_of(places, arm) for arm in BASELINES}
    gaps = {ARMS[arm][0]: gap_of(average_of("cis"), average_of(arm)) for arm in BASELINES}
    claim = f"{NAMES[form]} ends above all seven baselines ({where})"
    return highest(claim, runs_of(places, form), others, gaps, form, where)


def ahead(place: Place, arm: str) -> dict[str, str]:
    """Verdict on "CIS ends above this arm"."""
    ours, theirs = average_of("cis"), average_of(arm)
    cis, other = place.values("final", "cis"), place.values("final", arm)
    claim, paper = f"CIS ends above {NAMES[arm]} ({place.words})", in_the_paper(ours, theirs)
    return above(claim, cis, other, paper, place.key, arm, gap=gap_of(ours, theirs))


def ahead_in_all(places: Sequence[Place], arm: str) -> dict[str, str]:
    """Verdict on "CIS ends above this arm", over all places together."""
    ours, theirs = average_of("cis"), average_of(arm)
    claim, runs = f"CIS ends above {NAMES[arm]} ({ALL})", [runs_of(places, name) for name in ("cis", arm)]
    return pooled(claim, runs[0], runs[1], in_the_paper(ours, theirs), "ahead", arm, gap=gap_of(ours, theirs))


def in_order(place: Place, arms: Sequence[str]) -> dict[str, str]:
    """Verdict on "the arms stand in the paper's order"."""
    paper = {arm: cell.mean for arm in arms if (cell := average_of(arm)) is not None and cell.mean is not None}
    claim = f"the printed arms stand in the paper's order ({place.words})"
    return ordered(claim, {arm: place.values("final", arm) for arm in paper}, paper, place.key)
