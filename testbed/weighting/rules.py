"""`weigh`: one door to every weighting rule. The rules themselves live in the file of their concept.

A rule is looked up by name at every call, so a replaced function is seen at once.
"""

from __future__ import annotations

import importlib

import torch
from jaxtyping import Float
from torch import Tensor

from testbed.core.batch import SegmentedBatch
from testbed.core.batch_checks import first_index
from testbed.core.errors import InputError
from testbed.core.shapes import rows_or_tokens
from testbed.weighting.registry import RULES, choose_granularity, fill_parameters, find_rule
from testbed.weighting.rule import Rule
from testbed.weighting.weights import Request, Weights

__all__ = ["RULES", "Rule", "weigh"]


def weigh(
    rule: str,
    batch: SegmentedBatch,
    advantage: Tensor | None = None,
    granularity: str | None = None,
    **params: object,
) -> Weights:
    """Weights of a batch's tokens under a named rule.

        value_t = operator(ratio_t at the rule's granularity) * gate_t

    Parameters
    ----------
    rule : str                  a key of RULES
    batch : SegmentedBatch      log-probs in nats
    advantage : Tensor          [B] or [B, T]; None = the batch's reward. Only clip-type rules look at it
    granularity : str           for rules that are a pure operator; None = the rule's own
    params                      the rule's parameters; dimensionless bounds on the ratio target/behavior

    Returns
    -------
    Weights                     value, gate, acted, raw: [B, T], detached; 0 (False) on padding

    Raises
    ------
    InputError     unknown rule, granularity or parameter; a parameter out of range; an advantage of another shape,
                   or not finite on a real token
    MissingField   the rule needs a field the batch does not carry
    Assumes        recorded behavior log-probs are those of the law the token was drawn from
    Gives          what RULES[rule].theorems say; ratios of +-1e4 nats give the cap, or inf and a count, never NaN
    Numerics       dtype of the batch's log-probs; products summed in float64; cost O(B T)
    References     RULES[rule].source

    Examples
    --------
    >>> batch = SegmentedBatch(
    ...     tokens=torch.zeros(1, 3, dtype=torch.int64), mask=torch.tensor([[True, True, False]]),
    ...     segment=torch.zeros(1, 3, dtype=torch.int64), logp_target=torch.log(torch.tensor([[0.9, 0.2, 0.5]])),
    ...     logp_behavior=torch.log(torch.tensor([[0.3, 0.4, 0.5]])), reward=torch.ones(1), group=torch.tensor([0]))
    >>> w = weigh("tis", batch)
    >>> w.value, w.raw, w.acted
    (tensor([[2.0000, 0.5000, 0.0000]]), tensor([[3.0000, 0.5000, 0.0000]]), tensor([[ True, False, False]]))
    """
    entry = find_rule(rule)
    chosen = choose_granularity(entry, granularity)
    values = {name: _plain(value) for name, value in fill_parameters(entry, params).items()}
    for name in entry.needs:
        if values.get(entry.instead.get(name, "")) is None:
            batch.require(name, entry.name)
    with torch.no_grad():
        signed = _advantage(batch, advantage) if entry.needs_advantage or advantage is not None else None
        module = importlib.import_module(f"testbed.weighting.{entry.home}")
        found = getattr(module, f"weigh_{entry.name}")(
            Request(batch=batch, granularity=chosen, advantage=signed), **values
        )
    return Weights(
        value=found.value,
        gate=found.gate,
        acted=found.acted,
        raw=found.raw,
        saturated=found.saturated,
        objective=found.objective,
        rule=entry.name,
        granularity=chosen,
        params=values,
    )


def _advantage(batch: SegmentedBatch, advantage: Tensor | None) -> Float[Tensor, "B T"]:
    """Return the advantage as [B, T] in the working dtype, 0 on padding, finite elsewhere."""
    given = batch.reward if advantage is None else advantage.detach()
    spread = rows_or_tokens("advantage", given, batch.batch_size, batch.horizon)
    working = torch.promote_types(batch.logp_target.dtype, batch.logp_behavior.dtype)
    spread = torch.where(batch.mask, spread.to(working), torch.zeros((), dtype=working, device=spread.device))
    bad = ~torch.isfinite(spread)
    if bool(bad.any()):
        found = f"{int(bad.sum())} non-finite, first at {first_index(bad)}"
        raise InputError("`advantage` must be finite", found=found)
    return spread


def _plain(value: object) -> object:
    """Return a parameter given as a 0-dimensional tensor as the number it holds."""
    return value.item() if isinstance(value, Tensor) and value.dim() == 0 else value
