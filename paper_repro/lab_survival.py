"""Which rule survives which staleness, and the verdicts on what SPIRE claims about it.

A rule *survives* a level if training at it loses at most LOSS of reward against the synchronous run of the same rule and seed,
at most OFTEN of its runs collapse, and the reward ends above where it started: a rule that learns nothing has nothing to lose.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paper_repro.comparison import Check
from paper_repro.lab_power import OURS, rate_to_tell
from paper_repro.lab_results import Results
from paper_repro.lab_tables import (
    LEVEL,
    MARGIN,
    NOISE,
    NOT,
    REPRODUCED,
    Compared,
    claim_row,
    compare,
    iqm,
    judged_better,
    judged_not_worse,
    judged_rate,
    rate,
    together,
)
from testbed.stats.intervals import clopper_pearson

LOSS = 0.10  # of final reward, against the same rule's synchronous run: more than this is not survived
OFTEN = 0.5  # share of runs whose collapse is not survived
SPIRE, PPO, AREAL, NONE = "spire", "ppo_clip", "decoupled_ppo", "none"
CLIPPED = (AREAL, PPO)  # two readings of "AReaL+PPO"


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """How a rule does at a level: its verdict, and what that rests on."""

    verdict: str
    loss: Compared  # reward at this level - reward of the same rule and seed at 0
    collapsed: list[float]
    gained: float  # interquartile mean of final reward - first evaluation

    def __str__(self) -> str:
        return f"{self.loss}, collapsed {rate(self.collapsed)}, gained {self.gained:+.3f} since the start"

    @property
    def to_tell(self) -> str:
        """Seeds that would tell what cannot be told."""
        parts = {
            "loss": (judged_not_worse(self.loss.difference.interval, LOSS), self.loss.to_tell_from(-LOSS)),
            "collapses": (
                judged_rate(rate(self.collapsed).interval, most=OFTEN),
                rate_to_tell(self.collapsed, OFTEN),
            ),
        }
        return "; ".join(f"{name}: {seeds}" for name, (word, seeds) in parts.items() if word == NOISE)


def state_at(results: Results, rule: str, lag: str) -> State:
    """Return whether a rule survives a level, and the numbers behind it."""
    finals, starts, collapsed = (
        results.values(name, rule=rule, staleness=lag) for name in ("final", "start", "collapsed")
    )
    alone = results.values("final", rule=rule, staleness="0")
    loss = compare(finals, alone, results.name, rule, lag, "loss")
    gained = iqm(
        [end - start for end, start in zip(finals, starts, strict=True)], results.name, rule, lag, "gain"
    ).value
    return State(verdict=judged_state(loss, collapsed, gained), loss=loss, collapsed=collapsed, gained=gained)


def judged_state(loss: Compared, collapsed: Sequence[float], gained: float) -> str:
    """Verdict on "this rule survives this level".

    Examples
    --------
    >>> kept = compare([0.9] * 10, [0.9] * 10, "an example")
    >>> [judged_state(kept, [1.0] * broken + [0.0] * (10 - broken), 0.2) for broken in (1, 4, 10)]
    ['reproduced', 'within noise', 'not reproduced']
    >>> judged_state(kept, [0.0] * 10, -0.01)
    'not reproduced'
    """
    if gained <= 0:
        return NOT
    return together(judged_not_worse(loss.difference.interval, LOSS), judged_rate(rate(collapsed).interval, most=OFTEN))


def survived(results: Results, rule: str) -> dict[str, str]:
    """Return the largest level that a rule survives with every level below it, and the first that it surely does not.

    "none": already the first level above 0 cannot be told or is not survived.
    """
    lags = [lag for lag in results.levels("staleness") if lag != "0"]
    states = {lag: state_at(results, rule, lag).verdict for lag in lags}
    held = []
    for lag in lags:
        if states[lag] != REPRODUCED:
            break
        held.append(lag)
    lost = [lag for lag in lags if states[lag] == NOT]
    row = {"survives up to": held[-1] if held else "none", "surely lost at": lost[0] if lost else "none seen"}
    unknown = [lag for lag in lags if states[lag] == NOISE]
    return row | {"cannot be told at": ", ".join(unknown) or "none"}


# ------------------------------------------------------------------------------------------------ the claim
def stability(results: Results, lag: str, where: str = "") -> dict[str, str]:
    """Verdict on "SPIRE remains stable at this staleness": it survives, by the definition above."""
    state = state_at(results, SPIRE, lag)
    claim = f"SPIRE remains stable at staleness {lag}{where}"
    return claim_row(claim, state.verdict, f"against its own synchronous run {state}", state.to_tell)


def comparison(results: Results, lag: str, clipped: str, where: str = "") -> dict[str, str]:
    """Verdict on "SPIRE is stable where AReaL+PPO collapses", AReaL+PPO read as one clipped rule."""
    first, second = (results.values("final", rule=rule, staleness=lag) for rule in (SPIRE, clipped))
    ahead = compare(first, second, results.name, "ahead", lag, clipped)
    collapsed = results.values("collapsed", rule=clipped, staleness=lag)
    return judged_comparison(lag, clipped, state_at(results, SPIRE, lag), collapsed, ahead, where)


def judged_comparison(
    lag: str, clipped: str, survives: State, collapsed: Sequence[float], ahead: Compared, where: str = ""
) -> dict[str, str]:
    """Verdict on the comparison from its numbers: SPIRE survives, the clipped rule collapses, and SPIRE is ahead.

    Parameters
    ----------
    survives : State       of SPIRE
    collapsed : sequence   whether each run of the clipped rule collapsed: "collapses" is claimed, so at least half must
    ahead : Compared       final rewards, SPIRE's - the clipped rule's

    Examples
    --------
    >>> kept, ahead = (compare([0.9] * 10, [other] * 10, "an example") for other in (0.9, 0.1))
    >>> stable = State(verdict="reproduced", loss=kept, collapsed=[0.0] * 10, gained=0.4)
    >>> [judged_comparison("4", "ppo_clip", stable, [fell] * 10, ahead)["verdict"] for fell in (1.0, 0.0)]
    ['reproduced', 'not reproduced']
    """
    broken = rate(collapsed)
    parts = {
        SPIRE: (survives.verdict, survives.to_tell),
        f"{clipped} collapses": (judged_rate(broken.interval, least=OFTEN), rate_to_tell(collapsed, OFTEN)),
        "ahead": (judged_better(ahead.difference.interval), ahead.to_tell_from(0.0, MARGIN)),
    }
    found = f"{clipped} collapsed {broken}, {SPIRE} - {clipped} {ahead}; {SPIRE} {survives}"
    seeds = "; ".join(f"{name}: {words}" for name, (word, words) in parts.items() if word == NOISE)
    claim = f"SPIRE remains stable at staleness {lag}{where}, where AReaL+PPO (read as {clipped}) collapses"
    return claim_row(claim, together(*(word for word, _ in parts.values())), found, seeds)


def premise(results: Results, where: str = "") -> Check:
    """Whether there is a staleness at which a clipped rule collapses at all, without which the claim has nothing to compare."""
    lags = [lag for lag in results.levels("staleness") if lag != "0"]
    flags = {
        (rule, lag): results.values("collapsed", rule=rule, staleness=lag) for rule in CLIPPED for lag in lags
    }  # fmt: skip
    return judged_premise(flags, where)


def judged_premise(flags: Mapping[tuple[str, str], Sequence[float]], where: str = "") -> Check:
    """The same from whether each run collapsed, by rule and staleness.

    Holds if one rule at one staleness collapses in at least OFTEN of its runs, its interval corrected for having been looked
    for among all (Bonferroni); does not hold if none can.

    Examples
    --------
    >>> [judged_premise({("ppo_clip", "8"): [0.0] * 10, ("ppo_clip", "16"): [x] * 10}).word for x in (1.0, 0.0)]
    ['holds', 'does not hold']
    """
    each = 1 - (1 - LEVEL) / len(flags)
    words = [
        judged_rate(clopper_pearson(int(sum(found)), len(found), level=each), least=OFTEN) for found in flags.values()
    ]
    holds = True if REPRODUCED in words else False if set(words) == {NOT} else None
    (rule, lag), most = max(flags.items(), key=lambda item: sum(item[1]))
    return Check(
        statement=f"{OURS}some clipped rule collapses at some age{where}",
        holds=holds,
        found=f"most often {rule} at {lag}: {rate(most)}",
    )
