"""O8: one cap per segment, in proportion to the segment's divergence."""

from __future__ import annotations

from functools import partial
from math import log
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from testbed.exact import second_moments
from testbed.policies.schedule import cuts
from testbed.policies.tabular import TabularPolicy
from testbed.weighting import cap_bounds, granularity
from testbed.weighting.cap_bounds import d2_cap, segment_bound, segment_caps
from theory.capped_factors import SegmentCase, bound_derivation, optimum_derivation
from theory.derivation import Derivation
from theory.planting import planted
from theory.small_worlds import small_worlds
from theory.theorem import Claim, Mutant, Quantities, Theorem
from theory.worlds import World, world

SAME = 1e-9  # relative spread below which divergences count as equal, and shortfall below which a bound counts as least
DERIVED = 4  # responses up to which the bound on the error is derived over symbols


def rows(*probs: float) -> TabularPolicy:
    """Two-token policy from the probability of token 1 after each prefix."""
    return TabularPolicy.from_probs(torch.tensor([[1 - p, p] for p in probs], dtype=torch.float64))


def worse_ahead(reward: float = 1.0) -> SegmentCase:
    """The target goes where the behavior rarely goes, and there the next factor is 0 or 50: the bound is nearly attained."""
    found = world(
        "worse_ahead",
        2,
        2,
        cuts((1,)),
        target=rows(0.99, 0.5, 1.0),
        policies=(rows(0.1, 0.5, 0.02),) * 2,
        rewards=[reward] * 4,
    )
    return SegmentCase(world=found, n=10**6, caps=((100.0, 25.0), (100.0, 400.0)))


def equal_laws() -> World:
    """The same two laws at every prefix: three segments of one divergence."""
    mu = rows(*(0.3,) * 7)
    return world("equal_laws", 2, 3, cuts((1, 2)), target=rows(*(0.6,) * 7), policies=(mu, mu, mu))


def instances() -> list[SegmentCase]:
    """Shared small worlds, three segments of unequal and of equal divergence, and one where the bound is nearly attained."""
    worlds = [*small_worlds(), world("three_segments", 2, 3, cuts((1, 2)), behaviors=3), equal_laws()]
    near = world("nearly_on_policy", 2, 2, cuts((1,)), target=rows(*(0.5,) * 3), policies=(rows(0.45, 0.55, 0.5),) * 2)
    return [*(SegmentCase(world=w, n=16) for w in (*worlds, near)), worse_ahead()]


def measure(instance: SegmentCase, averages: bool = False) -> Quantities:
    """Error and bound at several cap vectors; the bound's least value by formula, by search and over equal caps.

    Mutants average the divergence of a segment under the behavior.
    """
    d, n = instance.average if averages else instance.largest, instance.n
    count = len(d)
    caps = segment_caps(d, n)
    least = segment_bound(d, n, caps)
    vectors = [torch.tensor(c, dtype=torch.float64) for c in instance.cap_vectors]
    errors = np.array([instance.error(c) for c in vectors])

    def log_bound(logs: np.ndarray) -> float:
        return log(segment_bound(d, n, np.exp(logs).tolist()))

    search = minimize(log_bound, np.zeros(count), method="BFGS", options={"gtol": 1e-9})
    level = float((2 * n / count) * (d / 4).sum() ** 2) ** (1 / (count + 2))
    common = segment_bound(d, n, [level] * count)
    steps = [caps * torch.tensor([1.1 if j == k else 1.0 for j in range(count)]) for k in range(count)]
    values: dict[str, Any] = {
        "bias": errors[:, 0], "bias_bound": [float((d / (4 * c)).sum()) for c in vectors],
        "second": errors[:, 1], "product": [float(c.prod()) for c in vectors],
        "mse": errors[:, 2], "bound": [segment_bound(d, n, c) for c in vectors],
        "error_at_caps": instance.error(caps)[2], "caps": caps, "least": least,
        "value": count * (count + 2) * float(d[0] / (4 * caps[0])) ** 2,
        "searched": np.exp(search.fun), "common": common,
        "moved": [segment_bound(d, n, step * factor) for step in steps for factor in (1.0, 0.8)],
        "equal_caps_are_best": float(common <= least * (1 + SAME)),
        "divergences_are_equal": float(d.max() <= d.min() * (1 + SAME)),
    }  # fmt: skip
    if count == 1:
        values |= {"alone": caps[0], "second_moment_cap": d2_cap(float(d[0]), n)}
    if instance.name == "worse_ahead":
        values |= {"unequal": common, "unequal_least": least}
    return values


def derive(instance: SegmentCase) -> Derivation:
    """Over symbols for two segments of a small world; elsewhere the minimum alone, the bound by enumeration."""
    if len(instance.largest) == 2 and instance.world.env.vocab_size**instance.world.env.horizon <= DERIVED:
        return bound_derivation(instance.world.shape)
    return optimum_derivation(len(instance.largest))


def one_cap_for_all(right: Any) -> Any:
    """Bug: the geometric mean of the caps for every segment."""

    def wrong(d: Any, n: float) -> Tensor:
        caps = right(d, n)
        return caps.log().mean().exp().expand_as(caps)

    return wrong


def products_so_far(right: Any) -> Any:
    """Bug: every factor is the product through the end of its segment, so that early segments count again and again."""

    def wrong(batch: Any, granularity: str = "token", **kw: Any) -> Tensor:
        return right(batch, "segment_prefix" if granularity == "segment" else granularity, **kw)

    return wrong


ERROR = ("bias_part", "bound")
THEOREM = Theorem(
    id="O8",
    kind="optimum",
    title="per-segment caps in proportion to each segment's divergence",
    hypotheses=(
        "boundaries are prefix-measurable or exogenous (S1); every behavior supports the target; |f| <= 1",
        "D_k is the largest second moment of segment k's factor over the histories its start can have under the behavior",
        "n independent draws; the estimator is the mean of prod_k min(w_k, c_k) f: factors are capped, not their product so far",
    ),
    statement="MSE <= (sum_k D_k/(4 c_k))^2 + (prod_k c_k)/n, strictly convex in log c; its only minimizer is c_k = D_k/(4s), "
    "s = (prod_k D_k / (2 K n 4^K))^(1/(K+2)), where it is K(K+2)s^2; equal caps are optimal iff all D_k are equal; K = 1 is O3",
    source="ours; a reading of SPIRE's 'per-segment second-moment bound' and 'closed-form MSE-optimal clip'",
    reading=True,
    claims=(
        Claim("bound", "at_most", "mse", "bound", "error <= (sum D_k/(4c_k))^2 + prod c_k/n at every cap vector"),
        Claim("certificate", "at_most", "error_at_caps", "least", "in particular at the advised caps"),
        Claim("bias_part", "at_most", "bias", "bias_bound", "bias <= sum_k D_k/(4c_k)"),
        Claim("variance_part", "at_most", "second", "product", "second moment <= prod_k c_k"),
        Claim("value", "equal", "least", "value", "the bound at the advised caps is K(K+2)s^2, s = D_k/(4c_k)"),
        Claim("searched", "equal", "searched", "least", "a quasi-Newton search finds the same least value"),
        Claim("moved", "at_most", "least", "moved", "a cap moved, with or without the others, does not lower the bound"),
        Claim("equal_iff", "equal", "equal_caps_are_best", "divergences_are_equal", "equal caps are best iff all D_k are equal"),
        Claim("unequal", "differs", "unequal", "unequal_least", "elsewhere they cost", margin=0.01),
        Claim("one_segment", "equal", "alone", "second_moment_cap", "one segment: O3's cap"),
    ),
    instances=instances,
    measure=measure,
    derive=derive,
    outcome="Give a segment a cap in proportion to its worst divergence; one cap for all segments is right only if they are "
    "equally stale. The bound is for capped factors, not for SPIRE's capped product W_(k).",
    mutants=(
        Mutant(name="averages_for_sups", kind="hypothesis", breaks=ERROR, measure=partial(measure, averages=True),
               on=("worse_ahead",), why="the worst history replaced by the average: weights lead where the divergence is"),
        Mutant(name="signal_exceeds_one", kind="hypothesis", breaks=ERROR, instances=lambda: [worse_ahead(3.0)],
               why="|f| <= 1 dropped; needs an instance where the bound is nearly attained"),
        Mutant(name="one_cap_for_all", kind="bug", on=("worse_ahead", "three_segments"),
               breaks=("value", "searched", "moved", "equal_iff"),
               plant=lambda: planted(cap_bounds, "segment_caps", one_cap_for_all),
               why="the same cap for every segment; needs segments of unequal divergence"),
        Mutant(name="products_so_far_as_factors", kind="bug", breaks=(*ERROR, "certificate"), on=("worse_ahead",),
               plant=lambda: planted(granularity, "log_ratios", products_so_far),
               why="factors that contain the earlier ones"),
        Mutant(name="chi2_for_d2", kind="bug", breaks=("bias_part", "certificate"), on=("nearly_on_policy",),
               plant=lambda: planted(second_moments, "segment_d2", lambda right: lambda *a: right(*a) - 1),
               why="segment_d2 returns d2 - 1: caps below 1 cut on-policy data and are certified to cost nothing"),
    ),
)  # fmt: skip
