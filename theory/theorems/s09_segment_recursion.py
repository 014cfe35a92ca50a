"""S9: the second moment of the segment products grows by one factor per segment, averaged where the weight is large."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import sympy as sp
import torch
from torch import Tensor

from testbed.exact import ratio_moments, second_moments
from testbed.exact.law import ExactLaw, enumerate_law
from testbed.exact.second_moments import start_d2, start_histories
from testbed.policies.schedule import PrefixSchedule, cuts
from testbed.weighting.segment_ends import segment_end_log_ratios
from theory.derivation import Derivation, Step
from theory.planting import planted
from theory.real_laws import M, P, R, is_real, real_laws, summand_derivation
from theory.segment_symbols import ends, second_moment, segment_square, squared_so_far, starts
from theory.symbols import Prefix, symbolic_world
from theory.theorem import Claim, Mutant, Quantities, Theorem
from theory.transformer_worlds import TransformerWorld, transformer_worlds
from theory.two_part_responses import two_part_derivation
from theory.worlds import World, standard_worlds, world


def measure(instance: World | TransformerWorld) -> Quantities:
    """E W_(k)^2 by enumeration of responses against E[W_(k-1)^2 d2_k(H)], d2_k by backward induction; also per history."""
    law, k_count = instance.law, len(instance.behaviors)
    after = segment_end_log_ratios(law.batch, k_count)
    before = torch.cat([torch.zeros_like(after[:, :1]), after[:, :-1]], 1)
    grown = (2 * after).exp()
    predicted = (2 * before).exp() * start_d2(law, instance.env, instance.target, instance.schedule)
    found: dict[str, Any] = {"second": law.expect(grown), "recursion": law.expect(predicted)}
    if is_real(instance):
        return found | {"summand": law.probs * grown[:, 0]}
    left, right = [], []
    for k in range(k_count):
        index = start_histories(law, k)
        for values, sums in ((grown[:, k], left), (predicted[:, k], right)):
            zero = torch.zeros(int(index.max()) + 1, dtype=torch.float64)
            sums.append(zero.index_add(0, index, law.probs * values))
    return found | {"second_by_history": torch.cat(left), "recursion_by_history": torch.cat(right)}


@lru_cache(maxsize=32)
def _derivation(shape: tuple[Any, ...]) -> Derivation:
    w = symbolic_world(shape)
    stated, tower, stopped = [], [], []
    for k in range(w.n_behaviors):
        rest: dict[tuple[int, Prefix], list[sp.Expr]] = {at: [] for at in starts(w, k)}
        for b, y, _ in w.draws():
            path, (n, end) = w.path(y, b), (ends(w, y, b, j) for j in (k - 1, k))
            drawn = sp.prod([w.mu(s, h, a) for h, a, s in path[n:]])
            rest[b, y[:n]].append(drawn * sp.prod([w.rho(s, h, a) ** 2 for h, a, s in path[n:end]]))
        stated.append(second_moment(w, k))
        tower.append(sp.Add(*[squared_so_far(w, *at) * sp.Add(*inner) for at, inner in rest.items()]))
        stopped.append(sp.Add(*[squared_so_far(w, b, h) * segment_square(w, b, k, h) for b, h in rest]))
    chain = [
        Step("definition", stated, "the sampler's law and the square of the stopped product", quantity="second",
             tex=r"E_\mu[W_{(k)}^2] = \sum_{\xi,y} P(\xi)\,\mu_\xi(y) \prod_{t \le \tau_k} \rho_t^2"),
        Step("tower", tower, "responses with the same noise and history H share W_(k-1), which leaves the inner sum",
             tex=r"\sum_{\xi,h} P(\xi)\,\mu(h)\,W_{(k-1)}(h)^2 \sum_{y \succ h} \mu(y \mid h) \prod_{t \in k} \rho_t^2"),
        Step("stop", stopped, "tokens after segment k sum to 1 under mu, as its end is decided by the prefix",
             tex=r"\sum_{\xi,h} P(\xi)\,\mu(h)\,W_{(k-1)}(h)^2\, d_{2,k}(h)"),
        Step("ratios", [e.xreplace(w.rho_definition()) for e in stopped], "rho_t = pi/mu", quantity="recursion",
             tex=r"E_\mu[W_{(k-1)}^2\, d_{2,k}(H)]"),
    ]  # fmt: skip
    return Derivation([chain], w.point, w.bind)


@lru_cache(maxsize=1)
def _summand() -> Derivation:
    return summand_derivation([
        Step("definition", M * R**2, "one word's share of E W^2", quantity="summand", tex=r"\mu(y)\,\rho(y)^2"),
        Step("ratio", P**2 / M, "rho = pi/mu; the sum over words is d2 at the root", tex=r"\pi(y)^2 / \mu(y)"),
    ])  # fmt: skip


def derive(instance: World | TransformerWorld) -> Derivation:
    """One word's share for a recorded law, sums over both parts for a transformer, else symbols for every probability."""
    if isinstance(instance, TransformerWorld):
        return two_part_derivation("S9")
    return _summand() if is_real(instance) else _derivation(instance.shape)


def peeking_world() -> list[World]:
    """A sampler that files a token 0, and all after it, under segment 1, although segment 0's behavior drew it."""

    def sampler(w: World) -> ExactLaw:
        honest = enumerate_law(w.env, w.target, PrefixSchedule(w.behaviors[:1], lambda prefix: 0))
        late = (honest.batch.tokens == 0).long().cummax(1).values
        recorded = torch.where(late == 1, w.behaviors[1].score(honest.batch.tokens), honest.batch.logp_behavior)
        batch = honest.batch.replaced(segment=late, logp_behavior=recorded)
        return ExactLaw(batch=batch, log_prob=honest.log_prob, branch=honest.branch)

    base = world("peeking", 2, 3, cuts((1,)))
    return [World(name="peeking", env=base.env, target=base.target, schedule=base.schedule, sampler=sampler)]


def without_history(instance: World) -> Quantities:
    """Mutated reading: the weight so far and the next segment's d2 are averaged apart, as if independent."""
    law, k_count = instance.law, len(instance.behaviors)
    after = segment_end_log_ratios(law.batch, k_count)
    before = torch.cat([torch.zeros_like(after[:, :1]), after[:, :-1]], 1)
    d2 = start_d2(law, instance.env, instance.target, instance.schedule)
    return {"second": law.expect((2 * after).exp()), "recursion": law.expect((2 * before).exp()) * law.expect(d2)}


def without_noise(instance: World) -> Quantities:
    """Mutated reading: d2_k averaged over the noise of the schedule given the tokens, as if H held tokens only."""
    law, k_count = instance.law, len(instance.behaviors)
    after = segment_end_log_ratios(law.batch, k_count)
    before = torch.cat([torch.zeros_like(after[:, :1]), after[:, :-1]], 1)
    d2 = start_d2(law, instance.env, instance.target, instance.schedule)
    _, row = torch.unique(law.batch.tokens, dim=0, return_inverse=True)
    zero = torch.zeros(int(row.max()) + 1, 1, dtype=torch.float64)
    mass = zero.index_add(0, row, law.probs[:, None])
    mean = zero.expand(-1, k_count).index_add(0, row, law.probs[:, None] * d2) / mass
    return {"second": law.expect((2 * after).exp()), "recursion": law.expect((2 * before).exp() * mean[row])}


def shifted(right: Any) -> Any:
    """Bug: the segment of a token is looked up one token too early, so every boundary falls one token late."""

    def wrong(env: Any, target: Any, source: Any) -> Tensor:
        return right(env, target, PrefixSchedule(source.policies, lambda h: source.segment(h[:-1])))

    return wrong


BOTH = ("recursion", "by_history")
TOLD_APART = ("two_segments", "three_segments", "stopping_time", "transformer_dense", "transformer_experts")
THEOREM = Theorem(
    id="S9",
    kind="identity",
    title="a segment multiplies the second moment by its d2, averaged with the weight so far",
    hypotheses=(
        "boundaries are prefix-measurable or exogenous (S1)",
        "H holds the tokens before segment k and the realized noise xi of the schedule",
        "d2_k(h) = E_mu[(product of segment k's ratios)^2 | segment k starts after h], 1 if the segment is empty",
    ),
    statement="E_mu[W_(k)^2] = E_mu[W_(k-1)^2 d2_k(H)], H = history at the start of segment k",
    source="ours (tower property at a stopping time)",
    claims=(
        Claim("recursion", "equal", "second", "recursion", "second moment through segment k = E[W_(k-1)^2 d2_k(H)]"),
        Claim("by_history", "equal", "second_by_history", "recursion_by_history", "and so on every history apart"),
    ),
    instances=lambda: [*standard_worlds(), *real_laws(), *transformer_worlds(wide=True)],
    measure=measure,
    derive=derive,
    outcome="Second moments grow by the d2 of the segment where earlier weights are large, not by its plain average.",
    mutants=(
        Mutant(name="boundary_peeks_at_token", kind="hypothesis", breaks=BOTH, instances=peeking_world,
               why="the label depends on the token being drawn: segment 1 as recorded is not a run of segment 1's policy"),
        Mutant(name="history_ignored", kind="hypothesis", breaks=("recursion",), measure=without_history, on=TOLD_APART,
               why="E[W^2] E[d2] needs the two to be unrelated; here d2 varies over histories of unequal weight"),
        Mutant(name="noise_left_out_of_history", kind="hypothesis", breaks=("recursion",), measure=without_noise,
               on=("exogenous_boundary", "transformer_hazard"),
               why="after the same tokens W_(k-1) and d2_k both depend on which behavior drew them; needs random boundaries"),
        Mutant(name="labels_shifted", kind="bug", breaks=BOTH, on=TOLD_APART,
               plant=lambda: planted(second_moments, "segment_d2", shifted),
               why="d2 of a segment that starts one token late; needs a boundary inside the response"),
        Mutant(name="ratio_inverted", kind="bug", breaks=BOTH, on=TOLD_APART,
               plant=lambda: planted(ratio_moments, "powered_measure", lambda right: lambda p, m, k: right(m, p, k)),
               why="d2 of the behavior from the target; needs target != behavior"),
    ),
)  # fmt: skip
