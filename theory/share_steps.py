"""Why a replay share is best, whatever the samples are: the chains of K1 that start from the quadratic error."""

from __future__ import annotations

import numpy as np
import sympy as sp

from theory.derivation import Step
from theory.mixing_cases import MixingSymbols

BEST = sp.Symbol("a_star", real=True)
PROBES = np.array([0.0, 0.13, 0.5, 0.86, 1.0])


def share_chains(w: MixingSymbols, bends: int) -> list[list[Step]]:
    """Excess over the chosen share, and the choice: where f' = 0 if f bends up (`bends` > 0), else the better end."""
    f, a = w.at_budget(w.a), w.a
    slope_at = sp.diff(f, a).subs(a, BEST)
    probes = [sp.Rational(str(p)) for p in PROBES]
    above = [
        Step("excess", [w.at_budget(p) - w.at_budget(BEST) for p in probes], "over the chosen share"),
        Step("taylor", [slope_at * (p - BEST) + w.bend / w.C * (p - BEST) ** 2 for p in probes],
             "a quadratic is its own expansion: >= 0 for all a if C b^2 >= D_v D_c and the slope points out of [0, 1]",
             quantity="above", tex=r"f'(a^*)(a - a^*) + \tfrac{Cb^2 - D_vD_c}{C}(a - a^*)^2"),
    ]  # fmt: skip
    if bends > 0:
        choice = [
            Step("stationary", sp.solve(sp.diff(f, a), a)[0], "f' = 0"),
            Step("collected", w.stationary, "f' = (D_v c_f - D_c v_f)/C + 2a (C b^2 - D_v D_c)/C",
                 tex=r"\frac{D_c v_f - D_v c_f}{2(Cb^2 - D_vD_c)}"),
        ]  # fmt: skip
        clipped = sp.Max(0, sp.Min(1, w.stationary))
        final = [Step("clip", clipped, "f is convex: the nearest share of [0, 1] is best", quantity="share",
                      tex=r"a^* = \mathrm{clip}(\cdot, 0, 1)")]  # fmt: skip
        return [above, choice, final]
    ends = [
        Step("ends", w.at_budget(sp.Integer(1)) - w.at_budget(sp.Integer(0)), "f does not bend up: the better end is best"),
        Step("which", w.b**2 + (w.vr * w.cr - w.vf * w.cf) / w.C, "all replay against none",
             tex=r"f(1) - f(0) = b^2 + (v_r c_r - v_f c_f)/C"),
    ]  # fmt: skip
    return [above, ends]
