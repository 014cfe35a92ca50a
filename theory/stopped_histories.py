"""One history at the end of one segment: the chain of S1 for trees too large to have a symbol for every probability.

The chain is about the event A that the response starts with a given history, up to where segment k ends, under given noise.
It is evaluated for all such events of an instance at once. Positions behind the end of the segment have ratio 1.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import sympy as sp
import torch

from testbed.core.prefix_order import node_index
from testbed.exact.law import response_table
from testbed.exact.values import behavior_table
from theory.derivation import Derivation, Step
from theory.evaluation import array
from theory.transformer_worlds import TransformerWorld

A, Z = sp.symbols("A z", integer=True)  # event, continuation
REST = sp.Symbol("N_z", integer=True, positive=True)
X, BEHIND, BEHIND_TARGET = (
    array("x_A"),
    array("c"),
    array("d"),
)  # prior of the noise; laws of what follows, under mu and pi


def _chain(horizon: int) -> list[Step]:
    p, m, r = ([array(f"{name}_{t}")[A] for t in range(horizon)] for name in ("p", "m", "r"))
    mu_rest, pi_rest = (sp.Sum(a[A, Z], (Z, 0, REST - 1)) for a in (BEHIND, BEHIND_TARGET))
    target = X[A] * sp.prod(p)
    return [
        Step("definition", X[A] * sp.prod(m) * sp.prod(r) * mu_rest,
             "sampler's probability times the stopped product of ratios, summed over what may follow", quantity="weighted",
             tex=r"E_\mu[W_{(k)} 1_A] = P(\xi) \prod_{t \le \tau_k} \mu(y_t \mid h_t)\, \rho_t \sum_z \mu(z \mid h_{\tau_k})"),
        Step("ratios", target * mu_rest, "mu rho = pi, token by token up to the stop",
             tex=r"P(\xi)\, \pi(h_{\tau_k}) \sum_z \mu(z \mid h_{\tau_k})"),
        Step("continuation", target, "what follows the stop sums to 1 under mu: the stop is decided by the history alone",
             tex=r"P(\xi)\, \pi(h_{\tau_k})"),
        Step("target", target * pi_rest, "and under pi likewise", quantity="target", tex=r"E_\pi[1_A]"),
    ]  # fmt: skip


def _events(instance: TransformerWorld) -> list[tuple[int, int, tuple[int, ...], list[int]]]:
    """(segment, branch, history, responses that start so) for every history at the end of every segment, in order."""
    size, horizon = instance.env.vocab_size, instance.env.horizon
    tokens, mask = response_table(instance.env)
    nodes = node_index(tokens, size)
    found: dict[tuple[int, int, tuple[int, ...]], list[int]] = {}
    for b, (_, schedule) in enumerate(instance.schedule.branches()):
        label = schedule.segment_table(size, horizon)[nodes]
        for k in range(len(instance.behaviors)):
            stop = ((label <= k) & mask).sum(1).tolist()
            for row, (y, n) in enumerate(zip(tokens.tolist(), stop, strict=True)):
                found.setdefault((k, b, tuple(y[:n])), []).append(row)
    return [(*key, rows) for key, rows in sorted(found.items())]


@lru_cache(maxsize=8)
def stopped_derivation(horizon: int) -> Derivation:
    """Derivation of S1 for responses of up to `horizon` tokens."""

    def point(rng: random.Random) -> Mapping[sp.Symbol, Any]:
        def law(size: int) -> list[sp.Rational]:
            parts = [rng.randint(1, 9) for _ in range(size)]
            return [sp.Rational(n, sum(parts)) for n in parts]

        values: dict[Any, Any] = {A: 0, REST: 3, X.label: law(2), BEHIND.label: [law(3)], BEHIND_TARGET.label: [law(3)]}
        for t in range(horizon):
            (p, _), (m, _) = law(2), law(2)
            values |= {array(f"{name}_{t}").label: [value] for name, value in (("p", p), ("m", m), ("r", p / m))}
        return values

    def bind(instance: TransformerWorld) -> Mapping[sp.Symbol, Any]:
        tokens, mask = response_table(instance.env)
        nodes = node_index(tokens, instance.env.vocab_size)
        realized = instance.schedule.branches()

        def drawn(source: Any) -> np.ndarray:
            probs = behavior_table(instance.env, source).exp()[nodes, tokens]
            return torch.where(mask, probs, 1.0).numpy()

        pi, mu = drawn(instance.target), [drawn(s) for _, s in realized]
        events = _events(instance)
        behind = np.zeros((2, len(events), max(len(rows) for *_, rows in events)))
        token = np.ones((2, horizon, len(events)))  # target's and sampler's probability of each token up to the stop
        for i, (_, b, h, rows) in enumerate(events):
            for side, probs in enumerate((mu[b], pi)):
                behind[side, i, : len(rows)] = probs[rows, len(h) :].prod(1)
                token[side, : len(h), i] = probs[rows[0], : len(h)]
        values: dict[Any, Any] = {
            A: np.arange(len(events)), REST: behind.shape[-1], X.label: [realized[b][0] for _, b, *_ in events],
            BEHIND.label: behind[0], BEHIND_TARGET.label: behind[1],
        }  # fmt: skip
        for t in range(horizon):
            m, p = token[:, t]
            values |= {array(f"{name}_{t}").label: value for name, value in (("m", m), ("p", p), ("r", p / m))}
        return values

    return Derivation([_chain(horizon)], point, bind)
