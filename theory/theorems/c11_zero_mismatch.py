"""C11: where the engines agree, every rule whose acceptance region holds 1 is bitwise the uncorrected update."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import sympy as sp
import torch

from testbed.estimators.gradient import gradient_terms
from testbed.exact.next_token_laws import with_next_token_laws
from testbed.policies.schedule import PrefixSchedule, cuts, one
from testbed.policies.tabular import TabularPolicy
from testbed.policies.truncated import Truncated
from testbed.weighting import confidence
from testbed.weighting import truncate as truncation
from testbed.weighting.rule import GRANULARITIES
from testbed.weighting.rules import RULES, weigh
from theory.derivation import Derivation, Step
from theory.planting import planted
from theory.single_precision import kept_in_single_precision
from theory.theorem import Claim, Mutant, Quantities, Theorem
from theory.worlds import STREAM, World, one_hot_policy, world

K, C, LOW, LAM, ALPHA, M, SIZE = sp.symbols("k C a lambda alpha M n", positive=True)
OPERATORS = ("tis", "band", "vespo", "ais", "sis", "exact")
WITHOUT_ONE: dict[str, tuple[str, dict[str, float]]] = {
    "cap_below_one": ("tis", {"cap": 0.9}),
    "band_without_one": ("icepop", {"low": 1.1, "high": 5.0}),
    "clamp_without_one": ("band", {"low": 1.1, "high": 5.0}),
}
EVERY = [(name, g) for name, rule in RULES.items() for g in GRANULARITIES if g in rule.granularities]


def complete(instance: World) -> Any:
    """The batch with everything any rule may ask for."""
    batch = with_next_token_laws(instance.batch, instance.target, instance.schedule)
    return batch.replaced(logp_proximal=batch.logp_behavior.clone())


def measure(instance: World, top_p: float = 0.8) -> Quantities:
    """Per rule: whether all its weights are exactly 1, and whether its gradient terms are bits of the uncorrected ones."""
    batch = complete(instance)
    plain = gradient_terms(batch, weigh("none", batch), instance.target)
    bits, terms = [], []
    for name, granularity in EVERY:
        w = weigh(name, batch, granularity=granularity)
        bits.append(float(bool((w.value[batch.mask] == 1.0).all()) and not bool(w.acted.any())))
        terms.append(float(torch.equal(gradient_terms(batch, w, instance.target), plain)))
    changes = [float((weigh(rule, batch, **p).value[batch.mask] - 1).abs().min()) for rule, p in WITHOUT_ONE.values()]
    first = {name: weigh(name, batch).value[batch.mask][0] for name in OPERATORS}
    found: dict[str, Any] = {
        "weights_are_1": bits, "same_terms": terms, "every": [1.0] * len(EVERY),
        "at_one": [float(first[name]) for name in OPERATORS],
        "least_change": [0.05] * len(WITHOUT_ONE), "changes": changes,
    }  # fmt: skip
    if instance.name in ("deterministic", "sure"):
        sure = batch.logp_target[batch.mask].exp().max().item()
        found |= {"float32": float(kept_in_single_precision([sure], [sure], 2.0)[0]), "kept": 1.0}
    if instance.name == "two_segments":
        cut = Truncated(instance.target, top_p=top_p)
        filtered = replace(instance, schedule=PrefixSchedule((cut,), one()))
        found |= {"nucleus": weigh("exact", filtered.batch).value[filtered.batch.mask], "unfiltered": 1.0}
    return found


@lru_cache(maxsize=1)
def _derivation() -> Derivation:
    least = lambda x, y: (x + y - sp.Abs(x - y)) / 2  # noqa: E731
    largest = lambda x, y: (x + y + sp.Abs(x - y)) / 2  # noqa: E731
    accept = least(1, K / M)
    operators = [
        least(K, C), largest(least(K, C), LOW), sp.exp(LAM) * K**2 * sp.exp(-LAM * K), (1 - ALPHA) + ALPHA * K,
        accept + (1 - accept) * K, K,
    ]  # fmt: skip
    chain = [
        Step("operators", [x.xreplace({K: sp.Integer(1)}) for x in operators],
             "cap C >= 1, clamp to [a, C] with a <= 1, VESPO, interpolation, selection, the ratio itself: at k = 1",
             tex=r"\min(k,C),\ \mathrm{clamp},\ e^{\lambda}k^2e^{-\lambda k},\ (1-\alpha)+\alpha k,\ a+(1-a)k,\ k\ \big|_{k=1}"),
        Step("ones", [sp.Integer(1)] * len(operators), "each has the fixed point 1", quantity="at_one", tex="1"),
    ]  # fmt: skip
    means = [
        Step(
            "geometric", sp.exp(sp.log(K.subs(K, 1) ** SIZE) / SIZE), "products and roots of ones", tex=r"(1^n)^{1/n}"
        ),
        Step("one", sp.Integer(1), "at every granularity", tex="1"),
    ]

    def point(rng: Any) -> dict[sp.Symbol, Any]:
        draw = lambda: sp.Rational(rng.randint(1, 9), 9)  # noqa: E731
        return {C: 1 + draw(), LOW: draw(), LAM: draw(), ALPHA: draw(), M: 1 + draw(), SIZE: rng.randint(1, 9)}

    return Derivation([chain, means], point, lambda i: {C: 2.0, LOW: 0.5, LAM: 3.0, ALPHA: 0.0, M: 1.0, SIZE: 3.0})


def agreeing(base: World) -> World:
    """The same world drawn by the trainer itself, whatever the segments."""
    segments = base.schedule.branches()[0][1]
    return replace(base, schedule=PrefixSchedule((base.target,) * len(segments.policies), segments.segment_of))


def instances() -> list[World]:
    """Several segments, end tokens, sure and certain tokens, a larger vocabulary: all drawn by the trainer."""
    sure = TabularPolicy.from_probs(torch.tensor([[1 - 2.0**-30, 2.0**-30]] * 3, dtype=torch.float64))
    return [
        agreeing(world("two_segments", 3, 2, cuts((1,)))),
        agreeing(world("end_token", 3, 3, cuts((1, 2)), behaviors=3, eos=2)),
        agreeing(world("deterministic", 2, 2, cuts((1,)), target=one_hot_policy(2, 2, "zero mismatch"))),
        agreeing(world("sure", 2, 2, cuts((1,)), target=sure)),
        agreeing(world("many_tokens", 12, 1, one(), behaviors=1)),
    ]


def nearly_agreeing() -> list[World]:
    """Engines that differ in the last digits only."""
    base = world("nearly", 3, 2, cuts((1,)))
    noise = TabularPolicy.random(3, 2, STREAM["nearly"]["noise"]).logits
    other = TabularPolicy(base.target.table + 1e-9 * noise)
    return [replace(base, name="nearly", schedule=PrefixSchedule((other, other), cuts((1,))))]


def single_precision_gate(right: Any) -> Any:
    """Bug: KPop's divergences in float32."""

    def wrong(logp_target: Any, logp_behavior: Any, phi: float) -> Any:
        kept = kept_in_single_precision(logp_target.exp().numpy(), logp_behavior.exp().numpy(), phi)
        return torch.from_numpy(np.asarray(kept))

    return wrong


def no_cap_below_one(right: Any) -> Any:
    """Bug: caps below 1 are raised to 1."""
    return lambda log_ratio, cap: right(log_ratio, torch.as_tensor(cap).clamp(min=1.0).expand(log_ratio.shape))


THEOREM = Theorem(
    id="C11",
    kind="identity",
    title="zero mismatch: every rule is bitwise the uncorrected update",
    hypotheses=(
        "recorded behavior log-probs equal the trainer's bit for bit, over the whole vocabulary",
        "1 lies in the rule's acceptance region: caps >= 1, bands around 1",
        "stable arithmetic (1-p by expm1; divergences in float64)",
    ),
    statement="w = 1 exactly on every token, and the gradient terms are those without a correction, for all registered rules "
    "at their defaults and at every granularity that they take (CIS in its odds reading; at k = 1 no reading acts). Exceptions "
    "shown: caps below 1 and bands without 1; KPop in float32, which masks sure tokens; a filtered sampler, whose ratio is the "
    "surviving mass (C15)",
    source="ours",
    claims=(
        Claim("ones", "equal", "weights_are_1", "every", "every rule: all weights are exactly 1, none is marked as acted on",
              tolerance=0.0),
        Claim("terms", "equal", "same_terms", "every", "its gradient terms are bitwise the uncorrected ones", tolerance=0.0),
        Claim("without_one", "at_most", "least_change", "changes", "a cap below 1 and bands without 1 change every weight"),
        Claim("float32", "differs", "float32", "kept", "a float32 gate masks tokens both engines are sure of", margin=0.5),
        Claim("nucleus", "differs", "nucleus", "unfiltered", "a filtered sampler has ratios below 1", margin=0.05),
    ),
    instances=instances,
    measure=measure,
    derive=lambda instance: _derivation(),
    outcome="With exact engines no correction does anything: if a rule acts on such a batch, its arithmetic or its bounds are "
    "wrong.",
    mutants=(
        Mutant(name="engines_nearly_agree", kind="hypothesis", breaks=("ones", "terms"), instances=nearly_agreeing,
               why="log-probs that differ by 1e-9: the weights are no longer 1 bit for bit"),
        Mutant(name="gate_in_single_precision", kind="bug", breaks=("ones", "terms"), on=("sure", "deterministic"),
               plant=lambda: planted(confidence, "kpop_gate", single_precision_gate),
               why="NaN <= phi is False: sure tokens are masked; needs p that float32 takes for 1"),
        Mutant(name="cap_moved_to_one", kind="bug", breaks=("without_one",), on=("two_segments", "many_tokens"),
               plant=lambda: planted(truncation, "truncate", no_cap_below_one),
               why="a cap below 1 silently raised to 1, so that it never acts here"),
        Mutant(name="nothing_filtered", kind="hypothesis", breaks=("nucleus",), on=("two_segments",),
               measure=lambda instance: measure(instance, top_p=1.0), why="a filter that cuts nothing: the ratios stay 1"),
    ),
)  # fmt: skip
