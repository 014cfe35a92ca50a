"""What a verifier writes when every law is read from a pass of its own over a whole prefix: no cache, no tree pass, no pruning.

The engine must write the same, token for token, given the same noise. The rule itself and the drawing of candidates are the
library's, called for the responses in their own order; enumerations decide about those.
"""

import copy
from dataclasses import replace
from functools import lru_cache

import torch

from testbed import Truncated
from testbed.rollout.speculative import DraftTree
from testbed.rollout.speculative.sampled_trees import drawn_tree
from testbed.rollout.speculative.verify.protocol import Proposal
from testbed.rollout.speculative.verify.registry import VERIFIERS, verify
from tests.rollout.speculative.worlds import (
    CAPS,
    EOS,
    GROUP,
    NOISE,
    ROWS,
    T,
    drafter_of,
    policy_of,
    transformer_of,
)


@lru_cache
def known_laws(kind):
    """Log-laws by prompt and prefix, kept from case to case."""
    return {}


@lru_cache
def roomy(kind):
    """The same transformer, which may be asked about nodes beyond every cap."""
    policy = copy.copy(transformer_of(policy_of(kind)))
    policy.config = replace(policy.config, context=2 * policy.config.context)
    return policy


def laws_after(kind, asked):
    """Log-laws [n, V] after these (prompt, prefix), each from a pass over it; prefixes of one length share a batch."""
    known, policy, sampled = known_laws(kind), roomy(kind), policy_of(kind)
    missing = sorted({one for one in asked if one not in known}, key=lambda one: len(one[1]))
    for length in {len(prefix) for _, prefix in missing}:
        these = [one for one in missing if len(one[1]) == length]
        group = torch.tensor([prompt for prompt, _ in these])
        prefixes = torch.tensor([prefix for _, prefix in these], dtype=torch.int64).reshape(len(these), length)
        with torch.no_grad():
            laws = policy.at(group).next_log_probs(prefixes)
        laws = sampled.filter(laws) if isinstance(sampled, Truncated) else laws
        known.update(zip(these, laws, strict=True))
    return torch.stack([known[one] for one in asked])


def drafter_laws(case, rows, written):
    """Log-laws of the case's heads, from the stream that a pass over a whole response has where its last token was drawn."""
    policy, states = transformer_of(policy_of(case["policy"])), {}
    for length in {len(written[row]) for row in rows}:
        these = [row for row in rows if len(written[row]) == length]
        with torch.no_grad():
            stream = policy.at(GROUP[these]).hidden_states(torch.tensor([written[row] for row in these]))
        states |= dict(zip(these, stream[:, -1], strict=True))
    drafter = drafter_of(case["drafter"], case["policy"], torch.zeros(ROWS, T, dtype=torch.int64))
    with torch.no_grad():
        laws = drafter.heads.log_laws(torch.stack([states[row] for row in rows]), policy.weights(), policy.numerics)
    return laws, drafter.fan_out


def of_rows(tree, rows):
    """The same trees in another order of rows."""
    fields = (tree.tokens, tree.parent, tree.depth, tree.log_weight)
    tokens, parent, depth, weight = (x[rows] for x in fields)
    return DraftTree(tokens=tokens, parent=parent, depth=depth, log_weight=weight, levels=tree.levels)


def with_fresh_passes(case, verifier, rounds):
    """Responses of a case under a verifier, by tokens.

    `rounds` are the engine's, each with the numbers of its rows. Of them only the trees are taken, or, for a rule whose trees
    are drawn, only their sizes.
    """
    caps = CAPS[case["cap"]].tolist()
    end = EOS if case["eos"] == "six" else None
    written = [[] for _ in range(ROWS)]
    live = [row for row in range(ROWS) if caps[row]]
    first = laws_after(case["policy"], [(int(GROUP[row]), ()) for row in live])
    emit(written, live, [[token] for token in NOISE.choose(first.exp(), keys(live, written)).tolist()], caps, end)
    for finished, numbers in rounds:
        live = [row for row in live if goes_on(written[row], caps[row], end)]
        if sorted(numbers.tolist()) != live:
            return written  # the engine ended another response, or went on with one: that one differs
        tree, drawn = of_rows(finished.tree, numbers.argsort()), None
        if VERIFIERS[verifier].needs_drafter and tree.nodes:
            laws, fan_out = drafter_laws(case, live, written)
            shape = (1,) * len(fan_out) if VERIFIERS[verifier].drafts == "chain" else fan_out
            distinct = VERIFIERS[verifier].drafts == "distinct"
            tree, drawn = drawn_tree(laws, shape, tree.nodes, NOISE, *keys(live, written).unbind(1), distinct=distinct)
        asked = [(int(GROUP[row]), tuple(path)) for i, row in enumerate(live) for path in paths(written[row], tree, i)]
        target = laws_after(case["policy"], asked).reshape(len(live), tree.nodes + 1, -1)
        if tree.nodes:
            number, position = keys(live, written).unbind(1)
            proposal = Proposal(
                tokens=tree.tokens, parent=tree.parent, target=target, drafter=drawn, response=number, position=position
            )
            runs = verify(verifier, proposal, NOISE).emitted()
        else:
            runs = NOISE.choose(target[:, 0].exp(), keys(live, written))[:, None].tolist()
        emit(written, live, runs, caps, end)
    return written


def paths(written, tree, i):
    """The response so far, and the same followed by the path to each place; an empty place repeats the response."""
    out = [written]
    for token, parent in zip(tree.tokens[i].tolist(), tree.parent[i].tolist(), strict=True):
        out.append([*out[parent + 1], token] if token >= 0 else written)
    return out


def keys(rows, written):
    return torch.tensor([[row, len(written[row])] for row in rows])


def goes_on(tokens, cap, end):
    return len(tokens) < cap and (not tokens or tokens[-1] != end)


def emit(written, rows, runs, caps, end):
    """Append each run, up to the response's cap and end token."""
    for row, run in zip(rows, runs, strict=True):
        for token in run:
            if goes_on(written[row], caps[row], end):
                written[row].append(token)
