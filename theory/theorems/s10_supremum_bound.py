"""S10: products of largest segment divergences bound the second moment; products of averages under the behavior do not."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import sympy as sp
import torch
from torch import Tensor

from testbed.exact import ratio_moments, second_moments
from testbed.exact.second_moments import segment_moments, start_d2
from testbed.policies.schedule import cuts, one
from testbed.policies.tabular import TabularPolicy
from testbed.weighting.segment_ends import segment_end_log_ratios
from theory.derivation import Derivation, Step
from theory.planting import planted
from theory.segment_symbols import second_moment, segment_square, small_worlds, squared_so_far, starts
from theory.symbols import symbolic_world
from theory.theorem import Claim, Mutant, Quantities, Theorem
from theory.transformer_worlds import TransformerWorld, transformer_worlds
from theory.two_part_responses import two_part_derivation
from theory.worlds import World, world

DIGITS = (13.16, 7.47, 13.30)  # of the catalogued instance: true, averages, sups


def measure(instance: World | TransformerWorld) -> Quantities:
    """Both sides, the slack term by term, and whether the condition for equality holds."""
    law, env = instance.law, instance.env
    found = segment_moments(law, env, instance.target, instance.schedule)
    d2 = start_d2(law, env, instance.target, instance.schedule)
    after = segment_end_log_ratios(law.batch, d2.shape[1]).exp() ** 2
    before = torch.cat([torch.ones_like(after[:, :1]), after[:, :-1]], 1)
    square = law.batch.reward**2
    top, sups = square.max(), found.largest
    above = torch.cat([sups.flip(0).cumprod(0).flip(0)[1:], sups.new_ones(1)])  # product of the sups of later segments
    likely = torch.where(before > 0, d2, 0.0).amax(0)  # sup over histories the target can reach as well
    weighted, bound = law.expect(after[:, -1] * square), top * sups.prod()
    terms = [law.expect(after[:, -1] * (top - square)), *(top * above * law.expect(before * (sups - d2)))]
    at_sup = ((d2 - sups).abs() <= 1e-12 * sups) | (before == 0)
    attained = bool(at_sup.all()) and bool((((top - square).abs() <= 1e-12 * top) | (after[:, -1] == 0)).all())
    kind = "tight" if attained else "loose"
    values = {
        "weighted": weighted, "bound": bound, "sharper": top * likely.prod(),
        "slack": bound - weighted, "slack_terms": sum(terms), "zero": 0.0,
        "least_term": min(terms), "second": found.second[-1], "tilted": found.factor.prod(),
        f"{kind}_left": weighted, f"{kind}_right": bound,
    }  # fmt: skip
    if instance.name == "averages_fail":
        values["averages"] = found.average.prod()
        values["three"] = torch.stack([found.second[-1], values["averages"], sups.prod()])
        values["digits"] = DIGITS
    return values


@lru_cache(maxsize=32)
def _derivation(shape: tuple[Any, ...]) -> Derivation:
    w = symbolic_world(shape)
    count = w.n_behaviors
    seconds = [second_moment(w, k) for k in range(-1, count)]
    weighted = sp.Add(*[p * w.weight(y, b) ** 2 * w.reward(y) ** 2 for b, y, p in w.draws()])
    top = sp.Max(*[w.reward(y) ** 2 for y in w.leaves], evaluate=False)
    square = [{at: segment_square(w, at[0], k, at[1]) for at in starts(w, k)} for k in range(count)]
    sups = [sp.Max(*dict.fromkeys(s.values()), evaluate=False) for s in square]
    bound = top * sp.prod(sups)
    one_by_one = [
        Step(f"segment_{k}", top * sp.prod(sups[k:]) * seconds[k], f"S9, and d2_{k}(H) <= its sup", "<=",
             quantity="bound" if k == 0 else None,
             tex=rf"\max f^2 \prod_{{j \ge {k}}} \sup d_{{2,j}}\; E_\mu[W_{{({k - 1})}}^2]")
        for k in range(count - 1, -1, -1)
    ]  # fmt: skip
    steps = [
        Step("definition", weighted, "the sampler's law, squared product, squared signal", quantity="weighted",
             tex=r"E_\mu[W_{(K)}^2 f^2]"),
        Step("signal", top * seconds[-1], "f^2 <= max f^2", "<=", tex=r"\max f^2 \; E_\mu[W_{(K)}^2]"),
        *one_by_one,
    ]  # fmt: skip
    terms = [sp.Add(*[p * w.weight(y, b) ** 2 * (top - w.reward(y) ** 2) for b, y, p in w.draws()])]
    for k in range(count):
        gaps = [squared_so_far(w, *at) * (sups[k] - value) for at, value in square[k].items()]
        terms.append(top * sp.prod(sups[k + 1 :]) * sp.Add(*gaps))
    slack = [
        Step("slack", bound - weighted, "right side minus left side", quantity="slack"),
        Step("term_by_term", sp.Add(*terms), "telescoping S9: no term is negative, so all must vanish for equality",
             quantity="slack_terms",
             tex=r"E[W_{(K)}^2(\max f^2 - f^2)] + \max f^2 \sum_k \prod_{j>k}\sup d_{2,j}\;"
                 r"E[W_{(k-1)}^2(\sup d_{2,k} - d_{2,k}(H))]"),
    ]  # fmt: skip
    factors = [
        sp.Add(*[squared_so_far(w, *at) * value for at, value in square[k].items()])
        / sp.Add(*[squared_so_far(w, *at) for at in square[k]])
        for k in range(count)
    ]
    tilt = [
        Step("second", seconds[-1], "as in S9", quantity="second", tex=r"E_\mu[W_{(K)}^2]"),
        Step("tilted", sp.prod(factors), "each factor is E W_(k)^2 / E W_(k-1)^2, by S9", quantity="tilted",
             tex=r"\prod_k E_{\nu_k}[d_{2,k}(H)],\quad \nu_k \propto \mu W_{(k-1)}^2"),
    ]  # fmt: skip
    return Derivation([steps, slack, tilt], w.point, w.bind)


def derive(instance: World | TransformerWorld) -> Derivation:
    """Sums over both parts for a transformer, else symbols for every probability."""
    return two_part_derivation("S10") if isinstance(instance, TransformerWorld) else _derivation(instance.shape)


def rows(*probs: float) -> TabularPolicy:
    """Two-token policy from the probability of token 1 after each prefix."""
    return TabularPolicy.from_probs(torch.tensor([[1 - p, p] for p in probs], dtype=torch.float64))


def two_tokens(name: str, pi: tuple[float, ...], mu: tuple[float, ...], rewards: tuple[float, ...]) -> World:
    """Two tokens in two segments, given by their probabilities of token 1 after (), (0,), (1,)."""
    behavior = rows(*mu)
    return world(name, 2, 2, cuts((1,)), target=rows(*pi), policies=(behavior, behavior), rewards=rewards)


def averages_fail() -> World:
    """The target goes (.9) where the behavior goes half the time, and where its next token has d2 = 73/9."""
    return two_tokens("averages_fail", (0.9, 0.5, 0.1), (0.5, 0.5, 0.9), (1.0,) * 4)


def instances() -> list[World | TransformerWorld]:
    """Shared worlds, the catalogued one, equality in three ways, near misses of equality, and transformers."""
    mu = rows(*(0.3,) * 7)
    same = {"segment_of": cuts((1, 2)), "target": rows(*(0.6,) * 7), "policies": (mu, mu, mu)}
    return [
        *small_worlds(),
        averages_fail(),
        world("equal_laws_signed", 2, 3, rewards=[1.0, -1.0] * 4, **same),
        world("equal_laws_varying_signal", 2, 3, rewards=[1.0, 0.5] * 4, **same),
        world("one_segment_equal", 2, 2, one(), target=rows(0.9, 0.5, 0.1), policies=(rows(0.5, 0.5, 0.9),),
              rewards=[1.0] * 4),
        # weight 0 after token 0: there d2 and the signal may be smaller, but not larger
        two_tokens("smaller_off_support", (1.0, 0.5, 0.6), (0.5, 0.5, 0.3), (0.2, 0.7, 1.0, 1.0)),
        two_tokens("larger_off_support", (1.0, 0.1, 0.6), (0.5, 0.9, 0.3), (1.0,) * 4),
        *transformer_worlds(wide=True),
    ]  # fmt: skip


def instead_of_largest(instance: World) -> Quantities:
    """Mutated reading: d2_k averaged under the behavior takes the place of its largest value."""
    found = measure(instance)
    square = instance.batch.reward**2
    return {"weighted": found["weighted"], "bound": square.max() * found["averages"], "second": found["second"],
            "tilted": found["averages"]}  # fmt: skip


def mean_signal(instance: World) -> Quantities:
    """Mutated reading: the mean of f^2 in place of its maximum."""
    found = measure(instance)
    square = instance.batch.reward**2
    return {"weighted": found["weighted"], "bound": found["bound"] * instance.law.expect(square) / square.max()}


def always_tight(instance: World) -> Quantities:
    """Mutated reading: equality claimed whatever the signal and the histories."""
    found = measure(instance)
    return {"tight_left": found["weighted"], "tight_right": found["bound"]}


def heavy_signal() -> list[World]:
    """Equal laws at every prefix, and a signal that is large on the one response of largest weight."""
    mu = rows(*(0.2,) * 3)
    return [
        world(
            "heavy_signal", 2, 2, cuts((1,)), target=rows(*(0.8,) * 3), policies=(mu, mu), rewards=[0.0, 0.0, 0.0, 1.0]
        )
    ]


def excess_only(right: Any) -> Any:
    """Bug: chi-square in place of d2."""

    def wrong(*args: Any) -> Tensor:
        return right(*args) - 1

    return wrong


THEOREM = Theorem(
    id="S10",
    kind="bound",
    title="products of the largest d2 bound the second moment; products of averages do not",
    hypotheses=(
        "boundaries are prefix-measurable or exogenous (S1); H as in S9",
        "the supremum of d2_k is over all histories of segment k's start that the behavior can reach",
        "equality: f is not identically 0, and |f| constant means |f| = max |f| on the support of W_(K)^2 mu",
    ),
    statement="E_mu[W_(K)^2 f^2] <= max f^2 prod_k sup_h d2_k(h), with equality iff |f| is constant and d2_k = sup on the "
    "support of W_(k-1)^2 mu; E_mu[W_(K)^2] = prod_k E_{nu_k}[d2_k(H)], nu_k proportional to mu W_(k-1)^2; "
    "prod_k E_mu[d2_k(H)] is no bound; the sup over histories with W_(k-1) > 0 is enough",
    source="ours",
    claims=(
        Claim("bound", "at_most", "weighted", "bound", "second moment <= max f^2 times the product of sups"),
        Claim("sharper", "at_most", "weighted", "sharper", "histories with W_(k-1) = 0 may be left out of the sup"),
        Claim("slack", "equal", "slack", "slack_terms", "what is missing to equality, term by term"),
        Claim("no_negative_term", "at_most", "zero", "least_term", "every term of the slack is >= 0"),
        Claim("tight", "equal", "tight_left", "tight_right", "equality where |f| is constant and d2_k = sup on the support"),
        Claim("only_then", "differs", "loose_left", "loose_right", "no equality anywhere else"),
        Claim("tilted", "equal", "second", "tilted", "product of tilted averages = second moment"),
        Claim("averages_fail", "differs", "second", "averages", "true value above the product of averages", margin=0.4),
        Claim("averages_below", "at_most", "averages", "second", "and it is the averages that are too small"),
        Claim("catalogued_digits", "equal", "three", "digits", "to the digits printed: true 13.16, averages 7.47, sups 13.30",
              tolerance=4e-4),
    ),
    instances=instances,
    measure=measure,
    derive=derive,
    outcome="A certificate from average divergences can be far too small; use the worst history the behavior can reach.",
    mutants=(
        Mutant(name="averages_for_sups", kind="hypothesis", breaks=("bound", "tilted"), measure=instead_of_largest,
               on=("averages_fail",), why="the sup replaced by the average under mu: d2 is large where weights are large"),
        Mutant(name="mean_for_max_signal", kind="hypothesis", breaks=("bound",), measure=mean_signal, instances=heavy_signal,
               why="max f^2 replaced by E f^2: needs a signal that is large where the weight is large"),
        Mutant(name="tight_for_varying_signal", kind="hypothesis", breaks=("tight",), measure=always_tight,
               on=("equal_laws_varying_signal",), why="equality without constant |f|; d2_k is constant here"),
        Mutant(name="tight_for_varying_d2", kind="hypothesis", breaks=("tight",), measure=always_tight,
               on=("averages_fail", "larger_off_support"),
               why="equality without d2_k = sup where W_(k-1) > 0; f is constant here"),
        Mutant(name="chi2_for_d2", kind="bug", breaks=("bound", "sharper", "slack", "tight", "tilted"),
               on=("equal_laws_signed",),
               plant=lambda: planted(second_moments, "segment_d2", excess_only),
               why="segment_d2 returns d2 - 1: visible wherever two segments differ from the target"),
        Mutant(name="ratio_inverted", kind="bug", breaks=("slack", "tilted"),
               on=("two_segments", "stopping_time", "transformer_dense", "transformer_experts"),
               plant=lambda: planted(ratio_moments, "powered_measure", lambda right: lambda p, m, k: right(m, p, k)),
               why="d2 of the behavior from the target; the products of sups may still be large enough"),
    ),
)  # fmt: skip
