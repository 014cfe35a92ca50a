"""A drafter with a memory: in every round it must say what one without any would say, whatever rounds came before."""

import pytest
import torch

from testbed import KeyedChooser
from testbed.core.errors import InputError
from testbed.policies.transformer.block import Place
from testbed.policies.transformer.forward import full_place, residual_stream
from testbed.rollout.speculative import (
    ConcurrencyBudget,
    FastGRPOShape,
    FeatureDrafter,
    FeatureLayer,
    FeatureRecord,
    HeadDrafter,
    PromptLookup,
    feature_drafter,
    online_optimizer,
    online_step,
    speculative_rollout,
)
from testbed.rollout.speculative.budget import Budget
from tests.rollout.speculative.worlds import (
    CAPS,
    GROUP,
    NOISE,
    ROWS,
    Learning,
    env_of,
    features_of,
    heads_of,
    layout_of,
    plain,
    policy_of,
    tiny,
)


class Scheduled(Budget):
    """The numbers given, over and over."""

    def __init__(self, *counts):
        self.counts, self.round = counts, -1

    def nodes(self, active, gains):
        self.round += 1
        return self.counts[self.round % len(self.counts)]


def scratch_paths(layer, policy, context, nodes, shape):
    """Paths and weights of the tree behind a context, from passes over everything, without any cache.

    Every level extends its `width` likeliest paths by their `width` likeliest tokens; the `nodes` likeliest paths of all are
    kept. Each node is a pass of the layer over the whole context and the node's own path.
    """
    levels, width = shape.of(nodes)
    last = policy.config.context - 1
    with torch.no_grad():
        weights = policy.weights()
        whole = full_place(1, len(context), context.device)
        stream, _ = residual_stream(context[None], weights, whole, policy.config, policy.numerics)
        beam, found = [((), 0.0, stream[0, :-1], context[1:])], []
        for _ in range(levels):
            grown = []
            for path, weight, features, tokens in beam:
                place = full_place(1, len(tokens), tokens.device)
                place = Place(positions=place.positions.clamp(max=last), visible=place.visible)
                out = layer.predicted(features[None], tokens[None], weights, place, policy.numerics)[0, -1:]
                law = layer.log_laws(out, weights, policy.numerics)[0]
                for step, token in zip(*(x.tolist() for x in law.topk(min(width, len(law)))), strict=True):
                    further = torch.cat([features, out]), torch.cat([tokens, torch.tensor([token])])
                    grown.append(((*path, token), weight + step, *further))
            beam = sorted(grown, key=lambda item: -item[1])[:width]
            found += grown
    return {path: weight for path, weight, _, _ in sorted(found, key=lambda item: -item[1])[:nodes]}


def drafted_paths(tree, row):
    """Paths and weights of one row of a tree."""
    paths = []
    for token, parent in zip(tree.tokens[row].tolist(), tree.parent[row].tolist(), strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    return dict(zip(paths, tree.log_weight[row].tolist(), strict=True))


class Checked(FeatureDrafter):
    """Compares every draft with one from scratch, as soon as it was made."""

    def draft(self, frontier, nodes):
        tree = super().draft(frontier, nodes)
        for row in range(len(tree.tokens))[:: 1 if len(tree.tokens) < 6 else 7]:
            context = frontier.context[row, : frontier.known[row]]
            expected = scratch_paths(self.layer, self.policy, context, nodes, self.shape)
            mine = drafted_paths(tree, row)
            assert tree.problem() == "" and len(mine) == len(expected)
            far = max(abs(mine.get(path, 0.0) - weight) for path, weight in expected.items())
            self.gap, self.checked = max(self.gap, far), self.checked + len(expected)
        return tree


class CheckedLearning(Learning, Checked):
    """The same, learning after every round."""


def state_gap(kind="dense", counts=(3,), cap="ragged", learning=False, dtype="float64", shape=None):
    """Largest difference between drafts and drafts from scratch, over all rounds of a rollout that shrinks."""
    policy = policy_of(kind, dtype)
    layer = features_of(kind).copy()
    drafter = CheckedLearning(layer, policy) if learning else Checked(layer, shape)
    drafter.policy, drafter.gap, drafter.checked = policy, 0.0, 0
    rounds = []
    speculative_rollout(
        env_of("none"), policy, ROWS, NOISE, drafter=drafter, nodes=Scheduled(*counts), group=GROUP,
        max_tokens=CAPS[cap], watch=rounds.append,
    )  # fmt: skip
    sizes = [len(r.frontier.rows) for r in rounds]
    assert drafter.checked > 40 and sizes[-1] < sizes[0] / 4
    assert len({int(x) for x in rounds[2].frontier.known}) > 3
    return drafter.gap


@pytest.mark.parametrize(
    ("kind", "counts"),
    [("dense", (3,)), ("dense", (3, 0, 3)), ("mixture", (3, 0, 3)), ("dense", (0, 0, 5, 1)), ("dense", (12, 1))],
    ids=str,
)
def test_drafts_are_those_made_from_scratch(kind, counts):
    assert state_gap(kind, counts) < 1e-10


def test_drafts_are_those_made_from_scratch_by_a_layer_that_learns_meanwhile():
    assert state_gap(counts=(3, 0, 3), learning=True) < 1e-10


def test_drafts_are_those_made_from_scratch_in_single_precision_and_other_shapes():
    assert state_gap(dtype="float32") < 1e-4
    narrow = FastGRPOShape(shallowest=1, deepest=2, widest=2)
    assert state_gap(counts=(5,), shape=narrow) < 1e-10


# ------------------------------------------------------------------------------------------------ planted faults
def rounds_without_drafts_unseen(monkeypatch):
    right = FeatureRecord.note
    monkeypatch.setattr(FeatureRecord, "note", lambda self, rows, x: right(self, rows, x) if x.tree.nodes else None)


def bonus_unseen(monkeypatch):
    """The feature that the last token of a wholly accepted path was read from is not written down."""
    right = FeatureRecord.note

    def wrong(self, rows, finished):
        right(self, rows, finished)
        full = finished.run.accepted == finished.tree.levels
        last = self.known[rows] - 2
        self.states[rows[full], last[full]] = 0.0

    monkeypatch.setattr(FeatureRecord, "note", wrong)


def drafted_keys_kept(monkeypatch):
    """Keys of drafted tokens, made of predicted features, are taken for those of the tokens once they are accepted."""
    right = FeatureDrafter.observe

    def wrong(self, finished):
        right(self, finished)
        self.held[feature_drafter.places(finished.frontier.opening, finished.frontier)] += finished.run.accepted

    monkeypatch.setattr(FeatureDrafter, "observe", wrong)


def rewound_too_far(monkeypatch):
    right = feature_drafter.visible_slots
    monkeypatch.setattr(
        feature_drafter, "visible_slots", lambda held, above, used: right((held - 2).clamp(min=0), above, used)
    )


def rows_by_their_place_in_the_batch(monkeypatch):
    monkeypatch.setattr(feature_drafter, "places", lambda opening, frontier: torch.arange(len(frontier.rows)))


def rivals_seen(monkeypatch):
    right = feature_drafter.visible_slots
    monkeypatch.setattr(feature_drafter, "visible_slots", lambda held, above, used: right(held, above | True, used))


def everything_expanded_in_the_order_drawn(monkeypatch):
    monkeypatch.setattr(
        feature_drafter, "most_confident", lambda x, count: torch.arange(x.shape[1]).expand_as(x)[:, -count:]
    )


def old_keys_after_learning(monkeypatch):
    monkeypatch.setattr(feature_drafter, "state_of", lambda layer: [(0, 0)])


@pytest.mark.parametrize(
    ("plant", "options"),
    [
        (rounds_without_drafts_unseen, {"counts": (3, 0, 3)}),
        (bonus_unseen, {}),
        (drafted_keys_kept, {}),
        (rewound_too_far, {}),
        (rows_by_their_place_in_the_batch, {}),
        (rivals_seen, {}),
        (everything_expanded_in_the_order_drawn, {"counts": (5,)}),
        (old_keys_after_learning, {"learning": True}),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_a_fault_of_the_drafters_memory_is_found(plant, options, monkeypatch):
    plant(monkeypatch)
    try:
        gap = state_gap(**options)
    except RuntimeError:  # what does not fit together may also fail
        gap = torch.inf
    assert gap > 1e-4


def test_such_faults_leave_the_responses_alone(monkeypatch):
    """They cost accepted drafts, which no test of the output sees."""
    truth = plain("dense", "ragged", "six")
    drafted_keys_kept(monkeypatch)
    batch = speculative_rollout(
        env_of("six"), policy_of("dense"), ROWS, NOISE, drafter=FeatureDrafter(features_of("dense")), nodes=6,
        group=GROUP, max_tokens=CAPS["ragged"],
    )  # fmt: skip
    assert torch.equal(batch.tokens, truth.tokens) and torch.equal(batch.mask, truth.mask)


# ------------------------------------------------------------------------------------------------ the shape
def test_depth_and_width_follow_the_concurrency_rule():
    """N = clip(floor(C / B), 2, 13), L = clip(floor(log2(N / c)), 3, 5), k = min(N - 1, 8)."""
    budget, shape = ConcurrencyBudget(peak=160, least=1, most=12), FastGRPOShape()
    for active, verified, levels, width in (
        (200, 2, 3, 1),
        (40, 4, 3, 3),
        (27, 5, 3, 4),
        (16, 10, 3, 8),
        (13, 12, 4, 8),
    ):
        nodes = budget.nodes(active, None)
        assert nodes + 1 == verified and shape.of(nodes) == (levels, width)
    assert budget.nodes(1, None) == 12
    assert [FastGRPOShape(weakness=c).of(11)[0] for c in (12.0, 1.5, 1.4, 0.75, 0.7, 0.375, 0.1)] == [
        3,
        3,
        3,
        4,
        4,
        5,
        5,
    ]
    for bad in ({"weakness": 0.0}, {"shallowest": 0}, {"shallowest": 6}, {"widest": 0}):
        with pytest.raises(InputError):
            FastGRPOShape(**bad)


def test_trees_get_deeper_as_the_batch_drains():
    rounds, budget = [], ConcurrencyBudget(peak=96, least=1, most=24)
    speculative_rollout(
        env_of("six"), policy_of("dense"), ROWS, NOISE, drafter=FeatureDrafter(features_of("dense")), nodes=budget,
        group=GROUP, watch=rounds.append,
    )  # fmt: skip
    for finished in rounds:
        nodes = budget.nodes(len(finished.frontier.rows), None)
        assert finished.tree.nodes == nodes and finished.tree.levels == min(nodes, FastGRPOShape().of(nodes)[0])
    assert rounds[0].tree.levels == 1 and rounds[-1].tree.levels == 5


# ------------------------------------------------------------------------------------------------ what it is good for
def accepted(drafter, nodes=6, kind="dense"):
    """Accepted drafts per response and round."""
    rounds = []
    speculative_rollout(
        env_of("none"), policy_of(kind), ROWS, NOISE, drafter=drafter, nodes=nodes, group=GROUP, watch=rounds.append
    )
    return sum(int(r.emitted.sum()) for r in rounds) / sum(len(r.frontier.rows) for r in rounds) - 1


def test_a_layer_that_sees_the_drafted_tokens_beats_heads_that_do_not():
    """All taught alike: the tree chosen in each round beats the fixed one, and features beat heads."""
    found = [
        accepted(drafter)
        for drafter in (
            PromptLookup(),
            HeadDrafter(heads_of("dense"), layout=layout_of("dense")),
            HeadDrafter(heads_of("dense")),
            FeatureDrafter(features_of("dense")),
        )
    ]
    assert found == sorted(found) and found[0] < found[-1] - 0.5


def test_one_step_per_rollout_makes_later_rollouts_accept_more():
    policy = policy_of("dense")
    layer = FeatureLayer.of(policy)
    drafter, optimizer = FeatureDrafter(layer), online_optimizer(layer, rate=2e-2)
    before = accepted(drafter)
    for number in range(12):
        speculative_rollout(
            env_of("six"), policy, ROWS, KeyedChooser(100 + number), drafter=drafter, nodes=4, group=GROUP
        )
        online_step(layer, optimizer, policy, drafter.record)
    assert accepted(drafter) > before + 0.3


def test_one_drafter_may_serve_one_rollout_after_another():
    drafter = FeatureDrafter(features_of("dense"))
    first, again = accepted(drafter), accepted(drafter)
    assert first == again == accepted(FeatureDrafter(features_of("dense")))


def test_a_layer_of_another_model_is_refused():
    with pytest.raises(InputError, match="no rollout"):
        _ = FeatureDrafter(FeatureLayer.of(tiny(3))).record
    with pytest.raises(InputError, match="one width"):
        accepted(FeatureDrafter(FeatureLayer.of(tiny(3))))
