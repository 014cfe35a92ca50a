"""What to do with tokens whose behavior log-prob was not recorded: a decision with a name, made before a batch exists.

A missing log-prob is NaN, never 0: log-prob 0 is a statement, "the sampler was certain", and gives a ratio equal to the
target's probability (e^-2.3 = 0.1 where nothing is known). A batch refuses NaN; this file is where one leaves it.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from testbed.core.batch_checks import first_index
from testbed.core.errors import InputError
from testbed.core.shapes import require_shape

Policy = Literal["raise", "drop_token", "drop_response", "unit_ratio"]
POLICIES = ("raise", "drop_token", "drop_response", "unit_ratio")


class Resolved(NamedTuple):
    """Behavior log-probs without NaN, the mask that goes with them, and how many tokens and responses were touched."""

    logp_behavior: Tensor
    mask: Tensor
    missing_tokens: int
    missing_responses: int


def resolve_missing(
    logp_behavior: Float[Tensor, "B T"],
    logp_target: Float[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    policy: Policy = "raise",
) -> Resolved:
    """Behavior log-probs in which missing ones (NaN on real tokens) have been dealt with in a stated way.

        drop_token      the token leaves the mask: it neither trains nor takes part in a product
        drop_response   its whole response leaves the mask
        unit_ratio      the target's log-prob stands in, so that the token's ratio is 1

    Parameters
    ----------
    logp_behavior, logp_target : Float[Tensor, "B T"]   nats
    mask : Bool[Tensor, "B T"]                           True on real tokens; NaN elsewhere is padding, not missing
    policy : str                                         "raise" unless told otherwise

    Returns
    -------
    Resolved   what `SegmentedBatch` takes; both counts are 0 when nothing was missing

    Raises
    ------
    InputError   with "raise", a missing log-prob; an unknown policy; wrong shapes; with unit_ratio, a target log-prob
                 that is missing or -inf where it must stand in
    Assumes      for drop_response to keep estimates unbiased: what is missing does not depend on the tokens
    Gives        drop_token and unit_ratio bias every product over the response; all three are counted, never silent

    Examples
    --------
    >>> behavior, target = torch.tensor([[-1.0, float("nan")]]), torch.tensor([[-1.0, -2.3]])
    >>> resolve_missing(behavior, target, torch.tensor([[True, True]]), "unit_ratio")[:3]
    (tensor([[-1.0000, -2.3000]]), tensor([[True, True]]), 1)
    """
    if policy not in POLICIES:
        raise InputError(f"`policy` must be one of {', '.join(POLICIES)}", found=repr(policy))
    require_shape("logp_behavior", logp_behavior, tuple(mask.shape))
    require_shape("logp_target", logp_target, tuple(mask.shape))
    missing = logp_behavior.detach().isnan() & mask
    rows = missing.any(1)
    tokens, responses = int(missing.sum()), int(rows.sum())
    if tokens and policy == "raise":
        raise InputError(
            "every real token needs the log-prob it was drawn with",
            hint=f"or choose {', '.join(POLICIES[1:])}",
            found=f"{tokens} missing in {responses} responses, first at {first_index(missing)}",
        )
    if policy == "unit_ratio":
        unusable = missing & ~torch.isfinite(logp_target.detach())
        if bool(unusable.any()):
            raise InputError(
                "a unit ratio needs a finite target log-prob",
                found=f"{int(unusable.sum())} without, first at {first_index(unusable)}",
            )
        filled, kept = torch.where(missing, logp_target.detach().to(logp_behavior.dtype), logp_behavior), mask
    else:
        filled = torch.where(
            missing, torch.zeros((), dtype=logp_behavior.dtype, device=logp_behavior.device), logp_behavior
        )
        kept = mask & ~missing if policy == "drop_token" else mask & ~rows[:, None]
    return Resolved(filled, kept, tokens, responses)
