"""G2: group baselines on stale responses: which of them leave the mean of the update alone."""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import sympy as sp
import torch
from torch import Tensor

from testbed.core.batch import SegmentedBatch
from testbed.estimators import weighted_baseline
from testbed.estimators.gradient import gradient_terms
from testbed.exact.gradients import exact_gradient
from testbed.exact.group_updates import group_compositions
from testbed.policies.schedule import cuts, one
from testbed.policies.tabular import TabularPolicy
from testbed.weighting.rules import weigh
from theory import bugs
from theory.derivation import Derivation, Step
from theory.evaluation import exact_values, float_values
from theory.group_symbols import SymbolicGroup
from theory.group_worlds import Group, cosine, groups_of, update_of
from theory.indexed_groups import stale_derivation
from theory.planting import planted
from theory.small_worlds import random_behavior, uncovered_world
from theory.symbols import symbolic_world
from theory.theorem import Claim, Mutant, Quantities, Theorem
from theory.transformer_worlds import TransformerWorld, short_world, transformer_worlds
from theory.worlds import STREAM, World, one_hot_policy, world

CAP = 0.8
CAPPED = {"rule": "seq_tis", "cap": CAP}
MASKED = {"rule": "seq_mis", "low": 0.0, "cap": CAP}
OFF_POLICY = ("stale_two_tokens_2", "transformer_experts_2")
OTHERS_ONLY = ("leave_one_out", "weighted_leave_one_out", "self_normalized_leave_one_out")


def measure(group: Group, **weights: Any) -> Quantities:
    """Expected updates under each baseline; `weights` is the rule the responses are weighted by (default: full products)."""
    w, size = group.world, group.size
    law, batch, pi = w.law, w.batch, w.target
    rule = weights or {"rule": "sequence_product"}
    compositions = group_compositions([(law, size)])

    def update(baseline: str, how: Mapping[str, Any] = rule) -> Tensor:
        return update_of(compositions, pi, baseline, **how)

    def single(value: Tensor, factor: Tensor) -> Tensor:
        return law.expect(gradient_terms(batch, value, pi, factor))

    exact = weigh("sequence_product", batch).value
    gradient = exact_gradient(w.env, pi)
    found: dict[str, Any] = {
        "gradient": gradient,
        "shrunk": (size - 1) / size * gradient,
        "with_self": update("group_mean"),
        "weighted_self": update("weighted_mean"),
        "less_square": gradient - single(exact**2, batch.reward) / size,
        "self_normalized": update("self_normalized"),
    }
    if size == 1:
        return found | {"zero": 0.0}
    found |= {"others_only": torch.stack([update(b) for b in OTHERS_ONLY]), "gradients": torch.stack([gradient] * 3)}
    for name, how in (("capped", CAPPED), ("masked", MASKED)):
        value, ones = weigh(batch=batch, **how).value, torch.ones_like(batch.reward)
        found[name] = update("leave_one_out", how)
        found[f"{name}_parts"] = single(value, batch.reward) - law.expect(batch.reward) * single(value, ones)
    if group.name in OFF_POLICY:
        found |= {
            "capped_plain": update("none", CAPPED),
            "cosine": cosine(found["self_normalized"], gradient),
            "one": 1.0,
        }
        found["cosine_weighted"] = cosine(found["weighted_self"], gradient)
    if group.name.startswith("on_policy"):
        found["unweighted"] = found["weighted_self"]
    return found


@lru_cache(maxsize=32)
def _derivation(shape: tuple[Any, ...], size: int, alive: tuple[bool, ...]) -> Derivation:
    """Groups of `size`; `alive` are the draws the target can make: the others have weight 0 where weights are divided by."""
    w = symbolic_world(shape)
    g = SymbolicGroup(w, size, short=True)
    capped, masked = (
        {d: sp.Symbol(f"{name}{d[0]}_{''.join(map(str, d[1]))}", nonnegative=True) for d in g.draws}
        for name in ("k", "j")
    )
    gradient, rho = w.gradient(), w.rho_definition()
    scored, drift = g.single(lambda d: g.weight(d) * g.reward(d)), g.single(g.weight)
    square = [s / size for s in g.single(lambda d: g.weight(d) ** 2 * g.reward(d))]
    shrink = sp.Rational(size - 1, size)
    live = {d: g.weight(d) if a else sp.Integer(0) for d, a in zip(g.draws, alive, strict=True)}

    def value(d: Any) -> sp.Expr:
        return g.weight(d) * g.reward(d)

    def with_self(rows: Any, i: int) -> sp.Expr:
        return g.weight(rows[i]) * (g.reward(rows[i]) - sp.Add(*map(g.reward, rows)) / size) / size

    def weighted(rows: Any, i: int) -> sp.Expr:
        return g.weight(rows[i]) * (g.reward(rows[i]) - sp.Add(*map(value, rows)) / size) / size

    def mean(rows: Any) -> sp.Expr:
        """Self-normalized mean; 0 if the target can make none of the draws."""
        total = sp.Add(*[live[d] for d in rows])
        return sp.Add(*[live[d] * g.reward(d) for d in rows]) / total if total != 0 else total

    def normalized(rows: Any, i: int) -> sp.Expr:
        return live[rows[i]] * (g.reward(rows[i]) - mean(rows)) / size

    def pairs(rows: Any, i: int) -> sp.Expr:
        if live[rows[i]] == 0:
            return sp.Integer(0)
        gaps = [live[d] * (g.reward(rows[i]) - g.reward(d)) for d in rows]
        return live[rows[i]] * sp.Add(*gaps) / sp.Add(*[live[d] for d in rows]) / size

    chains = [
        [
            Step("definition", g.update(with_self), "groups of stale responses, unweighted mean including the response",
                 quantity="with_self", tex=r"E_\mu\big[\tfrac1M \sum_i W_i (R_i - \bar R) s_i\big]"),
            Step("independence", [shrink * (a - g.mean(g.reward) * d) for a, d in zip(scored, drift, strict=True)],
                 "the other rewards are independent of W_i s_i", tex=r"\tfrac{M-1}{M}(E[W R s] - E[R]\, E[W s])"),
            Step("gradient", [shrink * a for a in gradient], "E[W s] = 0 and E[W R s] = G (S2)", quantity="shrunk",
                 tex=r"\tfrac{M-1}{M} G"),
        ],
        [
            Step("definition", g.update(weighted), "weighted mean including the response", quantity="weighted_self",
                 tex=r"E_\mu\big[\tfrac1M \sum_i W_i (R_i - \tfrac1M \sum_j W_j R_j) s_i\big]"),
            Step("own_part", [a.xreplace(g.shorthand).xreplace(rho) - b for a, b in zip(scored, square, strict=True)],
                 "the term j = i holds W_i twice; the others vanish with E[W s]", tex=r"E[W R s] - \tfrac1M E[W^2 R s]"),
            Step("gradient", [a - b for a, b in zip(gradient, square, strict=True)], "by differentiating J",
                 quantity="less_square", tex=r"G - \tfrac1M E_\mu[W^2 R s]"),
        ],
        [
            Step("definition", g.update(normalized), "self-normalized mean including the response, by enumeration",
                 quantity="self_normalized",
                 tex=r"E_\mu\big[\tfrac1M \sum_i W_i (R_i - \tfrac{\sum_j W_j R_j}{\sum_j W_j}) s_i\big]"),
            Step("pairs", g.update(pairs), "only differences of rewards enter; the random sum of weights stays below",
                 quantity="self_normalized",
                 tex=r"E_\mu\big[\tfrac1M \sum_{i,j} \tfrac{W_i W_j (R_i - R_j)}{\sum_l W_l} s_i\big]"),
        ],
    ]  # fmt: skip
    if size > 1:
        groups = g.companions(lambda rows: 1)

        def apart(value: Any) -> Any:
            return g.companions(lambda rows: sp.Add(*map(value, rows)) / (size - 1))

        sums = [apart(g.reward), apart(value), g.companions(mean)]
        means = [g.mean(g.reward), g.mean(value), sums[2]]
        chains.append([
            Step("definition", [a * groups - b * d for b in sums for a, d in zip(scored, drift, strict=True)],
                 "a response and all groups of the M - 1 others: their plain, weighted, self-normalized mean",
                 quantity="others_only", tex=r"E_\mu\big[\tfrac1M \sum_i W_i (R_i - b_{-i}) s_i\big]"),
            Step("independence", [a - b * d for b in means for a, d in zip(scored, drift, strict=True)],
                 "b_i is independent of W_i s_i, whatever function of the others it is", tex=r"E[W R s] - E[b]\, E[W s]"),
            Step("gradient", gradient * 3, "E[W s] = 0", quantity="gradients", tex="G"),
        ])  # fmt: skip
        for name, kept, says in (("capped", capped, "k = min(W, c)"), ("masked", masked, "k = W where W <= c, else 0")):
            rewarded, moved = g.single(lambda d, kept=kept: kept[d] * g.reward(d)), g.single(kept.__getitem__)
            chains.append([
                Step("definition", [a * groups - sums[0] * d for a, d in zip(rewarded, moved, strict=True)],
                     f"{says}, mean of the others' rewards", quantity=name,
                     tex=r"E_\mu\big[\tfrac1M \sum_i k_i (R_i - \bar R_{-i}) s_i\big]"),
                Step("independence", [a - means[0] * d for a, d in zip(rewarded, moved, strict=True)],
                     "as before, but E[k s] is not 0", quantity=f"{name}_parts", tex=r"E[k R s] - E_\mu[R]\, E[k s]"),
            ])  # fmt: skip

    def point(rng: random.Random) -> Mapping[sp.Symbol, Any]:
        free = {k: sp.Rational(rng.randint(0, 8), 5) for k in (*capped.values(), *masked.values())}
        return g.named(w.point(rng), exact_values) | free

    def bind(group: Group) -> Mapping[sp.Symbol, float]:
        values = g.named(w.bind(group.world), float_values)
        for symbols, weight in ((capped, capped_weight), (masked, masked_weight)):
            values |= dict(zip(symbols.values(), weight(group.world.batch).tolist(), strict=True))
        return values

    return Derivation(chains, point, bind)


def capped_weight(batch: SegmentedBatch) -> Tensor:
    """Weight [N] of each draw under the cap."""
    return weigh(batch=batch, **CAPPED).value.amax(1)


def masked_weight(batch: SegmentedBatch) -> Tensor:
    """Weight [N] of each draw under the mask."""
    return weigh(batch=batch, **MASKED).value.amax(1)


def derive(group: Group) -> Derivation:
    """All groups in symbols, or sums over arrays for a transformer; which draws the target can make is the instance's."""
    if isinstance(group.world, TransformerWorld):
        return stale_derivation(group.size, capped_weight, masked_weight)
    alive = weigh("sequence_product", group.world.batch).value.amax(1) > 0
    return _derivation(group.world.shape, group.size, tuple(alive.tolist()))


def worlds() -> list[World]:
    """One and two tokens, an end token, on-policy and deterministic targets."""
    mu = TabularPolicy.random(2, 2, STREAM["stale on_policy"]["target"])
    fixed = one_hot_policy(2, 2, "stale deterministic")
    return [
        world("stale_one_token", 3, 1, one(), behaviors=1),
        world("stale_end_token", 2, 2, cuts((1,)), eos=1),
        world("stale_two_tokens", 2, 2, cuts((1,))),
        world("on_policy", 2, 2, one(), target=mu, policies=(mu,)),
        world("stale_deterministic_target", 2, 2, one(), behaviors=1, target=fixed),
    ]


def instances() -> list[Group]:
    """Groups of one to three; of two where a draw has many outcomes, as of a transformer."""
    more = [
        world("stale_three_tokens", 3, 2, cuts((1,)), eos=2),
        world("stale_three_positions", 2, 3, cuts((1,)), eos=1),
    ]
    tabular = groups_of(worlds(), (2, 1, 3)) + groups_of([random_behavior()], (2, 1)) + groups_of(more, (2,))
    return tabular + groups_of([short_world()], (2, 3)) + groups_of(transformer_worlds(), (2,))


def self_included(right: Any) -> Any:
    """Bug: the leave-one-out variants keep the response's own reward in the mean."""
    whole = {"weighted_leave_one_out": "weighted_mean", "self_normalized_leave_one_out": "self_normalized"}
    return lambda batch, baseline="weighted_leave_one_out": right(batch, whole.get(baseline, baseline))


def unweighted(right: Any) -> Any:
    """Bug: the baseline's weights are all 1."""

    def wrong(batch: SegmentedBatch, baseline: str = "weighted_leave_one_out") -> Tensor:
        return right(batch.replaced(logp_target=batch.logp_behavior), baseline)

    return wrong


SHARED = ("with_self", "weighted_self", "others_only")
TOLD_APART = ("stale_two_tokens_2", "stale_end_token_3", "transformer_short_3", "transformer_dense_2")
THEOREM = Theorem(
    id="G2",
    kind="identity",
    title="baselines on stale responses: those that depend on the others only are free, the response's own part is not",
    hypotheses=(
        "the M responses to a prompt are independent draws of one sampler, and the update is divided by M",
        "W_i is the full product of ratios, and the behaviors cover the target: E[W s] = 0",
        "M >= 2 for leave-one-out; w is a weight that depends on the response alone",
    ),
    statement="update (1/M) sum_i W_i (R_i - b_i) s_i: b = mean(R): ((M-1)/M) G; b = mean(W R): G - (1/M) E[W^2 R s]; "
    "b = sum W R/sum W: by enumeration, in general not parallel to G; any b_i of the other responses: G. "
    "Weight w capped, b_i = mean of the others: E[w R s] - E[b] E[w s]",
    source="ours (S2 and independence)",
    claims=(
        Claim("with_self", "equal", "with_self", "shrunk", "plain mean including the response: (M-1)/M G, off-policy too"),
        Claim("weighted_self", "equal", "weighted_self", "less_square", "weighted mean including it: G - E[W^2 R s]/M"),
        Claim("others_only", "equal", "others_only", "gradients", "plain, weighted, self-normalized leave-one-out: G"),
        Claim("capped", "equal", "capped", "capped_parts", "weights capped: E[w R s] - E[b] E[w s]"),
        Claim("masked", "equal", "masked", "masked_parts", "weights masked: the same formula"),
        Claim("capped_not_free", "differs", "capped", "capped_plain", "under a cap leave-one-out moves the mean", margin=0.02),
        Claim("not_parallel", "differs", "cosine", "one", "self-normalized: cosine with G (left) is not 1", margin=0.01),
        Claim("weighted_not_parallel", "differs", "cosine_weighted", "one", "weighted mean: cosine with G (left)", margin=0.01),
        Claim("on_policy", "equal", "unweighted", "shrunk", "on-policy the weighted mean is the plain one"),
        Claim("group_of_one", "equal", "self_normalized", "zero", "a self-normalized group of one teaches nothing"),
    ),
    instances=instances,
    measure=measure,
    derive=derive,
    outcome="On stale data take the baseline from the other responses, and expect it to bias whenever weights are capped.",
    mutants=(
        Mutant(name="weights_capped", kind="hypothesis", breaks=SHARED, on=TOLD_APART,
               measure=lambda group: measure(group, **CAPPED),
               why="E[min(W,c) s] is not 0 and E[min(W,c) R s] not G; needs W above the cap"),
        Mutant(name="token_weights", kind="hypothesis", breaks=SHARED, on=TOLD_APART,
               measure=lambda group: measure(group, rule="exact"),
               why="each token weighted by its own ratio corrects one token's law, not the response's; needs two tokens"),
        Mutant(name="support_violated", kind="hypothesis", breaks=SHARED,
               instances=lambda: [Group("uncovered_2", uncovered_world(), 2)],
               why="the sampler never draws what the target does half of the time"),
        Mutant(name="self_in_leave_one_out", kind="bug", breaks=("others_only",), on=TOLD_APART,
               plant=lambda: planted(weighted_baseline, "weighted_group_advantage", self_included),
               why="the response's own weighted reward is in its baseline: E[W^2 R s]/M is lost"),
        Mutant(name="baseline_unweighted", kind="bug", breaks=("weighted_self",), on=("stale_two_tokens_3", "stale_end_token_3"),
               plant=lambda: planted(weighted_baseline, "weighted_group_advantage", unweighted),
               why="the weighted mean without its weights; the leave-one-out variants cannot tell, for they are free anyway"),
        Mutant(name="ratio_inverted", kind="bug", breaks=SHARED, on=TOLD_APART, plant=bugs.ratio_inverted,
               why="behavior over target is no weight with E[W s] = 0; needs target != behavior"),
    ),
)  # fmt: skip
