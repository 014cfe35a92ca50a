"""Derivations about correcting each token alone (S5): the update, the terminal reward, the bound, the distance of prefixes."""

from __future__ import annotations

from collections.abc import Callable

import sympy as sp

from theory.derivation import Step
from theory.symbols import Prefix, SymbolicWorld

Value = Callable[[Prefix, int, int], sp.Expr]  # (prefix, token, branch) -> what multiplies the score


def live(w: SymbolicWorld, t: int | None = None) -> list[Prefix]:
    """Prefixes (of length t, or all) that have not ended."""
    return [h for h in w.prefixes if (w.eos is None or w.eos not in h) and (t is None or len(h) == t)]


def _advantage(w: SymbolicWorld, h: Prefix, a: int) -> sp.Expr:
    return w.action_value(h, a) - w.value(h)


def _visited(w: SymbolicWorld, h: Prefix) -> sp.Expr:
    return sp.Add(*[w.prior(xi) * w.prob_mu(h, xi) for xi in range(len(w.branches))])


def _stated(w: SymbolicWorld, value: Callable[[Prefix, int], sp.Expr]) -> list[sp.Expr]:
    """E_mu[sum_t rho_t s_t X] as a sum over responses; X is told the response and the position."""
    return [
        sp.Add(
            *[
                p * w.rho(w.branches[xi][h], h, y[len(h)]) * w.score(y, len(h), h, c) * value(y, len(h))
                for xi, y, p in w.draws()
                if y[: len(h)] == h and len(y) > len(h)
            ]
        )
        for h, c in w.parameters
    ]


def _at_prefixes(w: SymbolicWorld, weight: Callable[[Prefix, int], sp.Expr], value: Value) -> list[sp.Expr]:
    """sum_xi sum_h weight(h, xi) E_{y~pi}[s X(h, y, xi)], logit by logit."""
    alive = set(live(w))
    return [
        sp.Add(
            *[
                weight(h, xi) * w.pi(h, a) * w.score((*h, a), len(h), h, c) * value(h, a, xi)
                for xi in range(len(w.branches))
                for a in range(w.vocab_size)
            ]
        )
        if h in alive
        else sp.Integer(0)
        for h, c in w.parameters
    ]


def _at_sampler_prefixes(w: SymbolicWorld, value: Value) -> list[sp.Expr]:
    return _at_prefixes(w, lambda h, xi: w.prior(xi) * w.prob_mu(h, xi), value)


def update_chain(w: SymbolicWorld) -> list[Step]:
    """Token ratio times A^pi: the target's update at the sampler's prefixes."""
    stated = _stated(w, lambda y, t: _advantage(w, y[:t], y[t]))
    return [
        Step(
            "definition",
            stated,
            "sampler's law, one ratio per token, score, advantage of the target",
            quantity="token_update",
            tex=r"E_\mu\Big[\sum_t \rho_t s_t A^\pi(h_t, y_t)\Big]",
        ),
        Step(
            "ratio",
            [e.xreplace(w.rho_definition()) for e in stated],
            "rho_t replaces mu(y_t|h_t) by pi(y_t|h_t), no more",
            tex=r"\sum_{\xi, y} P(\xi) \sum_t \mu(h_t)\, \pi(y_t \mid h_t)\, \mu(y_{>t} \mid h_t, y_t)\, s_t A^\pi",
        ),
        Step(
            "behavior_prefixes",
            _at_sampler_prefixes(w, lambda h, a, xi: _advantage(w, h, a)),
            "what follows t sums to 1",
            quantity="prefix_update",
            tex=r"\sum_t E_{h_t \sim \mu}\, E_{y_t \sim \pi}[s_t A^\pi(h_t, y_t)]",
        ),
    ]


def terminal_chain(w: SymbolicWorld) -> list[Step]:
    """Token ratio times the terminal reward: the behaviors' critic at the behaviors' prefixes."""
    stated = _stated(w, lambda y, t: w.total_return(y))
    predicted = _at_sampler_prefixes(w, lambda h, a, xi: w.action_value(h, a, xi))
    state = _at_prefixes(
        w, lambda h, xi: w.prior(xi) * (w.prob_mu(h, xi) - w.prob_pi(h)), lambda h, a, xi: _advantage(w, h, a)
    )
    critic = _at_sampler_prefixes(w, lambda h, a, xi: w.action_value(h, a, xi) - w.action_value(h, a))
    return [
        Step(
            "terminal_definition",
            stated,
            "the same with the reward of the whole response",
            quantity="terminal_update",
            tex=r"E_\mu\Big[\sum_t \rho_t s_t R\Big]",
        ),
        Step(
            "terminal_ratio",
            [e.xreplace(w.rho_definition()) for e in stated],
            "rho_t replaces mu(y_t|h_t) by pi(y_t|h_t)",
            tex=r"\sum_{\xi, y} P(\xi) \sum_t \mu(h_t)\, \pi(y_t \mid h_t)\, \mu(y_{>t} \mid h_t, y_t)\, s_t R",
        ),
        Step(
            "behavior_critic",
            predicted,
            "the rest stays the sampler's: summed out it is Q of the realized behaviors",
            quantity="terminal_predicted",
            tex=r"\sum_t E_{\xi, h_t \sim \mu}\, E_{y_t \sim \pi}[s_t Q^{\mu_\xi}(h_t, y_t)]",
        ),
        Step(
            "both_biases",
            [g + s + c for g, s, c in zip(w.gradient(), state, critic, strict=True)],
            "add and subtract the target's critic and prefixes; grad J by differentiation",
            quantity="terminal_decomposed",
            tex=r"\nabla J + \sum_{t,h} (\mu_t - \pi_t)(h) E_\pi[s A^\pi] + \sum_t E_{\xi,\mu} E_\pi[s (Q^{\mu_\xi} - Q^\pi)]",
        ),
    ]


def bound_chain(w: SymbolicWorld) -> list[Step]:
    """Bias of the update with A^pi for a tabular target: blocks, Cauchy-Schwarz, total variation."""
    update = _at_sampler_prefixes(w, lambda h, a, xi: _advantage(w, h, a))
    bias = [u - g for u, g in zip(update, w.gradient(), strict=True)]
    tokens = range(w.vocab_size)
    gap = {h: _visited(w, h) - w.prob_pi(h) for h in live(w)}
    inner = {h: sp.sqrt(sp.Add(*[(w.pi(h, c) * _advantage(w, h, c)) ** 2 for c in tokens])) for h in live(w)}
    distance = sp.Add(*[_distance(w, t) for t in range(w.horizon)])
    largest = _maximum(list(inner.values()))
    advantage = _maximum([sp.Abs(_advantage(w, h, a)) for h in live(w) for a in tokens])
    score = _maximum(
        [sp.sqrt(sp.Add(*[w.score((*h, a), len(h), h, c) ** 2 for c in tokens])) for h in live(w) for a in tokens]
    )
    return [
        Step(
            "norm",
            sp.sqrt(sp.Add(*[b**2 for b in bias])),
            "norm of update minus J differentiated",
            quantity="bias_norm",
            tex=r"\Big\| \sum_t \sum_h (\mu_t - \pi_t)(h)\, E_\pi[s A^\pi] \Big\|",
        ),
        Step(
            "blocks",
            sp.sqrt(sp.Add(*[gap[h] ** 2 * inner[h] ** 2 for h in gap])),
            "tabular: the scores of different prefixes are orthogonal; E_pi[s A] = pi A in its own block",
            tex=r"\Big(\sum_{t, h} (\mu_t - \pi_t)(h)^2\, \|E_\pi[s A^\pi \mid h]\|^2\Big)^{1/2}",
        ),
        Step(
            "largest_block",
            largest * sp.sqrt(sp.Add(*[g**2 for g in gap.values()])),
            "largest block in front",
            relation="<=",
            tex=r"\max_h \|E_\pi[s A^\pi \mid h]\| \Big(\sum_{t, h} (\mu_t - \pi_t)(h)^2\Big)^{1/2}",
        ),
        Step(
            "total_variation",
            largest * sp.sqrt(2) * distance,
            "gaps of either sign add up to at most TV_t each",
            relation="<=",
            tex=r"\sqrt 2\, \max_h \|E_\pi[s A^\pi \mid h]\| \sum_t \mathrm{TV}_t",
        ),
        Step(
            "tabular",
            sp.sqrt(2) * advantage * score * distance,
            "norm of a mean <= largest norm",
            relation="<=",
            quantity="tabular_bound",
            tex=r"\sqrt 2\, \max|A^\pi| \max\|s\| \sum_t \mathrm{TV}_t",
        ),
        Step(
            "general",
            2 * advantage * score * distance,
            "without orthogonality only sum_h |gap| = 2 TV_t is left",
            relation="<=",
            quantity="bias_bound",
            tex=r"2 \max|A^\pi| \max\|s\| \sum_t \mathrm{TV}_t",
        ),
    ]


def distance_chain(w: SymbolicWorld) -> list[Step]:
    """Total variation of prefixes, position by position, against that of single tokens."""
    positions = range(w.horizon)

    def telescoped(t: int) -> sp.Expr:
        return sp.Add(
            *[
                w.prior(xi)
                * w.prob_mu(h[:s], xi)
                * sp.Abs(w.mu(w.branches[xi][h[:s]], h[:s], h[s]) - w.pi(h[:s], h[s]))
                * sp.prod([w.pi(h[:r], h[r]) for r in range(s + 1, t)])
                / 2
                for xi in range(len(w.branches))
                for h in live(w, t)
                for s in range(t)
            ]
        )

    def token(s: int) -> sp.Expr:
        return sp.Add(
            *[
                w.prior(xi) * w.prob_mu(h, xi) * sp.Abs(w.mu(w.branches[xi][h], h, a) - w.pi(h, a)) / 2
                for xi in range(len(w.branches))
                for h in live(w, s)
                for a in range(w.vocab_size)
            ]
        )

    return [
        Step(
            "prefix_distance",
            [_distance(w, t) for t in positions],
            "half the L1 distance of the two laws of h_t",
            quantity="prefix_distance",
            tex=r"\mathrm{TV}_t = \tfrac12 \sum_h |\mu_t(h) - \pi_t(h)|",
        ),
        Step(
            "telescope",
            [telescoped(t) for t in positions],
            "exchange mu for pi one token at a time, triangle inequality (over the noise too)",
            relation="<=",
            tex=r"\sum_{s<t} \tfrac12 \sum_{h_t} \mu(h_s)\, |\mu - \pi|(y_s \mid h_s)\, \pi(y_{s+1..t-1} \mid h_{s+1})",
        ),
        Step(
            "token_distance",
            [sp.Add(*[token(s) for s in range(t)]) for t in positions],
            "the pi-tail sums to 1",
            quantity="token_distance_before",
            tex=r"\sum_{s<t} E_\mu[\mathrm{TV}(\pi, \mu \text{ at } h_s)]",
        ),
    ]


def _distance(w: SymbolicWorld, t: int) -> sp.Expr:
    gaps = [_visited(w, h) - w.prob_pi(h) for h in live(w, t)]
    return (sp.Add(*[sp.Abs(g) for g in gaps]) + (sp.Abs(sp.Add(*gaps)) if w.eos is not None else 0)) / 2


def _maximum(values: list[sp.Expr]) -> sp.Expr:
    return sp.Max(*values, evaluate=False) if len(values) > 1 else values[0]


def shared_chain(w: SymbolicWorld) -> list[Step]:
    """Norm of the bias where all prefixes share one softmax: a shared logit collects every prefix's block."""
    tokens = range(w.vocab_size)
    parameters = list(w.parameters)
    update = _at_sampler_prefixes(w, lambda h, a, xi: _advantage(w, h, a))
    bias = [u - g for u, g in zip(update, w.gradient(), strict=True)]
    collected = [sp.Add(*[b for b, (_, c) in zip(bias, parameters, strict=True) if c == token]) for token in tokens]
    blocks = [
        sp.Add(*[(_visited(w, h) - w.prob_pi(h)) * w.pi(h, token) * _advantage(w, h, token) for h in live(w)])
        for token in tokens
    ]
    return [
        Step(
            "shared_logits",
            [sp.sqrt(sp.Add(*[b**2 for b in collected]))],
            "the update minus J differentiated; by the chain rule a shared logit adds up its blocks",
            quantity="bias_norm",
            tex=r"\Big\|\sum_h (\mathrm{update}_h - \nabla_h J)\Big\|",
        ),
        Step(
            "prefix_laws",
            [sp.sqrt(sp.Add(*[b**2 for b in blocks]))],
            "the mean of A over the target's tokens is 0, so each block is the difference of prefix laws times pi A",
            tex=r"\Big\|\sum_h (\mu(h) - \pi(h))\, \pi(\cdot \mid h)\, A(h, \cdot)\Big\|",
        ),
    ]
