"""SPIRE's claim of stability: how much staleness does each rule survive, and which rule is ahead where?

Every token of a run is exactly as many updates old as the level says. A rule *survives* a level if training at it loses at
most LOSS of reward against the synchronous run of the same rule and seed, and does not collapse more often.
"""

from __future__ import annotations

from typing import Any

from paper_repro.lab_results import Results, results_of
from paper_repro.lab_tables import (
    CAVEAT,
    CRITERION,
    NOISE,
    NOT,
    REPRODUCED,
    TINY,
    arm_row,
    claim_row,
    compare,
    iqm,
    judged_better,
    judged_not_worse,
    judged_rate,
    rate,
    settled,
    together,
)
from paper_repro.study import Finding, Setting
from testbed.stats.interval import Interval

STUDY = "staleness"
LOSS = 0.10  # of final reward, against the same rule's synchronous run: more than this is not survived
OFTEN = 0.5  # share of runs whose collapse is not survived
SPIRE, PPO, AREAL, NONE = "spire", "ppo_clip", "decoupled_ppo", "none"
SMALL = {"rule": (NONE, "exact", SPIRE, PPO, AREAL), "staleness": ("0", "4", "16")}  # levels of a smoke run
CLAIMED = 4  # "4x staleness": our reading is four updates; the table has every other level beside it
WORD = {REPRODUCED: "survives", NOISE: "cannot be told", NOT: "does not survive"}


def table(setting: Setting) -> Finding:
    """Arms at every staleness, the largest that each rule survives, and the verdict on the claim."""
    results = results_of(STUDY, setting, SMALL)
    finding = Finding(sources={"runs": results.source})
    lags, rules = results.levels("staleness"), results.levels("rule")
    for rule in rules:
        finding.rows += [{"table": "Largest staleness survived", "rule": rule, **survived(results, rule)}]
    for lag in lags:
        finding.rows += [_arm(results, rule, lag) for rule in rules]
    finding.claims += [stability(results, str(CLAIMED)), comparison(results, str(CLAIMED))]
    finding.claims += [comparison(results, lag) for lag in lags if int(lag) > CLAIMED]
    finding.remarks += [
        f"Verdicts. {CRITERION}",
        f"survives: the whole interval of (reward at this staleness - reward of the same rule at 0, by seed) lies above "
        f"-{LOSS:g}, and that of the collapse rate not above {OFTEN:g}; does not survive: it lies below -{LOSS:g}, or that of "
        f"the collapse rate above {OFTEN:g}; the largest staleness survived has no level below it that is not survived",
        f'"up to 4x staleness" is read as {CLAIMED} updates between drawing and using a token, "AReaL+PPO" as the rules '
        f"{AREAL} (clip around the weights before the update, times a capped ratio) and {PPO} (clip around the sampler)",
        "all tokens of a response are equally old, so spire and segment_prefix see one segment: here they are the product over "
        "the response with the batch's own cap, and without one; what segments do is the study `partial`",
        CAVEAT,
        TINY,
        results.about.get("limits", "").strip(),
    ]
    finding.claims = settled(finding.claims, results.about["seeds"])
    finding.curves = curves(results)
    return finding


# ------------------------------------------------------------------------------------------------ arms
def _arm(results: Results, rule: str, lag: str) -> dict[str, str]:
    finals, areas, collapsed = (
        results.values(name, rule=rule, staleness=lag) for name in ("final", "area", "collapsed")
    )
    reference = None if rule == NONE else results.values("final", rule=NONE, staleness=lag)
    row = arm_row(finals, areas, collapsed, reference, STUDY, rule, lag)
    row = {"rule": rule, "staleness": lag, **row}
    if lag != "0":
        verdict, found = state_at(results, rule, lag)
        row |= {"against staleness 0": f"{WORD[verdict]}: {found.split(', collapsed')[0]}"}
    return {"table": f"Runs; reference: no correction at the same staleness ({NONE})", **row}


def state_at(results: Results, rule: str, lag: str) -> tuple[str, str]:
    """Return whether a rule survives a level, as a verdict, and the numbers behind it."""
    at = {name: results.values(name, rule=rule, staleness=lag) for name in ("final", "collapsed")}
    found = compare(at["final"], results.values("final", rule=rule, staleness="0"), STUDY, rule, lag, "loss")
    broken = rate(at["collapsed"])
    verdict = judged_not_worse(found.difference.interval, LOSS)
    if broken.interval.low > OFTEN:
        verdict = NOT
    return verdict, f"{found}, collapsed {broken}"


def survived(results: Results, rule: str) -> dict[str, str]:
    """Return the largest level that a rule survives with every level below it, and the first that it surely does not.

    "none": already the first level above 0 cannot be told or is not survived.
    """
    lags = [lag for lag in results.levels("staleness") if lag != "0"]
    states = {lag: state_at(results, rule, lag) for lag in lags}
    held = []
    for lag in lags:
        if states[lag][0] != REPRODUCED:
            break
        held.append(lag)
    lost = [lag for lag in lags if states[lag][0] == NOT]
    row = {"survives up to": held[-1] if held else "none", "surely lost at": lost[0] if lost else "none seen"}
    unknown = [lag for lag in lags if states[lag][0] == NOISE]
    return row | {"cannot be told at": ", ".join(unknown) or "none"}


# ------------------------------------------------------------------------------------------------ the claim
def stability(results: Results, lag: str) -> dict[str, str]:
    """Verdict on "SPIRE remains stable at this staleness": it survives, by the definition above, and seldom collapses."""
    verdict, found = state_at(results, SPIRE, lag)
    finals = [results.values("final", rule=SPIRE, staleness=level) for level in (lag, "0")]
    to_tell = compare(*finals, STUDY, "stability", lag).to_tell if verdict == NOISE else ""
    return claim_row(
        f"SPIRE remains stable at staleness {lag}", verdict, f"against its own synchronous run {found}", to_tell
    )


def comparison(results: Results, lag: str) -> dict[str, str]:
    """Verdict on "SPIRE is stable where AReaL+PPO collapses": it survives, the clipped rules collapse, and it is ahead."""
    return judged_comparison(
        lag,
        state_at(results, SPIRE, lag)[0],
        {rule: results.values("collapsed", rule=rule, staleness=lag) for rule in (AREAL, PPO)},
        {rule: results.values("final", rule=rule, staleness=lag) for rule in (SPIRE, AREAL, PPO)},
    )


def judged_comparison(
    lag: str, survives: str, collapsed: dict[str, list[float]], finals: dict[str, list[float]]
) -> dict[str, str]:
    """Verdict on the comparison from its numbers.

    Parameters
    ----------
    survives : str      verdict on SPIRE's own stability
    collapsed : dict    clipped rule -> whether each run collapsed: "collapses" is claimed, so at least half must
    finals : dict       rule -> final rewards by seed, SPIRE's among them

    Examples
    --------
    >>> ahead = {"spire": [0.9] * 9 + [0.8], "decoupled_ppo": [0.1] * 10, "ppo_clip": [0.1] * 10}
    >>> judged_comparison("4", "reproduced", {"decoupled_ppo": [1.0] * 10}, ahead)["verdict"]
    'reproduced'
    >>> judged_comparison("4", "reproduced", {"decoupled_ppo": [0.0] * 10}, ahead)["verdict"]
    'not reproduced'
    """
    words, found, to_tell = [survives], [], []
    for rule, flags in collapsed.items():
        broken, ahead = rate(flags), compare(finals[SPIRE], finals[rule], STUDY, "ahead", lag, rule)
        words += [judged_rate(broken.interval, least=OFTEN), judged_better(ahead.difference.interval)]
        found.append(f"{rule} collapsed {broken}, {SPIRE} - {rule} {ahead}")
        to_tell.append(f"{rule}: {ahead.to_tell}")
    claim = f"SPIRE remains stable at staleness {lag}, where AReaL+PPO collapses"
    return claim_row(claim, together(*words), "; ".join(found), "; ".join(to_tell))


def curves(results: Results) -> dict[str, Any]:
    """Final reward by rule and staleness, with its interval, and collapse counts: what the figure draws."""
    lags = results.levels("staleness")
    drawn: dict[str, Any] = {"staleness": [int(lag) for lag in lags], "seeds": results.about["seeds"], "rules": {}}
    for rule in results.levels("rule"):
        found = [iqm(results.values("final", rule=rule, staleness=lag), STUDY, rule, lag, "final") for lag in lags]
        drawn["rules"][rule] = {
            "reward": [one.value for one in found],
            **_ends([one.interval for one in found]),
            "collapsed": [sum(results.values("collapsed", rule=rule, staleness=lag)) for lag in lags],
        }
    return drawn


def _ends(intervals: list[Interval]) -> dict[str, list[float]]:
    return {"low": [one.low for one in intervals], "high": [one.high for one in intervals]}
