"""Policies, drafters and engines under test, and the numbers that say by how much an engine misses what it promises."""

from collections import Counter, defaultdict
from functools import lru_cache

import torch

from testbed import KeyedChooser, ReplayChooser, Truncated
from testbed.environments.base import Environment
from testbed.exact.law import enumerate_law
from testbed.policies.transformer import Numerics, Transformer, TransformerConfig, TransformerPolicy
from testbed.rollout import rollout
from testbed.rollout.speculative import (
    ConcurrencyBudget,
    Drafter,
    DraftTree,
    FeatureDrafter,
    FeatureLayer,
    FeatureRecipe,
    FutureHeads,
    HeadDrafter,
    HeadRecipe,
    MarginalBudget,
    PromptLookup,
    RankPaths,
    largest,
    online_optimizer,
    online_step,
    rank_accuracies,
    speculative_rollout,
    static_layout,
    teach_features,
    teach_heads,
)
from testbed.rollout.speculative.budget import Budget

V, T, EOS, ROWS = 7, 12, 6, 48
PROMPTS = torch.tensor([[1, 2, 3, 4], [5, 6, 0, 0], [0, 0, 0, 0], [6, 1, 2, 0], [3, 0, 0, 0]])
LENGTHS = torch.tensor([4, 2, 0, 3, 1])


class Letters(Environment):
    """Responses of at most `horizon` letters; the reward is the sum of the letters."""

    def __init__(self, vocab_size, horizon, eos=None):
        self.vocab_size, self.horizon, self.eos = vocab_size, horizon, eos

    def reward(self, tokens, mask, group):
        return (tokens * mask).sum(1).double()


class Renumbered:
    """A chooser for a batch in another order: row i is response `ids[i]`."""

    def __init__(self, chooser, ids):
        self.chooser, self.ids = chooser, ids

    def choose(self, probs, key=None):
        return self.chooser.choose(probs, torch.stack([self.ids[key[:, 0]], key[:, 1]], 1))


# ------------------------------------------------------------------------------------------------ policies
@lru_cache
def policy_of(kind, dtype="float64"):
    sizes = {"experts": 4, "hidden": 8} if kind == "mixture" else {"hidden": 12}
    config = TransformerConfig(vocab_size=V, width=16, layers=2, heads=2, context=1 + 4 + T, **sizes)
    policy = TransformerPolicy(
        Transformer.random(config, seed=3, sharpness=3.0), PROMPTS, LENGTHS, Numerics(dtype=dtype)
    )
    return Truncated(policy, temperature=0.9, top_p=0.85) if kind == "nucleus" else policy


@lru_cache
def tiny(vocab_size, seed=1):
    config = TransformerConfig(vocab_size=vocab_size, width=4, layers=1, heads=1, hidden=4, context=8)
    return TransformerPolicy(Transformer.random(config, seed=seed, sharpness=1.5))


def transformer_of(policy):
    return policy.policy if isinstance(policy, Truncated) else policy


@lru_cache
def lessons_of(kind):
    return rollout(
        Letters(V, T, EOS), transformer_of(policy_of(kind)), 100, KeyedChooser(77), group=torch.arange(100) % 5
    )


@lru_cache
def heads_of(kind):
    policy = transformer_of(policy_of(kind))
    heads = FutureHeads.of(policy)
    teach_heads(heads, policy, lessons_of(kind), HeadRecipe(steps=40, rate=1e-2))
    return heads


@lru_cache
def layout_of(kind):
    accuracies = rank_accuracies(heads_of(kind), transformer_of(policy_of(kind)), lessons_of(kind), 4)
    return static_layout(accuracies, 8)


@lru_cache
def features_of(kind):
    policy = transformer_of(policy_of(kind))
    layer = FeatureLayer.of(policy)
    teach_features(layer, policy, lessons_of(kind), FeatureRecipe(steps=40, rate=1e-2))
    return layer


# ------------------------------------------------------------------------------------------------ drafters
class Scrambled(Drafter):
    """Trees of random shape and tokens, empty places among them."""

    def __init__(self, vocab_size=V):
        self.vocab_size, self.generator = vocab_size, torch.Generator().manual_seed(8)

    def draft(self, frontier, nodes):
        batch = len(frontier.rows)
        paths = RankPaths.product((min(3, self.vocab_size), 2, 2))
        laws = torch.randn(batch, 3, self.vocab_size, generator=self.generator, dtype=torch.float64).log_softmax(-1)
        tree = largest(paths.drafted(laws), nodes)
        kept = torch.randint(tree.nodes + 1, (batch, 1), generator=self.generator) > torch.arange(tree.nodes)
        return DraftTree(
            tokens=torch.where(kept, tree.tokens, -1),
            parent=tree.parent,
            depth=tree.depth,
            log_weight=tree.log_weight,
            levels=tree.levels,
        )


class Coupled(Scrambled):
    """Candidates of a row are what *another* row wrote, and were changed by what the last round accepted anywhere."""

    seen = 0

    def draft(self, frontier, nodes):
        other = frontier.context.roll(1, 0)
        tree = PromptLookup(longest=3, match=1).continuations(other, frontier.known.roll(1), nodes)
        if self.seen % 2:
            return super().draft(frontier, nodes)
        known = (tree.tokens >= 0) & (tree.tokens < self.vocab_size)
        return DraftTree(
            tokens=torch.where(known.cumprod(1).bool(), tree.tokens, -1),
            parent=tree.parent,
            depth=tree.depth,
            log_weight=tree.log_weight,
            levels=tree.levels,
        )

    def observe(self, finished):
        self.seen += int(finished.run.accepted.sum())


class Clairvoyant(Drafter):
    """Knows what the rows will be: one chain of true tokens, each row's last one wrong in odd rows."""

    def __init__(self, tokens):
        self.tokens = tokens

    def draft(self, frontier, nodes):
        count = min(nodes, 4)
        step = torch.arange(count).expand(len(frontier.rows), -1)
        at = frontier.position[:, None] + step
        future = self.tokens[frontier.rows].gather(1, at.clamp(max=self.tokens.shape[1] - 1))
        wrong = (frontier.rows % 2 == 1)[:, None] & (step == count - 1)
        vocab_size = int(self.tokens.max()) + 1
        return DraftTree(
            tokens=torch.where(wrong, (future + 1) % vocab_size, future),
            parent=step - 1,
            depth=step + 1,
            log_weight=torch.zeros(step.shape, dtype=torch.float64),
            levels=count,
        )


class Learning(FeatureDrafter):
    """Takes a step of its optimizer after every round, on what the rollout has shown so far."""

    def __init__(self, layer, policy, rate=1e-2):
        super().__init__(layer)
        self.policy, self.optimizer = policy, online_optimizer(layer, rate)

    def observe(self, finished):
        super().observe(finished)
        if bool(self.record.learnable().any()):
            online_step(self.layer, self.optimizer, self.policy, self.record)


class Erratic(Budget):
    """3, 0, 5, 1, 3, 0, ... candidates."""

    def __init__(self):
        self.round = -1

    def nodes(self, active, gains):
        self.round += 1
        return (3, 0, 5, 1)[self.round % 4]


def drafter_of(name, kind, truth):
    if name == "clairvoyant":
        return Clairvoyant(truth)
    if name == "static":
        layout = RankPaths.of([(0,), (0, 0), (1,), (0, 0, 0), (2,), (1, 0)])
        return HeadDrafter(heads_of(kind), (3, 2, 1), layout)
    if name == "untaught":
        return HeadDrafter(FutureHeads.of(transformer_of(policy_of(kind))), (2, 2))
    made = {
        "greedy": lambda: HeadDrafter(heads_of(kind)),
        "medusa": lambda: HeadDrafter(heads_of(kind), layout=layout_of(kind)),
        "features": lambda: FeatureDrafter(features_of(kind)),
        "learning": lambda: Learning(features_of(kind).copy(), transformer_of(policy_of(kind))),
        "lookup": PromptLookup,
    }
    return (made | {"scrambled": Scrambled, "coupled": Coupled})[name]()


def budget_of(name):
    rules = {
        "erratic": Erratic,
        "concurrency": lambda: ConcurrencyBudget(peak=96, most=8),
        "marginal": lambda: MarginalBudget(seconds={8: [1.0, 1.0, 1.2, 1.4, 1.9], 64: [1.0, 1.3, 1.6, 1.9, 2.2, 2.5]}),
    }
    return rules[name]() if name in rules else int(name)


# ------------------------------------------------------------------------------------------------ cases
FACTORS = {  # a drafter is a source of candidates and a way to choose a tree of them
    "policy": ["dense", "mixture", "nucleus"],
    "drafter": [
        "greedy",
        "static",
        "medusa",
        "untaught",
        "features",
        "learning",
        "lookup",
        "scrambled",
        "coupled",
        "clairvoyant",
    ],
    "budget": ["0", "1", "3", "6", "erratic", "concurrency", "marginal"],
    "order": ["given", "reversed", "shuffled"],
    "cap": ["horizon", "ragged", "short"],
    "eos": ["none", "six"],
}
GROUP = torch.arange(ROWS) % 5
CAPS = {
    "horizon": torch.full((ROWS,), T),
    "ragged": torch.randint(T + 1, (ROWS,), generator=torch.Generator().manual_seed(2)),
    "short": torch.arange(ROWS) % 3,
}
ORDERS = {
    "given": torch.arange(ROWS),
    "reversed": torch.arange(ROWS).flip(0),
    "shuffled": torch.randperm(ROWS, generator=torch.Generator().manual_seed(1)),
}
NOISE = KeyedChooser(5)


def env_of(eos):
    return Letters(V, T, EOS if eos == "six" else None)


@lru_cache
def plain(policy, cap, eos, dtype="float64"):
    """What the token-by-token engine writes."""
    return rollout(env_of(eos), policy_of(policy, dtype), ROWS, NOISE, group=GROUP, max_tokens=CAPS[cap])


def speculative(case, verifier="membership", watch=None, dtype="float64"):
    """What the engine under test writes in a case, in the order given."""
    truth, order = plain(case["policy"], case["cap"], case["eos"], dtype), ORDERS[case["order"]]
    batch = speculative_rollout(
        env_of(case["eos"]),
        policy_of(case["policy"], dtype),
        ROWS,
        Renumbered(NOISE, order),
        drafter=drafter_of(case["drafter"], case["policy"], truth.tokens[order]),
        nodes=budget_of(case["budget"]),
        verifier=verifier,
        group=GROUP[order],
        max_tokens=CAPS[case["cap"]][order],
        watch=watch,
    )
    return batch.select(order.argsort())


def sequences_that_differ(case, batch):
    """Number of responses that are not, token for token, those of the token-by-token engine."""
    truth = plain(case["policy"], case["cap"], case["eos"])
    return int(((batch.tokens != truth.tokens) | (batch.mask != truth.mask)).any(1).sum())


def log_prob_gap(case, batch):
    """Largest difference between recorded log-probs and those of a pass over the response."""
    with torch.no_grad():
        score = policy_of(case["policy"]).at(GROUP).score(batch.tokens)
    return float((torch.where(batch.mask, score, 0.0) - batch.logp_behavior).abs().max())


# ------------------------------------------------------------------------------------------------ exact laws
def written(batch):
    """Responses of a batch, as tuples of tokens."""
    return tuple(tuple(row[:n]) for row, n in zip(batch.tokens.tolist(), batch.lengths.tolist(), strict=True))


def engine_law(env, policy, n, **options):
    """Law of what the engine writes, over every choice it makes. `options` may hold functions that make drafters."""

    def run(chooser):
        made = {name: x() if name in ("drafter", "nodes") and callable(x) else x for name, x in options.items()}
        return written(speculative_rollout(env, policy, n, chooser, **made))

    law = defaultdict(float)
    for result, probability in ReplayChooser.walk(run):
        law[result] += probability
    return law


def target_law(env, policy, n):
    """Law of n independent responses, from the policy's own passes."""
    with torch.no_grad():
        one = enumerate_law(env, policy, policy)
    single = dict(zip(written(one.batch), one.probs.tolist(), strict=True))
    law = {(): 1.0}
    for _ in range(n):
        law = {(*a, b): p * q for a, p in law.items() for b, q in single.items()}
    return law


def total_variation(a, b):
    return 0.5 * sum(abs(a.get(x, 0.0) - b.get(x, 0.0)) for x in {*a, *b})


def finish_law(law, eos, row=0):
    """Law of (length, finish reason) of one row of a batch."""
    out = Counter()
    for rows, p in law.items():
        ended = bool(rows[row]) and rows[row][-1] == eos
        out[len(rows[row]), "end" if ended else "cap"] += p
    return out
