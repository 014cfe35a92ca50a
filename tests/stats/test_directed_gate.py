"""The directed gate keeps its promises exactly, and finds its mutant with fewer draws than a gate on all cells."""

import math

import pytest
import torch
from scipy.stats import binom

from testbed.core.errors import InputError
from testbed.stats.gates import DirectedGate, LawGate


def f64(values):
    return torch.tensor(values, dtype=torch.float64)


def rejection(gate, p):
    """Exact probability that draws with P(cell 0) = p fail a two-cell gate."""
    ratio, limit = gate.log_likelihood_ratio(), gate.threshold(gate.n)
    counts = range(gate.n + 1)
    means = [(c * float(ratio[0]) + (gate.n - c) * float(ratio[1])) / gate.n for c in counts]
    return sum(binom.pmf(c, gate.n, p) for c, mean in zip(counts, means, strict=True) if mean > limit)


@pytest.mark.parametrize(("stated", "mutant"), [(0.5, 0.6), (0.02, 0.1), (0.9, 0.8)])
@pytest.mark.parametrize("alpha", [0.1, 5e-9])
def test_exact_false_alarm_rate_and_power(stated, mutant, alpha):
    gate = DirectedGate(
        name="g", probs=f64((stated, 1 - stated)), mutant=f64((mutant, 1 - mutant)), alpha=alpha, power=0.95
    )
    assert 0 < rejection(gate, stated) <= alpha
    assert rejection(gate, mutant) >= 0.95


def test_decision_on_draws():
    gate = DirectedGate(name="g", probs=f64((0.5, 0.5)), mutant=f64((0.6, 0.4)))
    ones = torch.arange(gate.n) >= 0.6 * gate.n
    assert gate.decide(torch.arange(gate.n) % 2)
    assert not gate.decide(ones.long())
    assert gate.decide((~ones).long())  # a fault the other way is not the one this gate looks for
    assert gate.decide(ones.long()).statistic > gate.threshold(gate.n)


def tree_law(temperature):
    """Law of four tokens out of three whose logits depend on the prefix; 81 leaves."""
    law, nodes = f64([1.0]), 0
    for depth in range(4):
        logits = torch.sin(torch.arange(nodes, nodes + 3 ** (depth + 1), dtype=torch.float64) * 1.7).reshape(-1, 3)
        nodes += 3 ** (depth + 1)
        law = (law[:, None] * (logits / temperature).softmax(-1)).reshape(-1)
    return law


def test_a_temperature_fault_needs_fewer_draws_than_with_a_gate_on_all_cells():
    stated, mutant = tree_law(1.0), tree_law(1.05)
    law = LawGate(name="all", probs=stated, alternative=mutant, power=0.9)
    directed = DirectedGate(name="one", probs=stated, mutant=mutant, power=0.9)
    assert 0.01 < law.effect < 0.03
    assert directed.n < 0.7 * law.n


def test_effect_is_both_divergences_added():
    p, q = f64((0.7, 0.3)), f64((0.6, 0.4))
    gate = DirectedGate(name="g", probs=p, mutant=q)
    assert gate.effect == pytest.approx(float((p * (p / q).log()).sum() + (q * (q / p).log()).sum()), rel=1e-10)


def test_cells_only_the_mutant_can_draw_fail_at_once():
    gate = DirectedGate(name="g", probs=f64((0.5, 0.5, 0.0, 0.0)), mutant=f64((0.5, 0.45, 0.05, 0.0)))
    sample = torch.arange(gate.n) % 2
    assert gate.decide(sample)
    sample[0] = 2
    result = gate.decide(sample)
    assert not result
    assert result.statistic == math.inf


def test_cells_the_mutant_never_draws_speak_for_the_stated_law():
    gate = DirectedGate(name="g", probs=f64((0.5, 0.4, 0.1)), mutant=f64((0.55, 0.45, 0.0)))
    sample = torch.arange(gate.n) % 2
    assert not gate.decide(sample)
    sample[: gate.n // 10] = 2
    assert gate.decide(sample)


def test_bad_declarations_and_samples():
    half = f64((0.5, 0.5))
    for changes in ({"mutant": half}, {"bound": 0.0}, {"alpha": 1.0}):
        with pytest.raises(InputError):
            DirectedGate(**({"name": "g", "probs": half, "mutant": f64((0.6, 0.4))} | changes))
    gate = DirectedGate(name="g", probs=half, mutant=f64((0.6, 0.4)))
    with pytest.raises(InputError, match="exactly sample_size"):
        gate.decide(torch.zeros(3, dtype=torch.int64))
    with pytest.raises(InputError, match="cell numbers"):
        gate.decide(torch.full((gate.n,), -1))
