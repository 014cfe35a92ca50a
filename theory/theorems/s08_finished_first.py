"""S8: keeping the first m of n responses to end biases a batch whose every recorded ratio is 1."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from itertools import permutations, product
from math import comb
from typing import Any

import sympy as sp
import torch
from torch import Tensor

from testbed.estimators.gradient import gradient_terms
from testbed.exact import inclusion
from testbed.exact.gradients import exact_gradient
from testbed.exact.law import ExactLaw
from testbed.exact.moments import moments
from testbed.rollout import cut_batches
from theory.derivation import Derivation, Step
from theory.length_cuts import Cut, Response, cut, first_m, law_of_kept, random_m
from theory.planting import planted
from theory.symbols import SymbolicWorld, symbolic_world
from theory.theorem import Claim, Mutant, Quantities, Theorem
from theory.worlds import world


def measure(c: Cut, sampler: Any = first_m) -> Quantities:
    """Law of a kept response by walking every choice of the sampler, against the inclusion formula."""
    law, pi = c.world.target_law, c.world.target
    probs, recorded = law_of_kept(c, sampler)
    lengths, weight = law.batch.lengths, inclusion.inclusion_weights(law, c.n, c.m)
    selected = ExactLaw(batch=law.batch, log_prob=probs.log(), branch=law.branch)

    def expected(w: Tensor) -> Tensor:
        return moments(selected, gradient_terms(law.batch, w[:, None].expand(-1, law.batch.horizon), pi)).mean

    incl = inclusion.inclusion_probabilities(inclusion.length_law(law), c.n, c.m)[lengths]
    found: dict[str, Any] = {
        "ratios": recorded,
        "one": 1.0,
        "kept": probs,
        "kept_formula": law.probs * (c.n / c.m) * incl,
        "reweighted": expected(weight),
        "gradient": exact_gradient(c.world.env, pi),
        "only_weight": law.probs / probs,
        "weight": weight,
        "largest_weight": weight.max(),
        "longest_weight": weight[lengths == lengths.max()],
    }
    if c.loses:
        found |= {"biased_law": probs, "target_law": law.probs, "unweighted": expected(torch.ones_like(weight))}
    return found


@lru_cache(maxsize=32)
def _derivation(shape: tuple[Any, ...], n: int, m: int) -> Derivation:
    w: SymbolicWorld = symbolic_world(shape)
    leaves, size = w.leaves, len(w.leaves)
    length = [len(y) for y in leaves]
    prob = [w.prob_pi(y) for y in leaves]
    share = {k: sp.Add(*[p for p, one in zip(prob, length, strict=True) if one == k]) for k in set(length)}

    def less(k: int) -> sp.Expr:
        return sp.Add(*[share[j] for j in share if j < k])

    def more(k: int) -> sp.Expr:
        return sp.Add(*[share[j] for j in share if j > k])

    def chances(batch: tuple[int, ...]) -> list[sp.Rational]:
        """Chance of each row to be kept when a uniformly random order decides among equal lengths."""
        orders = list(permutations(range(n)))
        hits = Counter(i for order in orders for i in sorted(range(n), key=lambda i: (length[batch[i]], order[i]))[:m])
        return [sp.Rational(hits[i], len(orders)) for i in range(n)]

    listed: list[list[sp.Expr]] = [[] for _ in leaves]
    first: list[list[sp.Expr]] = [[] for _ in leaves]
    for batch in product(range(size), repeat=n):
        chance, joint = chances(batch), sp.prod([prob[y] for y in batch])
        for i, y in enumerate(batch):
            listed[y].append(joint * chance[i] / m)
        first[batch[0]].append(sp.prod([prob[y] for y in batch[1:]]) * chance[0])

    def by_counts(k: int) -> sp.Expr:
        terms = [
            comb(n - 1, b)
            * comb(n - 1 - b, t)
            * less(k) ** b
            * share[k] ** t
            * more(k) ** (n - 1 - b - t)
            * min(sp.Integer(1), sp.Rational(max(m - b, 0), t + 1))
            for b in range(n)
            for t in range(n - b)
        ]
        return sp.Add(*terms)

    def places(mass: sp.Expr) -> sp.Expr:
        """E[min(m, Binomial(n, mass))]."""
        return sp.Add(*[comb(n, k) * mass**k * (1 - mass) ** (n - k) * min(k, m) for k in range(n + 1)])

    incl = {k: by_counts(k) for k in share}
    filled = {k: (places(less(k) + share[k]) - places(less(k))) / (n * share[k]) for k in share}
    law = [prob[y] * sp.Rational(n, m) * incl[length[y]] for y in range(size)]
    weight = [sp.Rational(m, n) / incl[length[y]] for y in range(size)]

    def gradient(factor: list[sp.Expr]) -> list[sp.Expr]:
        def score(y: Response, h: Response, b: int) -> sp.Expr:
            return sp.Add(*[w.score(y, t, h, b) for t in range(len(y))])

        return [
            sp.Add(*[f * w.reward(y) * score(y, h, b) for f, y in zip(factor, leaves, strict=True)])
            for h, b in w.parameters
        ]

    longest = max(share)
    kept = [
        Step(
            "definition",
            [sp.Add(*terms) for terms in listed],
            "all batches; a random order decides among equal lengths",
            quantity="kept",
            tex=r"P_{kept}(y) = \frac1m \sum_{y_1..y_n} \prod_j \pi(y_j) \sum_i 1_{y_i = y} P(i\ kept)",
        ),
        Step(
            "alike",
            [prob[y] * sp.Rational(n, m) * sp.Add(*first[y]) for y in range(size)],
            "the n rows are alike",
            tex=r"\frac nm \pi(y) \sum_{y_2..y_n} \prod_{j>1} \pi(y_j) P(1\ kept)",
        ),
        Step(
            "counts",
            law,
            "only how many others end before and with y matters; ties are equally likely",
            quantity="kept_formula",
            tex=r"\frac nm \pi(y)\, E[\min(1, (m-Below)_+/(Ties+1))]",
        ),
        Step(
            "order_statistics",
            [prob[y] * sp.Rational(n, m) * filled[length[y]] for y in range(size)],
            "n P(l) Incl(l) is the number of the m places that length l fills, N the number of responses",
            tex=r"\frac{\pi(y)}{m P(l)} (E\min(m, N_{\le l}) - E\min(m, N_{<l}))",
        ),
    ]
    repaired = [
        Step(
            "definition",
            gradient([a * b for a, b in zip(law, weight, strict=True)]),
            "kept law times (m/n)/Incl",
            quantity="reweighted",
            tex=r"\sum_y \tfrac nm \pi(y) Incl(|y|) \tfrac{m}{n\,Incl(|y|)} R \sum_t s_t",
        ),
        Step("cancelled", gradient(prob), "Incl > 0 wherever pi > 0", tex=r"\sum_y \pi(y) R \sum_t s_t"),
        Step("log_derivative", w.gradient(), "grad J, by differentiating J", quantity="gradient", tex=r"\nabla J"),
    ]
    unique = [
        Step(
            "solved",
            [p / q for p, q in zip(prob, law, strict=True)],
            "unbiased for the indicator of y alone",
            quantity="only_weight",
            tex=r"w(y) P_{kept}(y) = \pi(y)",
        ),
        Step(
            "inclusion",
            weight,
            "hence no other function of the response is unbiased for every f",
            quantity="weight",
            tex=r"w(y) = \frac{m}{n\,Incl(|y|)}",
        ),
    ]
    maximum = [
        Step(
            "longest",
            weight[length.index(longest)],
            "Incl falls with the length",
            quantity="largest_weight",
            tex=r"\max w = \frac{m}{n\,Incl(L)}",
        ),
        Step(
            "places_left",
            m
            * share[longest]
            / sp.Add(
                *[comb(n, k) * less(longest) ** k * share[longest] ** (n - k) * max(m - k, 0) for k in range(n + 1)]
            ),
            "the longest get the places that the others leave",
            tex=r"\frac{m P(L)}{E(m - N_{<L})_+}",
        ),
    ]
    return Derivation([kept, repaired, unique, maximum], w.point, lambda c: w.bind(c.world))


def instances() -> list[Cut]:
    """Cuts with and without ties, two end tokens apart or more; all kept, one started, all of one length."""
    return [
        cut("first_of_two", 2, 1, horizon=3),
        cut("first_of_three", 3, 1),
        cut("two_of_three", 3, 2),
        cut("three_tokens", 2, 1, tokens=3, eos=2),
        cut("all_kept", 2, 2, loses=False),
        cut("one_started", 1, 1, loses=False),
        cut("one_length", 2, 1, loses=False, eos=None),
    ]


def all_kept() -> list[Cut]:
    """The cuts of the theorem with nothing cut."""
    return [Cut(name=c.name, world=c.world, n=2, m=2) for c in instances()[:2]]


def others_draw() -> list[Cut]:
    """A cut whose responses are drawn by another policy than the target."""
    c = instances()[1]
    return [Cut(name=c.name, world=world(c.name, 2, 2, eos=1, target=c.world.target, behaviors=1), n=c.n, m=c.m)]


def ties_win(lengths: Tensor, n: int, m: int) -> Tensor:
    """Bug: P(Below < m), as if all that end with the m-th were kept."""
    below = torch.cat([torch.zeros(1, dtype=torch.float64), lengths.cumsum(0)[:-1]])
    return sum((comb(n - 1, b) * below**b * (1 - below) ** (n - 1 - b) for b in range(m)), torch.zeros_like(below))


LAW_FORMULA = ("kept_law", "repaired", "unique")
THEOREM = Theorem(
    id="S8",
    kind="counterexample",
    refutes="responses whose ratios are all 1 need no correction",
    title="the first m of n responses to end: every recorded ratio is 1, and the batch is length-biased",
    hypotheses=(
        "n independent responses of the target start together; each token, the end token included, takes one tick",
        "the first m < n to end are kept, ties at random (or by any rule blind to the responses); lengths differ at times",
    ),
    statement="kept law = pi(y) (n/m) Incl(len y), Incl(l) = E[min(1, (m - Below)+/(Ties + 1))] over the n - 1 others; "
    "(m/n)/Incl is the only unbiased weight that is a function of the response alone",
    source="ours (Horvitz-Thompson weights)",
    references=("Horvitz and Thompson, JASA 47 (1952) 663-685",),
    claims=(
        Claim(
            "largest",
            "equal",
            "largest_weight",
            "longest_weight",
            "the largest repairing weight, on the longest responses",
        ),
        Claim("silent", "equal", "ratios", "one", "every recorded ratio is 1"),
        Claim(
            "biased_law",
            "differs",
            "biased_law",
            "target_law",
            "kept responses do not have the target's law",
            margin=1e-2,
        ),
        Claim("biased_gradient", "differs", "unweighted", "gradient", "their mean update is not grad J", margin=1e-2),
        Claim("kept_law", "equal", "kept", "kept_formula", "a kept response has law pi (n/m) Incl"),
        Claim("repaired", "equal", "reweighted", "gradient", "weights (m/n)/Incl make the mean update grad J"),
        Claim(
            "unique", "equal", "only_weight", "weight", "the weight unbiased for every response's indicator is this one"
        ),
    ),
    instances=instances,
    measure=measure,
    derive=lambda c: _derivation(c.world.shape, c.n, c.m),
    outcome="Do not train on whatever comes back first; if you must, weigh by (m/n)/Incl(length) and look at its maximum.",
    mutants=(
        Mutant(
            name="all_n_kept",
            kind="hypothesis",
            breaks=("biased_law", "biased_gradient"),
            instances=all_kept,
            why="m = n: nothing is selected, so the bias the counterexample claims is not there",
        ),
        Mutant(
            name="random_m_kept",
            kind="hypothesis",
            breaks=("biased_law", "biased_gradient", *LAW_FORMULA),
            measure=lambda c: measure(c, random_m),
            on=("first_of_two",),
            why="the selection ignores the lengths: no bias, and the inclusion weights would create one",
        ),
        Mutant(
            name="another_policy_draws",
            kind="hypothesis",
            breaks=("silent", *LAW_FORMULA),
            instances=others_draw,
            why="off-policy: the recorded ratios differ from 1, and lengths have another law than the target's",
        ),
        Mutant(
            name="ties_always_win",
            kind="bug",
            breaks=LAW_FORMULA,
            on=("first_of_three",),
            plant=lambda: planted(inclusion, "inclusion_probabilities", lambda right: ties_win),
            why="Incl counts all that end with the m-th as kept; needs more ties than places",
        ),
        Mutant(
            name="itself_among_the_others",
            kind="bug",
            breaks=LAW_FORMULA,
            on=("first_of_two",),
            plant=lambda: planted(
                inclusion, "inclusion_probabilities", lambda right: lambda p, n, m: right(p, n + 1, m)
            ),
            why="n others instead of n - 1",
        ),
        Mutant(
            name="end_token_takes_no_tick",
            kind="bug",
            breaks=LAW_FORMULA,
            on=("first_of_two",),
            plant=lambda: planted(
                cut_batches, "ticks_to_end", lambda right: lambda b: right(b) - (b.tokens == 1).any(1).long()
            ),
            why="the sampler's clock leaves the end token out; needs responses cut off at the horizon",
        ),
    ),
)
