"""The asynchronous clock: an event simulation of a generator and a trainer, whose responses are really sampled.

Staleness, responses of several versions and replay are not inputs here: they follow from how long a decode step, an update
and a push take, from how long responses get, and from the rules of a `System` (`testbed.rollout.systems` lists those of
published systems). Simulation and sampling are one loop, so a response's length decides what waits for what.

Time. A decode step writes one token of every running response and takes `System.step_time(running)` seconds. The trainer
takes a batch as soon as it is free and one is ready, and is busy for `update_seconds` + `push_seconds`; then the weights are
at hand, and take effect when the step under way ends. At one moment, a step ends first, then weights arrive, then slots are
filled, then the trainer takes its batch. What happens while the trainer is busy is simulated, under the weights of then, by
the next call.

Numbers. Responses are numbered over the whole run, and the chooser's keys are (number, position); it draws with position -2
for a finished-first tie, -3 and -4 for replay (numbered by draw).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from testbed.core.choices import Chooser
from testbed.core.errors import InputError
from testbed.core.seeds import SeedTree
from testbed.environments.base import Environment
from testbed.policies.base import Policy
from testbed.rollout.clockwork.admission import Admission
from testbed.rollout.clockwork.backlog import Backlog
from testbed.rollout.clockwork.choosers import chooser_of, set_stream, stream_of
from testbed.rollout.clockwork.generator import Generator
from testbed.rollout.clockwork.opening import require_cache
from testbed.rollout.clockwork.response_table import ResponseTable
from testbed.rollout.clockwork.shelf import Shelf
from testbed.rollout.clockwork.snapshots import restored_policy, saved_policy, snapshot
from testbed.rollout.cut_batches import first_to_end
from testbed.rollout.delivery import Delivery, assembled
from testbed.rollout.system import System

COUNTS = ("steps", "tokens", "read_again", "started", "delivered", "replayed", "dropped", "dropped_tokens")
MOMENTS = ("time", "push_at", "step_start", "step_end", "free_since")
SECONDS = ("engine_seconds", "trainer_seconds", "waiting_seconds")
PLAIN = (*MOMENTS, *SECONDS, "updates")
Prompts = Int64[Tensor, " P"] | Callable[[int], int]


class Clock:
    """A generator beside a trainer: call `next_batch`, train on what it returns, call `updated`, and so on.

    Parameters
    ----------
    system : System              the rules and the times
    env : Environment            horizon, end token and reward
    policy : Policy              version 0; copied (but a policy that is, inside its wrappers, neither a transformer nor a table
                                 must not change)
    prompts : Int64[Tensor, " P"] | (int -> int)   prompt of each group: these in turn, over and over, or a function of the
                                 group's number, the same each time it is asked
    chooser : Chooser | SeedTree | int   the only source of randomness
    groups : int                 groups of a batch
    size : int                   responses of a group

    Attributes
    ----------
    time : float                 simulated seconds
    version : int                updates whose weights have arrived
    totals : dict of int         decode `steps`; `tokens` written, and `read_again` after a push or a pause; responses
                                 `started`, `delivered` fresh, `replayed`, `dropped`, and `dropped_tokens`. A delivery's
                                 `log` has what was added since the last, and `running`, `unfinished`, `stored` (units that
                                 have ended and wait), `engine_busy` and `seconds` (since the last delivery)
    engine_seconds, trainer_seconds, waiting_seconds : float     engine busy, trainer busy, trainer idle, so far

    Raises
    ------
    InputError   groups or size < 1, a prompt that does not exist, another vocabulary, stale_cache without a cache

    Assumes      prompts are known to the policy (`Policy.at`), as in `rollout`
    Gives        conservation: a token is written once and then delivered fresh once, held, or dropped and counted; fresh
                 tokens are at most `system.bound` updates old; ahead = 0 without replay delivers what `rollout` draws
    Numerics     a transformer, filtered or disturbed or not, is asked through one cache with all responses of a version,
                 whatever their lengths; other policies one length at a time, without a cache

    Examples
    --------
    >>> from testbed import PrefixTree, TabularPolicy
    >>> from testbed.rollout.systems import find_system
    >>> env = PrefixTree(2, 3, rewards=[0.0] * 7 + [1.0])
    >>> clock = Clock(find_system("one_step_off"), env, TabularPolicy.random(2, 3, 0), torch.tensor([0]), 1, groups=2)
    >>> for update in range(3):
    ...     delivery = clock.next_batch()
    ...     print(delivery.version, delivery.staleness.max().item(), f"{delivery.time:.4f}")
    ...     clock.updated(TabularPolicy.random(2, 3, update + 1))
    0 0 0.0306
    1 1 0.1406
    2 1 0.2506
    """

    def __init__(
        self,
        system: System,
        env: Environment,
        policy: Policy,
        prompts: Prompts,
        chooser: Chooser | SeedTree | int,
        *,
        groups: int,
        size: int = 1,
    ) -> None:
        if groups < 1 or size < 1:
            raise InputError("`groups` and `size` must be >= 1", found=f"{groups} and {size}")
        if policy.vocab_size != env.vocab_size:
            found = f"{policy.vocab_size} and {env.vocab_size}"
            raise InputError("policy and environment must share one vocabulary", found=found)
        if isinstance(prompts, Tensor) and prompts.numel() == 0:
            raise InputError("there must be a prompt", found="none")
        if system.push == "stale_cache":
            require_cache(policy)
        self.system, self.env, self.prompts, self.chooser = system, env, prompts, chooser_of(chooser)
        self.groups, self.size = groups, size
        most = math.ceil(system.start * groups - 1e-9) * size
        self.table = ResponseTable(env.horizon)
        self.generator = Generator(snapshot(policy), self.table, system.slots or most, system.push, env.eos)
        self.backlog = Backlog(size, system.deliver == "group")
        self.shelf = Shelf(system, groups, size, self.backlog.members)
        self.time = self.free_since = self.step_start = 0.0
        self.engine_seconds = self.trainer_seconds = self.waiting_seconds = 0.0
        self.step_end: float | None = None
        self.push_at: float | None = None  # when the update under way is done and its weights have arrived
        self.pushed: Policy | None = None
        self.updates = 0  # updates the trainer has reported
        self.admission = Admission(system, self.backlog, self.shelf, groups)
        self.totals = dict.fromkeys(COUNTS, 0)
        self._before: dict[str, int | float] = self._sums()

    @property
    def version(self) -> int:
        """Updates whose weights have arrived."""
        return self.generator.newest

    # ------------------------------------------------------------------------------------------- the trainer's side
    def next_batch(self, target: Policy | None = None) -> Delivery:
        """Advance until the trainer is free and a batch is ready.

        Parameters
        ----------
        target : Policy | None   whose log-probs are recorded as `logp_target`; None repeats the behavior's

        Raises
        ------
        InputError   the update on the last batch has not been reported
        """
        if self.admission.batches > self.updates:
            raise InputError("the update on a batch must be reported before the next is taken", found="no `updated`")
        while True:
            if self.step_end is not None and self.step_end <= self.time:
                self._end_step()
            if self.push_at is not None and self.push_at <= self.time:
                self._arrive()
            if self.step_end is None:
                self._begin_step()
            if self.push_at is None and (units := self.admission.chosen(self.version)) is not None:
                return self._deliver(units, target)
            times = [moment for moment in (self.step_end, self.push_at) if moment is not None]
            assert times, "a free trainer without a batch has a running engine"
            self.time = min(times)

    def updated(self, policy: Policy) -> None:
        """Report the trainer's update on the last batch: its weights arrive `update_seconds` + `push_seconds` after it.

        Raises
        ------
        InputError   no batch was taken since the last update
        """
        if self.updates == self.admission.batches:
            raise InputError("an update must follow a batch", found="none taken since the last update")
        self.updates += 1
        self.pushed = snapshot(policy)
        self.push_at = self.time + self.system.update_seconds + self.system.push_seconds

    def holding(self) -> dict[int, int]:
        """Tokens written so far of every response that is neither delivered nor dropped, by its number."""
        held = self.table.lengths()
        inside = {*self.backlog.pending, *self.backlog.paused, *self.backlog.responses([*self.backlog.done])}
        inside |= set(self.backlog.responses([*self.backlog.open]))
        return {i: held[i] for i in sorted(inside)}

    # ------------------------------------------------------------------------------------------- events
    def _arrive(self) -> None:
        assert self.pushed is not None and self.push_at is not None
        self.trainer_seconds += self.push_at - self.free_since
        self.generator.arrive(self.pushed)
        self.pushed, self.push_at, self.free_since = None, None, self.push_at
        self.generator.keep_from(self.admission.kept_from(self.version))

    def _begin_step(self) -> None:
        """Fill the slots and start a decode step, if there is anything to run."""
        again = self.generator.switch()
        for group in self.admission.admit(self.version, len(self.generator.free)):
            self.table.add(range(group * self.size, (group + 1) * self.size), [self._prompt(group)] * self.size)
        ids = self.backlog.next_pending(len(self.generator.free))
        if ids:
            version = self.admission.writes_with(self.version)
            self.backlog.started(ids, version)
            self.totals["started"] += int((self.table.written[self.table.rows(ids)] == 0).sum())
            again += self.generator.start(ids, version)
        if self.generator.running:
            self.totals["read_again"] += again
            self.step_start = self.time
            seconds = self.system.step_time(self.generator.running) + self.system.prefill_seconds * again
            self.step_end = self.time + seconds

    def _prompt(self, group: int) -> int:
        prompts = self.prompts
        prompt = int(prompts[group % len(prompts)]) if isinstance(prompts, Tensor) else prompts(group)
        if not 0 <= prompt < self.env.n_prompts:
            raise InputError(f"prompt numbers must lie in 0..{self.env.n_prompts - 1}", found=prompt)
        return prompt

    def _end_step(self) -> None:
        assert self.step_end is not None
        self.engine_seconds += self.step_end - self.step_start
        self.step_end = None
        self.totals["steps"] += 1
        self.totals["tokens"] += self.generator.running
        ended = self.backlog.finish(self.generator.write(self.chooser))
        if self.admission.over:
            self._close_round(ended)

    def _close_round(self, ended: list[int]) -> None:
        """Stop the engine: enough units have ended, the last of them (`ended`) in the step just over."""
        self.admission.round = None
        stopped = self.generator.stop()
        if self.system.start == 1:
            return
        if self.system.leftover == "resume":
            self.backlog.pause(stopped)
            return
        places = len(ended) - (self.backlog.ended - self.admission.goal)
        first = [unit * self.backlog.members for unit in ended]
        ticks = torch.ones(len(ended), dtype=torch.int64)
        kept = set(first_to_end(ticks, places, self.chooser, torch.tensor(first)).tolist())
        lost = self.backlog.drop([unit for number, unit in enumerate(ended) if number not in kept])
        self.totals["dropped"] += len(lost)
        self.totals["dropped_tokens"] += int(self.table.written[self.table.rows(lost)].sum())
        self.table.release(lost)

    # ------------------------------------------------------------------------------------------- delivery
    def _deliver(self, units: list[int], target: Policy | None) -> Delivery:
        fresh = self.backlog.responses(units)
        again = self.shelf.draw(self.version, self.chooser)
        batch = assembled(self.table, again + fresh, self.env, target)
        waiting = self.time - self.free_since
        self.waiting_seconds += waiting
        self.free_since = self.time
        self.totals["delivered"] += len(fresh)
        self.totals["replayed"] += len(again)
        self.admission.take(units)
        stored = self.shelf.held()
        self.shelf.store(fresh, batch.reward[len(again) :], self.version, self.chooser)
        self.shelf.settle(self.admission.batches)
        self.table.release(sorted((stored | set(fresh)) - self.shelf.held()))
        log = self._log()
        return Delivery(
            batch=batch,
            time=self.time,
            version=self.version,
            waiting=waiting,
            dropped=int(log["dropped"]),
            replayed=torch.arange(len(again) + len(fresh)) < len(again),
            response=torch.tensor(again + fresh),
            log=log,
        )

    def _sums(self) -> dict[str, int | float]:
        """Everything that only grows."""
        under_way = 0.0 if self.step_end is None else self.time - self.step_start
        return self.totals | {"engine_busy": self.engine_seconds + under_way, "seconds": self.time}

    def _log(self) -> dict[str, int | float]:
        sums, before = self._sums(), self._before
        self._before = sums
        levels = {
            "running": self.generator.running,
            "unfinished": len(self.backlog.open),
            "stored": len(self.backlog.done),
        }
        return {name: sums[name] - before[name] for name in sums} | levels

    # ------------------------------------------------------------------------------------------- state
    def state(self) -> dict[str, Any]:
        """Return the state as tensors and plain values; what `restore` makes of it goes on bit for bit.

        Raises
        ------
        InputError   a policy or a chooser of a kind that cannot be saved
        """
        return {
            "made_with": {"system": self.system.plain(), "groups": self.groups, "size": self.size},
            "plain": {name: getattr(self, name) for name in PLAIN},
            "totals": dict(self.totals),
            "before": dict(self._before),
            "table": self.table.state(),
            "generator": self.generator.state(),
            "backlog": self.backlog.state(),
            "admission": self.admission.state(),
            "shelf": self.shelf.state(),
            "stream": stream_of(self.chooser),
            "pushed": None if self.pushed is None else saved_policy(self.pushed),
        }

    def restore(self, state: Mapping[str, Any], policy: Policy) -> None:
        """Go on from a state; the clock must have been made with the same arguments.

        Parameters
        ----------
        state : mapping     what `state` returned
        policy : Policy     of the kind that was saved: its prompts, numerics, filters and laws of noise are used; weights and
                            the addresses of noise are the saved ones

        Raises
        ------
        InputError   a state of another system or batch, another kind of policy or chooser
        """
        mine = {"system": self.system.plain(), "groups": self.groups, "size": self.size}
        if state["made_with"] != mine:
            raise InputError("a clock goes on as the system it was saved as", found=f"{state['made_with']}")
        set_stream(self.chooser, state["stream"])
        for name, value in state["plain"].items():
            setattr(self, name, value)
        self.totals, self._before = dict(state["totals"]), dict(state["before"])
        self.table.restore(state["table"])
        self.generator.restore(state["generator"], policy)
        self.backlog.restore(state["backlog"])
        self.admission.restore(state["admission"])
        self.shelf.restore(state["shelf"])
        self.pushed = None if state["pushed"] is None else restored_policy(policy, state["pushed"])
