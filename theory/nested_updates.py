"""Chains of S2 to S5 over nested sums: gradients of targets whose parameters are shared, as a transformer's are.

Everything is about one parameter i. Where the tabular chains differentiate in a logit of one prefix, these use that the
probabilities after every prefix sum to 1 whatever i is, and nothing else about the parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import sympy as sp

from testbed.core.prefix_order import node_count
from theory.derivation import Derivation, Step
from theory.nested_trees import NestedTree
from theory.transformer_worlds import TransformerWorld

At = Callable[[int], sp.Expr]  # position -> expression in the tokens up to it


def _drawn(w: NestedTree, of: At) -> sp.Expr:
    """E_mu[sum_t X_t] over whole responses and the noise."""
    law = w.prior() * w.through(w.horizon, w.mu, w.y)
    return w.sum(law * sp.Add(*[of(t) for t in w.positions]), w.y, noise=True)


def _corrected(w: NestedTree, of: At, later: Callable[[int, int], sp.Expr]) -> sp.Expr:
    """The same after the ratios cancelled: pi through t, and `later(t, u)` for the tokens behind it."""
    terms = []
    for t in w.positions:
        rest = sp.prod([later(t, u) for u in range(t + 1, w.horizon + 1)])
        terms.append(w.sum(w.prior() * w.through(t, w.pi, w.y) * rest * of(t), w.y, noise=True))
    return sp.Add(*terms)


def _on_policy(w: NestedTree, of: At, noise: bool = False) -> sp.Expr:
    """sum_t E_pi[X_t] over the tokens up to t, averaged over the noise if X depends on it."""
    prior = w.prior() if noise else sp.Integer(1)
    return sp.Add(*[w.sum(prior * w.through(t, w.pi, w.y) * of(t), w.y[:t], noise) for t in w.positions])


def _stale_prefixes(w: NestedTree, of: At, before: At | None = None) -> sp.Expr:
    """sum_t E_{h_t ~ mu} E_{y_t ~ pi}[X_t]; `before` replaces the probability of the prefix."""
    law = before or (lambda t: w.through(t - 1, w.mu, w.y))
    return sp.Add(*[w.sum(w.prior() * law(t) * w.pi(t, w.y) * of(t), w.y[:t], True) for t in w.positions])


def full_product_chain(w: NestedTree) -> list[Step]:
    """S2: product of all recorded ratios."""
    signal = w.total_return(w.y) * sp.Add(*[w.score(t, w.y) for t in w.positions])
    law, weight = (w.through(w.horizon, f, w.y) for f in (w.mu, w.ratio))
    target = w.through(w.horizon, w.pi, w.y)
    return [
        Step("definition", w.sum(w.prior() * law * weight * signal, w.y, True),
             "sampler's law, product of all recorded ratios, reward, sum of scores", quantity="estimator",
             tex=r"\sum_{\xi, y} P(\xi) \prod_t \mu_\xi(y_t \mid h_t) \prod_t \rho_t\, R(y) \sum_t s_t"),
        Step("ratios", w.sum(w.prior() * target * signal, w.y, True), "mu rho = pi, token by token",
             tex=r"\sum_{\xi, y} P(\xi) \prod_t \pi(y_t \mid h_t)\, R(y) \sum_t s_t"),
        Step("on_policy", w.sum(target * signal, w.y), "the noise of the schedule sums out",
             tex=r"\sum_y \pi(y) R(y) \sum_t s_t"),
        Step("log_derivative", w.gradient(), "d pi = pi s in every parameter; the right side is J, differentiated",
             quantity="gradient", tex=r"\frac{d}{d\theta_i} \sum_y \prod_t \pi_\theta(y_t \mid h_t)\, R(y)"),
    ]  # fmt: skip


def critic_chain(w: NestedTree) -> list[Step]:
    """S3: prefix products with the target's critic and any baseline."""

    def known(t: int) -> sp.Expr:
        return w.score(t, w.y) * (w.action_value(t) - w.baseline(t, w.y))

    return [
        Step("definition", _drawn(w, lambda t: w.through(t, w.ratio, w.y) * known(t)),
             "sampler's law, prefix products, scores times critic minus baseline", quantity="critic_minus_baseline",
             tex=r"E_\mu\Big[\sum_t W_t s_t (Q^\pi(h_t, y_t) - b(h_t))\Big]"),
        Step("ratios", _corrected(w, known, lambda t, u: w.mu(u, w.y)), "mu rho = pi up to and including t",
             tex=r"\sum_t \sum_{\xi, y} P(\xi)\, \pi(y_{\le t})\, \mu(y_{>t} \mid y_{\le t})\, s_t (Q^\pi - b)"),
        Step("continuation", _on_policy(w, known), "what follows t appears in no factor: it sums to 1, and so does the noise",
             tex=r"\sum_t E_\pi[s_t (Q^\pi(h_t, y_t) - b(h_t))]"),
        Step("baseline", _on_policy(w, lambda t: w.score(t, w.y) * w.action_value(t)),
             "the probabilities after h_t sum to 1 whatever the parameter: E_pi[s_t | h_t] = 0", quantity="critic",
             tex=r"\sum_t E_\pi[s_t Q^\pi(h_t, y_t)]"),
        Step("gradient", w.gradient(), "policy-gradient theorem; the right side is J, differentiated", quantity="gradient",
             tex=r"\frac{d}{d\theta_i} \sum_y \pi_\theta(y) R(y)"),
    ]  # fmt: skip


def per_decision_chain(w: NestedTree) -> list[Step]:
    """S3: each per-step reward under its own prefix product."""

    def credit(u: int) -> sp.Expr:
        return w.step_reward(u, w.y) * sp.Add(*[w.score(t, w.y) for t in range(1, u + 1)])

    return [
        Step("definition", _drawn(w, lambda u: w.through(u, w.ratio, w.y) * credit(u)),
             "each per-step reward under its own prefix product credits the scores up to it", quantity="per_decision",
             tex=r"E_\mu\Big[\sum_u r_u W_u \sum_{t \le u} s_t\Big]"),
        Step("ratios", _corrected(w, credit, lambda t, u: w.mu(u, w.y)), "mu rho = pi up to and including u",
             tex=r"\sum_u \sum_{\xi, y} P(\xi)\, \pi(y_{\le u})\, \mu(y_{>u} \mid y_{\le u})\, r_u \sum_{t \le u} s_t"),
        Step("continuation", _on_policy(w, credit), "what follows u sums to 1, and so does the noise",
             tex=r"\sum_u E_\pi\Big[r_u \sum_{t \le u} s_t\Big]"),
        Step("gradient", w.gradient(), "scores after u have mean 0 given what r_u depends on; J, differentiated",
             quantity="gradient", tex=r"\frac{d}{d\theta_i} E_\pi\Big[\sum_u r_u\Big]"),
    ]  # fmt: skip


def bias_chain(w: NestedTree, reading: str) -> list[Step]:
    """S4: bias of the prefix product ("prefix") or the product through the segment's end ("segment_end") with a bare reward."""
    gradient, reward = w.gradient(), w.total_return(w.y)

    def left(t: int, u: int, y: Any) -> sp.Expr:
        """Law of token u > t once the ratios cancelled."""
        if reading == "prefix":
            return w.mu(u, y)
        inside = w.same_segment(t, u, y)
        return inside * w.pi(u, y) + (1 - inside) * w.mu(u, y)

    def weight(t: int) -> sp.Expr:
        stop = w.through(t, w.ratio, w.y)
        if reading == "prefix":
            return stop
        rest = [1 + w.same_segment(t, u, w.y) * (w.ratio(u, w.y) - 1) for u in range(t + 1, w.horizon + 1)]
        return stop * sp.prod(rest)

    def after(t: int) -> sp.Expr:
        return w.continued(t, lambda u, y: left(t, u, y))

    what = "the product through t" if reading == "prefix" else "the product through the end of t's segment"
    symbol = "W_t" if reading == "prefix" else "W_{(S_t)}"
    return [
        Step("definition", _drawn(w, lambda t: weight(t) * w.score(t, w.y) * reward) - gradient,
             f"{what} times score times terminal reward, minus J differentiated", quantity=f"{reading}_bias",
             tex=rf"E_\mu\Big[\sum_t {symbol} s_t R\Big] - \frac{{dJ}}{{d\theta_i}}"),
        Step("ratios", _corrected(w, lambda t: w.score(t, w.y) * reward, lambda t, u: left(t, u, w.y)) - gradient,
             f"mu rho = pi over {what}",
             tex=r"\sum_t \sum_{\xi, y} P(\xi)\, \pi(\cdot)\, \mu_\xi(\mathrm{rest})\, s_t R - \frac{dJ}{d\theta_i}"),
        Step("continuation", _on_policy(w, lambda t: w.score(t, w.y) * after(t), noise=True) - gradient,
             "the rest stays the sampler's and sums to its Q; pi does not depend on xi, so xi keeps its prior",
             tex=r"\sum_t E_\xi E_\pi[s_t\, Q^{\mu_\xi}(h_t, y_t)] - \frac{dJ}{d\theta_i}"),
        Step("policy_gradient_theorem",
             _on_policy(w, lambda t: w.score(t, w.y) * (after(t) - w.action_value(t)), noise=True),
             "dJ is the same sum with Q of the target", quantity=f"{reading}_predicted",
             tex=r"E_\pi\Big[\sum_t s_t D(h_t, y_t)\Big],\ D = E_\xi[Q^{\mu_\xi}] - Q^\pi"),
    ]  # fmt: skip


def update_chain(w: NestedTree) -> list[Step]:
    """S5: token ratio times A^pi."""

    def known(t: int) -> sp.Expr:
        return w.score(t, w.y) * w.advantage(t)

    replaced = sp.Add(*[
        w.sum(w.prior() * w.through(t - 1, w.mu, w.y) * w.pi(t, w.y) * w.through(w.horizon, w.mu, w.y, t + 1) * known(t),
              w.y, True)
        for t in w.positions
    ])  # fmt: skip
    return [
        Step("definition", _drawn(w, lambda t: w.ratio(t, w.y) * known(t)),
             "sampler's law, one ratio per token, score, advantage of the target", quantity="token_update",
             tex=r"E_\mu\Big[\sum_t \rho_t s_t A^\pi(h_t, y_t)\Big]"),
        Step("ratio", replaced, "rho_t replaces mu(y_t|h_t) by pi(y_t|h_t), no more",
             tex=r"\sum_t \sum_{\xi, y} P(\xi)\, \mu(h_t)\, \pi(y_t \mid h_t)\, \mu(y_{>t} \mid h_t, y_t)\, s_t A^\pi"),
        Step("behavior_prefixes", _stale_prefixes(w, known), "what follows t sums to 1", quantity="prefix_update",
             tex=r"\sum_t E_{h_t \sim \mu}\, E_{y_t \sim \pi}[s_t A^\pi(h_t, y_t)]"),
    ]  # fmt: skip


def terminal_chain(w: NestedTree) -> list[Step]:
    """S5: token ratio times the terminal reward."""
    reward = w.total_return(w.y)

    def moved(t: int) -> sp.Expr:
        return w.through(t - 1, w.mu, w.y) - w.through(t - 1, w.pi, w.y)

    def critic(t: int) -> sp.Expr:
        return w.continued(t, w.mu)

    state = _stale_prefixes(w, lambda t: w.score(t, w.y) * w.advantage(t), moved)
    behind = _stale_prefixes(w, lambda t: w.score(t, w.y) * (critic(t) - w.action_value(t)))
    return [
        Step("terminal_definition", _drawn(w, lambda t: w.ratio(t, w.y) * w.score(t, w.y) * reward),
             "the same with the reward of the whole response", quantity="terminal_update",
             tex=r"E_\mu\Big[\sum_t \rho_t s_t R\Big]"),
        Step("behavior_critic", _stale_prefixes(w, lambda t: w.score(t, w.y) * critic(t)),
             "mu rho = pi at t alone; the rest stays the sampler's and sums to Q of the realized behaviors",
             quantity="terminal_predicted", tex=r"\sum_t E_{\xi, h_t \sim \mu}\, E_{y_t \sim \pi}[s_t Q^{\mu_\xi}(h_t, y_t)]"),
        Step("both_biases", w.gradient() + state + behind,
             "add and subtract the target's critic and prefixes; dJ by differentiation", quantity="terminal_decomposed",
             tex=r"\frac{dJ}{d\theta_i} + \sum_{t,h} (\mu_t - \pi_t)(h) E_\pi[s A^\pi] + "
                 r"\sum_t E_{\xi,\mu} E_\pi[s (Q^{\mu_\xi} - Q^\pi)]"),
    ]  # fmt: skip


@lru_cache(maxsize=16)
def nested_derivation(theorem_id: str, horizon: int, has_steps: bool = False) -> Derivation:
    """Derivation of S2, S4 or S5 for transformers of this many positions."""
    w = NestedTree(horizon, has_steps)
    chains = {
        "S2": lambda: [full_product_chain(w)],
        "S4": lambda: [bias_chain(w, "prefix"), bias_chain(w, "segment_end")],
        "S5": lambda: [update_chain(w), terminal_chain(w)],
    }[theorem_id]()
    return Derivation(chains, w.point, w.bind)


@lru_cache(maxsize=8)
def baseline_derivation(horizon: int, has_steps: bool, baseline: Callable[[int], Any]) -> Derivation:
    """Derivation of S3; `baseline` gives the values [N, 1] that an instance of N prefixes is measured with."""
    w = NestedTree(horizon, has_steps)

    def bind(instance: TransformerWorld) -> Any:
        size = instance.env.vocab_size
        values = baseline(node_count(size, horizon))[:, 0].numpy()
        rows = {t: values[node_count(size, t - 1) : node_count(size, t)] for t in w.positions}
        return {**w.bind(instance), **{w.b[t].label: rows[t].reshape([size] * (t - 1) or 1) for t in w.positions}}

    return Derivation([critic_chain(w)] + ([per_decision_chain(w)] if has_steps else []), w.point, bind)
