"""Tests with a declared error rate: the only way a random draw may decide anything here.

| gate | question | stands on |
|---|---|---|
| `MeanGate` | is this mean the exact one? | Bennett's inequality with exact variance and range |
| `LawGate` | are these counts those of this law? | exact binomials, one per cell |
| `DirectedGate` | this law, or that named mutant of it? | Bennett's inequality on the log-likelihood ratio |

Each gate is told the false-alarm rate, the effect it must find and the probability of finding it, and computes its
sample size from them. Prefer no gate at all: an exact check has neither a rate nor a size.
"""

from testbed.stats.directed_gate import DirectedGate
from testbed.stats.law_gate import LawGate
from testbed.stats.ledger import CAPACITY, GATE_ALPHA, GateLedger, GateResult
from testbed.stats.mean_gate import MeanGate

__all__ = ["CAPACITY", "GATE_ALPHA", "DirectedGate", "GateLedger", "GateResult", "LawGate", "MeanGate"]
