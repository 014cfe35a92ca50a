"""K2: a fixed number of samples under a ceiling on what one may cost."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import sympy as sp

from testbed.core.errors import InputError
from testbed.estimators import mixing
from testbed.estimators.mixing import Allowed, replay_share_at_size
from theory.derivation import Derivation, Step
from theory.mixing_cases import MixingCase, MixingSymbols, numeric_least
from theory.planting import planted
from theory.theorem import Claim, Mutant, Quantities, Theorem

NUDGE = 2.0**-10  # of the ceiling: the least error is a quadratic in it, so central differences are exact


def refused(case: MixingCase) -> float:
    """1 if the library says that no mixture meets the ceiling."""
    try:
        replay_share_at_size(**case.given)
    except InputError:
        return 1.0
    return 0.0


def stated_share(case: MixingCase) -> float:
    """Unconstrained share as the statement has it, for a convex error or, without bias, a straight one."""
    worse = case.v_replay - case.v_fresh
    if case.bias == 0:
        return float(worse < 0)
    return min(max(-worse / (2 * float(case.n or 1) * case.bias**2), 0.0), 1.0)


def measure(case: MixingCase) -> Quantities:
    """Share, multiplier and least error against search over the shares that meet the ceiling."""
    tau, saving = case.cost_cap, case.cost_fresh - case.cost_replay
    infeasible = tau is not None and tau < min(case.cost_fresh, case.cost_replay)
    values: dict[str, Any] = {"refused": refused(case), "infeasible": float(infeasible)}
    if values["refused"] or infeasible:
        return values
    best = replay_share_at_size(**case.given)
    low = 0.0 if tau is None or saving == 0 else min(max((case.cost_fresh - tau) / saving, 0.0), 1.0)
    price = best.multipliers["cost_cap"]
    held = best.multipliers["at_least_0"] - best.multipliers["at_most_1"]
    values |= {
        "least": best.mse, "numeric": numeric_least(case.mse, low, 1.0), "share": best.share,
        "expected": max(stated_share(case), low), "cost": case.cost(best.share),
        "price": price, "zero": 0.0, "smallest": min(best.multipliers.values()),
        "slope": 2 * best.share * case.bias**2 + (case.v_replay - case.v_fresh) / float(case.n or 1),
        "multipliers": held + price * saving,
    }  # fmt: skip
    if tau is not None:
        values |= {"ceiling": tau, "slackness": price * (tau - values["cost"])}
    if price > 0 and 0 < best.share < 1:
        around = [replay_share_at_size(**case.given | {"cost_cap": float(tau or 0) + d}).mse for d in (-NUDGE, NUDGE)]
        values |= {"sensitivity": (around[0] - around[1]) / (2 * NUDGE), "price_where_bound": price}
    if tau is None and case.v_replay >= case.v_fresh:
        values |= {"unforced": best.share}
    return values


@lru_cache(maxsize=8)
def _derivation(bound: bool, biased: bool, capped: bool) -> Derivation:
    w = MixingSymbols()
    a, tau = w.a, w.tau
    f = w.at_size(a)
    slope = [
        Step("error", sp.diff(f, a), "N does not depend on a", tex=r"\frac{d}{da}\big(a^2b^2 + (a v_r + (1-a) v_f)/N\big)"),
        Step("slope", 2 * a * w.b**2 + w.dv / w.N, ">= 0 for v_r >= v_f: nothing but the ceiling asks for replay",
             quantity="slope", tex=r"2ab^2 + D_v/N"),
    ]  # fmt: skip
    chains = [slope]
    if capped:
        chains.append([
            Step("cheapest", sp.Heaviside(sp.Min(w.cost(sp.Integer(0)), w.cost(sp.Integer(1))) - tau, 0),
                 "1 if no share meets the ceiling: the cost is linear in a, so an end is cheapest", quantity="refused",
                 tex=r"1\{\min_a (a c_r + (1-a) c_f) > \tau\}"),
            Step("ends", sp.Heaviside(sp.Min(w.cf, w.cr) - tau, 0), "those ends cost c_f and c_r", quantity="infeasible",
                 tex=r"1\{\min(c_f, c_r) > \tau\}"),
        ])  # fmt: skip
    if biased:
        free = sp.Max(0, sp.Min(1, -w.dv / (2 * w.N * w.b**2)))
        chains.append([Step("unconstrained", sp.Max(0, sp.Min(1, sp.solve(sp.diff(f, a), a)[0])), "convex: clip the zero"),
                       Step("free", free, "solved", quantity="free", tex=r"\mathrm{clip}(-D_v/(2Nb^2), 0, 1)")])  # fmt: skip
    if bound:
        least = (w.cf - tau) / w.dc
        price = sp.Symbol("price")
        lagrangian = f + price * (w.cost(a) - tau)
        chains.append([
            Step("stationary", sp.solve(sp.diff(lagrangian, a), price)[0].subs(a, least),
                 "Lagrangian in a, solved for the multiplier; the ceiling holds with equality at a = (c_f - tau)/D_c"),
            Step("multiplier", (2 * least * w.b**2 + w.dv / w.N) / w.dc, "the slope above, per unit of cost",
                 quantity="price_where_bound", tex=r"(2ab^2 + D_v/N)/D_c"),
            Step("envelope", -sp.diff(w.at_size(least), tau), "the error that a higher ceiling would save",
                 quantity="sensitivity", tex=r"-\frac{d}{d\tau} \mathrm{MSE}(a(\tau))"),
        ])  # fmt: skip
        chains.append([
            Step("ceiling", sp.solve(w.cost(a) - tau, a)[0], "a c_r + (1-a) c_f = tau"),
            Step("least_share", least, "solved", quantity="share_where_bound", tex=r"(c_f - \tau)/D_c"),
        ])  # fmt: skip

    def bind(case: MixingCase) -> dict[sp.Symbol, Any]:
        return w.bind(case) | {a: 0.0 if refused(case) else replay_share_at_size(**case.given).share}

    return Derivation(chains, w.point, bind)


def derive(case: MixingCase) -> Derivation:
    """Steps for cases without a ceiling, with one, with one that can bind; with or without bias."""
    capped = case.cost_cap is not None
    return _derivation(capped and case.cost_fresh > case.cost_replay, case.bias != 0, capped)


def named_shares(case: MixingCase) -> Quantities:
    """Add the quantities that the derivation compares: the share where the ceiling binds, and the unconstrained one."""
    values = dict(measure(case))
    if "price_where_bound" in values:
        values["share_where_bound"] = values["share"]
    if "share" in values and case.bias:
        values["free"] = replay_share_at_size(**{k: v for k, v in case.given.items() if k != "cost_cap"}).share
    return values


def case(
    name: str, v: tuple[float, float], c: tuple[float, float], bias: float, n: float, tau: float | None
) -> MixingCase:
    """Build a problem of fixed size from (fresh, replay) pairs."""
    return MixingCase(name=name, v_fresh=v[0], v_replay=v[1], cost_fresh=c[0], cost_replay=c[1], bias=bias, n=n,
                      cost_cap=tau)  # fmt: skip


def instances() -> list[MixingCase]:
    """Ceilings that bind, do not, leave one mixture or none; equal costs; replay that varies less than fresh samples."""
    return [
        case("bound", (1.0, 2.0), (1.0, 0.5), 0.5, 4, 0.75),
        case("bound_negative_bias", (1.5, 4.0), (2.0, 0.25), -0.3, 2.5, 0.6),
        case("bound_unbiased", (1.0, 3.0), (1.0, 0.25), 0.0, 8, 0.4),
        case("loose", (1.0, 2.0), (1.0, 0.5), 0.5, 4, 1.25),
        case("no_ceiling", (1.0, 2.0), (1.0, 0.5), 0.5, 4, None),
        case("only_replay_meets_it", (1.0, 2.0), (1.0, 0.5), 0.5, 4, 0.5),
        case("just_infeasible", (1.0, 2.0), (1.0, 0.5), 0.5, 4, 0.499),
        case("infeasible", (1.0, 2.0), (1.0, 0.5), 0.5, 4, 0.1),
        case("same_cost_met", (1.0, 2.0), (1.0, 1.0), 0.5, 4, 1.0),
        case("same_cost_missed", (1.0, 2.0), (1.0, 1.0), 0.5, 4, 0.9),
        case("quieter_replay", (2.0, 1.0), (1.0, 0.5), 0.5, 4, 0.9),
        case("quieter_replay_bound", (2.0, 1.0), (1.0, 0.5), 0.5, 4, 0.6),
        case("quieter_replay_all", (4.0, 1.0), (1.0, 0.5), 0.25, 4, None),
        case("indifferent", (1.0, 1.0), (1.0, 0.5), 0.0, 4, 0.75),
    ]


def budget_for_size(case: MixingCase) -> Quantities:
    """Mutated reading: savings buy more samples, so N is not fixed; the budget is what N fresh samples cost."""
    spent = MixingCase(
        name=case.name, **case.sources, budget=float(case.n or 1) * case.cost_fresh, cost_cap=case.cost_cap
    )
    low = (case.cost_fresh - float(case.cost_cap or 0)) / (case.cost_fresh - case.cost_replay)
    return measure(case) | {"numeric": numeric_least(spent.mse, max(low, 0.0), 1.0)}


def clipped_away(right: Any) -> Any:
    """Bug: a ceiling that nothing meets is clipped to what replay costs."""

    def wrong(given: Any, cost_cap: float | None, pool_share: float = 1.0) -> Allowed:
        return right(
            given, None if cost_cap is None else max(cost_cap, min(given.cost_fresh, given.cost_replay)), pool_share
        )

    return wrong


def ceiling_ignored(right: Any) -> Any:
    """Bug: the ceiling is accepted and not used."""
    return lambda given, cost_cap, pool_share=1.0: Allowed(0.0, pool_share, "at_least_0", "at_most_1")


THEOREM = Theorem(
    id="K2",
    kind="optimum",
    title="a fixed number of samples under a ceiling on the cost of one",
    hypotheses=(
        "N independent samples in one unweighted mean, exactly a N of them replayed; N is fixed",
        "a c_r + (1-a) c_f <= tau; c_r <= c_f",
    ),
    statement="a* = max(clip(-D_v/(2 N b^2), 0, 1), (c_f - tau)/D_c), which is (c_f - tau)+/D_c for v_r >= v_f; where the "
    "ceiling binds its multiplier is (2 a b^2 + D_v/N)/D_c = -dMSE*/dtau; infeasible iff tau < c_r, and then refused; for "
    "D_c = 0 the ceiling is met by every share or by none",
    source="ours (KKT conditions of a convex quadratic); a reading of SPIRE's replay ratio",
    reading=True,
    references=("Boyd and Vandenberghe, Convex Optimization, 2004, sections 5.5 and 5.6",),
    claims=(
        Claim("least", "equal", "least", "numeric", "the share's error is what bounded search finds under the ceiling"),
        Claim("share", "equal", "share", "expected", "unconstrained optimum, or what the ceiling asks for"),
        Claim("ceiling", "at_most", "cost", "ceiling", "the mixture costs no more than allowed"),
        Claim("stationarity", "equal", "slope", "multipliers", "slope = multiplier(a >= 0) - multiplier(a <= 1) + price D_c"),
        Claim("signs", "at_most", "zero", "smallest", "multipliers are >= 0"),
        Claim("slackness", "equal", "slackness", "zero", "the price is 0 where the ceiling is not reached"),
        Claim("price", "equal", "price_where_bound", "sensitivity", "the price is what a higher ceiling would save"),
        Claim("infeasible", "equal", "refused", "infeasible", "refused exactly where no mixture is cheap enough"),
        Claim("unforced", "equal", "unforced", "zero", "without a ceiling nothing is replayed if v_r >= v_f"),
    ),
    instances=instances,
    measure=named_shares,
    derive=derive,
    outcome="With a fixed batch, replay exactly as much as the throughput ceiling forces, and read off what it costs.",
    mutants=(
        Mutant(name="savings_buy_samples", kind="hypothesis", breaks=("least",), measure=budget_for_size,
               on=("bound", "bound_negative_bias", "bound_unbiased"),
               why="N fixed is a hypothesis: at a fixed budget the same shares have other errors; needs c_r < c_f and a > 0"),
        Mutant(name="infeasible_clipped", kind="bug", breaks=("infeasible",),
               on=("just_infeasible", "infeasible", "same_cost_missed"),
               plant=lambda: planted(mixing, "allowed_shares", clipped_away),
               why="a ceiling below every cost is silently raised; needs an infeasible ceiling"),
        Mutant(name="ceiling_ignored", kind="bug", breaks=("least", "share", "ceiling"), on=("bound", "bound_negative_bias"),
               plant=lambda: planted(mixing, "allowed_shares", ceiling_ignored),
               why="the ceiling is read and not used; needs one that binds"),
    ),
)  # fmt: skip
