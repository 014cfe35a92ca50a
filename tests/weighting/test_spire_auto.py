"""`spire` with its default cap: one exact cap per segment, from the batch's own stopped products."""

import math

import numpy as np
import pytest
import torch

from testbed.weighting import segment
from testbed.weighting.rules import weigh
from tests.weighting import test_numerics_contract as contract
from tests.weighting.worlds import batch_of, batch_with_ratios, random_batch, same

# all clauses but the two that put a row alone: with the default cap rows do see each other
CLAUSES = [c for c in contract.CLAUSES if c.__name__ not in ("an_impossible_target_weighs_nothing", "ties_are_kept")]


@pytest.mark.parametrize("clause", CLAUSES, ids=lambda clause: clause.__name__)
def test_contract(clause, monkeypatch):
    monkeypatch.setattr(contract, "ready", lambda rule, batch: (batch, {}))
    monkeypatch.setattr(contract, "CAPS", {})
    monkeypatch.setattr(contract, "LIMIT", {"spire": torch.finfo(torch.float64).max})
    clause("spire", "segment_prefix")


def cap_by_bisection(weights):
    """Root of c = 1 + (n-1) mean (W - c)+ by halving an interval, from the definition."""
    n = len(weights)
    low, high = 1.0, max(1.0, *weights)
    for _ in range(200):
        c = (low + high) / 2
        above = c - 1.0 > (n - 1) * math.fsum(max(w - c, 0.0) for w in weights) / n
        low, high = (low, c) if above else (c, high)
    return low


def reference(batch):
    """Weights from Python loops: stopped products of every response with tokens, a cap per label, the smaller of the two."""
    ratio = (batch.logp_target - batch.logp_behavior).exp().tolist()
    mask, label = batch.mask.tolist(), batch.segment.tolist()
    rows, places = range(batch.batch_size), range(batch.horizon)

    def product(b, k):
        return math.prod(ratio[b][t] for t in places if mask[b][t] and label[b][t] <= k)

    alive = [b for b in rows if any(mask[b])]
    used = {label[b][t] for b in rows for t in places if mask[b][t]}
    caps = {k: cap_by_bisection([product(b, k) for b in alive]) for k in used}
    value = [[min(product(b, label[b][t]), caps[label[b][t]]) if mask[b][t] else 0.0 for t in places] for b in rows]
    return caps, torch.tensor(value, dtype=torch.float64)


@pytest.mark.parametrize("scale", [0.1, 1.0, 3.0])
def test_against_loops(scale, rng):
    for _ in range(5):
        batch = random_batch(rng, rows=9, scale=scale)
        caps, value = reference(batch)
        w = weigh("spire", batch)
        torch.testing.assert_close(w.value, value, rtol=1e-10, atol=0)
        table = segment.auto_caps(batch)
        for k, cap in caps.items():
            assert float(table[k]) == pytest.approx(cap, rel=1e-10)
        assert same(w, weigh("spire", batch, cap="auto"))
        torch.testing.assert_close(w.value, weigh("spire", batch, cap=table).value, rtol=1e-12, atol=0)


def test_it_acts_where_weights_are_wild(rng):
    calm, wild = (random_batch(rng, rows=40, horizon=3, scale=s) for s in (1e-3, 3.0))
    assert weigh("spire", wild).acted.any()
    assert float(segment.auto_caps(wild).max()) > 2.0 > 1.1 > float(segment.auto_caps(calm).max()) >= 1.0


def test_a_response_counts_once_per_segment_however_long_it_is():
    ratios = [[math.log(4.0), 0.0, 0.0, 0.0, 0.0], [math.log(0.2), 0, 0, 0, 0], [math.log(0.5), 0, 0, 0, 0]]
    short = [[True, False, False, False, False]] * 3
    lengthened = [[True] * 5, *short[1:]]
    one, other = (segment.auto_caps(batch_with_ratios(ratios, mask=mask)) for mask in (short, lengthened))
    assert torch.equal(one, other)
    assert float(one[0]) == pytest.approx(cap_by_bisection([4.0, 0.2, 0.5]), rel=1e-12)


def test_a_response_that_ended_counts_with_its_last_product():
    ratios = np.log([[4.0, 0.5], [0.2, 3.0], [0.5, 1.0]])
    mask = [[True, True], [True, True], [True, False]]
    caps = segment.auto_caps(batch_with_ratios(ratios, mask=mask, segment=[[0, 1]] * 3))
    assert caps.tolist() == pytest.approx([cap_by_bisection(x) for x in ([4.0, 0.2, 0.5], [2.0, 0.6, 0.5])], rel=1e-12)


def test_one_response_is_capped_at_one():
    w = weigh("spire", batch_with_ratios([[1.0, 1.0]]))
    assert w.value.tolist() == [[1.0, 1.0]]
    assert w.acted.all()


def test_large_labels_cost_nothing():
    labels = torch.tensor([[3, 2_000_000_000], [7, 7]])
    batch = batch_with_ratios([[0.3, 0.4], [-0.2, 0.1]], segment=labels)
    ranks = batch_with_ratios([[0.3, 0.4], [-0.2, 0.1]], segment=[[0, 2], [1, 1]])
    assert same(weigh("spire", batch), weigh("spire", ranks))


def test_padding_and_order_of_rows_change_nothing(rng):
    batch = random_batch(rng, rows=7, scale=2.0)
    order = torch.tensor(rng.permutation(7))
    torch.testing.assert_close(
        weigh("spire", batch.select(order)).value, weigh("spire", batch).value[order], rtol=1e-12, atol=0
    )
    fields = ("tokens", "mask", "segment", "logp_target", "logp_behavior", "logp_proximal")
    wider = batch.replaced(**{name: torch.nn.functional.pad(getattr(batch, name), (2, 3)) for name in fields})
    assert torch.equal(weigh("spire", wider).value[:, 2:-3], weigh("spire", batch).value)


def test_overflowing_products_leave_a_finite_cap():
    for dtype in (torch.float32, torch.float64):
        ratios = [[1e4], [0.0], [-1e4]]
        w = weigh("spire", batch_of(np.minimum(ratios, 0), -np.maximum(ratios, 0), dtype=dtype))
        assert w.value.isfinite().all()
        assert w.value[1:].flatten().tolist() == [1.0, 0.0]
        assert w.saturated == 1
