"""One weight per response, from the library's rules that give every token of a response the same weight."""

from __future__ import annotations

from torch import Tensor

from testbed.core.batch import SegmentedBatch
from testbed.weighting.rules import weigh


def response_weight(batch: SegmentedBatch, rule: str = "sequence_product", **params: float) -> Tensor:
    """Weight [B] of each response under `sequence_product`, `seq_tis` or `seq_mis`.

    Examples
    --------
    >>> from theory.worlds import standard_worlds
    >>> w = standard_worlds()[0]
    >>> raw, capped = response_weight(w.batch), response_weight(w.batch, "seq_tis", cap=1.0)
    >>> round(float(w.law.expect(raw)), 12), bool((capped == raw.clamp(max=1.0)).all())
    (1.0, True)
    """
    return weigh(rule, batch, **params).value.max(1).values  # the same on every token, 0 on padding
