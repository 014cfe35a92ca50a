"""The weight a rule would give to every token of the vocabulary at a position, not only to the one that was drawn.

The rule is asked, through the same `weigh`, about a batch of one-token responses: every possible token in place of the
drawn one. This is only possible for rules whose weight depends on the token and its laws (`Rule.alone`). At the drawn
tokens both answers must agree, which also shows that the laws are those the batch was scored and drawn with.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from testbed.core.batch import NextTokenLaws, SegmentedBatch
from testbed.core.batch_checks import first_index
from testbed.core.errors import InputError
from testbed.core.shapes import rows_or_tokens
from testbed.weighting.registry import fill_parameters, find_rule
from testbed.weighting.rules import weigh
from testbed.weighting.weights import Weights

AGREEMENT = 1e-4  # relative: what rounding single-precision log-probs in the hundreds of nats may do to a weight
WHOLE = 1e-6  # mass that may be missing from a law


def whole_laws(batch: SegmentedBatch, caller: str) -> NextTokenLaws:
    """Return the batch's next-token laws if they cover the vocabulary.

    Raises
    ------
    MissingField, InputError   no laws; more than 1e-6 of either policy's mass outside them
    """
    laws: NextTokenLaws = batch.require("next_token", caller)
    rest = torch.maximum(laws.remaining_behavior, laws.remaining_target)
    if bool((rest > WHOLE).any()):
        raise InputError(
            f"`{caller}` needs next-token laws over the whole vocabulary",
            found=f"up to {float(rest.max()):.3g} missing",
        )
    return laws


def vocabulary_weights(
    batch: SegmentedBatch, rule: str, advantage: Tensor | None = None, **params: Any
) -> tuple[Weights, Float[Tensor, "B T k"]]:
    """Weights of the drawn tokens, and of every token that could have been drawn in their place.

        w(v | h_t) for all v with behavior(v | h_t) > 0

    Parameters
    ----------
    batch : SegmentedBatch       with `next_token` over the whole vocabulary
    rule : str                   a rule on token ratios whose weight depends on the token and its laws alone
    advantage : [B] or [B, T]    None = the reward; kept as it is while the token is exchanged
    params                       of the rule; with a `chooser`, the second answer is the expectation over its draws

    Returns
    -------
    (Weights, Float[Tensor, "B T k"])   k slots as in `batch.next_token`; 0 where the behavior cannot draw the token

    Raises
    ------
    MissingField, InputError   no laws, laws with a remainder, or a rule that reads other tokens too

    Examples
    --------
    >>> from testbed import PrefixTree, TabularPolicy, enumerate_law
    >>> from testbed.exact.next_token_laws import with_next_token_laws
    >>> pi, mu = (TabularPolicy.from_probs(torch.tensor([[p, 1 - p]])) for p in (0.9, 0.3))
    >>> batch = enumerate_law(PrefixTree(2, 1, rewards=[0.0, 1.0]), pi, mu).batch
    >>> vocabulary_weights(with_next_token_laws(batch, pi, mu), "tis")[1][0, 0]
    tensor([2.0000, 0.1429], dtype=torch.float64)
    """
    laws = whole_laws(batch, "vocabulary_weights")
    entry = find_rule(rule)
    if "token" not in entry.granularities or not entry.alone:
        raise InputError(
            "only a rule whose weight depends on the token alone has one for tokens that were not drawn",
            found=repr(rule),
        )
    automatic = [
        name for name, value in fill_parameters(entry, params).items() if isinstance(value, str) and value == "auto"
    ]
    if automatic:
        raise InputError(
            "a weight for every token needs fixed parameters", found=f"`{automatic[0]}`='auto', which reads the batch"
        )
    given = batch.reward if advantage is None else advantage
    spread = rows_or_tokens("advantage", given.detach(), batch.batch_size, batch.horizon)
    drawn = weigh(rule, batch, spread, granularity="token", **params)
    expected = drawn
    if params.get("chooser") is not None:
        expected = weigh(rule, batch, spread, granularity="token", **{**params, "chooser": None})
    possible = batch.mask[..., None] & (laws.ids >= 0) & ~torch.isneginf(laws.logp_behavior)
    alone = _one_token_each(batch, laws, possible)
    signs = spread[..., None].expand(possible.shape)[possible]
    value = torch.zeros(possible.shape, dtype=drawn.value.dtype, device=possible.device)
    value[possible] = weigh(rule, alone, signs, granularity="token", **{**params, **_expectation(params)}).value[:, 0]
    _require_agreement(rule, batch, laws, expected, value)
    return drawn, value


def _expectation(params: dict[str, Any]) -> dict[str, None]:
    return {"chooser": None} if "chooser" in params else {}


def _one_token_each(batch: SegmentedBatch, laws: NextTokenLaws, possible: Bool[Tensor, "B T k"]) -> SegmentedBatch:
    """Batch of one-token responses, one for each token that could have been drawn at each position."""
    row, time, _ = torch.nonzero(possible, as_tuple=True)

    def column(x: Tensor) -> Tensor:
        return x[possible].to(batch.logp_target.dtype)[:, None]

    return SegmentedBatch(
        tokens=laws.ids[possible][:, None],
        mask=torch.ones(len(row), 1, dtype=torch.bool, device=possible.device),
        segment=torch.zeros(len(row), 1, dtype=torch.int64, device=possible.device),
        logp_target=column(laws.logp_target.detach()),
        logp_behavior=column(laws.logp_behavior.detach()),
        reward=batch.reward[row],
        group=batch.group[row],
        next_token=NextTokenLaws(
            ids=laws.ids[row, time][:, None],
            logp_target=laws.logp_target[row, time][:, None],
            logp_behavior=laws.logp_behavior[row, time][:, None],
            remaining_target=laws.remaining_target[row, time][:, None],
            remaining_behavior=laws.remaining_behavior[row, time][:, None],
        ),
    )


def _require_agreement(
    rule: str, batch: SegmentedBatch, laws: NextTokenLaws, drawn: Weights, value: Float[Tensor, "B T k"]
) -> None:
    here = laws.ids == batch.tokens[..., None]
    found = torch.where(here, value, torch.zeros((), dtype=value.dtype, device=value.device)).sum(-1)
    same = (found == drawn.value) | ((found - drawn.value).abs() <= AGREEMENT * drawn.value.abs().clamp(min=1e-30))
    wrong = batch.mask & ~same
    if bool(wrong.any()):
        b, t = first_index(wrong)
        raise InputError(
            f"the weight of rule `{rule}` must depend on the token and its two laws alone",
            found=f"{float(drawn.value[b, t]):.6g} in the batch and {float(found[b, t]):.6g} alone, first at ({b}, {t})",
            hint="are the laws those of the policies that scored and drew the tokens?",
        )
