"""Staleness, mismatch and replay together: main effects and interactions of a two-level design, and what it confounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from paper_repro.comparison import Check
from paper_repro.lab_power import OURS, multiplicity, to_tell
from paper_repro.lab_results import Results, bundled, results_of
from paper_repro.lab_tables import (
    CAVEAT,
    CRITERION,
    LEVEL,
    MARGIN,
    NOISE,
    TINY,
    arm_row,
    as_array,
    claim_row,
    judged_better,
    judged_not_worse,
    settled,
    settled_checks,
    together,
)
from paper_repro.study import Finding, Setting
from testbed.core.seeds import SeedTree
from testbed.stats.interval import Interval
from testbed.stats.runs import Estimate, estimate, expanded
from testbed.training.designs import aliases

STUDY = "interaction"
AXES = ("staleness", "mismatch", "replay")
CLAIMED = ("staleness", "replay")  # of these the abstract speaks; a mismatch of engines is ours
OTHER, WITHOUT = (
    "mismatch",
    "none",
)  # the axis that the abstract does not name, and its level that the claim is judged at
RULE = "correction"
ORDER = 4  # effects of so many factors are named as aliases


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """An effect of a two-level design.

    factors   one: main effect; two: interaction
    raw       in units of reward: mean where the product of signs is + less mean where it is -
    size      the same over the standard deviation of runs that differ in the seed only
    """

    factors: tuple[str, ...]
    raw: Estimate
    size: Estimate

    @property
    def name(self) -> str:
        """The factors, joined."""
        return " x ".join(self.factors)


def table(setting: Setting) -> Finding:
    """Effects in units of reward and standardized, their aliases, and the arms."""
    results = results_of(STUDY, setting)
    names = list(results.about["factors"])
    signs, finals = design(results, "final")
    effects = effects_of(names, signs, finals, "final")
    same = aliases(names, bundled(STUDY).words, order=ORDER)
    finding = Finding(sources={"runs": results.source})
    for effect in effects:
        finding.rows.append(
            {
                "table": f"Effects on final reward; {levels_in_words(results)}", "effect": effect.name,
                "reward": _signed(effect.raw), "standardized": _signed(effect.size),
                "not told apart from": ", ".join(same[effect.name]) or f"nothing of at most {ORDER} factors",
            }
        )  # fmt: skip
    finding.rows += arms(results)
    claimed, also = claimed_effects(results)
    finding.rows += claimed_rows(claimed, also)
    finding.claims = [judged_correction(claimed, also)]
    finding.checks = [
        adds_up(effect) for effect in effects if set(effect.factors) <= {*AXES} and len(effect.factors) == 2
    ]
    finding.checks.append(pays_more(next(effect for effect in effects if set(effect.factors) == {OTHER, RULE})))
    finding.remarks += [
        f"Verdicts. {CRITERION}",
        multiplicity(finding.claims),
        f"the abstract speaks of partial rollouts, replay and staleness: the claim is judged on the runs with {OTHER} {WITHOUT}, "
        f"by intervals that hold together (Bonferroni); what is said of {OTHER} is ours. Those runs are half of a fraction, so "
        "that an interaction of two factors is not told apart from that of the other two",
        "an effect is the mean over combinations with the product of signs +, less that with -, seed by seed (first level -, "
        "second +); the standardized one is in standard deviations between seeds within a combination, drawn anew with the seeds",
        CAVEAT,
        TINY,
        results.about.get("limits", "").strip(),
    ]
    finding.claims = settled(finding.claims, results.about["seeds"])
    finding.checks = settled_checks(finding.checks, results.about["seeds"])
    finding.curves = {
        "seeds": results.about["seeds"], "levels": {n: results.levels(n) for n in names},
        "effects": [
            {
                "name": effect.name, "factors": list(effect.factors), "aliases": same[effect.name],
                **_ends("raw", effect.raw), **_ends("size", effect.size),
            }
            for effect in effects
        ],
    }  # fmt: skip
    return finding


# ------------------------------------------------------------------------------------------------ effects
def design(results: Results, quantity: str) -> tuple[np.ndarray, np.ndarray]:
    """Signs of every combination that was run [combinations, factors], and a number of each run [combinations, seeds]."""
    names = list(results.about["factors"])
    combos = list(dict.fromkeys(tuple(row[f"factor_{name}"] for name in names) for row in results.rows))
    signs = [
        [1.0 if results.levels(n).index(level) else -1.0 for n, level in zip(names, one, strict=True)] for one in combos
    ]
    return np.array(signs), as_array([results.values(quantity, **dict(zip(names, one, strict=True))) for one in combos])


def effects_of(
    names: Sequence[str], signs: np.ndarray, values: np.ndarray, address: str, level: float = LEVEL
) -> list[Effect]:
    """Main effects and interactions of two factors.

        raw_s = mean_{c: sign +} y_cs - mean_{c: sign -} y_cs,   size = mean_s raw_s / sqrt(mean_c var_s y_cs)

    Parameters
    ----------
    names : sequence         factors
    signs : [C, F] array     -1 or +1
    values : [C, S] array    a number of every run
    level : float            of the intervals in units of reward

    Examples
    --------
    >>> signs = np.array([[-1.0, -1.0], [-1.0, 1.0], [1.0, -1.0], [1.0, 1.0]])
    >>> values = np.array([[0.0, 0.2], [0.0, 0.2], [1.0, 1.2], [1.0, 1.2]])
    >>> found = effects_of(["a", "b"], signs, values, "an example")
    >>> [(effect.name, round(effect.raw.value, 6)) for effect in found]
    [('a', 1.0), ('b', 0.0), ('a x b', 0.0)]
    """
    tree = SeedTree("laboratory")["effects"][address]
    pairs = [*((i,) for i in range(len(names))), *combinations(range(len(names)), 2)]
    found = []
    for places in pairs:
        chosen = tuple(names[i] for i in places)
        product = signs[:, places].prod(1)
        by_seed = values[product > 0].mean(0) - values[product < 0].mean(0)
        raw = estimate([by_seed.tolist()], seeds=tree[" ".join(chosen)], statistic=np.mean, level=level)
        found.append(
            Effect(factors=chosen, raw=raw, size=standardized(by_seed, values, tree["size"][" ".join(chosen)]))
        )
    return found


def standardized(by_seed: np.ndarray, values: np.ndarray, seeds: SeedTree, resamples: int = 2000) -> Estimate:
    """Mean of an effect over seeds, over the spread of runs within combinations; seeds are drawn anew for both."""

    def size(index: np.ndarray) -> np.ndarray:
        spread = np.sqrt(values[:, index].var(-1, ddof=1).mean(0))
        return np.divide(by_seed[index].mean(-1), spread, out=np.zeros(len(index)), where=spread > 0)

    n = len(by_seed)
    index = seeds.numpy_generator().integers(n, size=(resamples, n))
    half = expanded((1 - LEVEL) / 2, n)
    low, high = np.quantile(size(index), [half, 1 - half])
    value = float(size(np.arange(n)[None])[0])
    return Estimate(value=value, interval=Interval(float(low), float(high), LEVEL, "bootstrap"), runs=n)


def adds_up(effect: Effect) -> Check:
    """Whether two departures from on-policy training add up: their interaction lies within the margin of 0.

    Examples
    --------
    >>> interval = Interval(-0.01, 0.02, 0.95, "")
    >>> one = Estimate(value=0.0, interval=interval, runs=9)
    >>> adds_up(Effect(factors=("staleness", "replay"), raw=one, size=one)).word
    'holds'
    """
    low, high = effect.raw.interval.low, effect.raw.interval.high
    holds = True if low >= -MARGIN and high <= MARGIN else False if low > MARGIN or high < -MARGIN else None
    return Check(
        statement=f"{OURS}losses by {effect.factors[0]} and {effect.factors[1]} add up, to within {MARGIN:g} of reward",
        holds=holds,
        found=_signed(effect.raw),
    )


def pays_more(effect: Effect) -> Check:
    """Whether the correction pays more where engines differ: of that the abstract says nothing.

    Examples
    --------
    >>> def one(low, high):
    ...     return Estimate(value=(low + high) / 2, interval=Interval(low, high, 0.95, ""), runs=9)
    >>> pair, ends = ("mismatch", "correction"), ((0.1, 0.2), (-0.1, 0.1))
    >>> [pays_more(Effect(factors=pair, raw=one(*found), size=one(*found))).word for found in ends]
    ['holds', 'cannot be told']
    """
    low, high = effect.raw.interval.low, effect.raw.interval.high
    return Check(
        statement=f"{OURS}the correction pays more under a {OTHER} of engines than without",
        holds=True if low > 0 else False if high < 0 else None,
        found=f"{effect.name} {_signed(effect.raw)}, {to_tell(effect.raw, 0.0)}",
    )


# ------------------------------------------------------------------------------------------------ the claim
def claimed_effects(results: Results) -> tuple[list[Effect], dict[str, list[str]]]:
    """Effect of the correction where engines agree, and its interactions with what the abstract names; and their aliases.

    Intervals hold for the three together (Bonferroni).
    """
    names = list(results.about["factors"])
    signs, finals = design(results, "final")
    place, left = names.index(OTHER), [name for name in names if name != OTHER]
    rows = signs[:, place] == (1.0 if results.levels(OTHER).index(WITHOUT) else -1.0)
    level = 1 - (1 - LEVEL) / (1 + len(CLAIMED))
    found = effects_of(left, np.delete(signs[rows], place, 1), finals[rows], "final, engines agree", level)
    words = [[name for name in word if name != OTHER] for word in bundled(STUDY).words]
    wanted = [{RULE}, *({axis, RULE} for axis in CLAIMED)]
    return [effect for effect in found if set(effect.factors) in wanted], aliases(left, words, order=ORDER - 1)


def claimed_rows(effects: Sequence[Effect], also: Mapping[str, list[str]]) -> list[dict[str, str]]:
    """Rows of the effects that the verdict rests on."""
    return [
        {
            "table": f"Effects on final reward where engines agree ({OTHER} {WITHOUT}), on which the verdict rests",
            "effect": effect.name, "reward": _signed(effect.raw), "not told apart from": ", ".join(also[effect.name]),
        }
        for effect in effects
    ]  # fmt: skip


def judged_correction(effects: Sequence[Effect], also: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Verdict on "one correction absorbs staleness and replay": it pays, and does not pay less where there is more to correct.

    Its main effect lies above 0, and its interaction with neither departure below the margin.

    Parameters
    ----------
    effects : sequence   of the correction, and of it with each departure that the claim names
    also : mapping       name of an effect -> what the design cannot tell it apart from

    Examples
    --------
    >>> def effect(low, high, *factors):
    ...     one = Estimate(value=(low + high) / 2, interval=Interval(low, high, 0.95, ""), runs=9)
    ...     return Effect(factors=factors, raw=one, size=one)
    >>> pays, not_ = effect(0.1, 0.2, "correction"), effect(-0.2, -0.1, "correction")
    >>> with_age, against = effect(0.0, 0.1, "staleness", "correction"), effect(-0.2, -0.1, "staleness", "correction")
    >>> also = {"correction": [], "staleness x correction": ["replay x rate"]}
    >>> [judged_correction(pair, also)["verdict"] for pair in ((pays, with_age), (pays, against), (not_, with_age))]
    ['reproduced', 'not reproduced', 'not reproduced']
    """
    words, seeds, found = [], [], []
    for effect in effects:
        interval, main = effect.raw.interval, len(effect.factors) == 1
        words.append(judged_better(interval) if main else judged_not_worse(interval))
        if words[-1] == NOISE:
            bounds = (0.0, MARGIN) if main else (-MARGIN,)
            seeds.append(f"{effect.name}: {to_tell(effect.raw, *bounds)}")
        pair = [other for other in also[effect.name] if other.count(" x ") < 2]
        found.append(f"{effect.name} {_signed(effect.raw)}" + (f" (or {', '.join(pair)})" if pair else ""))
    return claim_row(
        "SPIRE's weights repair staleness and replay with one instrument",
        together(*words),
        "; ".join(found),
        "; ".join(seeds),
    )


# ------------------------------------------------------------------------------------------------ in words
def levels_in_words(results: Results) -> str:
    """Return every factor's two levels, the first of which counts as -."""
    return ", ".join(f"{name} {' -> '.join(results.levels(name))}" for name in results.about["factors"])


def arms(results: Results) -> list[dict[str, str]]:
    """Rows of every combination that was run."""
    names, rows = list(results.about["factors"]), []
    for one in dict.fromkeys(tuple(row[f"factor_{name}"] for name in names) for row in results.rows):
        levels: Mapping[str, str] = dict(zip(names, one, strict=True))
        at = {name: results.values(name, **levels) for name in ("final", "area", "collapsed")}
        row = arm_row(at["final"], at["area"], at["collapsed"], None, STUDY, *one)
        kept = {name: row[name] for name in ("final reward", "area", "collapsed")}
        rows.append({"table": "Runs", **levels, **kept})
    return rows


def _signed(found: Estimate) -> str:
    return f"{found.value:+.3f} [{found.interval.low:+.3f}, {found.interval.high:+.3f}]"


def _ends(name: str, found: Estimate) -> dict[str, Any]:
    return {name: found.value, f"{name}_low": found.interval.low, f"{name}_high": found.interval.high}
