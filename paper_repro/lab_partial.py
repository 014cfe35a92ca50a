"""Partial rollouts: what segments of several versions cost each rule, and controls whose boundaries break the condition."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from paper_repro.comparison import Check
from paper_repro.lab_power import OURS, multiplicity
from paper_repro.lab_results import Results, mean_of_curve, results_of
from paper_repro.lab_tables import (
    CAVEAT,
    CRITERION,
    LEVEL,
    MARGIN,
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
    settled,
    settled_checks,
    together,
)
from paper_repro.study import Finding, Setting

STUDY = "partial"
SPIRE, CLIP, NONE, PRODUCT = "spire", "ppo_clip", "none", "sequence_product"
WHOLE, INNOCENT = "whole", "blind"
PARTIAL = {  # levels with innocent boundaries, and what each is compared with: its twin of one version, and whole responses
    "two": (WHOLE,),
    "many": ("same_age", WHOLE),
    "resumed": ("split", WHOLE),
}
LENGTHS = ("blind_1", "blind_5")  # as INNOCENT, resumed after so many tokens
CONTROLS = {  # and the innocent twin of each, and the rules that can be told: no weight, no difference of what is recorded
    "post_hoc": (INNOCENT, (PRODUCT, SPIRE, NONE)),
    "overwritten": (INNOCENT, (PRODUCT, SPIRE)),
    "rescored": (INNOCENT, (PRODUCT, SPIRE)),
    "finished_first": (
        WHOLE,
        (NONE,),
    ),  # on-policy, as its twin: all rules are one, so that one rule is all there is to see
}
SHOWN = {REPRODUCED: True, NOISE: None, NOT: False}


def table(setting: Setting) -> Finding:
    """Arms under every way of sampling, verdicts on the claim, and whether the controls hurt."""
    results = results_of(STUDY, setting, {"rule": (SPIRE, CLIP, NONE, PRODUCT)})
    finding = Finding(sources={"runs": results.source})
    for sampling in results.levels("sampling"):
        finding.rows += [arm(results, sampling, rule) for rule in results.levels("rule")]
    finding.claims += [ahead(results, level) for level in PARTIAL]
    finding.claims += [lossless(results, level, twin) for level, twins in PARTIAL.items() for twin in twins]
    finding.checks.append(no_difference(results))
    finding.checks += [
        hurts(control, twin, rule, *(results.values("area", sampling=one, rule=rule) for one in (twin, control)))
        for control, (twin, rules) in CONTROLS.items()
        for rule in rules
    ]
    finding.checks += [
        indifferent(length, *(results.values("final", sampling=one, rule=SPIRE) for one in (length, INNOCENT)))
        for length in LENGTHS
    ]
    finding.checks.append(
        overstates(*(results.values(overstatement, sampling=one, rule=PRODUCT) for one in ("post_hoc", INNOCENT)))
    )
    finding.remarks += [
        f"Verdicts. {CRITERION}",
        multiplicity(finding.claims),
        "whole: synchronous, one segment, on-policy to the rounding of the engines: all rules are one there, an A/A test. "
        "same_age: a stream whose responses end under the version that began them, one segment, "
        "as old as those of `many`. two, many: the same stream, but new weights go on with running responses, which has them of "
        "some 2 and some 4 versions. resumed: a round starts more than it takes and resumes the rest in the next (APRIL)",
        "resumed takes each response as it ends, so that most groups are in two batches and a baseline is the mean of a part: "
        "split has such groups, too, and responses of one version, so that resumed - split is what resuming does. At same_age, "
        "where there is one segment, segment, segment_prefix and sequence_product are one rule and not three",
        f"that SPIRE loses nothing on partial rollouts is {OURS}the abstract says unbiased, and that the token-level clip is not "
        "justified",
        "controls: post_hoc writes the second half of a response again if the finished draft failed; overwritten: tokens written "
        "again keep the log-probs recorded for those in their place; rescored: such a response counts as the newest policy's; "
        "blind does the same work and decides by another draft (innocent, S6), after half of the longest response, blind_1 and "
        "blind_5 after one token and five; finished_first starts more than it takes and "
        "loses the rest (S8)",
        "a bias need not cost reward: with rewards of 0 and 1 the selection of S6 weights a prefix by how often it fails, which "
        "keeps the order of answers. Controls are judged by the area under the curve",
        CAVEAT,
        TINY,
        results.about.get("limits", "").strip(),
    ]
    finding.claims = settled(finding.claims, results.about["seeds"])
    finding.checks = settled_checks(finding.checks, results.about["seeds"])
    finding.curves = curves(results)
    return finding


def arm(results: Results, sampling: str, rule: str) -> dict[str, str]:
    """Return the row of one arm: how its responses were written, and what came of it."""
    at = {name: results.values(name, sampling=sampling, rule=rule) for name in ("final", "area", "collapsed")}
    reference = None if rule == NONE else results.values("final", sampling=sampling, rule=NONE)
    shape = {
        name: f"{statistics.fmean(written(results, sampling, rule, name)):.1f}" for name in ("segments", "staleness")
    }
    row = arm_row(at["final"], at["area"], at["collapsed"], reference, STUDY, sampling, rule)
    return {
        "table": "Runs; reference: no correction under the same sampling",
        "sampling": sampling,
        "rule": rule,
        **shape,
        **row,
    }


def written(results: Results, sampling: str, rule: str, name: str) -> list[float]:
    """Mean segments, or age of the oldest token, of the responses of each run."""
    return [mean_of_curve(row, name) for row in results.runs(sampling=sampling, rule=rule)]


# ------------------------------------------------------------------------------------------------ claims
def lossless(results: Results, level: str, twin: str) -> dict[str, str]:
    """Verdict on "SPIRE trains on partial rollouts as on this twin of theirs": it loses at most the margin."""
    partial, whole = (results.values("final", sampling=one, rule=SPIRE) for one in (level, twin))
    return judged_lossless(level, twin, partial, whole)


def judged_lossless(level: str, twin: str, partial: Sequence[float], whole: Sequence[float]) -> dict[str, str]:
    """The same from final rewards by seed.

    Examples
    --------
    >>> [judged_lossless("two", "whole", [reward] * 6, [0.9] * 6)["verdict"] for reward in (0.88, 0.5)]
    ['reproduced', 'not reproduced']
    """
    found = compare(partial, whole, STUDY, "lossless", level, twin)
    verdict = judged_not_worse(found.difference.interval)
    claim = f"{OURS}SPIRE trains on partial rollouts ({level}) as on {twin}, to within {MARGIN:g}"
    seeds = found.to_tell_from(-MARGIN) if verdict == NOISE else ""
    return claim_row(claim, verdict, f"{level} - {twin} {found}", seeds)


def ahead(results: Results, level: str) -> dict[str, str]:
    """Verdict on "SPIRE does better than a token-level clip on partial rollouts", in final reward and along the way."""
    pairs = [
        tuple(results.values(name, sampling=level, rule=rule) for rule in (SPIRE, CLIP)) for name in ("final", "area")
    ]
    return judged_ahead(level, *pairs)


def judged_ahead(level: str, finals: Sequence[Sequence[float]], areas: Sequence[Sequence[float]]) -> dict[str, str]:
    """The same from (SPIRE's, the clip's) final rewards and areas by seed.

    Examples
    --------
    >>> better, worse = [0.9] * 6, [0.6] * 6
    >>> judged_ahead("two", (better, worse), (better, worse))["verdict"]
    'reproduced'
    >>> judged_ahead("two", (worse, better), (better, worse))["verdict"]
    'not reproduced'
    """
    parts = {"final reward": finals, "area": areas}
    compared = {name: compare(*arms, STUDY, "ahead", level, name) for name, arms in parts.items()}
    words = {name: judged_better(one.difference.interval) for name, one in compared.items()}
    found = "; ".join(f"{name}, {SPIRE} - {CLIP} {one}" for name, one in compared.items())
    to_tell = "; ".join(
        f"{name}: {compared[name].to_tell_from(0.0, MARGIN)}" for name, word in words.items() if word == NOISE
    )
    claim = f"SPIRE is ahead of a token-level clip on partial rollouts ({level})"
    return claim_row(claim, together(*words.values()), found, to_tell)


def hurts(control: str, twin: str, rule: str, innocent: Sequence[float], guilty: Sequence[float]) -> Check:
    """Whether a control hurts: the area of its innocent twin is larger, by seed.

    Examples
    --------
    >>> [hurts("a", "b", "none", [0.8] * 6, [area] * 6).word for area in (0.5, 0.8)]
    ['holds', 'does not hold']
    """
    found = compare(innocent, guilty, STUDY, "control", control, rule)
    return Check(
        statement=f"{control} hurts, against {twin} (rule {rule}, area under the curve)",
        holds=SHOWN[judged_better(found.difference.interval)],
        found=f"{twin} - {control} {found}, {found.to_tell_from(0.0, MARGIN)}",
    )


def no_difference(results: Results) -> Check:
    """The A/A test: where all rules are one, none is told from another."""
    rules = results.levels("rule")
    return judged_no_difference({rule: results.values("final", sampling=WHOLE, rule=rule) for rule in rules})


def judged_no_difference(finals: Mapping[str, Sequence[float]]) -> Check:
    """The same from final rewards by rule and seed; intervals hold for all rules together (Bonferroni).

    Examples
    --------
    >>> alike = [0.9, 0.8, 0.9, 0.7, 0.9, 0.8]
    >>> [judged_no_difference({"none": alike, "tis": [x + more for x in alike]}).word for more in (0.0, 0.1)]
    ['holds', 'does not hold']
    """
    (first, *others), level = finals, 1 - (1 - LEVEL) / max(1, len(finals) - 1)
    told = [
        rule for rule in others if compare(finals[rule], finals[first], STUDY, "A/A", rule, level=level).told
    ]  # fmt: skip
    spread = max(max(column) - min(column) for column in zip(*finals.values(), strict=True))
    return Check(
        statement=f"{OURS}A/A test: on whole responses no rule is told from {first}",
        holds=not told,
        found=f"told: {', '.join(told) or 'none'}; rules of one seed differ by at most {spread:.3f}",
    )


def indifferent(length: str, values: Sequence[float], default: Sequence[float]) -> Check:
    """Whether the place at which responses are resumed makes no difference to SPIRE, to within the margin.

    Examples
    --------
    >>> [indifferent("blind_1", [reward] * 6, [0.9] * 6).word for reward in (0.9, 0.7)]
    ['holds', 'does not hold']
    """
    found = compare(values, default, STUDY, "length", length)
    low, high = found.difference.interval.low, found.difference.interval.high
    holds = True if low >= -MARGIN and high <= MARGIN else False if low > MARGIN or high < -MARGIN else None
    return Check(
        statement=f"{OURS}{length} trains as {INNOCENT} does, to within {MARGIN:g} (rule {SPIRE})",
        holds=holds,
        found=f"{length} - {INNOCENT} {found}, {found.to_tell_from(-MARGIN, MARGIN)}",
    )


def overstatement(row: Mapping[str, Any]) -> float:
    """Mean reward of a run's batches less that of its evaluations: how much better they look than the policy is."""
    return mean_of_curve(row, "reward") - row["area"]


def overstates(guilty: Sequence[float], innocent: Sequence[float]) -> Check:
    """Whether batches with post-hoc boundaries look better than those of the innocent twin, each against its policy.

    Examples
    --------
    >>> [overstates([over] * 6, [0.0] * 6).word for over in (0.2, 0.0)]
    ['holds', 'does not hold']
    """
    found = compare(guilty, innocent, STUDY, "overstates")
    return Check(
        statement=f"batches of post_hoc look better than the policy is, against {INNOCENT} (rule {PRODUCT})",
        holds=SHOWN[judged_better(found.difference.interval)],
        found=f"reward of batches - evaluation, post_hoc - {INNOCENT}: {found}",
    )


def curves(results: Results) -> dict[str, Any]:
    """Final reward of every arm with its interval, segments and ages: what the figure draws."""
    drawn: dict[str, Any] = {
        "seeds": results.about["seeds"],
        "controls": list(CONTROLS),
        "innocent": [INNOCENT, *LENGTHS],
        "sampling": {},
    }
    for sampling in results.levels("sampling"):
        rules = {}
        for rule in results.levels("rule"):
            one = iqm(results.values("final", sampling=sampling, rule=rule), STUDY, sampling, rule, "final")
            rules[rule] = {"reward": one.value, "low": one.interval.low, "high": one.interval.high}
        rows = [
            statistics.fmean(
                statistics.fmean(written(results, sampling, rule, name)) for rule in results.levels("rule")
            )
            for name in ("segments", "staleness")
        ]
        drawn["sampling"][sampling] = {"segments": rows[0], "staleness": rows[1], "rules": rules}
    return drawn
