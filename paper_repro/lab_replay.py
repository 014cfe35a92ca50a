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

from paper_repro.lab_compute import compute_after, reward_at, updates_for
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
from testbed.training.study import merged

STUDY, ALONE = "replay", "uniform 0"
PILOTS, PILOT_SHARE = (10_000, 10_001, 10_002), "uniform 0.5"  # seeds that no run of the study has; the share piloted
EVERY = 10  # updates between batches that are measured
RESAMPLES = 400
ROOM = 0.02  # of reward: the predicted share may be worse than another by so much and still count as on the frontier


def table(setting: Setting) -> Finding:
    """Arms at equal updates and at equal compute, the predicted share, and the verdict on it."""
    results = results_of(STUDY, setting, {"rule": ("spire",)})
    finding = Finding(sources={"runs": results.source})
    drawn: dict[str, Any] = {"seeds": results.about["seeds"], "rules": {}}
    for rule in results.levels("rule"):
        updates, budget = common_updates(results), common_compute(results, rule)
        finding.rows += arms(results, rule, updates, budget)
        moments = pilot(results, rule, smoke=setting.smoke)
        share, low, high = predicted(moments)
        finding.rows.append(
            {"table": "Predicted share (K1), from pilot runs", "rule": rule, **moment_row(moments, share, low, high)}
        )
        frontier = {level: point(results, rule, level, updates) for level in results.levels("share")}
        at_budget = {level: rewards_at_compute(results, rule, level, budget) for level in results.levels("share")}
        finding.claims.append(judged_share(rule, share, frontier, at_budget))
        drawn["rules"][rule] = curves(frontier, at_budget, rule) | {
            "predicted_reward": statistics.fmean(at_share(share, {k: v["reward"] for k, v in frontier.items()})),
            "predicted_compute": statistics.fmean(at_share(share, {k: v["compute"] for k, v in frontier.items()})),
            "updates": updates, "budget": budget, "predicted": share, "predicted_low": low, "predicted_high": high,
        }  # fmt: skip
    finding.claims = settled(finding.claims, results.about["seeds"])
    finding.curves = drawn
    finding.remarks += [
        f"Verdicts. {CRITERION}",
        f"on the frontier: by the whole interval, no other share is better by more than {ROOM:g} at equal compute, and none that "
        "costs no more at equal updates; not on it: one is better by an interval above 0. Intervals of one verdict hold "
        "together (Bonferroni). A predicted share that was not run is read off between its neighbors, seed by seed",
        "the prediction minimizes the squared error of one gradient of a given cost; whether smaller errors make better policies "
        "is what the comparison tests. Its bias is that of replayed responses against fresh ones, under the rule's own weights",
        "success: only responses of reward 1 are stored and drawn; the prediction is about uniform replay",
        CAVEAT,
        TINY,
        results.about.get("limits", "").strip(),
    ]
    return finding


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
def pilot(results: Results, rule: str, *, smoke: bool = False) -> list[ReplayMoments]:
    """Moments of batches of pilot runs, with the study's own settings at one share."""
    factors = results.about["factors"]
    values = merged(merged(results.about["base"], factors["rule"][rule]), factors["share"][PILOT_SHARE])
    config = GRPOConfig.of(values)
    at = range(1, config.updates) if smoke else range(EVERY, common_updates(results), EVERY)
    seeds = PILOTS[:1] if smoke else PILOTS
    return [moments for seed in seeds for moments in measured_moments(config, seed, at)]


def predicted(moments: Sequence[ReplayMoments]) -> tuple[float, float, float]:
    """Predicted share, and the ends of its interval: batches of the pilots drawn anew.

    Examples
    --------
    >>> one = ReplayMoments(v_fresh=1.0, v_replay=1.25, bias_squared=0.0625, cost_fresh=1.0, cost_replay=0.25, responses=16)
    >>> [round(share, 4) for share in predicted([one] * 8)]
    [0.3077, 0.3077, 0.3077]
    """
    generator, half = SeedTree("laboratory")["replay"]["predicted"].numpy_generator(), (1 - LEVEL) / 2
    index = generator.integers(len(moments), size=(RESAMPLES, len(moments)))
    shares = [predicted_share([moments[i] for i in row]).share for row in index]
    low, high = np.quantile(shares, [half, 1 - half])
    return predicted_share(moments).share, float(low), float(high)


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
    share: float,
    frontier: Mapping[str, Mapping[str, Sequence[float]]],
    at_budget: Mapping[str, Sequence[float]],
) -> dict[str, str]:
    """Verdict on "the predicted share is Pareto-optimal", from what runs of every uniform share cost and earned.

    Parameters
    ----------
    rule : str
    share : float          predicted
    frontier : mapping     level -> compute and reward of every seed, after the same number of updates
    at_budget : mapping    level -> reward of every seed, at the same compute

    Examples
    --------
    >>> earned = {"uniform 0": [0.5] * 6, "uniform 0.5": [0.9] * 6, "uniform 0.9": [0.1] * 6}
    >>> cost = {"uniform 0": 9.0, "uniform 0.5": 5.0, "uniform 0.9": 1.0}
    >>> frontier = {level: {"compute": [cost[level]] * 6, "reward": rewards} for level, rewards in earned.items()}
    >>> [judged_share("spire", share, frontier, earned)["verdict"] for share in (0.0, 0.5)]
    ['not reproduced', 'reproduced']
    """
    uniform = [level for level in frontier if level.startswith("uniform")]
    mine, spent = ({level: frontier[level][name] for level in uniform} for name in ("reward", "compute"))
    cost = statistics.fmean(at_share(share, spent))
    others = [level for level in uniform if share_of(level) != share]
    pairs = {("equal compute", level): (at_budget[level], at_share(share, at_budget)) for level in others}
    for level in others:
        if statistics.fmean(spent[level]) <= cost:
            pairs["equal updates", level] = (mine[level], at_share(share, mine))
    level_each = 1 - (1 - LEVEL) / max(1, len(pairs))
    words, found, to_tell = [], [], []
    for (kind, level), pair in pairs.items():
        compared = compare(*pair, STUDY, rule, kind, level, "predicted", level=level_each)
        words.append(no_better(compared))
        if words[-1] != REPRODUCED:
            found.append(f"{level} - predicted at {kind}: {compared}")
        if words[-1] == NOISE:
            to_tell.append(f"{level}: {compared.to_tell}")
    claim = f"KKT share {share:.2f} is Pareto-optimal (rule {rule})"
    none = f"no other share is better by more than {ROOM:g}, at equal compute or at equal updates and no more compute"
    return claim_row(claim, together(*words), "; ".join(found) or none, "; ".join(dict.fromkeys(to_tell)))


def at_share(share: float, values: Mapping[str, Sequence[float]]) -> list[float]:
    """Numbers by seed at a share of uniform replay that need not have been run: on the line between its neighbors.

    Examples
    --------
    >>> at_share(0.3, {"uniform 0.25": [1.0, 2.0], "uniform 0.5": [2.0, 2.0], "success 0.3": [9.0, 9.0]})
    [1.2, 2.0]
    """
    levels = sorted((level for level in values if level.startswith("uniform")), key=share_of)
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
    for kind in ("uniform", "success"):
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
