"""G4: stale and fresh responses in one group: the shared baseline biases the update unless E_mu[w s] = 0."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import sympy as sp
import torch
from torch import Tensor

from testbed.core.batch import SegmentedBatch
from testbed.estimators import advantage
from testbed.estimators.gradient import gradient_terms
from testbed.exact.gradients import exact_gradient
from testbed.exact.group_updates import group_compositions
from testbed.exact.law import ExactLaw
from testbed.exact.selection import conditioned
from testbed.policies.schedule import cuts, one
from testbed.policies.tabular import TabularPolicy
from testbed.weighting.rules import weigh
from theory import bugs
from theory.derivation import Derivation, Step
from theory.group_symbols import SymbolicGroup, multiset_probabilities
from theory.group_worlds import update_of
from theory.planting import planted
from theory.small_worlds import uncovered_world
from theory.symbols import Prefix, symbolic_world
from theory.theorem import Claim, Mutant, Quantities, Theorem
from theory.worlds import STREAM, World, world

EXACT = {"rule": "sequence_product"}
WEIGHTS: dict[str, dict[str, Any]] = {
    "exact": EXACT,
    "unweighted": {"rule": "none"},
    "capped": {"rule": "seq_tis", "cap": 1.0},
    "masked": {"rule": "seq_mis", "low": 0.0, "cap": 1.2},
    "selected": EXACT,
}


@dataclass(frozen=True)
class Mixture:
    """A group of `stale` responses of the world's sampler and `fresh` ones of its target, weighted in one way."""

    name: str
    world: World
    stale: int
    fresh: int
    weights: str

    @property
    def size(self) -> int:
        """Number of responses in the group."""
        return self.stale + self.fresh

    @property
    def selection(self) -> Tensor:
        """Which responses of the sampler are kept: all, or those whose reward is not below the median."""
        reward = self.world.law.batch.reward
        return reward >= reward.median() if self.weights == "selected" else torch.ones_like(reward, dtype=torch.bool)

    @cached_property
    def stale_law(self) -> ExactLaw:
        """Law of a stale response: the sampler's, given that the response is kept."""
        law = self.world.law
        return conditioned(law, self.selection)[0] if self.weights == "selected" else law


def measure(mixture: Mixture, **weights: Any) -> Quantities:
    """Expected updates with and without a baseline, and the drift E_mu[w s] to blame; `weights` overrides the rule."""
    w, law, fresh = mixture.world, mixture.stale_law, mixture.world.target_law
    pi, size, how = w.target, mixture.size, weights or WEIGHTS[mixture.weights]
    groups = group_compositions([(law, mixture.stale), (fresh, mixture.fresh)])
    plain, apart, own = (update_of(groups, pi, b, **how) for b in ("none", "leave_one_out", "group_mean"))
    ones = torch.ones_like(law.batch.reward)
    drift = law.expect(gradient_terms(law.batch, weigh(batch=law.batch, **how), pi, ones))
    stale_reward, fresh_reward = law.expect(law.batch.reward), fresh.expect(fresh.batch.reward)
    level = ((mixture.stale - 1) * stale_reward + mixture.fresh * fresh_reward) / (size - 1) if mixture.stale else 0.0
    found: dict[str, Any] = {
        "bias": apart - plain,
        "stated": -(mixture.stale / size) * level * drift,
        "with_self": own,
        "shrunk_update": (size - 1) / size * apart,
    }
    if mixture.weights == "exact":
        gradient = exact_gradient(w.env, pi)
        found |= {"mixed": own, "shrunk_gradient": (size - 1) / size * gradient, "apart": apart, "gradient": gradient}
    if mixture.weights != "exact" and mixture.name.startswith("level"):
        found |= {"level_bias": apart - plain, "zero": 0.0}
    elif mixture.weights != "exact" and mixture.name.startswith("mixed_two_tokens"):
        found |= {f"{mixture.weights}_bias": (apart - plain).norm(), "none": 0.0}
    return found


@lru_cache(maxsize=16)
def _derivation(shape: tuple[Any, ...], stale: int, fresh: int, kept: tuple[int, ...]) -> Derivation:
    """Symbols w for the weights of stale responses; `kept` are those that the selection leaves, all without one."""
    w = symbolic_world(shape)
    old, new = SymbolicGroup(w, stale, kept=kept), SymbolicGroup(w, fresh, on_policy=True)
    used = {
        d: sp.Symbol(f"w{d[0]}_{''.join(map(str, d[1]))}", real=True) for d in old.draws
    }  # any function of the response
    size, rho, gradient = stale + fresh, w.rho_definition(), w.gradient()
    share = sp.Rational(stale, size)
    level = ((stale - 1) * old.mean(old.reward) + fresh * new.mean(new.reward)) / (size - 1)
    drift, fresh_drift = old.single(used.__getitem__), new.single(lambda d: 1)

    def expected(baseline: Any, weight: Any) -> list[sp.Expr]:
        """Sum over all groups of weight (R - baseline) s / M; what multiplies the score of a response is collected."""
        terms: dict[Prefix, list[sp.Expr]] = {y: [] for y in w.leaves}
        for a, rows in multiset_probabilities(len(old.draws), stale):
            for b, more in multiset_probabilities(len(new.draws), fresh):
                group = [(old.draws[r], weight(old.draws[r])) for r in rows]
                group += [(new.draws[r], sp.Integer(1)) for r in more]
                chance = a * b * sp.prod([old.probs[r] for r in rows]) * sp.prod([new.probs[r] for r in more])
                total = sp.Add(*[old.reward(d) for d, _ in group])
                for d, v in group:
                    terms[d[1]].append(chance * v * (old.reward(d) - baseline(total, old.reward(d))) / size)
        return new.along_scores(terms)

    def others(total: sp.Expr, own: sp.Expr) -> sp.Expr:
        return (total - own) / (size - 1)

    def nothing(total: sp.Expr, own: sp.Expr) -> sp.Expr:
        return sp.Integer(0)

    def everyone(total: sp.Expr, own: sp.Expr) -> sp.Expr:
        return total / size

    apart, plain, whole = (expected(b, used.__getitem__) for b in (others, nothing, everyone))
    elsewhere = (stale * old.mean(old.reward) + (fresh - 1) * new.mean(new.reward)) / (size - 1)  # for a fresh response
    bias = [
        Step("definition", [a - b for a, b in zip(apart, plain, strict=True)], "leave-one-out minus none, all mixed groups",
             quantity="bias", tex=r"-E\big[\tfrac1M \sum_i w_i \bar R_{-i} s_i\big]"),
        Step("independence", [-share * level * d - (1 - share) * elsewhere * e for d, e in zip(drift, fresh_drift, strict=True)],
             "the mean of the others is independent of w_i s_i",
             tex=r"-\tfrac{M_s}{M} E[b]\, E_\mu[w s] - \tfrac{M_f}{M} E[b']\, E_\pi[s]"),
        Step("no_drift", [-share * level * d for d in drift], "fresh responses have E_pi[s] = 0", quantity="stated",
             tex=r"-\tfrac{M_s}{M} E[b]\, E_\mu[w s]"),
    ]  # fmt: skip
    own_part = [
        Step("definition", whole, "mean including the response, all mixed groups", quantity="with_self",
             tex=r"E\big[\tfrac1M \sum_i w_i (R_i - \bar R) s_i\big]"),
        Step("take_out", [sp.Rational(size - 1, size) * a for a in apart], "R_i - mean(R) = (M-1)/M (R_i - mean of the others)",
             quantity="shrunk_update", tex=r"\tfrac{M-1}{M} E\big[\tfrac1M \sum_i w_i (R_i - \bar R_{-i}) s_i\big]"),
    ]  # fmt: skip
    chains = [bias, own_part]
    if len(kept) == len(w.draws()):
        chains.append([
            Step("definition", expected(everyone, old.weight), "mean including the response, full weights W on the stale part",
                 quantity="mixed", tex=r"E\big[\tfrac1M \sum_i W_i (R_i - \bar R) s_i\big]"),
            Step("ratios", [sp.Rational(size - 1, size) * (share * a.xreplace(rho) + (1 - share) * b) for a, b in
                            zip(old.single(lambda d: old.weight(d) * old.reward(d)), new.single(new.reward), strict=True)],
                 "E_mu[W s] = 0, so only a response's own share of the mean is lost",
                 tex=r"\tfrac{M-1}{M}(\tfrac{M_s}{M} E_\mu[W R s] + \tfrac{M_f}{M} E_\pi[R s])"),
            Step("gradient", [sp.Rational(size - 1, size) * a for a in gradient], "both means are G, by differentiating J",
                 quantity="shrunk_gradient", tex=r"\tfrac{M-1}{M} G"),
        ])  # fmt: skip

    def point(rng: random.Random) -> Mapping[sp.Symbol, Any]:
        return {**w.point(rng), **{v: sp.Rational(rng.randint(0, 8), 5) for v in used.values()}}

    def bind(mixture: Mixture) -> Mapping[sp.Symbol, float]:
        law = mixture.stale_law
        weight = weigh(batch=law.batch, **WEIGHTS[mixture.weights]).value.amax(1).tolist()
        return {**w.bind(mixture.world), **dict(zip(used.values(), weight, strict=True))}

    return Derivation(chains, point, bind)


def derive(mixture: Mixture) -> Derivation:
    """All mixed groups in symbols, with a symbol for the weight of each stale response."""
    kept = torch.nonzero(mixture.selection)[:, 0].tolist()
    return _derivation(mixture.world.shape, mixture.stale, mixture.fresh, tuple(kept))


def _level_world() -> World:
    """A world whose mean reward is 0 under sampler and target alike: no response is worth more than another on average."""
    pi = TabularPolicy.from_probs(torch.tensor([[0.2, 0.2, 0.6]]))
    mu = TabularPolicy.from_probs(torch.tensor([[0.4, 0.4, 0.2]]))
    return world("level", 3, 1, one(), target=pi, policies=(mu,), rewards=[1.0, -1.0, 0.0])


def instances() -> list[Mixture]:
    """Every way of weighting with one to three responses of each kind; only stale ones; on-policy; mean reward zero."""
    mu = TabularPolicy.random(2, 2, STREAM["mixed on_policy"]["target"])
    single = world("mixed_one_token", 3, 1, one(), behaviors=1)
    pair, ended = world("mixed_two_tokens", 2, 2, cuts((1,))), world("mixed_end_token", 2, 2, cuts((1,)), eos=1)
    same = world("mixed_on_policy", 2, 2, one(), target=mu, policies=(mu,))
    found = [Mixture(f"{w.name}_{kind}_{s}_{f}", w, s, f, kind) for kind in WEIGHTS for w, s, f in
             ((single, 1, 1), (pair, 2, 1), (ended, 1, 2), (pair, 2, 0))]  # fmt: skip
    found += [
        Mixture("mixed_on_policy_exact_1_2", same, 1, 2, "exact"),
        Mixture("no_stale_exact_0_2", pair, 0, 2, "exact"),
    ]
    return found + [Mixture(f"level_{kind}", _level_world(), 2, 1, kind) for kind in ("unweighted", "capped")]


def self_included(right: Any) -> Any:
    """Bug: the mean of the whole group where the mean of the others is asked for."""

    def wrong(batch: SegmentedBatch, baseline: Any, *rest: Any, **kw: Any) -> Tensor:
        return right(batch, "group_mean" if baseline == "leave_one_out" else baseline, *rest, **kw)

    return wrong


def kinds_apart(right: Any) -> Any:
    """Bug: stale and fresh responses of a prompt are filed under different groups."""

    def wrong(batch: SegmentedBatch, *rest: Any, **kw: Any) -> Tensor:
        stale = (batch.logp_target != batch.logp_behavior).any(1)
        return right(replace(batch, group=2 * batch.group + stale), *rest, **kw)

    return wrong


BIASED = ("unweighted", "capped", "masked", "selected")
EXACT_CLAIMS = ("exact_shrinks", "exact_unbiased")
TOLD_APART = ("mixed_two_tokens_exact_2_1", "mixed_end_token_exact_1_2")
THEOREM = Theorem(
    id="G4",
    kind="counterexample",
    refutes="a group may mix stale and fresh responses at no cost",
    title="stale and fresh responses in one group: harmful unless the stale part's weighted scores have mean zero",
    hypotheses=(
        "M_s stale and M_f fresh responses to one prompt, all independent; the update is divided by M = M_s + M_f",
        "a stale response is weighted by w, a function of the response; fresh ones have weight 1",
        "harm is what the baseline adds to the mean of the update (a mean that includes the response: (M-1)/M of it)",
    ),
    statement="leave-one-out minus no baseline = -(M_s/M) E[b] E_mu[w s], E[b] = mean of the others' expected rewards; "
    "unweighted, capped, masked, outcome-selected: E_mu[w s] != 0. Full weights: group mean gives ((M-1)/M) G. "
    "E_mu[w s] = 0 is necessary for harmlessness under every reward; a reward with E[b] = 0 is never harmed",
    source="ours",
    claims=(
        Claim("bias", "equal", "bias", "stated", "the baseline adds -(M_s/M) E[b] E_mu[w s]"),
        Claim("own_part", "equal", "with_self", "shrunk_update", "the mean including the response: (M-1)/M of leave-one-out"),
        Claim("exact_shrinks", "equal", "mixed", "shrunk_gradient", "full weights: only the factor (M-1)/M"),
        Claim("exact_unbiased", "equal", "apart", "gradient", "full weights and leave-one-out: the gradient"),
        *(Claim(f"{k}_harmed", "differs", f"{k}_bias", "none", f"{k}: length of the bias (left) is not 0", margin=0.01)
          for k in BIASED),
        Claim("level_reward", "equal", "level_bias", "zero", "mean reward 0: no harm whatever the weights"),
    ),
    instances=instances,
    measure=measure,
    derive=derive,
    outcome="Mix replay into a group only with exact weights; under a cap or a mask every baseline biases unless its mean is 0.",
    mutants=(
        Mutant(name="weights_capped", kind="hypothesis", breaks=EXACT_CLAIMS, on=TOLD_APART,
               measure=lambda mixture: measure(mixture, **WEIGHTS["capped"]),
               why="a cap leaves E[w s] != 0, and E[w R s] is not G; needs W above the cap"),
        Mutant(name="support_violated", kind="hypothesis", breaks=EXACT_CLAIMS,
               instances=lambda: [Mixture("uncovered", uncovered_world(), 1, 1, "exact")],
               why="full weights miss what the sampler never draws, so E_mu[W s] is not 0"),
        Mutant(name="exact_weights", kind="hypothesis", on=("mixed_two_tokens_unweighted_2_1",), breaks=("unweighted_harmed",),
               measure=lambda mixture: measure(mixture, **EXACT),
               why="with full weights E_mu[w s] = 0 and the claimed harm is gone"),
        Mutant(name="self_in_leave_one_out", kind="bug", breaks=("bias", "own_part"), on=("mixed_two_tokens_capped_2_1",),
               plant=lambda: planted(advantage, "group_advantage", self_included),
               why="a response's own reward is in its baseline, which is then not independent of w_i s_i"),
        Mutant(name="kinds_apart", kind="bug", breaks=("bias", "own_part"), on=("mixed_end_token_capped_1_2",),
               plant=lambda: planted(advantage, "group_advantage", kinds_apart),
               why="stale responses are compared with stale ones only: E[b] is another; needs both kinds"),
        Mutant(name="ratio_inverted", kind="bug", breaks=EXACT_CLAIMS, on=TOLD_APART, plant=bugs.ratio_inverted,
               why="behavior over target is no weight with E[W s] = 0; needs target != behavior"),
    ),
)  # fmt: skip
