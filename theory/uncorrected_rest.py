"""What a stopped product of ratios leaves uncorrected, and what that is worth: the bias of a terminal reward (S4).

A reading names where the product that multiplies token t stops: at t ("prefix") or at the end of t's segment ("segment_end").
"""

from __future__ import annotations

from collections.abc import Callable

import sympy as sp
import torch
from torch import Tensor

from testbed.exact.segment_values import segment_end_action_values
from testbed.exact.values import action_values, behavior_table, prefix_law
from testbed.policies.schedule import PrefixSchedule
from theory.derivation import Step
from theory.symbols import Prefix, SymbolicWorld
from theory.worlds import World


def continuation(instance: World, reading: str, schedule: PrefixSchedule) -> Tensor:
    """Q [N, V] of what a reading leaves uncorrected after the token, in one realization of the noise."""
    if reading == "prefix":
        return action_values(instance.env, schedule)
    return segment_end_action_values(instance.env, instance.target, schedule)


def difference(instance: World, reading: str, posterior: bool = False) -> Tensor:
    """D [N, V]: continuation's Q averaged over the noise (a priori, or as a mutant given h and y) minus Q of the target."""
    env, branches = instance.env, instance.schedule.branches()
    values = torch.stack([continuation(instance, reading, s) for _, s in branches])
    odds = torch.stack([torch.full_like(values[0], p) for p, _ in branches])
    if posterior:
        odds = odds * torch.stack([prefix_law(env, s)[:, None] * behavior_table(env, s).exp() for _, s in branches])
    total = odds.sum(0)
    average = (odds * values).sum(0) / torch.where(total > 0, total, 1.0)
    return average - action_values(env, instance.target)


def stopped_value(w: SymbolicWorld, h: Prefix, branch: int, segment: int) -> sp.Expr:
    """Value of prefix h when the target writes `segment` to its end and the sampler of the branch what follows."""
    if len(h) == w.horizon or (w.eos is not None and w.eos in h):
        return w.total_return(h)
    label = w.branches[branch][h]
    law = [w.pi(h, a) if label == segment else w.mu(label, h, a) for a in range(w.vocab_size)]
    return sp.Add(*[p * stopped_value(w, (*h, a), branch, segment) for a, p in enumerate(law)])


def bias_chain(w: SymbolicWorld, reading: str) -> list[Step]:
    """Derive the bias of a reading: as stated, ratios cancelled, rest summed out, gradient subtracted, logit by logit."""
    branches = range(len(w.branches))

    def corrected_through(y: Prefix, xi: int, t: int) -> int:
        labels = [k for _, _, k in w.path(y, xi)]
        return t + 1 if reading == "prefix" else sum(k <= labels[t] for k in labels)

    def left(h: Prefix, a: int, xi: int) -> sp.Expr:
        return w.action_value(h, a, xi) if reading == "prefix" else stopped_value(w, (*h, a), xi, w.branches[xi][h])

    def on_policy(value: Callable[[Prefix, int], sp.Expr]) -> list[sp.Expr]:
        return [
            sp.Add(
                *[w.prob_pi(h) * w.pi(h, a) * w.score((*h, a), len(h), h, c) * value(h, a) for a in range(w.vocab_size)]
            )
            if _live(w, h)
            else sp.Integer(0)
            for h, c in w.parameters
        ]

    def averaged(h: Prefix, a: int) -> sp.Expr:
        return sp.Add(*[w.prior(xi) * left(h, a, xi) for xi in branches])

    def d(h: Prefix, a: int) -> sp.Expr:
        return averaged(h, a) - w.action_value(h, a)

    gradient = w.gradient()
    stated = [
        sp.Add(
            *[
                p * w.weight(y, xi, corrected_through(y, xi, len(h))) * w.score(y, len(h), h, c) * w.total_return(y)
                for xi, y, p in w.draws()
                if y[: len(h)] == h and len(y) > len(h)
            ]
        )
        for h, c in w.parameters
    ]
    predicted = on_policy(d)
    what = "the product through t" if reading == "prefix" else "the product through the end of t's segment"
    symbol = "W_t" if reading == "prefix" else "W_{(S_t)}"
    steps = [
        Step(
            "definition",
            [s - g for s, g in zip(stated, gradient, strict=True)],
            f"{what} times score times terminal reward, minus J differentiated",
            quantity=f"{reading}_bias",
            tex=rf"E_\mu\Big[\sum_t {symbol} s_t R\Big] - \nabla J",
        ),
        Step(
            "ratios",
            [s.xreplace(w.rho_definition()) - g for s, g in zip(stated, gradient, strict=True)],
            f"rho = pi/mu_S cancels mu over {what}",
            tex=r"\sum_{\xi, y} P(\xi) \sum_t \pi(\cdot)\, \mu(\text{rest})\, s_t R - \nabla J",
        ),
        Step(
            "continuation",
            [s - g for s, g in zip(on_policy(averaged), gradient, strict=True)],
            "the rest stays the sampler's and sums to its Q; pi does not depend on xi, so xi keeps its prior",
            tex=r"\sum_t \sum_{h_t, y_t} \pi(h_t) \pi(y_t \mid h_t)\, s_t\, E_\xi[Q^{\mu_\xi}(h_t, y_t)] - \nabla J",
        ),
        Step(
            "policy_gradient_theorem",
            predicted,
            "grad J is the same sum with Q of the target",
            quantity=f"{reading}_predicted",
            tex=r"E_\pi\Big[\sum_t s_t D(h_t, y_t)\Big],\ D = E_\xi[Q^{\mu_\xi}] - Q^\pi",
        ),
    ]
    per_logit = [
        w.prob_pi(h) * w.pi(h, c) * (d(h, c) - sp.Add(*[w.pi(h, a) * d(h, a) for a in range(w.vocab_size)]))
        if _live(w, h)
        else sp.Integer(0)
        for h, c in w.parameters
    ]
    steps.append(
        Step(
            "per_logit",
            per_logit,
            "tabular: no other prefix touches the logit (h, a), so the bias is 0 iff D(h, .) equals "
            "its own mean at every token and prefix the target reaches",
            quantity=f"{reading}_per_logit",
            tex=r"P_\pi(h)\, \pi(a \mid h)\, \big(D(h, a) - E_{a' \sim \pi}[D(h, a')]\big)",
        )
    )
    return steps


def _live(w: SymbolicWorld, h: Prefix) -> bool:
    return w.eos is None or w.eos not in h
