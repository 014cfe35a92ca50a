"""Where the batch's own weights say to truncate, and how far the closed forms are from that.

Every cap is for an average over n = the number of responses and for the constant signal: O1's is exact on the weights of
the batch, taken as the law of W with its mean known to be 1; O3, O4 and O9 know its second moment only.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int

from testbed.core.batch import SegmentedBatch
from testbed.diagnosis.response_draws import OwnedWeights
from testbed.weighting.granularity import log_ratios
from testbed.weighting.optimal_cap import optimal_cap
from testbed.weighting.segment_ends import segment_end_log_ratios

CLOSED_FORMS = {"O3": "d2", "O4": "chi2", "O9": "sharp"}  # theorem -> method of `optimal_cap`
WORST = {"O3": 15, "O4": 5.5, "O9": 3.6, "sqrt n": 1.6}  # error over the least one, at worst in the regret table (O6)
ROUNDING = 1e-4  # weights this close to 1 are log-probs that agree; a cap among them acts on noise
LARGEST = 150.0  # nats: products beyond count as this, whose fourth power (O3) is still a number


def weight_samples(batch: SegmentedBatch) -> list[dict[str, Any]]:
    """Collect W_(k) for every segment label k, then the token ratios.

    Returns
    -------
    list of dict   weight ("segment product" or "token ratio"), through_segment (None for tokens), values and owner
                   [N] each: weights and the responses they belong to
    """
    labels, rank = batch.segment[batch.mask].unique(return_inverse=True)
    dense = torch.full_like(batch.segment, -1)
    dense[batch.mask] = rank
    top = min(math.log(torch.finfo(batch.logp_target.dtype).max) - 1.0, LARGEST)
    logs = segment_end_log_ratios(batch.replaced(segment=dense)).double().clamp(max=top)
    rows = np.arange(batch.batch_size)
    found = [
        {
            "weight": "segment product",
            "through_segment": int(label),
            "values": column.exp().cpu().numpy(),
            "owner": rows,
        }
        for label, column in zip(labels, logs.unbind(1), strict=True)
    ]
    tokens = log_ratios(batch).double()[batch.mask].clamp(max=top).exp().cpu().numpy()
    owner = batch.mask.nonzero()[:, 0].cpu().numpy()
    return [*found, {"weight": "token ratio", "through_segment": None, "values": tokens, "owner": owner}]


def cap_record(sample: dict[str, Any], n: int) -> dict[str, Any]:
    """Advise a cap for one kind of weight.

    Returns
    -------
    dict   weight, through_segment, n, theorem, cap, largest, above and above_share (weights the cap acts on), mse (at
           the cap), advised ("cap", or "none" where no cap acts), closed_forms (theorem -> cap, mse, regret), sqrt_n and
           none (the same); regret = mse / mse at O1's cap - 1, None where that error is 0

    Gives      O1; O3, O4, O9; the regret is O6's, on these weights
    """
    values = sample["values"]
    best = float(optimal_cap(values, n=n))
    largest = float(values.max())
    least = mean_one_error(values, best, n)

    def beside(cap: float) -> dict[str, Any]:
        error = mean_one_error(values, cap, n)
        regret = error / least - 1 if least > 0 else None
        return {"cap": None if cap == math.inf else cap, "mse": error, "regret": regret}

    above = int((values > best).sum())
    return {
        "weight": sample["weight"],
        "through_segment": sample["through_segment"],
        "n": n,
        "theorem": "O1",
        "cap": best,
        "largest": largest,
        "above": above,
        "above_share": above / len(values),
        "mse": least,
        "advised": "cap" if above and largest > 1 + ROUNDING else "none",
        "closed_forms": {id_: beside(float(optimal_cap(values, n=n, method=m))) for id_, m in CLOSED_FORMS.items()},
        "sqrt_n": beside(math.sqrt(n)),
        "none": beside(math.inf),
    }


def mean_one_error(values: Float[np.ndarray, " N"], cap: float, n: int) -> float:
    """Squared bias plus variance / n of a capped weight whose mean without a cap is known to be 1.

        B^2 + (mean min(w, c)^2 - (1 - B)^2) / n,     B = mean (w - c)+

    Returns
    -------
    float   >= 0; least at O1's cap, which the error under the sample's own mean is not

    Examples
    --------
    >>> mean_one_error(np.array([0.0, 2.0]), 1.5, 8)
    0.1328125
    """
    excess = float(np.maximum(values - cap, 0.0).mean())
    variance = float(np.square(np.minimum(values, cap)).mean()) - (1 - excess) ** 2
    return excess**2 + max(variance, 0.0) / n


def owned(sample: dict[str, Any], n: int) -> OwnedWeights:
    """Prepare a sample for caps of bootstrap draws."""
    owner: Int[np.ndarray, " N"] = sample["owner"]
    return OwnedWeights(sample["values"], owner, n)
