"""The exact law of an engine written through a Chooser, with what its behaviors would have recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from testbed.core.batch import SegmentedBatch
from testbed.core.choices import Chooser
from testbed.environments.base import Environment
from testbed.exact.law import ExactLaw
from testbed.exact.output_law import output_law
from testbed.policies.base import Policy

Output = tuple[tuple[int, ...], tuple[int, ...]]  # tokens, and the segment each was filed under


def recorded_law(
    env: Environment, target: Policy, behaviors: Sequence[Policy], engine: Callable[[Chooser], Output]
) -> ExactLaw:
    """Replay every choice of the engine; score each token by the behavior of the segment it was filed under.

    The probability of a row is that of the program; `logp_behavior` is what an honest log of its labels would say.
    Where the two disagree, no weight made of the log can know.
    """
    probs = output_law(engine)
    tokens, segment = (torch.tensor([output[part] for output in probs], dtype=torch.int64) for part in (0, 1))
    mask = torch.ones_like(tokens, dtype=torch.bool)
    group = torch.zeros(len(probs), dtype=torch.int64)
    scores = torch.stack([policy.score(tokens) for policy in behaviors])
    batch = SegmentedBatch(
        tokens=tokens, mask=mask, segment=segment, logp_target=target.score(tokens),
        logp_behavior=scores.gather(0, segment[None])[0], reward=env.reward(tokens, mask, group), group=group,
    )  # fmt: skip
    log_prob = torch.tensor(list(probs.values()), dtype=torch.float64).log()
    return ExactLaw(batch=batch, log_prob=log_prob, branch=group)


def draw(policy: Policy, tokens: Sequence[int], chooser: Chooser) -> int:
    """Draw the next token of one response."""
    law = policy.next_log_probs(torch.tensor([list(tokens)], dtype=torch.int64)).exp()
    return int(chooser.choose(law))


def coin(q: float, chooser: Chooser) -> bool:
    """Draw an event of probability q."""
    return bool(chooser.choose(torch.tensor([[1 - q, q]], dtype=torch.float64)))
