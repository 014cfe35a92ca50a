"""SPIRE's claim about replay: is the share of the KKT conditions on the empirical frontier of reward against compute?

Runs of every share are compared at the same number of updates, where replay is cheaper, and at the same simulated seconds of
engine and trainer, where it buys more updates. The predicted share follows from moments measured on pilot runs of other
seeds; no reward of the study goes into it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from paper_repro.lab_compute import WINDOW, compute_after, reward_at, updates_for
from paper_repro.lab_power import multiplicity
from paper_repro.lab_results import Results, results_of
from paper_repro.lab_tables import (
    CAVEAT,
    CRITERION,
    LEVEL,
    NOISE,
    NOT,
    REPRODUCED,
    TINY,
    Compared,
    arm_row,
    as_array,
    claim_row,
    compare,
    iqm,
    settled,
    together,
)
from paper_repro.study import Finding, Setting
from testbed.core.seeds import SeedTree
from testbed.training.grpo_config import GRPOConfig
from testbed.training.replay_moments import ReplayMoments, measured_moments, predicted_share
from testbed.training.study import merged, with_own_start

STUDY, ALONE, KINDS = "replay", "uniform 0", ("uniform", "success")
PILOTS, PILOT_SHARE = tuple(range(10_000, 10_005)), "0.5"  # seeds that no run of the study has; the share piloted
EVERY = 10  # updates between batches that are measured
RESAMPLES = 400
ROOM = 0.02  # of reward: the predicted share may be worse than another by so much and still count as on the frontier


def table(setting: Setting) -> Finding:
    """Arms at equal updates and at equal compute, the predicted shares, and the verdicts on them."""
    results = results_of(STUDY, setting, {"rule": ("spire",)})
    finding = Finding(sources={"runs": results.source})
    drawn: dict[str, Any] = {"seeds": results.about["seeds"], "rules": {}}
    for rule in results.levels("rule"):
        updates, budget = common_updates(results), common_compute(results, rule)
        finding.rows += arms(results, rule, updates, budget)
        frontier = {level: point(results, rule, level, updates) for level in results.levels("share")}
        at_budget = {level: rewards_at_compute(results, rule, level, budget) for level in results.levels("share")}
        drawn["rules"][rule] = curves(frontier, at_budget, rule) | {"updates": updates, "budget": budget}
        for kind in KINDS:
            moments = pilot(results, rule, kind, smoke=setting.smoke)
            if not moments:  # runs of random weights store no success
                continue
            found = predicted(moments, kind)
            finding.rows.append(
                {
                    "table": "Predicted share (K1), from pilot runs", "rule": rule, "replay": kind,
                    **moment_row([one for run in moments for one in run], *found),
                }
            )  # fmt: skip
            own, spent = (of_kind(values, kind) for values in (frontier, at_budget))
            finding.claims.append(judged_share(rule, kind, found[0], own, spent))
            drawn["rules"][rule] |= predicted_point(found, own, "" if kind == "uniform" else f"{kind}_")
    finding.claims = settled(finding.claims, results.about["seeds"])
    finding.curves = drawn
    finding.remarks += [
        f"Verdicts. {CRITERION}",
        multiplicity(finding.claims),
        'the abstract\'s "Pareto-optimal" is about squared error against throughput of one gradient. Ours is a reading: reward '
        "against compute of whole runs",
        f"on the frontier: by the whole interval, no other share is better by more than {ROOM:g} at equal compute, and none that "
        "costs no more at equal updates; not on it: one is better by an interval above 0. Intervals of one verdict hold "
        f"together (Bonferroni): a half-width above {ROOM:g}, which every verdict prints, leaves little room for reproduced. A "
        "predicted share that was not run is read off the straight line between its neighbors, seed by seed; one above the "
        "largest that was run is judged there, and says so",
        f"reward: mean of the line through the evaluations over the last {WINDOW:.0%} of the updates, so that at equal compute "
        "every share is judged by an equal stretch of compute",
        "the prediction minimizes the squared error of one gradient of a given cost; whether smaller errors make better policies "
        "is what the comparison tests. Its bias is that of replayed responses against fresh ones, under the rule's own weights. "
        f"Its interval draws pilot runs anew, and batches within them: of {len(PILOTS)} runs it is a rough one",
        "success: only responses of reward 1 are stored and drawn, which is the replay of the abstract (past successful "
        "trajectories); their advantages are all positive, so that its bias is not only one of age",
        CAVEAT,
        TINY,
        results.about.get("limits", "").strip(),
    ]
    return finding


def of_kind(values: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Entries of one kind of replay, and of none, which is its share 0.

    Examples
    --------
    >>> of_kind({"uniform 0": 1, "uniform 0.5": 2, "success 0.5": 3}, "success")
    {'uniform 0': 1, 'success 0.5': 3}
    """
    return {level: value for level, value in values.items() if level == ALONE or level.startswith(kind)}


def predicted_point(
    found: tuple[float, float, float], frontier: Mapping[str, Mapping[str, Sequence[float]]], prefix: str
) -> dict[str, float]:
    """Where the figure draws a predicted share."""
    share, low, high = found
    at = {name: at_share(share, {k: v[name] for k, v in frontier.items()}) for name in ("reward", "compute")}
    point = {f"predicted_{name}": statistics.fmean(values) for name, values in at.items()}
    point |= {"predicted": share, "predicted_low": low, "predicted_high": high}
    return {prefix + name: value for name, value in point.items()}


# ------------------------------------------------------------------------------------------------ reward against compute
def share_of(level: str) -> float:
    """Share of a level's name.

    Examples
    --------
    >>> share_of("success 0.25")
    0.25
    """
    return float(level.split()[1])


def planned_updates(results: Results, level: str) -> int:
    """Updates that runs of a share make."""
    return int(results.about["factors"]["share"][level].get("updates", results.base("updates")))


def common_updates(results: Results) -> int:
    """Updates that runs of every share make."""
    return min(planned_updates(results, level) for level in results.levels("share"))


def common_compute(results: Results, rule: str) -> float:
    """Simulated seconds that a run of every share spends, on average: the least over shares."""
    return min(
        statistics.fmean(compute_after(row, planned, planned) for row in results.runs(rule=rule, share=level))
        for level in results.levels("share")
        for planned in [planned_updates(results, level)]
    )


def point(results: Results, rule: str, level: str, updates: int) -> dict[str, list[float]]:
    """Compute and reward of every seed after so many updates."""
    planned, every = planned_updates(results, level), results.base("evaluate_every")
    rows = results.runs(rule=rule, share=level)
    return {
        "compute": [compute_after(row, planned, updates) for row in rows],
        "reward": [reward_at(row, every, updates) for row in rows],
    }


def rewards_at_compute(results: Results, rule: str, level: str, seconds: float) -> list[float]:
    """Reward of every seed once it has spent so many seconds."""
    planned, every = planned_updates(results, level), results.base("evaluate_every")
    rows = results.runs(rule=rule, share=level)
    return [reward_at(row, every, updates_for(row, planned, seconds)) for row in rows]


def arms(results: Results, rule: str, updates: int, budget: float) -> list[dict[str, str]]:
    """Rows of every share at equal updates and at equal compute, against no replay."""
    rows = []
    alone = point(results, rule, ALONE, updates)["reward"], rewards_at_compute(results, rule, ALONE, budget)
    for level in results.levels("share"):
        at, spent = point(results, rule, level, updates), rewards_at_compute(results, rule, level, budget)
        areas, collapsed = (results.values(name, rule=rule, share=level) for name in ("area", "collapsed"))
        for kind, rewards, reference in (("updates", at["reward"], alone[0]), ("compute", spent, alone[1])):
            against = None if level == ALONE else reference
            row = arm_row(rewards, areas, collapsed, against, STUDY, rule, level, kind)
            row["reward"] = row.pop("final reward")
            del row["area"]  # of runs of other lengths
            size = f"{updates} updates" if kind == "updates" else f"{budget:.0f} simulated seconds"
            own = {"seconds": f"{statistics.fmean(at['compute']):.1f}"} if kind == "updates" else {}
            title = f"Runs after {size}, rule {rule}; reference: no replay"
            rows.append({"table": title, "replay": level, **own, "reward": row.pop("reward"), **row})
    return sorted(rows, key=lambda row: row["table"])


# ------------------------------------------------------------------------------------------------ the prediction
def pilot(results: Results, rule: str, kind: str, *, smoke: bool = False) -> list[list[ReplayMoments]]:
    """Moments of the batches of each pilot run that replayed, with the study's own settings at one share."""
    factors = results.about["factors"]
    levels = factors["rule"][rule], factors["share"][f"{kind} {PILOT_SHARE}"]
    config = GRPOConfig.of(merged(merged(results.about["base"], levels[0]), levels[1]))
    at = range(1, config.updates) if smoke else range(EVERY, common_updates(results), EVERY)
    seeds = PILOTS[:1] if smoke else PILOTS
    found = [measured_moments(with_own_start(config, seed), seed, at) for seed in seeds]
    return [run for run in found if run]


def predicted(moments: Sequence[Sequence[ReplayMoments]], kind: str = "uniform") -> tuple[float, float, float]:
    """Predicted share, and the ends of its interval: pilot runs are drawn anew, and then the batches of each.

    Parameters
    ----------
    moments : sequence   of every pilot run, a sequence of its batches
    kind : str           of replay: names the stream of the bootstrap

    Examples
    --------
    >>> one = ReplayMoments(v_fresh=1.0, v_replay=1.25, bias_squared=0.0625, cost_fresh=1.0, cost_replay=0.25, responses=16)
    >>> [round(share, 4) for share in predicted([[one] * 4] * 2)]
    [0.3077, 0.3077, 0.3077]
    """
    generator, half = SeedTree("laboratory")["replay"]["predicted"][kind].numpy_generator(), (1 - LEVEL) / 2
    shares = []
    for _ in range(RESAMPLES):
        runs = [moments[i] for i in generator.integers(len(moments), size=len(moments))]
        drawn = [run[i] for run in runs for i in generator.integers(len(run), size=len(run))]
        shares.append(predicted_share(drawn).share)
    low, high = np.quantile(shares, [half, 1 - half])
    return predicted_share([one for run in moments for one in run]).share, float(low), float(high)


def moment_row(moments: Sequence[ReplayMoments], share: float, low: float, high: float) -> dict[str, str]:
    """Return a table's row of what was measured and what follows."""
    mean = {
        name: statistics.fmean(getattr(one, name) for one in moments) for name in ReplayMoments.__dataclass_fields__
    }
    return {
        "share": f"{share:.3f} [{low:.3f}, {high:.3f}]",
        "regime": predicted_share(moments).regime,
        "v fresh": f"{mean['v_fresh']:.4g}",
        "v replay": f"{mean['v_replay']:.4g}",
        "bias": f"{math.sqrt(max(0.0, mean['bias_squared'])):.3g}",
        "cost fresh": f"{1e3 * mean['cost_fresh']:.3g} ms",
        "cost replay": f"{1e3 * mean['cost_replay']:.3g} ms",
        "batches": str(len(moments)),
    }


# ------------------------------------------------------------------------------------------------ the claim
def judged_share(
    rule: str,
    kind: str,
    share: float,
    frontier: Mapping[str, Mapping[str, Sequence[float]]],
    at_budget: Mapping[str, Sequence[float]],
) -> dict[str, str]:
    """Verdict on "the predicted share is Pareto-optimal", from what runs of every share of one kind cost and earned.

    Parameters
    ----------
    rule, kind : str       of the runs, and of replay
    share : float          predicted
    frontier : mapping     level -> compute and reward of every seed, after the same number of updates
    at_budget : mapping    level -> reward of every seed, at the same compute

    Examples
    --------
    >>> earned = {"uniform 0": [0.5] * 6, "uniform 0.5": [0.9] * 6, "uniform 0.9": [0.1] * 6}
    >>> cost = {"uniform 0": 9.0, "uniform 0.5": 5.0, "uniform 0.9": 1.0}
    >>> frontier = {level: {"compute": [cost[level]] * 6, "reward": rewards} for level, rewards in earned.items()}
    >>> [judged_share("spire", "uniform", share, frontier, earned)["verdict"] for share in (0.0, 0.5)]
    ['not reproduced', 'reproduced']
    """
    rewards, spent = ({level: frontier[level][name] for level in frontier} for name in ("reward", "compute"))
    cost, largest = statistics.fmean(at_share(share, spent)), max(map(share_of, frontier))
    others = [level for level in frontier if share_of(level) != min(share, largest)]
    pairs = {("equal compute", level): (at_budget[level], at_share(share, at_budget)) for level in others}
    for level in others:
        if statistics.fmean(spent[level]) <= cost:
            pairs["equal updates", level] = (rewards[level], at_share(share, rewards))
    level_each = 1 - (1 - LEVEL) / max(1, len(pairs))
    words, found, seeds, widths = [], [], [], []
    for (way, level), pair in pairs.items():
        compared = compare(*pair, STUDY, rule, kind, way, level, "predicted", level=level_each)
        words.append(no_better(compared))
        widths.append(compared.difference.interval.width / 2)
        if words[-1] != REPRODUCED:
            found.append(f"{level} - predicted at {way}: {compared}")
        if words[-1] == NOISE:
            seeds.append(f"{level}: {compared.to_tell_from(0.0, ROOM)}")
    none = f"no other share is better by more than {ROOM:g}, at equal compute or at equal updates and no more compute"
    found.append(f"median half-width of {len(widths)} intervals at {level_each:.1%}: {statistics.median(widths):.3f}")
    if share > largest:
        found.append(f"judged at {largest:g}, the largest share that was run")
    if REPRODUCED in words and len({*words}) == 1:
        found.insert(0, none)
    claim = f"KKT share {share:.2f} of {kind} replay is on our frontier of reward against compute (rule {rule})"
    return claim_row(claim, together(*words), "; ".join(found), "; ".join(dict.fromkeys(seeds)))


def at_share(share: float, values: Mapping[str, Sequence[float]]) -> list[float]:
    """Numbers by seed at a share that need not have been run: on the straight line between its neighbors, or at the last.

    Parameters
    ----------
    share : float
    values : mapping   level of one kind of replay -> a number of every seed

    Examples
    --------
    >>> at_share(0.3, {"uniform 0.25": [1.0, 2.0], "uniform 0.5": [2.0, 2.0]})
    [1.2, 2.0]
    >>> at_share(0.99, {"uniform 0": [1.0], "success 0.9": [2.0]})
    [2.0]
    """
    levels = sorted(values, key=share_of)
    shares = [share_of(level) for level in levels]
    return [
        round(float(np.interp(share, shares, column)), 12) for column in as_array([values[one] for one in levels]).T
    ]


def no_better(compared: Compared) -> str:
    """Verdict on "this other share is no better": first is the other, second the predicted one.

        reproduced: high <= ROOM;   not reproduced: low > 0 and high > ROOM;   else within noise

    Examples
    --------
    >>> [no_better(compare([r] * 4, [0.5] * 4, "an example", r)) for r in (0.9, 0.51, 0.5, 0.1)]
    ['not reproduced', 'reproduced', 'reproduced', 'reproduced']
    """
    interval = compared.difference.interval
    if interval.high <= ROOM:
        return REPRODUCED
    return NOT if interval.low > 0 else NOISE


def curves(
    frontier: Mapping[str, Mapping[str, Sequence[float]]], at_budget: Mapping[str, Sequence[float]], rule: str
) -> dict[str, Any]:
    """Points of both comparisons with their intervals, by kind of replay: what the figure draws."""
    drawn: dict[str, Any] = {}
    for kind in KINDS:
        levels = [level for level in frontier if level.startswith(kind) or level == ALONE]
        points = []
        for level in levels:
            reward = iqm(frontier[level]["reward"], STUDY, rule, level, "frontier")
            spent = iqm(at_budget[level], STUDY, rule, level, "budget")
            points.append(
                {
                    "share": share_of(level),
                    "compute": statistics.fmean(frontier[level]["compute"]),
                    "reward": reward.value, "low": reward.interval.low, "high": reward.interval.high,
                    "at_budget": spent.value, "budget_low": spent.interval.low, "budget_high": spent.interval.high,
                }
            )  # fmt: skip
        drawn[kind] = points
    return drawn
