"""The exact policy gradient, twice: by differentiating J through the enumeration, and in closed form."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from testbed.core.errors import InputError
from testbed.core.prefix_order import node_index
from testbed.environments.base import Environment
from testbed.exact.law import response_table
from testbed.exact.values import action_values, prefix_law
from testbed.policies.base import Policy
from testbed.policies.tabular import TabularPolicy
from testbed.policies.transformer.model import flatten
from testbed.policies.transformer.policy import TransformerPolicy

RESPONSES_AT_ONCE = 4096  # of a transformer's graph


def exact_gradient(
    env: Environment, pi: Policy, method: Literal["autograd", "closed_form"] = "autograd", group: int = 0
) -> Float[Tensor, "..."]:
    """Gradient of J(pi) = E_pi[R] in the parameters of a tabular policy or a transformer.

    autograd: differentiate sum_y pi(y) R(y).  closed form: dJ/dl(h, a) = P_pi(h) pi(a|h) (Q(h, a) - V(h)).

    Parameters
    ----------
    env : Environment     up to 2^20 responses
    pi : TabularPolicy over the environment's vocabulary and horizon, or TransformerPolicy (autograd only)
    method : the two ways agree to rounding; that they do is a test, and the default differentiates J itself
    group : int           the prompt

    Returns
    -------
    Float64[Tensor, "N V"]   same shape as the logits; for a transformer its flat parameter vector [P]

    Raises
    ------
    InputError, TooLarge     another policy, vocabulary or method; more than 2^20 responses

    Examples
    --------
    >>> from testbed import PrefixTree
    >>> exact_gradient(PrefixTree(2, 1, rewards=[0.0, 1.0]), TabularPolicy(torch.zeros(1, 2)))
    tensor([[-0.2500,  0.2500]], dtype=torch.float64)
    """
    if isinstance(pi, TransformerPolicy) and pi.vocab_size == env.vocab_size:
        if method != "autograd":
            raise InputError("the gradient of a transformer is taken by autograd", found=repr(method))
        return _through_scores(env, pi, group)
    if not isinstance(pi, TabularPolicy) or (pi.vocab_size, pi.horizon) != (env.vocab_size, env.horizon):
        raise InputError(
            f"`pi` must be a TabularPolicy with V = {env.vocab_size} and T = {env.horizon}, or a transformer",
            found=f"{type(pi).__name__} with V = {pi.vocab_size}, T = {getattr(pi, 'horizon', '?')}",
        )
    if method == "closed_form":
        probs = pi.table.exp()
        q = action_values(env, pi)
        value = (probs * q).sum(1, keepdim=True)
        return prefix_law(env, pi)[:, None] * probs * (q - value)
    if method != "autograd":
        raise InputError("`method` must be 'autograd' or 'closed_form'", found=repr(method))
    tokens, mask = response_table(env)
    reward = env.reward(tokens, mask, torch.full((tokens.shape[0],), group, dtype=torch.int64))
    logits = pi.logits.detach().clone().requires_grad_(True)
    forbidden = torch.isneginf(logits.detach())
    safe = torch.where(forbidden, torch.zeros_like(logits), logits)  # a -inf logit has gradient 0, not NaN
    probs = torch.softmax(safe.masked_fill(forbidden, float("-inf")), -1)
    chosen = torch.where(mask, probs[node_index(tokens, env.vocab_size), tokens], torch.ones((), dtype=torch.float64))
    objective = (chosen.prod(1) * reward).sum()
    (gradient,) = torch.autograd.grad(objective, logits)
    return gradient


def _through_scores(env: Environment, pi: TransformerPolicy, group: int) -> Float[Tensor, " P"]:
    """Differentiate sum_y exp(sum_t log pi(y_t | h_t)) R(y), some responses at a time."""
    tokens, mask = response_table(env)
    prompt = torch.full((tokens.shape[0],), group, dtype=torch.int64)
    reward = env.reward(tokens, mask, prompt)
    gradient = torch.zeros(pi.model.parameter_count, dtype=torch.float64)
    for start in range(0, tokens.shape[0], RESPONSES_AT_ONCE):
        part = slice(start, start + RESPONSES_AT_ONCE)
        score = torch.where(mask[part], pi.at(prompt[part]).score(tokens[part]), 0.0)
        objective = (score.sum(1).exp() * reward[part]).sum()
        gradient += flatten(torch.autograd.grad(objective, pi.parameters())).double()
    return gradient
