"""S11: the Renyi divergence of a segment is a sum over tokens of logs of tilted averages, and is not additive otherwise."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import Any

import sympy as sp
import torch
from torch import Tensor

from testbed.core.prefix_order import node_index
from testbed.exact import ratio_moments, second_moments
from testbed.exact.ratio_moments import ratio_moment, tilted_mean
from testbed.exact.second_moments import start_d2, start_histories
from testbed.exact.values import behavior_table
from testbed.policies.schedule import PrefixSchedule, one
from testbed.stats import ess, kl, kl_k1, renyi2_from_log
from testbed.weighting.granularity import log_ratios
from theory.derivation import Derivation, Step
from theory.noisy_laws import NoisyLaw, measure_noise, noise_derivation
from theory.planting import planted
from theory.real_laws import M, P, R, is_real, real_laws, summand_derivation
from theory.segment_symbols import levels, segment_square, small_worlds, starts, walked
from theory.symbols import symbolic_world
from theory.theorem import Claim, Mutant, Quantities, Theorem
from theory.worlds import World, world

N = 1000  # sample size at which n / d2 is compared


def measure(instance: World | NoisyLaw, power: float = 2.0, kl_power: float = 1.0) -> Quantities:
    """Divergences of every segment from every history it starts in, whole and token by token; closed forms."""
    if isinstance(instance, NoisyLaw):
        return measure_noise(instance)
    law, env, target = instance.law, instance.env, instance.target
    log_pi = behavior_table(env, target)
    log_mu = torch.stack([behavior_table(env, s) for _, s in instance.schedule.branches()])
    nodes = node_index(law.batch.tokens, env.vocab_size)
    token_d2 = ratio_moment(log_pi.expand_as(log_mu), log_mu)
    token_kl = (log_mu.exp() * kl_k1(log_pi - log_mu, direction="target_to_behavior")).sum(-1)
    ratio, branch = log_ratios(law.batch).double(), law.branch[:, None]
    rows: dict[str, list[Tensor]] = {}
    for k in range(len(instance.behaviors)):
        inside = (law.batch.segment == k) & law.batch.mask
        steps = torch.where(inside, ratio, 0.0)
        so_far = torch.cat([torch.zeros_like(steps[:, :1]), steps.cumsum(1)[:, :-1]], 1)
        d2 = torch.where(inside, token_d2[branch, nodes], 1.0)
        divergence = torch.where(inside, token_kl[branch, nodes], 0.0)
        by_recursion = start_d2(law, env, target, instance.schedule)[:, k].log()
        index = start_histories(law, k)
        for g in range(int(index.max()) + 1):
            at = index == g
            log_prob, whole, before = law.log_prob[at], steps[at].sum(1), so_far[at]
            given = torch.softmax(log_prob, 0)
            mean = tilted_mean(d2[at], log_prob, before, power)
            spread = tilted_mean((d2[at] - mean) ** 2, log_prob, before, power)
            logs = tilted_mean(d2[at].log(), log_prob, before, power).sum()
            found = {
                "renyi": torch.tensor(renyi2_from_log(whole, probs=given), dtype=torch.float64), "chain": mean.log().sum(),
                "table": by_recursion[at][0], "log_inside": logs,
                "log_inside_and_gap": logs + (spread / (2 * d2[at].amax(0) ** 2)).sum(),
                "kl": kl(whole, probs=given, estimator="k1", direction="target_to_behavior"),
                "kl_sum": tilted_mean(divergence[at], log_prob, before, kl_power).sum(),
            }  # fmt: skip
            if float(spread.max()) < 1e-20:
                found |= {"constant_left": logs, "constant_right": found["renyi"]}
            for name, value in found.items():
                rows.setdefault(name, []).append(value)
    values: dict[str, Any] = {name: torch.stack(column) for name, column in rows.items()}
    pi, mu = log_pi.exp(), log_mu[0].exp()
    values |= {"token_d2": token_d2[0], "categorical": 1 + ((pi - mu) ** 2 / mu).sum(-1)}
    if env.vocab_size == 2:
        values["bernoulli"] = 1 + (pi[:, 0] - mu[:, 0]) ** 2 / (mu[:, 0] * (1 - mu[:, 0]))
    if len(instance.behaviors) == 1:
        values["kish"] = ess(ratio.sum(1).exp(), probs=law.probs, n=N)
        values["n_over_d2"] = N * torch.exp(-values["renyi"][0])
    if is_real(instance):
        values["summand"] = law.probs * (2 * ratio[:, 0]).exp()
    return values


@lru_cache(maxsize=32)
def _derivation(shape: tuple[Any, ...], with_kl: bool) -> Derivation:
    w = symbolic_world(shape)
    lines: list[list[sp.Expr]] = [[] for _ in range(7)]
    for k in range(w.n_behaviors):
        for b, h in starts(w, k):
            whole, level = segment_square(w, b, k, h), levels(w, b, k, h)
            sums = [*(x[0] for x in level), whole]
            through = walked(w, b, k, h)
            ratio = [sp.Add(*[sp.log(w.rho(k, g, a)) for g, a in way]) for way in through]
            drawn = [sp.prod([w.mu(k, g, a) * w.rho(k, g, a) for g, a in way]) for way in through]
            on_policy = [sp.prod([w.pi(g, a) for g, a in way]) for way in through]
            for line, expr in zip(lines, (
                sp.log(whole),
                sp.Add(*[sp.log(after / before) for before, after in pairwise(sums)]),
                sp.Add(*[sp.log(x[1] / x[0]) for x in level]),
                sp.Add(*[x[2] / x[0] for x in level]),
                sp.Add(*[p * r for p, r in zip(drawn, ratio, strict=True)]),
                sp.Add(*[p * r for p, r in zip(on_policy, ratio, strict=True)]),
                sp.Add(*[x[3] for x in level]),
            ), strict=True):  # fmt: skip
                line.append(expr)
    blocks = [(w.branches[0][h], h) for h in w.prefixes]
    words = range(w.vocab_size)
    laws = [[(w.pi(h, a), w.mu(k, h, a)) for a in words] for k, h in blocks]
    closed = [
        Step("token", [sp.Add(*[p**2 / m for p, m in law]) for law in laws], "d2 of one token", quantity="token_d2",
             tex=r"d_2 = \sum_y \pi_y^2/\mu_y"),
        Step("categorical", [1 + sp.Add(*[(p - m) ** 2 / m for p, m in law]) for law in laws], "both laws sum to 1",
             quantity="categorical", tex=r"1 + \sum_y (\pi_y - \mu_y)^2/\mu_y"),
    ]  # fmt: skip
    if w.vocab_size == 2:
        closed.append(Step("bernoulli", [1 + (p - m) ** 2 / (m * (1 - m)) for ((p, m), _) in laws],
                           "two words: the differences are opposite, and 1/m + 1/(1-m) = 1/(m(1-m))",
                           quantity="bernoulli", tex=r"1 + (p-q)^2/(q(1-q))"))  # fmt: skip
    chains = [[
        Step("definition", lines[0], "log of the mu-average of the squared ratios of the segment", quantity="renyi",
             tex=r"D_2 = \log E_\mu[W^2]"),
        Step("telescope", lines[1], "one factor per token", tex=r"\sum_t \log (E_\mu[W_t^2] / E_\mu[W_{t-1}^2])"),
        Step("tower", lines[2], "given H_t, W_{t-1} is known and the next squared ratio has mean d2(pi, mu at H_t)",
             quantity="chain", tex=r"\sum_t \log E_{\nu_t}[d_2(H_t)],\quad \nu_t \propto \mu W_{t-1}^2"),
    ], [
        Step("log_inside", lines[3], "the reading with E log in place of log E", quantity="log_inside",
             tex=r"\sum_t E_{\nu_t}[\log d_2(H_t)]"),
        Step("jensen", lines[2], "log is strictly concave", "<=", quantity="chain",
             tex=r"\sum_t \log E_{\nu_t}[d_2(H_t)]"),
    ], closed]  # fmt: skip
    if with_kl:
        chains.append([
            Step("definition", lines[4], "KL(pi||mu) of the whole segment", quantity="kl", tex=r"E_\mu[W \log W]"),
            Step("on_policy", lines[5], "mu W = pi", tex=r"E_\pi[\sum_t \log \rho_t]"),
            Step("tower", lines[6], "one token given its history, under pi itself", quantity="kl_sum",
                 tex=r"\sum_t E_\pi[KL(\pi, \mu \text{ at } H_t)]"),
        ])  # fmt: skip
    return Derivation(chains, w.point, w.bind)


@lru_cache(maxsize=1)
def _summand() -> Derivation:
    return summand_derivation([
        Step("definition", M * R**2, "one word's share of d2", quantity="summand", tex=r"\mu \rho^2"),
        Step("categorical", (P - M) ** 2 / M + 2 * P - M, "rho = pi/mu; over all words 2 pi - mu sums to 1",
             quantity="summand", tex=r"(\pi - \mu)^2/\mu + 2\pi - \mu"),
    ])  # fmt: skip


def derive(instance: World | NoisyLaw) -> Derivation:
    """Derivation of an instance: of a noisy law, of one summand of a recorded law, or of a world's shape."""
    if isinstance(instance, NoisyLaw):
        return noise_derivation(len(instance.probs))
    if is_real(instance):
        return _summand()
    return _derivation(instance.shape, bool(torch.isfinite(instance.target.table).all()))


def instances() -> list[World | NoisyLaw]:
    """Shared worlds, one coin, recorded laws, and laws with noise on their logits (none at all and one sure word too)."""
    return [
        *small_worlds(),
        world("one_coin", 2, 1, one(), behaviors=1),
        *real_laws(),
        NoisyLaw(name="noise_on_two", probs=(0.3, 0.7), sigma=0.5),
        NoisyLaw(name="noise_on_three", probs=(0.2, 0.3, 0.5), sigma=1.0),
        NoisyLaw(name="no_noise", probs=(0.2, 0.3, 0.5), sigma=0.0, points=2),
        NoisyLaw(name="sure_word", probs=(1.0, 0.0), sigma=1.0),
    ]


def first_power(right: Any) -> Any:
    """Bug: the tilt uses the weight, not its square."""
    return lambda values, log_prob, log_weight, power=2.0: right(values, log_prob, log_weight, min(power, 1.0))


def late_boundaries(right: Any) -> Any:
    """Bug: the recursion looks a token's segment up one token too early."""

    def wrong(env: Any, target: Any, source: Any) -> Tensor:
        return right(env, target, PrefixSchedule(source.policies, lambda h: source.segment(h[:-1])))

    return wrong


THEOREM = Theorem(
    id="S11",
    kind="identity",
    title="Renyi divergence adds up over tokens only under laws tilted by the squared weight",
    hypotheses=(
        "one behavior mu per segment, W_t the product of its ratios from the segment's start (history given) through t",
        "nu_t proportional to mu W_{t-1}^2; tokens after the segment's end count as d2 = 1",
        "KL: mu supports pi",
        "noise: delta_j independent N(0, sigma^2), one per logit of one prefix, on the sampler: mu = softmax(log p + delta)",
    ),
    statement="D2(segment) = sum_t log E_{nu_t}[d2(pi, mu at H_t)] >= sum_t E_{nu_t}[log d2], strictly unless d2 is constant "
    "under each nu_t; KL(segment) = sum_t E_pi[KL at H_t]; d2 = 1 + (p-q)^2/(q(1-q)) for two words, 1 + sum (p-q)^2/q in "
    "general; E_delta d2 = sum p^2 + e^{sigma^2} (1 - sum p^2)",
    source="ours; KL: literature (chain rule)",
    references=("van Erven and Harremoes, Renyi divergence and Kullback-Leibler divergence, 2014",),
    claims=(
        Claim("chain", "equal", "renyi", "chain", "D2 of a segment = sum of logs of tilted averages"),
        Claim("table", "equal", "renyi", "table", "and the backward recursion over prefixes gives the same"),
        Claim("lower_bound", "at_most", "log_inside", "renyi", "E log in place of log E is a lower bound"),
        Claim("strictly", "at_most", "log_inside_and_gap", "renyi", "by at least sum Var/(2 max^2): strict unless constant"),
        Claim("constant", "equal", "constant_left", "constant_right", "equality where d2 is constant under each nu_t"),
        Claim("kl_chain", "equal", "kl", "kl_sum", "KL is additive under pi itself"),
        Claim("kish_limit", "equal", "kish", "n_over_d2", "population effective sample size = n exp(-D2)"),
        Claim("categorical", "equal", "token_d2", "categorical", "closed form of one token"),
        Claim("bernoulli", "equal", "token_d2", "bernoulli", "closed form of two words"),
        Claim("noise", "equal", "noise", "closed", "expected d2 under Gaussian noise on the sampler's logits"),
    ),
    instances=instances,
    measure=measure,
    derive=derive,
    outcome="Token divergences averaged over visited prefixes do not add up to a response's D2; tilted ones do.",
    mutants=(
        Mutant(name="averaged_under_behavior", kind="hypothesis", breaks=("chain",), on=("one_segment",),
               measure=lambda w: measure(w, 0.0), why="untilted averages; needs two tokens in a segment and d2 that varies"),
        Mutant(name="averaged_under_target", kind="hypothesis", breaks=("chain",), on=("one_segment",),
               measure=lambda w: measure(w, 1.0), why="the law under which KL is additive; needs the same"),
        Mutant(name="kl_averaged_under_behavior", kind="hypothesis", breaks=("kl_chain",), on=("one_segment",),
               measure=lambda w: measure(w, kl_power=0.0), why="KL(pi||mu) of the prefixes mu visits instead of pi"),
        Mutant(name="noise_on_target", kind="hypothesis", breaks=("noise",), on=("noise_on_three",),
               measure=lambda law: measure_noise(law, "target"),
               why="noise on pi instead of mu: its normalizer enters squared; needs more than one possible word"),
        Mutant(name="correlated_noise", kind="hypothesis", breaks=("noise",), on=("noise_on_two", "noise_on_three"),
               measure=lambda law: measure_noise(law, "correlated"),
               why="logits that move together change no law: correlation 1/2 with the first logit shrinks d2"),
        Mutant(name="tilt_not_squared", kind="bug", breaks=("chain",), on=("one_segment",),
               plant=lambda: planted(ratio_moments, "tilted_mean", first_power),
               why="tilted_mean weighs by W instead of W^2; needs two tokens in a segment and d2 that varies"),
        Mutant(name="ratio_inverted", kind="bug", breaks=("noise",), on=("noise_on_three",),
               plant=lambda: planted(ratio_moments, "powered_measure", lambda right: lambda p, m, k: right(m, p, k)),
               why="d2 of the behavior from the target: for noise on mu the two differ, see noise_on_target"),
        Mutant(name="labels_shifted", kind="bug", breaks=("table",), on=("two_segments", "stopping_time"),
               plant=lambda: planted(second_moments, "segment_d2", late_boundaries),
               why="the backward recursion puts every boundary one token late; needs a boundary inside the response"),
    ),
)  # fmt: skip
