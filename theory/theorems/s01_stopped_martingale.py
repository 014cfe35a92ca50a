"""S1: the product of ratios stopped at the end of a segment corrects every function known by then."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import sympy as sp
import torch
from torch import Tensor

from testbed.core.batch import SegmentedBatch
from testbed.core.prefix_order import leaf_index, node_index
from testbed.estimators.value import value_terms
from testbed.exact.law import ExactLaw, enumerate_law
from testbed.policies.schedule import PrefixSchedule, cuts
from testbed.policies.tabular import TabularPolicy
from testbed.policies.truncated import Truncated
from testbed.weighting.segment_ends import segment_end_log_ratios
from theory import bugs
from theory.derivation import Derivation, Step
from theory.sampled import MeanCheck
from theory.stopped_histories import stopped_derivation
from theory.symbols import symbolic_world
from theory.theorem import Claim, Mutant, Quantities, Theorem
from theory.transformer_worlds import TransformerWorld, transformer_worlds
from theory.worlds import World, standard_worlds, world

Atom = tuple[int, int, tuple[int, ...]]  # (segment k, branch, history at the end of segment k)


def stopped_atoms(batch: SegmentedBatch, branch: Tensor, n_segments: int) -> Iterator[tuple[int, list[Atom]]]:
    """For every segment, the atom (k, branch, tokens of segments <= k) each response belongs to."""
    for k in range(n_segments):
        length = ((batch.segment <= k) & batch.mask).sum(1).tolist()
        yield (
            k,
            [(k, b, tuple(row[:n])) for row, n, b in zip(batch.tokens.tolist(), length, branch.tolist(), strict=True)],
        )


def instances() -> list[World | TransformerWorld]:
    """Tabular worlds, and transformers of up to 625 responses."""
    return [*standard_worlds(), *transformer_worlds(wide=True)]


def measure(instance: World | TransformerWorld) -> Quantities:
    """E_mu[W_(k) 1_A] and P_pi(A) for every atom A of the history at the end of every segment (hence for every f)."""
    law, k_count = instance.law, len(instance.behaviors)
    weighted = segment_end_log_ratios(law.batch, k_count).exp() * law.probs[:, None]
    lhs: dict[Atom, float] = {}
    for k, atoms in stopped_atoms(law.batch, law.branch, k_count):
        for atom, value in zip(atoms, weighted[:, k].tolist(), strict=True):
            lhs[atom] = lhs.get(atom, 0.0) + value
    rhs = dict.fromkeys(lhs, 0.0)
    for b, (prior, schedule) in enumerate(instance.schedule.branches()):
        on_policy = instance.target_law
        table = schedule.segment_table(instance.env.vocab_size, instance.env.horizon)
        labels = _relabeled(on_policy.batch, table, instance.env.vocab_size)
        branch = torch.full_like(on_policy.branch, b)
        for _, atoms in stopped_atoms(labels, branch, k_count):
            for atom, p in zip(atoms, on_policy.probs.tolist(), strict=True):
                rhs[atom] = rhs.get(atom, 0.0) + prior * p
    order = sorted(set(lhs) | set(rhs))
    return {
        "weighted": [lhs.get(a, 0.0) for a in order],
        "target": [rhs.get(a, 0.0) for a in order],
        "value": law.expect(value_terms(law.batch)),
        "target_value": instance.target_law.expect(instance.target_law.batch.reward),
    }


def measure_whole(instance: World) -> Quantities:
    """The same for whole responses only, W against pi(y): events that do not depend on how the labels were given."""
    law = instance.law
    weight = segment_end_log_ratios(law.batch, len(instance.behaviors))[:, -1].exp()
    lhs = torch.zeros_like(instance.target_law.probs)
    lhs.index_add_(0, leaf_index(law.batch.tokens, instance.env.vocab_size), weight * law.probs)
    return {"weighted": lhs, "target": instance.target_law.probs}


def _relabeled(batch: SegmentedBatch, table: Tensor, vocab_size: int) -> SegmentedBatch:
    return batch.replaced(segment=table[node_index(batch.tokens, vocab_size)])


@lru_cache(maxsize=32)
def _derivation(shape: tuple[Any, ...]) -> Derivation:
    w = symbolic_world(shape)
    atoms: dict[Atom, list[sp.Expr]] = {}
    target: dict[Atom, list[sp.Expr]] = {}
    for b, y, prob in w.draws():
        for k in range(w.n_behaviors):
            n = sum(label <= k for _, _, label in w.path(y, b))
            atoms.setdefault((k, b, y[:n]), []).append(prob * w.weight(y, b, n))
            target.setdefault((k, b, y[:n]), []).append(w.prior(b) * w.prob_pi(y))
    order = sorted(atoms)
    stated = [sp.Add(*atoms[a]) for a in order]
    substituted = [e.xreplace(w.rho_definition()) for e in stated]
    stopped = [w.prior(b) * sp.prod([w.pi(h[:t], h[t]) for t in range(len(h))]) for _, b, h in order]
    chain = [
        Step(
            "definition",
            stated,
            "sampler's probability times the stopped product of ratios, summed over the atom A",
            quantity="weighted",
            tex=r"E_\mu[W_{(k)} 1_A] = \sum_{y \in A} \mu(y) \prod_{t \le \tau_k} \rho_t",
        ),
        Step(
            "ratios",
            substituted,
            "rho_t = pi/mu_S cancels the sampler's probability of every token up to the stop",
            tex=r"\sum_{y \in A} \pi(y_{\le \tau_k})\, \mu(y_{> \tau_k} \mid y_{\le \tau_k})",
        ),
        Step(
            "continuation",
            stopped,
            "what follows the stop sums to 1 under mu: the stop is decided by the history alone",
            tex=r"\pi(h_{\tau_k})",
        ),
        Step(
            "target", [sp.Add(*target[a]) for a in order], "and under pi likewise", quantity="target", tex=r"E_\pi[1_A]"
        ),
    ]
    return Derivation([chain], w.point, w.bind)


def derive(instance: World | TransformerWorld) -> Derivation:
    """All events over symbols for a tabular world, event by event for a transformer."""
    if isinstance(instance, TransformerWorld):
        return stopped_derivation(instance.env.horizon)
    return _derivation(instance.shape)


def peeking_world() -> list[World]:
    """A sampler whose segment label depends on the token being drawn: token 0 is filed under segment 1."""

    def sampler(w: World) -> ExactLaw:
        honest = enumerate_law(w.env, w.target, PrefixSchedule(w.behaviors[:1], lambda prefix: 0))
        batch = honest.batch
        late = (batch.tokens == 0).long().cummax(1).values  # from the first 0 on, that token included
        other = w.behaviors[1].score(batch.tokens)
        recorded = torch.where(late == 1, other, batch.logp_behavior)
        return ExactLaw(
            batch=batch.replaced(segment=late, logp_behavior=recorded), log_prob=honest.log_prob, branch=honest.branch
        )

    base = world("peeking", 2, 3, cuts((1,)))
    return [World(name="peeking", env=base.env, target=base.target, schedule=base.schedule, sampler=sampler)]


def finished_draft_world() -> list[World]:
    """A boundary chosen after the draft is finished: the suffix is redrawn when the draft's last token is 0."""

    def sampler(w: World) -> ExactLaw:
        draft = enumerate_law(w.env, w.target, w.behaviors[0])
        resumed = enumerate_law(w.env, w.target, PrefixSchedule(w.behaviors, cuts((1,))))
        failed = draft.batch.tokens[:, -1] == 0
        keep = ~failed
        # P(redrawn response) = P(draft fails | first token) * mu_0(first) * mu_1(rest | first)
        p_fail = torch.zeros(w.env.vocab_size, dtype=torch.float64)
        first = draft.batch.tokens[:, 0]
        p_first = torch.zeros_like(p_fail).index_add_(0, first, draft.probs)
        p_fail.index_add_(0, first[failed], draft.probs[failed])
        redrawn = resumed.log_prob + (p_fail / p_first).log()[resumed.batch.tokens[:, 0]]
        kept = draft.batch.select(keep)
        return ExactLaw(
            batch=SegmentedBatch.concatenated([kept, resumed.batch]),
            log_prob=torch.cat([draft.log_prob[keep], redrawn]),
            branch=torch.cat([draft.branch[keep], resumed.branch]),
        )

    base = world("finished_draft", 2, 3, cuts((1,)))
    return [World(name="finished_draft", env=base.env, target=base.target, schedule=base.schedule, sampler=sampler)]


def truncated_support_world() -> list[World]:
    """A behavior that keeps only the likeliest token of each law (top-k 1 on 2 tokens): it cannot draw the other."""
    base = world("truncated_support", 2, 2, cuts((1,)))
    tables = [Truncated(mu, top_k=1) for mu in base.behaviors]
    mus = tuple(TabularPolicy(PrefixSchedule((p,), lambda prefix: 0).log_prob_table(2, 2)) for p in tables)
    return [World(name="truncated_support", env=base.env, target=base.target, schedule=PrefixSchedule(mus, cuts((1,))))]


def sampled() -> MeanCheck:
    """E_mu[W R] against E_pi[R] from sampled rollouts on the stopping-time world."""
    instance = next(w for w in standard_worlds() if w.name == "stopping_time")
    return MeanCheck.of_weighted_reward("S1", instance, effect=0.25)


THEOREM = Theorem(
    id="S1",
    kind="identity",
    title="the product of ratios stopped at a segment's end corrects everything known by then",
    hypotheses=(
        "boundaries are prefix-measurable: S is a function of the prefix and of noise xi independent of the tokens",
        "every behavior gives positive probability to whatever the target can draw",
        "with noise xi, the weight uses the behaviors that were realized",
    ),
    statement="E_mu[W_(k) f] = E_pi[f] for every f measurable at the end of segment k",
    source="literature (likelihood-ratio martingale stopped at a stopping time)",
    references=("optional stopping: Williams, Probability with Martingales, 1991, ch. 10",),
    claims=(
        Claim(
            "corrected",
            "equal",
            "weighted",
            "target",
            "every event decided by the end of segment k has its target probability",
        ),
        Claim(
            "value",
            "equal",
            "value",
            "target_value",
            "with f the reward and the whole response: the estimator of the value",
        ),
    ),
    instances=instances,
    measure=measure,
    derive=derive,
    sampled=sampled,
    outcome="Segment weights are exact for whatever is decided by the segment's end, if boundaries do not peek.",
    mutants=(
        Mutant(
            name="boundary_peeks_at_token",
            kind="hypothesis",
            breaks=("corrected",),
            instances=peeking_world,
            measure=measure_whole,
            why="the label depends on the token being drawn, so the recorded behavior is not the one that drew it",
        ),
        Mutant(
            name="boundary_after_finished_draft",
            kind="hypothesis",
            breaks=("corrected",),
            instances=finished_draft_world,
            measure=measure_whole,
            why="whether the suffix was redrawn depends on the finished draft; the kept drafts are a selected sample",
        ),
        Mutant(
            name="support_violated",
            kind="hypothesis",
            breaks=("corrected", "value"),
            instances=truncated_support_world,
            why="a top-k behavior never draws tokens the target may draw: their events have weighted probability 0",
        ),
        Mutant(
            name="ratio_inverted",
            kind="bug",
            breaks=("corrected", "value"),
            on=("two_segments", "stopping_time", "transformer_experts", "transformer_hazard"),
            plant=bugs.ratio_inverted,
            why="log_ratios returns behavior minus target; needs target != behavior",
        ),
        Mutant(
            name="last_segment_only",
            kind="bug",
            breaks=("corrected", "value"),
            on=("two_segments", "three_segments", "transformer_dense", "transformer_experts"),
            plant=bugs.last_segment_only,
            why="only the newest segment is corrected; needs two segments with target != first behavior",
        ),
    ),
)
