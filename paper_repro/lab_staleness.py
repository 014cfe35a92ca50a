"""SPIRE's claim of stability: how much staleness does each rule survive, and which rule is ahead where?

Every token of a run is exactly as many updates old as the level says. The study `staleness` has every rule and age at a rate
at which training is sound without staleness; `staleness_fast` has fewer at a rate at which staleness breaks it.
"""

from __future__ import annotations

from typing import Any

from paper_repro.lab_power import multiplicity, pairing_in_words
from paper_repro.lab_results import Results, results_of
from paper_repro.lab_survival import (
    AREAL,
    CLIPPED,
    LOSS,
    NONE,
    OFTEN,
    PPO,
    SPIRE,
    comparison,
    premise,
    stability,
    state_at,
    survived,
)
from paper_repro.lab_tables import (
    CAVEAT,
    CRITERION,
    NOISE,
    NOT,
    REPRODUCED,
    TINY,
    arm_row,
    iqm,
    iqm_of_strata,
    rate,
    settled,
    settled_checks,
)
from paper_repro.study import Finding, Setting
from testbed.stats.interval import Interval

STUDY, FAST = "staleness", "staleness_fast"
SMALL = {"rule": (NONE, "exact", SPIRE, PPO, AREAL), "staleness": ("0", "4", "16")}  # levels of a smoke run
CLAIMED = 4  # "4x staleness": our reading is four updates; the table has every other level beside it
WORD = {REPRODUCED: "survives", NOISE: "cannot be told", NOT: "does not survive"}


def table(setting: Setting) -> Finding:
    """Arms at every staleness, the largest that each rule survives, and the verdicts on the claim, at two rates."""
    finding = Finding()
    for study in (STUDY, FAST):
        results = results_of(study, setting, SMALL)
        where = "" if study == STUDY else f", rate {results.base('rate'):g}"
        finding.sources["runs" if study == STUDY else f"runs of {study}"] = results.source
        block(finding, results, where)
        drawn = curves(results)
        finding.curves = drawn if study == STUDY else finding.curves | {study: drawn}
    finding.remarks = [
        f"Verdicts. {CRITERION}",
        multiplicity(finding.claims),
        f"Three kinds of verdict, each with words of its own: a claim of the paper is {REPRODUCED}, {NOISE} or {NOT}; a rule at "
        f"a staleness {WORD[REPRODUCED]}, {WORD[NOISE]} or {WORD[NOT]}; a check of ours holds, cannot be told or does not hold. "
        f'"{NOISE}" of a claim and "{WORD[NOISE]}" of the others mean the same: the runs decide neither way',
        f"survives: the whole interval of (reward at this staleness - reward of the same rule at 0, by seed) lies above "
        f"-{LOSS:g}, that of the collapse rate at or below {OFTEN:g}, and reward ends above where it started; does not survive: "
        "one lies on the other side, or nothing was learned; the largest staleness survived has no level below it that is not "
        "survived",
        f"collapsed: diverged, or a final reward below {results.base('collapse'):g} of the best that the run had",
        f'"up to 4x staleness" is read as {CLAIMED} updates between drawing and using a token, "AReaL+PPO" as the rules '
        f"{AREAL} (clip around the weights before the update, times a capped ratio) and {PPO} (clip around the sampler), each a "
        "verdict of its own",
        f"{FAST}: the claim needs a staleness at which a clipped rule collapses, and this regime was chosen so that there might "
        f"be one, from pilots of runs without a correction and with the exact one. One step per update there: the clip of "
        f"{AREAL} never acts, so that its capped ratio alone is judged",
        "all tokens of a response are equally old, so spire and segment_prefix see one segment: here they are the product over "
        "the response with the batch's own cap, and without one; what segments do is the study `partial`",
        "all ages together: ages are the strata of the bootstrap. Runs of one seed at two ages have much in common, and it "
        "draws them anew apart, so that these intervals are a little too short",
        *finding.remarks,
        CAVEAT,
        TINY,
    ]
    return finding


def block(finding: Finding, results: Results, where: str) -> None:
    """Add a study's rows, verdicts and limits; `where` names its rate unless it is the first."""
    lags, rules, seeds = results.levels("staleness"), results.levels("rule"), results.about["seeds"]
    for rule in rules:
        title = f"Largest staleness survived{where}"
        finding.rows.append({"table": title, "rule": rule, **survived(results, rule)})
    for lag in lags:
        finding.rows += [arm(results, rule, lag, where) for rule in rules]
    finding.rows += [pooled(results, rule, where) for rule in rules]
    claims = [stability(results, str(CLAIMED), where)]
    claims += [comparison(results, lag, rule, where) for lag in lags if int(lag) >= CLAIMED for rule in CLIPPED]
    finding.claims += settled(claims, seeds)
    finding.checks += settled_checks([premise(results, where)], seeds)
    finals = {
        f"age {lag}": [results.values("final", rule=rule, staleness=lag) for rule in rules] for lag in lags
    }  # fmt: skip
    finding.remarks += [f"{results.name}: {pairing_in_words(finals)}", results.about.get("limits", "").strip()]


# ------------------------------------------------------------------------------------------------ arms
def arm(results: Results, rule: str, lag: str, where: str = "") -> dict[str, str]:
    """Return the row of one rule at one staleness."""
    finals, areas, collapsed = (
        results.values(name, rule=rule, staleness=lag) for name in ("final", "area", "collapsed")
    )
    reference = None if rule == NONE else results.values("final", rule=NONE, staleness=lag)
    row = arm_row(finals, areas, collapsed, reference, results.name, rule, lag)
    state = state_at(results, rule, lag)
    row = {"rule": rule, "staleness": lag, **row, "gained": f"{state.gained:+.3f}"}
    if lag != "0":
        row |= {"against staleness 0": f"{WORD[state.verdict]}: {state.loss}"}
    return {"table": f"Runs{where}; reference: no correction at the same staleness ({NONE})", **row}


def pooled(results: Results, rule: str, where: str = "") -> dict[str, str]:
    """Return the row of a rule over all ages above 0 together, each age a stratum of the bootstrap."""
    lags = [lag for lag in results.levels("staleness") if lag != "0"]
    finals = {lag: results.values("final", rule=rule, staleness=lag) for lag in lags}
    collapsed = [flag for lag in lags for flag in results.values("collapsed", rule=rule, staleness=lag)]

    def against(other: str, level: str | None) -> str:
        strata = {}
        for lag, mine in finals.items():
            theirs = results.values("final", rule=other, staleness=level or lag)
            strata[lag] = [a - b for a, b in zip(mine, theirs, strict=True)]
        found = iqm_of_strata(strata, results.name, rule, "against", other, str(level))
        return f"{found.value:+.3f} [{found.interval.low:+.3f}, {found.interval.high:+.3f}]"

    return {
        "table": f"All ages above 0 together{where} ({', '.join(lags)})",
        "rule": rule,
        "final reward": str(iqm_of_strata(finals, results.name, rule, "pooled")),
        "collapsed": str(rate(collapsed)),
        f"minus {NONE}": "" if rule == NONE else against(NONE, None),
        "minus the same rule at 0": against(rule, "0"),
    }


def curves(results: Results) -> dict[str, Any]:
    """Final reward by rule and staleness, with its interval, and collapse counts: what the figure draws."""
    lags = results.levels("staleness")
    drawn: dict[str, Any] = {"staleness": [int(lag) for lag in lags], "seeds": results.about["seeds"], "rules": {}}
    for rule in results.levels("rule"):
        found = [
            iqm(results.values("final", rule=rule, staleness=lag), results.name, rule, lag, "final") for lag in lags
        ]
        drawn["rules"][rule] = {
            "reward": [one.value for one in found],
            **_ends([one.interval for one in found]),
            "collapsed": [sum(results.values("collapsed", rule=rule, staleness=lag)) for lag in lags],
        }
    return drawn


def _ends(intervals: list[Interval]) -> dict[str, list[float]]:
    return {"low": [one.low for one in intervals], "high": [one.high for one in intervals]}
