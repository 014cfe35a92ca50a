"""K6: weights p/q_mix for several behaviors: what bounds them, what bounds their variance, and what does not."""

from __future__ import annotations

from typing import Any

import torch

from testbed.estimators import multiple_importance
from testbed.estimators.multiple_importance import balance_shares, mixture_weight, shared_moments
from theory.balance_algebra import balance_derivation
from theory.behavior_mixtures import Mixture, mixture, random_mixture, recorded_mixture
from theory.derivation import Derivation
from theory.planting import planted
from theory.theorem import Claim, Mutant, Quantities, Theorem


def measure(m: Mixture) -> Quantities:
    """Library's weights, shares and exact moments, for the balance heuristic and for the partitions of the instance."""
    n, total, drawn = m.counts, m.counts.sum(), m.drawn
    weight, shares = mixture_weight(m.target, m.behaviors, n), balance_shares(m.behaviors, n)
    ratio = (m.target - torch.where(drawn, m.behaviors, 0.0)).exp()
    found: dict[str, Any] = {
        "mixture_weight": weight.expand_as(ratio)[drawn], "single_weight": (total / n[:, None] * ratio)[drawn],
        "pooled": (weight / total).expand_as(ratio)[drawn], "shared": (shares * ratio / n[:, None])[drawn],
    }  # fmt: skip
    if m.name.startswith("defensive"):
        found |= {"largest": weight.max(), "share_of_target": total / n[0]}
    if m.name == "rare_word":
        found |= {"largest_here": weight.max(), "wrong_limit": total / n.max()}
    balance = shared_moments(m.values, m.target, m.behaviors, n, shares)
    others = [shared_moments(m.values, m.target, m.behaviors, n, omega) for omega in m.partitions]
    exact = (m.target.exp() * m.values).sum()
    variance = torch.stack([o.variance for o in others])
    extra = torch.stack([(o.parts**2 / n).sum() for o in others])
    found |= {
        "first_mean": others[0].mean, "first_variance": variance[0], "first_parts": extra[0],
        "balance_parts": (balance.parts**2 / n).sum(),
        "means": torch.stack([balance.mean, *(o.mean for o in others)]), "exact": exact,
        "balance_variance": balance.variance, "signed_bound": variance + extra - (balance.parts**2 / n).sum(),
        "balance_second": balance.variance + (balance.parts**2 / n).sum(), "first_second": (variance + extra)[0],
    }  # fmt: skip
    bound = variance + (1 / n.min() - 1 / total) * exact**2
    if bool((m.values >= 0).all()):
        found |= {"balance_here": balance.variance, "nonnegative_bound": bound}
    if m.name == "opposite_signs":
        found |= {
            "signed_variance": balance.variance,
            "printed_bound": bound[0],
            "nine_fiftieths": 9 / 50,
            "eighteenth": 1 / 18,
        }
    if len(n) == 1:
        plain = m.values * ratio[0]
        found |= {"alone": balance.variance, "plain": (m.behaviors[0].exp() * (plain - exact) ** 2).sum() / n[0]}
    return found


def derive(m: Mixture) -> Derivation:
    """One derivation for all laws; where f >= 0 it goes on to (b)."""
    return balance_derivation(bool((m.values >= 0).all()))


def opposite_signs(name: str = "opposite_signs") -> Mixture:
    """Two behaviors, each keeping the response it draws nine times in ten; f = 1 and -1, of mean 0."""
    apart = [[[1.0, 0.0], [0.0, 1.0]]]
    return mixture(name, [0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]], [1.0, 1.0], [1.0, -1.0], apart)


def instances() -> list[Mixture]:
    """Two to four behaviors, far from and equal to the target; partly blind ones; one alone; a language model's."""
    same = [0.2, 0.3, 0.5]
    return [
        random_mixture("two_behaviors", 3, [1, 4]),
        random_mixture("three_behaviors", 2, [2, 3, 1], signed=True),
        random_mixture("four_behaviors", 40, [1, 5, 2, 8]),
        random_mixture("four_behaviors_signed", 40, [1, 5, 2, 8], signed=True),
        random_mixture("defensive", 3, [1, 3], first=True),
        random_mixture("defensive_four", 20, [2, 6, 1, 7], first=True),
        mixture("all_on_policy", same, [same, same], [2.0, 3.0], [1.0, 0.0, 2.0]),
        mixture("one_behavior", same, [[0.5, 0.3, 0.2]], [4.0], [1.0, 0.0, 2.0]),
        mixture("partly_blind", same, [[0.6, 0.4, 0.0], [0.0, 0.3, 0.7]], [2.0, 5.0], [1.0, 2.0, 0.5]),
        mixture("rare_word", [0.5, 0.5], [[0.9, 0.1], [0.9, 0.1]], [1.0, 1.0], [1.0, 1.0]),
        opposite_signs(),
        recorded_mixture(6, ("v0_bf16", "v1_int8w", "v1_int8_dynamic"), [8.0, 4.0, 4.0]),
        recorded_mixture(2, ("v1_int8_dynamic", "v1_f32"), [3.0, 1.0]),
    ]


def signed() -> list[Mixture]:
    """F is 1 and -1 where f >= 0 is assumed."""
    return [opposite_signs("signed")]


def negative_shares() -> list[Mixture]:
    """The target as an affine combination of the behaviors: shares 89 q_1/p and -88 q_2/p estimate the mean without variance."""
    p, q = (
        torch.tensor([0.9, 0.1], dtype=torch.float64),
        torch.tensor([[0.02, 0.98], [0.01, 0.99]], dtype=torch.float64),
    )
    shares = torch.tensor([[89.0], [-88.0]], dtype=torch.float64) * q / p
    return [mixture("negative_shares", p.tolist(), q.tolist(), [1.0, 1.0], [1.0, 1.0], [shares.tolist()])]


def blind_shares() -> list[Mixture]:
    """Equal shares, also of a response that the first behavior cannot draw."""
    half = [[[0.5] * 3] * 2]
    return [
        mixture("blind_shares", [0.2, 0.3, 0.5], [[0.6, 0.4, 0.0], [0.2, 0.3, 0.5]], [2.0, 5.0], [1.0, 2.0, 0.5], half)
    ]


def not_the_target() -> list[Mixture]:
    """A first behavior that is not the target."""
    return [mixture("defensive_without_target", [0.5, 0.5], [[0.9, 0.1], [0.8, 0.2]], [3.0, 1.0], [1.0, 1.0])]


def nonnegative_claimed(m: Mixture) -> Quantities:
    """Mutated reading: the bound for nonnegative f, whatever the sign of f."""
    found = dict(measure(m))
    balance = shared_moments(m.values, m.target, m.behaviors, m.counts, balance_shares(m.behaviors, m.counts))
    other = shared_moments(m.values, m.target, m.behaviors, m.counts, m.partitions[0])
    slack = (1 / m.counts.min() - 1 / m.counts.sum()) * other.mean**2
    return found | {"balance_here": balance.variance, "nonnegative_bound": other.variance + slack}


def counts_ignored(right: Any) -> Any:
    """Bug: every behavior counts alike, however many responses it drew."""
    return lambda *args: right(*args[:-1], torch.ones_like(args[-1]))


def inverted(right: Any) -> Any:
    """Bug: shares in proportion to n_j/q_j: the behavior that draws a response least gets most of it."""

    def wrong(logp_behaviors: Any, counts: Any) -> Any:
        inverse = torch.where(logp_behaviors > -torch.inf, -logp_behaviors, -torch.inf) + counts.log()[:, None]
        return torch.softmax(inverse, 0)

    return wrong


TOLD_APART = ("two_behaviors", "four_behaviors")
THEOREM = Theorem(
    id="K6",
    kind="bound",
    title="the balance heuristic: weights and variance are bounded by those of any single behavior, within stated limits",
    hypotheses=(
        "n_j independent responses from behavior q_j, n = sum n_j, q_mix = sum (n_j/n) q_j",
        "omega is a partition of unity, omega >= 0, with omega_j = 0 where q_j = 0 and f p != 0; some q_j > 0 wherever f p != 0",
        "(b) f >= 0; the defensive bound: behavior 0 is the target",
    ),
    statement="(a) p/q_mix <= (n/n_j) p/q_j, hence <= n/n_0 if q_0 = p; "
    "(b) f >= 0: Var(bal) <= Var(omega) + (1/min n_j - 1/n) mu^2; "
    "(c) any f: Var(bal) <= Var(omega) + sum_j mu_j(omega)^2/n_j - sum_j mu_j(bal)^2/n_j; "
    "(d) p/q_mix <= n/n_j without q_j = p, and (b) for signed f, are false",
    source="literature (Veach and Guibas 1995; Owen, theorem 9.8); (c) and the counterexamples: ours",
    references=(
        "Veach and Guibas, Optimally combining sampling techniques for Monte Carlo rendering, SIGGRAPH 1995",
        "Owen, Monte Carlo theory, methods and examples, chapter 9",
    ),
    claims=(
        Claim("weights", "at_most", "mixture_weight", "single_weight", "(a) p/q_mix <= (n/n_j) p/q_j wherever q_j draws"),
        Claim("defensive", "at_most", "largest", "share_of_target", "(a) if behavior 0 is the target: at most n/n_0"),
        Claim("pooled", "equal", "pooled", "shared", "balance shares are the plain mean over all n with weight p/q_mix"),
        Claim("unbiased", "equal", "means", "exact", "every partition of unity has mean E_p f"),
        Claim("nonnegative", "at_most", "balance_here", "nonnegative_bound", "(b) f >= 0, against all partitions"),
        Claim("signed", "at_most", "balance_variance", "signed_bound", "(c) any f, against all partitions"),
        Claim("alone", "equal", "alone", "plain", "one behavior: ordinary importance sampling"),
        Claim("no_weight_limit", "at_most", "wrong_limit", "largest_here", "(d) n/n_j = 2 (left) lies below the largest weight"),
        Claim("weight_margin", "differs", "wrong_limit", "largest_here", "(d) by a margin: the weight is 5", margin=0.5),
        Claim("signed_above", "at_most", "printed_bound", "signed_variance", "(d) signed f: (b)'s bound lies below the variance"),
        Claim("signed_margin", "differs", "printed_bound", "signed_variance", "(d) by a margin", margin=0.5),
        Claim("signed_variance", "equal", "signed_variance", "nine_fiftieths", "(d) where the variance is 9/50"),
        Claim("signed_printed", "equal", "printed_bound", "eighteenth", "(d) and (b)'s bound 1/18"),
    ),
    instances=instances,
    measure=measure,
    derive=derive,
    outcome="Keep on-policy data among the replay: it caps every weight at n/n_0; for rewards of one sign balance is near best.",
    mutants=(
        Mutant(name="signed_f", kind="hypothesis", breaks=("nonnegative",), instances=signed, measure=nonnegative_claimed,
               why="f = 1 and -1: the other partition's parts cancel in mu, so mu^2 does not bound what it subtracts"),
        Mutant(name="negative_shares", kind="hypothesis", breaks=("nonnegative",), instances=negative_shares,
               why="shares of both signs estimate f = 1 without variance; needs a target outside the behaviors' hull"),
        Mutant(name="shares_outside_support", kind="hypothesis", breaks=("unbiased", "signed"), instances=blind_shares,
               why="half of a response's share is lost with a behavior that never draws it, and with its share of the variance"),
        Mutant(name="target_not_among_the_behaviors", kind="hypothesis", breaks=("defensive",), instances=not_the_target,
               why="both behaviors hardly draw what the target draws half of the time: (d)'s instance"),
        Mutant(name="counts_ignored", kind="bug", breaks=("weights", "pooled"), on=TOLD_APART,
               plant=lambda: planted(multiple_importance, "mixture_weight", counts_ignored),
               why="the mixture of all behaviors in equal parts is not what was drawn; needs unequal n_j"),
        Mutant(name="shares_inverted", kind="bug", breaks=("pooled", "nonnegative", "signed"), on=TOLD_APART,
               plant=lambda: planted(multiple_importance, "balance_shares", inverted),
               why="shares in proportion to n_j/q_j: still a partition of unity, hence unbiased, and worse than any other"),
    ),
)  # fmt: skip
