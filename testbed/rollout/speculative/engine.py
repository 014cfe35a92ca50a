"""Speculative rollouts: several tokens per pass of the target, with exactly the law of one token per pass.

A round drafts a tree of candidates behind the last token of every unfinished response, passes the target over root and tree
at once, lets a verifier pick a path and one token more, and keeps the path's keys and values. A tree without nodes makes the
round an autoregressive step, so that the baseline is this engine, too. Responses end, each on its own, at their end token or
cap; what a run holds beyond is dropped.
"""

from __future__ import annotations

from collections.abc import Callable

from jaxtyping import Int64
from torch import Tensor

from testbed.core.batch import SegmentedBatch
from testbed.core.choices import Chooser
from testbed.core.errors import InputError
from testbed.environments.base import Environment
from testbed.policies.base import Policy
from testbed.rollout.engine import per_response
from testbed.rollout.speculative.budget import Budget, FixedBudget
from testbed.rollout.speculative.drafters import Drafter
from testbed.rollout.speculative.responses import Responses
from testbed.rollout.speculative.rounds import Round
from testbed.rollout.speculative.tree import DraftTree
from testbed.rollout.speculative.verifiers import Draft, drafted
from testbed.rollout.speculative.verify.registry import find_verifier


def speculative_rollout(
    env: Environment,
    policy: Policy,
    n: int,
    chooser: Chooser,
    *,
    drafter: Drafter | None = None,
    nodes: int | Budget = 0,
    verifier: str = "membership",
    target: Policy | None = None,
    group: Int64[Tensor, " n"] | None = None,
    max_tokens: Int64[Tensor, " n"] | None = None,
    watch: Callable[[Round], None] | None = None,
) -> SegmentedBatch:
    """Draw n responses of a transformer, several tokens per pass where its drafts are accepted.

    Parameters
    ----------
    env : Environment          horizon, end token and reward
    policy : Policy            the law to sample: a TransformerPolicy, or one seen through Truncated
    n : int                    responses, >= 1
    chooser : Chooser          the only source of randomness; a token's key is (response, position)
    drafter : Drafter | None   None: no drafts
    nodes : int | Budget       candidates per response and round; 0 = autoregressive
    verifier : str             a name of `verify.VERIFIERS`
    target : Policy | None     whose log-probs are recorded as `logp_target`; None: the sampled law's own
    group : Int64[Tensor, " n"] | None        prompt of each response (None: prompt 0)
    max_tokens : Int64[Tensor, " n"] | None   most tokens of each response, >= 0; None or more than the horizon: the horizon
    watch : callable | None    called with every Round

    Returns
    -------
    SegmentedBatch   [n, T], one segment; positions after the end token or beyond the cap are padding

    Raises
    ------
    InputError   n < 1, bad `group` or `max_tokens`, mismatched vocabularies, a policy without a transformer, nodes without
                 a drafter, a verifier that is unknown or needs another drafter

    Gives      the law of `rollout` under the same policy, row by row and jointly over rows, for every drafter that does not
               see draws to come (V3); with a KeyedChooser and verifier "membership" the tokens of `rollout` themselves (V2)
    Numerics   log-probs are those of the tree pass; they differ from a pass over the response by rounding. One transfer from
               device to host per round, besides the chooser's own

    Examples
    --------
    >>> import torch
    >>> from testbed import KeyedChooser, PrefixTree
    >>> from testbed.policies.transformer import Transformer, TransformerConfig, TransformerPolicy
    >>> from testbed.rollout import rollout
    >>> from testbed.rollout.speculative import FutureHeads, HeadDrafter
    >>> config = TransformerConfig(vocab_size=3, width=8, heads=2, layers=1, hidden=8)
    >>> pi, env = TransformerPolicy(Transformer.random(config, seed=0)), PrefixTree(3, 5, rewards=[0.0] * 243)
    >>> drafter = HeadDrafter(FutureHeads.of(pi, 2), (3, 2))
    >>> fast = speculative_rollout(env, pi, 20, KeyedChooser(1), drafter=drafter, nodes=4)
    >>> torch.equal(fast.tokens, rollout(env, pi, 20, KeyedChooser(1)).tokens)
    True
    """
    return grown(
        Responses, env, policy, n, chooser, drafter=drafter, nodes=nodes, verifier=verifier, target=target, group=group,
        max_tokens=max_tokens, watch=watch,
    )  # fmt: skip


def grown(
    kind: type[Responses],
    env: Environment,
    policy: Policy,
    n: int,
    chooser: Chooser,
    *,
    drafter: Drafter | None = None,
    nodes: int | Budget = 0,
    verifier: str = "membership",
    target: Policy | None = None,
    group: Int64[Tensor, " n"] | None = None,
    max_tokens: Int64[Tensor, " n"] | None = None,
    watch: Callable[[Round], None] | None = None,
) -> SegmentedBatch:
    """Grow responses of a kind round by round; `speculative_rollout` with its own kind, `group_specimens` with wrong ones."""
    if n < 1:
        raise InputError("`n` must be >= 1", found=n)
    if policy.vocab_size != env.vocab_size:
        found = f"{policy.vocab_size} and {env.vocab_size}"
        raise InputError("policy and environment must share one vocabulary", found=found)
    budget = FixedBudget(nodes) if isinstance(nodes, int) else nodes
    if drafter is None and budget != FixedBudget(0):
        raise InputError("candidates need a drafter", found=f"nodes={nodes!r} and no drafter")
    rule = find_verifier(verifier)
    group = per_response("group", group, n, 0)
    most = per_response("max_tokens", max_tokens, n, env.horizon).clamp(max=env.horizon)
    responses = kind(env, policy, chooser, group, most)
    if responses.active:
        responses.start()
    while responses.active:
        count = 0 if drafter is None else budget.nodes(responses.active, responses.gains)
        draft: Draft = DraftTree.none(responses.active, responses.rows.device), None
        if drafter is not None and count:
            draft = drafted(rule, drafter, responses.frontier(), count, responses.draws())
        finished = responses.round(draft, rule)
        if drafter is not None:
            drafter.observe(finished)
        if watch is not None:
            watch(finished)
    return responses.recorded(target)
