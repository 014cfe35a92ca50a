"""Laws of the engine by enumeration in worlds of millions of branches: rows of one batch follow different branches."""

from collections import Counter

import torch

from testbed.core.row_replay import walk_in_batches
from testbed.rollout.speculative import Drafter, DraftTree, RankPaths, largest, speculative_rollout
from tests.rollout.speculative.worlds import written


class Hashed(Drafter):
    """Trees of any shape and size that depend on the row's own past and on nothing else, empty places among them."""

    def __init__(self, vocab_size):
        self.vocab_size = vocab_size

    def draft(self, frontier, nodes):
        place = torch.arange(frontier.context.shape[1])
        past = torch.where(place < frontier.known[:, None], (frontier.context + 1) * (place + 3) ** 2, 0).sum(1)
        seen = torch.arange(1, 3 * self.vocab_size + 1, dtype=torch.float64).reshape(3, -1)
        laws = (3 * torch.sin(past[:, None, None] * seen)).log_softmax(-1)
        tree = largest(RankPaths.product((min(3, self.vocab_size), 2, 2)).drafted(laws), nodes)
        kept = (past % (tree.nodes + 1))[:, None] > torch.arange(tree.nodes)
        return DraftTree(
            tokens=torch.where(kept, tree.tokens, -1),
            parent=tree.parent,
            depth=tree.depth,
            log_weight=tree.log_weight,
            levels=tree.levels,
        )


def branched_law(env, policy, n=1, *, width=4096, caps=None, **options):
    """Law of what the engine writes for n responses, and the number of branches. `options` may hold functions that make drafters.

    Each run holds many copies of the n responses, every copy on another branch, so what is drafted for a response may depend
    on its own past only. `caps` are those of the n responses.
    """
    count = Counter()

    def run(chooser, copies):
        made = {name: x() if name in ("drafter", "nodes") and callable(x) else x for name, x in options.items()}
        if caps is not None:
            made["max_tokens"] = caps.repeat(copies)
        rows = written(speculative_rollout(env, policy, n * copies, chooser, **made))
        count["branches"] += copies
        return [rows[i : i + n] for i in range(0, n * copies, n)]

    law = dict(walk_in_batches(run, width=width, together=n, merged=True))
    return law, count["branches"]
