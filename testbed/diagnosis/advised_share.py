"""How much of a batch should be replay, from what one recorded batch shows: a proxy without gradients.

A response's term of the gradient is A times its score. The scores were not recorded, so A stands for the term: fresh
responses vary as A does, replayed ones as min(W, c) A, and what the cap cuts off is their bias (O7). The best share then
follows from the two variances, the bias, and what a response of each kind costs (K1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float

from testbed.core.batch import SegmentedBatch
from testbed.diagnosis.readings import ON_POLICY
from testbed.estimators.mixing import ReplayShare, optimal_replay_share
from testbed.estimators.replay_mse import sources
from testbed.weighting.granularity import log_ratios

COST_FRESH, COST_REPLAY = 1.0, 0.25  # a replayed response skips generation, commonly the larger part of a step


@dataclass(frozen=True)
class Terms:
    """What stands for each response's gradient.

    Attributes
    ----------
    weight : Float[ndarray, " n"]      W, the product over the response
    advantage : Float[ndarray, " n"]   A
    stale : Bool[ndarray, " n"]        responses with a token whose ratio is not 1; all, if there is none
    """

    weight: Float[np.ndarray, " n"]
    advantage: Float[np.ndarray, " n"]
    stale: Bool[np.ndarray, " n"]


def response_terms(batch: SegmentedBatch, weight: Float[np.ndarray, " n"], advantage: torch.Tensor) -> Terms:
    """Collect the terms of a batch, in which every response has tokens."""
    gap = torch.where(batch.mask, log_ratios(batch).double().abs(), 0.0)
    stale = (gap > ON_POLICY).any(1).cpu().numpy()
    a = advantage.double().cpu().numpy()
    return Terms(weight, a, stale if stale.any() else np.ones_like(stale))


def check_costs(cost_fresh: float, cost_replay: float) -> None:
    """Raise InputError unless both are finite, fresh > 0 and replay >= 0."""
    sources(0.0, 0.0, cost_fresh, cost_replay, 0.0)


def proxies(terms: Terms, cap: float, counts: np.ndarray | None = None) -> dict[str, float] | None:
    """Variances and bias of fresh and replayed responses, each response counted so often.

        v_fresh = Var(A);   v_replay = Var(min(W, c) A) and bias = E[(W - c)+ |A|] over stale responses

    Returns
    -------
    dict   v_fresh, v_replay, bias (nothing cancels), bias_signed = -E[(W - c)+ A]; None if no stale response counts

    Examples
    --------
    >>> terms = Terms(np.array([0.5, 3.0]), np.array([1.0, -1.0]), np.array([True, True]))
    >>> proxies(terms, 2.0)
    {'v_fresh': 1.0, 'v_replay': 1.5625, 'bias': 0.5, 'bias_signed': 0.5}
    """
    share = np.ones(len(terms.weight)) if counts is None else counts.astype(float)
    replayed = share * terms.stale
    if replayed.sum() == 0:
        return None
    share, replayed = share / share.sum(), replayed / replayed.sum()
    cut = np.maximum(terms.weight - cap, 0.0)
    return {
        "v_fresh": _variance(terms.advantage, share),
        "v_replay": _variance(np.minimum(terms.weight, cap) * terms.advantage, replayed),
        "bias": float(replayed @ (cut * np.abs(terms.advantage))),
        "bias_signed": 0.0 - float(replayed @ (cut * terms.advantage)),
    }


def _variance(values: Float[np.ndarray, " n"], probs: Float[np.ndarray, " n"]) -> float:
    return float(probs @ np.square(values - probs @ values))


def best_share(found: dict[str, float], n: int, cost_fresh: float, cost_replay: float) -> ReplayShare | None:
    """Solve K1 at the budget of n fresh responses; None where all of v_fresh, v_replay and bias are 0."""
    if found["v_fresh"] == found["v_replay"] == found["bias"] == 0:
        return None
    return optimal_replay_share(
        v_fresh=found["v_fresh"], v_replay=found["v_replay"], bias=found["bias"], cost_fresh=cost_fresh,
        cost_replay=cost_replay, budget=n * cost_fresh,
    )  # fmt: skip


def share_record(terms: Terms, cap: float, cost_fresh: float, cost_replay: float) -> dict[str, Any]:
    """Advise a replay share.

    Returns
    -------
    dict   theorem ids, n, stale (responses), cap, costs, budget, what `proxies` gives, and, unless every advantage is 0
           (then `share` is None): share, other (the second end of a tie), regime, multipliers, mse, n_samples,
           mse_all_fresh

    Assumes    what `testbed.diagnosis.advice_printed` says in words
    """
    n = len(terms.weight)
    found = proxies(terms, cap)
    assert found is not None  # some response is stale, or all count
    record: dict[str, Any] = {
        "theorems": ["K1", "O7", "O1"], "n": n, "stale": int(terms.stale.sum()), "cap": cap, "cost_fresh": cost_fresh,
        "cost_replay": cost_replay, "budget": n * cost_fresh, **found,
    }  # fmt: skip
    best = best_share(found, n, cost_fresh, cost_replay)
    if best is None:
        return {**record, "share": None}
    return {
        **record, "share": best.share, "other": best.other, "regime": best.regime, "multipliers": dict(best.multipliers),
        "mse": best.mse, "n_samples": best.n_samples, "mse_all_fresh": found["v_fresh"] / n,
    }  # fmt: skip
