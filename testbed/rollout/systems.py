"""Systems by name: how each paper's loop looks to the clock, and what is left out.

A system schedules, and that is all: which loss a run has is the `rule` of its settings, whatever the system's paper trains with.

Name, paper (arXiv), what happens, and after "Here:" what is simplified.

synchronous      A round is written, the trainer updates, the weights are pushed, the next round opens.
                 Here: `rollout` on a clock.
one_step_off     2410.18252, asynchronous RLHF. Round u + 1 is written while the trainer works on round u: staleness 1.
                 Here: one engine; the paper swaps two models between two sets of devices.
steps_off        Round u is written with version u - ahead exactly, whatever the times: staleness `ahead`, once so many
                 updates have passed. An instrument for experiments rather than a system.
areal            2505.24298, AReaL. A stream; a group is admitted while N <= (version + ahead + 1) B; a push interrupts,
                 and what was written is read again under the new weights; a decoupled loss.
                 Here: the paper bounds the staleness with which a response starts; the trainer of this clock also waits
                 for a response that the next batch would find too old, so that the bound holds when it is used. The
                 loss is not in it: a run that is to train as the paper does also sets rule = "decoupled_ppo".
dora             2604.26256, DORA. A stream; several versions stay alive, and each response ends under its first.
                 Here: the versions share one engine and its steps.
pipeline_rl      2509.19128, PipelineRL. A stream; a push takes effect between two tokens of a running response, on the
                 keys and values of the old weights.
                 Here: the engine does not pause for the push; the queue to the trainer is counted in batches.
april            2509.18521, APRIL. A round starts more groups than it delivers, stops when enough have ended, and the
                 next resumes the rest first. Partial rollouts of Kimi k1.5 (2501.12599) resume in the same way.
                 Here: the full batch is what cuts a response, as in APRIL; in Kimi k1.5 it is a budget of tokens.
copris           2511.05589, CoPRIS. As april, but each group that ends is replaced, so that as many run at all times.
                 Here: concurrency is counted in groups.
finished_first   A round starts more than it delivers and loses the rest: the control, whose length bias S8 decides.
replay           Synchronous, with a share of every batch drawn with replacement from a buffer of earlier responses.
replay_success   The same, but only responses of reward >= 1 are stored and drawn, one by one; fresh until there is one.
replay_aged      As replay, but responses leave at random when the buffer is full, and always at an age.

What a group is: the responses to one prompt, admitted together. A slot is given to one response, so members may start at
different times. With deliver="group" only whole groups are taken (an advantage against the group's mean needs that, and
waits for the slowest member); with "response" each is taken as it ends, and a batch may hold parts of groups.
Where what ends first is taken first (order="finished"), short responses come early: no recorded ratio shows it.
Times are in seconds and the same for every name: change them with `find_system(name, update_seconds=...)`.
"""

from __future__ import annotations

import difflib
from typing import Any

from testbed.core.errors import InputError
from testbed.rollout.system import LEAST, System

SYSTEMS: dict[str, System] = {
    system.name: system
    for system in (
        System(name="synchronous", ahead=0),
        System(name="one_step_off", source="2410.18252", ahead=1),
        System(name="steps_off", ahead=2, pinned=True),
        System(
            name="areal", source="2505.24298", generation="stream", ahead=4, push="recompute", order="finished",
            objective="decoupled",
        ),
        System(name="dora", source="2604.26256", generation="stream", ahead=2, push="finish", order="finished"),
        System(
            name="pipeline_rl", source="2509.19128", generation="stream", queue=1, push="stale_cache", order="finished"
        ),
        System(name="april", source="2509.18521", ahead=0, push="recompute", start=1.5, order="finished"),
        System(
            name="copris", source="2511.05589", ahead=0, push="recompute", start=1.5, refill=True, order="finished"
        ),
        System(name="finished_first", ahead=0, start=1.5, leftover="drop", order="finished"),
        System(name="replay", ahead=0, replay="uniform", replay_share=0.5),
        System(name="replay_success", ahead=0, replay="success", replay_share=0.5),
        System(
            name="replay_aged", ahead=0, replay="uniform", replay_share=0.5, replay_batches=16, replay_age=8,
            eviction="random",
        ),
    )
}  # fmt: skip


def find_system(name: str, **changes: Any) -> System:
    """Return the system of this name, some of its values changed; "none" is None, for which TOML has no word.

    Raises
    ------
    InputError   no such system; what `System` refuses

    Examples
    --------
    >>> find_system("areal", ahead=8).bound, find_system("areal", ahead="none", queue=4).bound, find_system("april").bound
    (8, None, None)
    """
    if name not in SYSTEMS:
        near = difflib.get_close_matches(name, SYSTEMS, 1)
        hint = f"did you mean {near[0]!r}?" if near else ""
        raise InputError(f"a system must be one of {', '.join(SYSTEMS)}", found=repr(name), hint=hint)
    return SYSTEMS[name].but(**{k: None if v == "none" and k in LEAST else v for k, v in changes.items()})


def steps_off(ahead: int) -> System:
    """Return the system in which every token is exactly `ahead` updates old, once that many have passed; 0 is synchronous.

    Examples
    --------
    >>> steps_off(3).bound
    3
    """
    return find_system("steps_off", ahead=ahead)
