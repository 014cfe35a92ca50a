"""C9: a gate on the binary divergence keeps ratios of any size where the token is rare."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import sympy as sp
import torch
from scipy.optimize import brentq

from testbed.weighting import confidence
from testbed.weighting.confidence import kpop_gate
from testbed.weighting.rules import weigh
from theory.derivation import Derivation, Step
from theory.mismatch_worlds import mismatch
from theory.planting import planted
from theory.single_precision import kept_in_single_precision
from theory.theorem import Claim, Mutant, Quantities, Theorem
from theory.worlds import World

PHI = 2.0
P, Q, PHI_S = sp.symbols("p q phi", positive=True)
ALLOWED = {0.5: (108.69, 2), 0.9: (11.8, 1), 0.99: (2.36, 2)}  # the largest ratio kept at phi = 2, and its decimals
COMMON = 1 - np.exp(-PHI)  # up to here the backward divergence never decides
FAR = 1e3  # a second moment that no bound like TIS's or CIS's would allow


@dataclass(frozen=True, kw_only=True)
class Rare:
    """Two tokens; the sampler gives the first one p e^(-phi/p), which the gate lets pass."""

    name: str
    p: float

    @property
    def world(self) -> World:
        """The two laws."""
        q = self.p * np.exp(-PHI / self.p)
        return mismatch(self.name, [self.p, 1 - self.p], [q, 1 - q])


def largest_kept(p: float) -> float:
    """Largest ratio that the library's gate keeps at this probability of the trainer, by bisection on log q."""

    def kept(log_k: float) -> float:
        logp = torch.tensor([np.log(p)], dtype=torch.float64)
        return 0.5 - float(kpop_gate(logp, logp - log_k, PHI))

    far = 600.0
    return float("inf") if kept(far) < 0 else float(np.exp(brentq(kept, 0.0, far, xtol=1e-13)))


def measure(instance: Rare) -> Quantities:
    """What is kept, its second moment, and the largest ratio that passes."""
    world, p = instance.world, instance.p
    law = world.law
    log_p, log_q = world.target.table[0, :1], world.behaviors[0].table[0, :1]
    w = weigh("kpop", world.batch, phi=PHI)
    value, first = w.value[:, 0], world.batch.tokens[:, 0] == 0
    found: dict[str, Any] = {
        "kept": w.gate[:, 0].double(), "all": torch.ones(len(value)), "ratio": value[first], "e_phi_p": np.exp(PHI / p),
        "divergence": confidence.binary_kl(log_q, log_p),
        "second": law.expect(value**2), "lower": p * np.exp(PHI / p),
    }  # fmt: skip
    if p in ALLOWED:
        found = found if p <= COMMON else {"divergence": found["divergence"]}
        value, decimals = ALLOWED[p]
        found |= {"largest": round(largest_kept(p), decimals), "cataloged": value}
    if p <= 0.25:
        found |= {"moment": float(found["second"]), "bound_like_others": np.exp(PHI)}
        found |= {"sharper": FAR, "its_moment": float(found["second"])}
    found |= _in_single_precision()
    return found


def _in_single_precision() -> Quantities:
    """A token both engines are sure of, gated in float32 as one framework does, and by the library."""
    sure = torch.zeros(1, 1)
    return {
        "framework_keeps": float(kept_in_single_precision([1.0], [1.0], PHI)[0]),
        "library_keeps": float(kpop_gate(sure, sure, PHI)), "keep": 1.0,
    }  # fmt: skip


@lru_cache(maxsize=1)
def _derivation() -> Derivation:
    there = {Q: P * sp.exp(-PHI_S / P)}
    forward = P * sp.log(P / Q) + (1 - P) * sp.log((1 - P) / (1 - Q))
    backward = Q * sp.log(Q / P) + (1 - Q) * sp.log((1 - Q) / (1 - P))
    chains = [
        [
            Step("forward", forward.xreplace(there), "KL(p||q) of the two coins at q = p e^{-phi/p}",
                 tex=r"p\log\frac{p}{q} + (1-p)\log\frac{1-p}{1-q},\quad q = p\,e^{-\varphi/p}"),
            Step("first_term", P * sp.log(P / Q).xreplace(there), "q < p makes the second term negative", "<=",
                 tex=r"p\log\frac{p}{q}"),
            Step("phi", PHI_S, "which is phi: the forward divergence passes", tex=r"\varphi"),
        ],
        [
            Step("coins", backward.xreplace(there), "KL(q||p) of the two coins", quantity="divergence", tex=
                 r"q\log\frac{q}{p} + (1-q)\log\frac{1-q}{1-p}"),
            Step("bounded", -sp.log(1 - P), "q < p: the first term is negative, 1-q <= 1; below phi for p <= 1 - e^{-phi}", "<=",
                 tex=r"\log\frac{1}{1-p}"),
        ],
        [
            Step("moment", (P**2 / Q).xreplace(there), "what this token alone adds to the second moment, q k^2", tex=r"p^2/q"),
            Step("at_this_q", P * sp.exp(PHI_S / P), "q = p e^{-phi/p}", quantity="lower", tex=r"p\,e^{\varphi/p}"),
            Step("explodes", PHI_S**2 / (2 * P), "e^x >= x^2/2: without bound as p falls to 0", ">=",
                 tex=r"\frac{\varphi^2}{2p}"),
        ],
    ]  # fmt: skip

    def point(rng: Any) -> dict[sp.Symbol, Any]:
        return {P: sp.Rational(rng.randint(1, 8), 10), PHI_S: sp.Rational(rng.randint(4, 20), 8)}

    return Derivation(chains, point, lambda i: {P: i.p, PHI_S: PHI})


def instances() -> list[Rare]:
    """From common to rare tokens; at .9 and .99 the backward divergence decides."""
    return [Rare(name=f"p_{str(p).replace('.', 'p')}", p=p) for p in (0.99, 0.9, 0.5, 0.3, 0.2, 0.1, 0.02)]


def common_tokens() -> list[Rare]:
    """A token more probable than 1 - e^{-phi}: there the gate does bound the ratio."""
    return [Rare(name="p_0p95", p=0.95)]


def one_direction(right: Any) -> Any:
    """Bug: the backward divergence alone."""

    def wrong(logp_target: Any, logp_behavior: Any, phi: float) -> Any:
        return confidence.binary_kl(logp_behavior, logp_target) <= phi

    return wrong


def on_the_ratio(right: Any) -> Any:
    """Bug: |log k| <= phi."""
    return lambda logp_target, logp_behavior, phi: (logp_target - logp_behavior).abs() <= phi


def single_precision(right: Any) -> Any:
    """Bug: the divergences in float32."""

    def wrong(logp_target: Any, logp_behavior: Any, phi: float) -> Any:
        return torch.from_numpy(kept_in_single_precision(logp_target.exp().numpy(), logp_behavior.exp().numpy(), phi))

    return wrong


THEOREM = Theorem(
    id="C9",
    kind="counterexample",
    refutes="KPop's gate tightens with confidence, so it bounds the second moment",
    title="rare tokens pass with ratios up to e^{phi/p}",
    hypotheses=("w = k 1{max(KL_B(p||q), KL_B(q||p)) <= phi}, KL_B the divergence of two coins; phi > 0 fixed, p free",),
    statement="for p <= 1 - e^{-phi} a token with q = p e^{-phi/p} is kept, and q k^2 = p e^{phi/p}: the supremum of the second "
    "moment over (p, q) is infinite. At phi = 2 ratios up to 108.69 pass at p = .5. In float32 p = q = 1 gives 0 log(0/0) and is "
    "masked",
    source="ours; KPop: Ling/Ring 2.6 report, phi = 2 from the CIS paper's arm",
    claims=(
        Claim("kept", "equal", "kept", "all", "the gate keeps it"),
        Claim("ratio", "equal", "ratio", "e_phi_p", "with weight e^{phi/p}"),
        Claim("moment", "at_most", "lower", "second", "the second moment is at least p e^{phi/p}"),
        Claim("no_common_bound", "differs", "moment", "bound_like_others", "far beyond e^phi, where p is small", margin=0.9),
        Claim("beyond_any", "at_most", "sharper", "its_moment", f"beyond {FAR:g} from p = .2 down"),
        Claim("largest", "equal", "largest", "cataloged",
              "largest ratio kept, rounded: 108.69 at p = .5, 11.8 at .9, 2.36 at .99"),
        Claim("float32", "differs", "framework_keeps", "keep", "float32 arithmetic masks a token both engines are sure of"),
        Claim("float64", "equal", "library_keeps", "keep", "the library keeps it"),
    ),
    instances=instances,
    measure=measure,
    derive=lambda instance: _derivation(),
    outcome="A gate on the binary divergence is no cap: add one, or use a rule whose bound does not open for rare tokens.",
    mutants=(
        Mutant(name="common_tokens_only", kind="hypothesis", breaks=("kept", "ratio", "moment"), instances=common_tokens,
               measure=lambda i: {k: v for k, v in measure(i).items() if k not in ("moment", "its_moment")},
               why="p free dropped: at p = .95 the backward divergence masks what the forward one allows"),
        Mutant(name="backward_divergence_only", kind="bug", breaks=("largest",), on=("p_0p5",),
               plant=lambda: planted(confidence, "kpop_gate", one_direction),
               why="the gate then keeps every ratio at p = .5, where KL(q||p) never exceeds log 2"),
        Mutant(name="gate_on_the_ratio", kind="bug", on=("p_0p1", "p_0p02"),
               breaks=("kept", "ratio", "moment", "no_common_bound", "beyond_any"),
               plant=lambda: planted(confidence, "kpop_gate", on_the_ratio),
               why="a window on log k does bound the ratio: the gate's opening for rare tokens is that of the divergence"),
        Mutant(name="gate_in_single_precision", kind="bug", breaks=("float64",), on=("p_0p3",),
               plant=lambda: planted(confidence, "kpop_gate", single_precision),
               why="0 log(0/0) is NaN, and NaN <= phi is False"),
    ),
)  # fmt: skip
