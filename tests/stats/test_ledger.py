"""The budget of false alarms holds: 200 gates, 5e-9 each, each name once."""

import pytest

from testbed.core.errors import InputError
from testbed.stats.gates import CAPACITY, GATE_ALPHA, GateLedger, MeanGate


def test_family_wise_rate_is_one_in_a_million():
    assert GateLedger().family_alpha == pytest.approx(1e-6, rel=1e-12)
    assert (CAPACITY, GATE_ALPHA) == (200, 5e-9)


def test_the_201st_gate_is_refused():
    ledger = GateLedger()
    for number in range(200):
        ledger.register(f"gate {number}", GATE_ALPHA)
    with pytest.raises(InputError, match="at most 200 gates; found one more, 'gate 200'"):
        ledger.register("gate 200", GATE_ALPHA)
    assert len(ledger.spent) == 200


def test_a_gate_cannot_be_declared_twice_or_spend_more_than_its_share():
    ledger = GateLedger()
    ledger.register("sampler", GATE_ALPHA)
    with pytest.raises(InputError, match="must be its own"):
        ledger.register("sampler", GATE_ALPHA)
    for alpha in (1e-8, 0.0, float("nan")):
        with pytest.raises(InputError, match="may spend at most"):
            ledger.register("other", alpha)
    assert ledger.spent == {"sampler": GATE_ALPHA}


def test_gates_declare_themselves():
    ledger = GateLedger(capacity=1)
    coin = {"mean": 0.5, "variance": 0.25, "low": 0.0, "high": 1.0, "effect": 0.1, "ledger": ledger}
    MeanGate(name="first", **coin)
    with pytest.raises(InputError, match="at most 1 gates"):
        MeanGate(name="second", **coin)
