"""The speculative engine with drafts against itself without: by number of responses, and by who decides how many drafts.

Every arm answers the same prompts to their end tokens, so that responses leave one by one and the last ones are alone. The
first run of an arm is watched and not timed; it says how many tokens a round settled, how many candidates it checked, and
where its time went.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from paper_repro.peers.case import Arms, Case
from paper_repro.peers.taught import MOST_NODES, SIZES, Subject, subject
from testbed.core.batch import SegmentedBatch
from testbed.core.choices import RandomChooser
from testbed.policies.transformer import forward
from testbed.rollout.speculative import Budget, ConcurrencyBudget, MarginalBudget, speculative_rollout, verifiers
from testbed.rollout.speculative.rounds import Round
from theory.planting import planted

FIXED = (3, 6, 10)
PARTS = {
    "drafting": (verifiers, "drafted"),
    "passes": (forward, "residual_stream"),
    "laws": (forward, "next_token_laws"),
    "verifying": (verifiers, "settled"),
}


def cases(smoke: bool) -> list[Case]:
    """A model of a million weights and one of eleven, by number of responses."""
    names = ["tiny"] if smoke else ["1M", "11M"]
    return [case(name, batch) for name in names for batch in SIZES[name].active]


def case(name: str, batch: int) -> Case:
    """Answer `batch` prompts."""
    return Case(
        name=f"{name}, {batch} responses", unit="tokens", amount=batch, arms=lambda: arms_of(subject(name), batch)
    )


def arms_of(subject: Subject, batch: int) -> Arms:
    """Make the arms, the one without drafts first."""
    budgets: dict[str, int | Budget] = {"no drafts": 0}
    budgets |= {f"{count} drafts": count for count in FIXED}
    budgets |= {
        f"by concurrency, peak {subject.peak}": ConcurrencyBudget(peak=subject.peak, most=MOST_NODES),
        "by marginal gain": MarginalBudget(seconds=subject.seconds, drafting=subject.drafting),
    }
    return {name: Arm(partial(answered, subject, batch, budget)) for name, budget in budgets.items()}


def answered(
    subject: Subject, batch: int, budget: int | Budget, watch: Callable[[Round], None] | None = None
) -> SegmentedBatch:
    """Answer the prompts."""
    drafter = subject.drafter() if budget else None
    return speculative_rollout(
        subject.task, subject.policy, batch, RandomChooser(0), drafter=drafter, nodes=budget,
        group=subject.task.sample_prompts(batch, 3), watch=watch,
    )  # fmt: skip


class Arm:
    """A run, watched the first time."""

    def __init__(self, run: Callable[..., SegmentedBatch]) -> None:
        self.run, self.watched = run, False

    def __call__(self) -> dict[str, Any] | None:
        """Run; the first time, return what was seen."""
        if self.watched:
            self.run()
            return None
        self.watched = True
        self.run()  # warms up
        rounds: list[tuple[int, int, int]] = []
        with clocked() as spent:
            started = time.perf_counter()
            batch = self.run(watch=lambda r: rounds.append((len(r.emitted), int(r.emitted.sum()), r.tree.nodes)))
            total = time.perf_counter() - started
        rows, tokens, nodes = (sum(column) for column in zip(*rounds, strict=True))
        shares = {name: round(seconds / total, 3) for name, seconds in spent.items()}
        return {
            "amount": batch.n_tokens,
            "tokens a round": round(tokens / rows, 3),
            "drafts a round": round(nodes / len(rounds), 2),
            "share of time": {**shares, "rest": round(1 - sum(shares.values()), 3)},
        }


@contextmanager
def clocked() -> Iterator[dict[str, float]]:
    """Count the seconds spent in the parts of a round; what a part calls is its own, heads' laws those of drafting."""
    spent, inside = dict.fromkeys(PARTS, 0.0), []

    def timed(part: str, right: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **options: Any) -> Any:
            started = time.perf_counter()
            inside.append(part)
            try:
                return right(*args, **options)
            finally:
                inside.pop()
                if not inside:
                    spent[part] += time.perf_counter() - started

        return run

    with ExitStack() as stack:
        for part, (owner, name) in PARTS.items():
            stack.enter_context(planted(owner, name, partial(timed, part)))
        yield spent
