"""C10: at one threshold a mask loses the token and a cap the excess: more bias against more second moment."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import sympy as sp

from testbed.environments.prefix_tree import PrefixTree
from testbed.weighting import mask
from testbed.weighting import truncate as truncation
from testbed.weighting.rules import weigh
from theory.derivation import Derivation, Step
from theory.mismatch_worlds import F, K, P, Q, bind, mismatch, mismatches, point
from theory.planting import planted
from theory.theorem import Claim, Mutant, Quantities, Theorem
from theory.worlds import World

C = sp.Symbol("C", positive=True)
CAPS = {"2": 2.0, "5": 5.0, "1p13": 1.13}


@dataclass(frozen=True, kw_only=True)
class Threshold:
    """A world of one token and an upper threshold on the ratio."""

    name: str
    world: World
    cap: float


def measure(instance: Threshold) -> Quantities:
    """Bias and second moment of `mis` and `tis` at the threshold, by enumeration of both laws."""
    law, batch, cap = instance.world.law, instance.world.batch, instance.cap
    f = batch.reward
    ratio = weigh("exact", batch).value[:, 0]
    masked, capped = (weigh(rule, batch, cap=cap).value[:, 0] for rule in ("mis", "tis"))
    truth = instance.world.target_law.expect(instance.world.target_law.batch.reward)
    beyond, tie = (ratio > cap * (1 + 1e-12)).double(), (ratio / cap - 1).abs() <= 1e-12
    bias = {name: law.expect(w * f) - truth for name, w in (("mask", masked), ("cap", capped))}
    second = {name: law.expect((w * f) ** 2) for name, w in (("mask", masked), ("cap", capped))}
    found: dict[str, Any] = {
        "mask_bias": bias["mask"], "whole": -law.expect(ratio * f * beyond),
        "cap_bias": bias["cap"], "excess": -law.expect((ratio - cap) * f * beyond),
        "mask_second": second["mask"], "cap_second": second["cap"],
        "kept": masked[tie], "tied": ratio[tie],
        "cap_size": abs(float(bias["cap"])), "mask_size": abs(float(bias["mask"])),
        "mask_only": law.expect(masked**2), "mask_ceiling": cap * law.expect(ratio * (1 - beyond)),
        "difference": law.probs * (capped - masked) * f,
    }  # fmt: skip
    return found


@lru_cache(maxsize=1)
def _derivation() -> Derivation:
    beyond = (1 + sp.sign(K - C)) / 2
    mask_w, cap_w = K * (1 - beyond), K * (1 - beyond) + C * beyond
    chains = [
        [
            Step("mask", Q * mask_w * F - P * F, "one token's share of the mask's bias", tex=r"q\,k\,1\{k \le C\}\,f - p\,f"),
            Step("whole", -P * F * beyond, "p = q k: the whole contribution of what is dropped", tex=r"-p\,f\,1\{k > C\}"),
        ],
        [
            Step("cap", Q * cap_w * F - P * F, "one token's share of the cap's bias", tex=r"q\,\min(k,C)\,f - p\,f"),
            Step("excess", -Q * (K - C) * F * beyond, "the excess only", tex=r"-q\,(k - C)\,f\,1\{k > C\}"),
        ],
        [
            Step("difference", Q * (cap_w - mask_w) * F, "cap minus mask", quantity="difference",
                 tex=r"q\,(\min(k,C) - k 1\{k\le C\})\,f"),
            Step("capped_part", Q * C * F * beyond, "C on what the mask drops: of the sign of f, so for f >= 0 the cap's bias is "
                 "the smaller and its second moment the larger", tex=r"q\,C f\,1\{k > C\}"),
        ],
    ]  # fmt: skip

    def draw(rng: Any) -> dict[sp.Symbol, Any]:
        return {**point(rng), C: sp.Rational(rng.randint(1, 60), 17)}

    def numbers(i: Threshold) -> dict[sp.Symbol, Any]:
        drawn = i.world.batch.tokens[:, 0].numpy()
        values = {symbol: value[drawn] for symbol, value in bind(i.world).items()}
        values[K] = np.where(
            np.abs(values[K] / i.cap - 1) <= 1e-12, i.cap * (1 - 1e-12), values[K]
        )  # a tie is not beyond
        return {**values, C: i.cap, F: i.world.batch.reward.numpy()}

    return Derivation(chains, draw, numbers)


def nonnegative(world: World) -> World:
    """The same world with rewards >= 0."""
    return replace(world, env=PrefixTree(world.env.vocab_size, 1, world.env.rewards - world.env.rewards.min()))


def instances() -> list[Threshold]:
    """Every mismatch with rewards >= 0 at three thresholds, and one whose ratios meet them up to rounding."""
    ties = mismatch("tie", [0.56, 0.3, 0.1, 0.04], [0.28, 0.06, 0.1 / 1.13, 0.66 - 0.1 / 1.13])
    return [
        Threshold(name=f"{world.name}_{name}", world=nonnegative(world), cap=cap)
        for world in (*mismatches(), ties)
        for name, cap in CAPS.items()
    ]


def mixed_signs() -> list[Threshold]:
    """Rewards of both signs, so that what is cut off above and what is left over cancel."""
    world = next(w for w in mismatches() if w.name == "doubtful_trainer")
    signed = replace(world, env=PrefixTree(3, 1, [0.0, 0.6, -1.0]))
    return [Threshold(name="mixed_signs", world=signed, cap=2.0)]


def inverse_band(right: Any) -> Any:
    """Bug: the band on the inverse ratio."""
    return lambda log_ratio, low, high: right(-log_ratio, low, high)


def capped_at_the_log(right: Any) -> Any:
    """Bug: the logarithm of the cap where the cap is due."""
    return lambda log_ratio, cap: right(log_ratio, np.log(cap))


def strictly_inside(right: Any) -> Any:
    """Bug: ties are dropped."""
    return lambda log_ratio, low, high: right(log_ratio, low, high * (1 - 1e-9))


def lost_support() -> list[Threshold]:
    """A sampler that never draws the last token, which is rewarded."""
    world = nonnegative(mismatch("lost_support", [0.5, 0.2, 0.3], [0.1, 0.9, 0.0], [0.5, 0.0, 1.0]))
    return [Threshold(name="lost_support", world=world, cap=2.0)]


THEOREM = Theorem(
    id="C10",
    kind="identity",
    title="at the same threshold a mask loses the whole contribution, a cap the excess",
    hypotheses=("tokens are drawn from q, and q > 0 wherever p > 0; one upper threshold C > 0, k = C is kept", "for the order of "
    "the biases: f >= 0"),
    statement="bias of the mask -E_p[f 1{k > C}], of the cap -E_q[(k-C)+ f]; for f >= 0 the cap's bias is the smaller; for every "
    "f its second moment E_q[(w f)^2] is the larger; the mask's E_q[w^2] is at most C P_p(k <= C)",
    source="ours; IcePop and masked importance sampling against truncation",
    claims=(
        Claim("mask_bias", "equal", "mask_bias", "whole", "mask: bias -E_p[f 1{k > C}]"),
        Claim("cap_bias", "equal", "cap_bias", "excess", "cap: bias -E_q[(k-C)+ f]"),
        Claim("bias_order", "at_most", "cap_size", "mask_size", "f >= 0: the cap is less biased"),
        Claim("moment_order", "at_most", "mask_second", "cap_second", "for every f its second moment is the larger"),
        Claim("ties", "equal", "kept", "tied", "a ratio that meets C up to rounding is kept"),
        Claim("mask_moment", "at_most", "mask_only", "mask_ceiling", "E_q[(k 1{k <= C})^2] <= C P_p(k <= C)"),
    ),
    instances=instances,
    measure=measure,
    derive=lambda instance: _derivation(),
    outcome="At one threshold, masking pays in bias for a smaller second moment: compare rules at equal error, not at equal "
    "bounds.",
    mutants=(
        Mutant(name="rewards_of_both_signs", kind="hypothesis", breaks=("bias_order",), instances=mixed_signs,
               why="f >= 0 dropped: the lost contributions cancel, the lost excesses do not"),
        Mutant(name="bound_on_the_inverse", kind="bug", on=("doubtful_sampler_2",),
               breaks=("mask_bias", "mask_moment"),
               plant=lambda: planted(mask, "mask_band", inverse_band),
               why="drops where q/p > C; needs ratios beyond C and none beyond 1/C, or the reverse"),
        Mutant(name="log_of_the_cap_for_the_cap", kind="bug", on=("mild_2",),
               breaks=("cap_bias", "bias_order", "moment_order"),
               plant=lambda: planted(truncation, "truncate", capped_at_the_log),
               why="min(k, log C) cuts what is not beyond C; needs ratios between the two"),
        Mutant(name="ties_dropped", kind="bug", on=("tie_2", "tie_5", "tie_1p13"), breaks=("ties", "mask_bias"),
               plant=lambda: planted(mask, "mask_band", strictly_inside), why="< for <=, in floating point"),
        Mutant(name="lost_support", kind="hypothesis", breaks=("mask_bias", "cap_bias"), instances=lost_support,
               why="a token that the sampler never draws is lost to both, in whole"),
    ),
)  # fmt: skip
