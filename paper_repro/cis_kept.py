"""Table 1 of the CIS paper once more, where two engines disagree in the same way for a whole run."""

from __future__ import annotations

from paper_repro.cis_harm import harm, harm_of_all
from paper_repro.cis_settings import FEW, Place, dense_places, places_of
from paper_repro.cis_training import ahead, ahead_in_all
from paper_repro.cis_verdicts import by_chance, needs_harm
from paper_repro.lab_cis import NAMES, NO_COUNTERPART, READING, average_of, rows_of
from paper_repro.lab_results import results_of
from paper_repro.lab_tables import CRITERION, TINY, compare, settled
from paper_repro.study import Finding, Setting

KEPT_STUDY = "mismatch_kept"
RIVALS = ("none", "exact", "kpop", "tis")  # arms of this study whose averages the paper prints
FRESHLY = ("none", "exact", "kpop", "tis", "seq_tis", "cis")  # arms that the study of fresh noise has too


def table1_kept(setting: Setting) -> Finding:
    """Arms under noise that is drawn once for a run, beside the same arms under noise drawn anew at every update."""
    results = results_of(KEPT_STUDY, setting, FEW)
    finding, places = Finding(sources={f"runs of {results.name}": results.source}), places_of(results)
    for place in places:
        title = f"{place.words[0].upper()}{place.words[1:]}; reference: no correction"
        printed = {arm: average_of(arm) for arm in results.levels("arm")}
        finding.rows += rows_of(results, "arm", printed, "none", title, NAMES, noise=place.noise)
    fresh = {place.noise: place for place in dense_places(setting)}
    finding.sources["runs with fresh noise"] = next(iter(fresh.values())).results.source
    for place in places:
        finding.rows += [lasting(place, fresh[place.noise], arm) for arm in FRESHLY]
    harms = {place.key: harm(place) for place in places}
    finding.checks += [*harms.values(), harm_of_all(places)]
    for arm in RIVALS:
        finding.claims += [needs_harm(ahead(place, arm), harms[place.key].holds) for place in places]
        finding.claims.append(needs_harm(ahead_in_all(places, arm), finding.checks[-1].holds))
    finding.claims = settled(finding.claims, results.about["seeds"])
    finding.remarks += [
        f"Verdicts. {CRITERION}",
        by_chance(finding.claims),
        NO_COUNTERPART,
        READING,
        "the paper's engines are two programs that differ in the same way all along; cis_table1 has noise that is drawn anew at "
        "every update. Here it is drawn once for a run, by prompt and prefix, so that what an update gets wrong adds up",
        "kept - fresh: the two runs of a seed share prompts, warm start and draws, not the noise",
        TINY,
        results.about["limits"].strip(),
    ]
    return finding


def lasting(kept: Place, fresh: Place, arm: str) -> dict[str, str]:
    """Row of what it does to an arm that the noise is kept: final reward, minus that under fresh noise."""
    finals, others = kept.values("final", arm), fresh.values("final", arm)
    found = compare(finals, others, "kept", kept.key, arm)
    return {
        "table": f"Kept - fresh noise, {fresh.words}",
        "arm": NAMES[arm],
        "minus reference": str(found),
        "P(better)": str(found.improvement),
        "to tell": found.to_tell,
    }
