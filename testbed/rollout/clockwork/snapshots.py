"""Versions of a policy: what an optimizer does later to the weights, a snapshot does not see; and what is saved of one.

Transformers and tables have weights. Wrappers (temperature and filters, noise on logits) are taken with what they wrap; a
policy of another kind is taken as it is, must not change, and cannot be saved.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from testbed.core.errors import InputError
from testbed.core.seeds import SeedTree
from testbed.policies.base import Policy
from testbed.policies.perturbed import Perturbed
from testbed.policies.tabular import TabularPolicy
from testbed.policies.transformer.model import Transformer
from testbed.policies.transformer.policy import TransformerPolicy
from testbed.policies.truncated import Truncated


def snapshot(policy: Policy) -> Policy:
    """Return the policy with its weights copied.

    Examples
    --------
    >>> import torch
    >>> logits = torch.zeros(1, 2, dtype=torch.float64)
    >>> kept = snapshot(TabularPolicy(logits))
    >>> logits[0, 0] = 1.0
    >>> kept.next_log_probs(torch.zeros(1, 0, dtype=torch.int64)).exp()
    tensor([[0.5000, 0.5000]], dtype=torch.float64)
    """
    if isinstance(policy, (Truncated, Perturbed)):
        return _around(policy, snapshot(policy.policy))
    if isinstance(policy, (TransformerPolicy, TabularPolicy)):
        return _with_weights(policy, _weights(policy))
    return policy


def saved_policy(policy: Policy) -> dict[str, Any]:
    """Return weights (copied), and the address of the noise of every `Perturbed` around them, outermost first.

    Raises
    ------
    InputError   a policy of a kind that cannot be saved
    """
    noise = []
    while isinstance(policy, (Truncated, Perturbed)):
        if isinstance(policy, Perturbed):
            seed = policy.seed if isinstance(policy.seed, SeedTree) else SeedTree(policy.seed)
            noise.append([seed.root, *seed.path])
        policy = policy.policy
    return {"weights": {name: weight.clone() for name, weight in _weights(policy).items()}, "noise": noise}


def restored_policy(policy: Policy, saved: Mapping[str, Any]) -> Policy:
    """Return the saved policy; its kind, prompts, numerics, filters and laws of noise are those of `policy`.

    Raises
    ------
    InputError   what was saved belongs to another kind of policy or another model
    """
    noise = sum(1 for layer in _layers(policy) if isinstance(layer, Perturbed))
    if noise != len(saved["noise"]):
        found = f"{noise} laws of noise, {len(saved['noise'])} saved"
        raise InputError("a saved policy goes on as the kind it was saved as", found=found)
    return _restored(policy, saved["weights"], saved["noise"])


def _restored(policy: Policy, weights: Mapping[str, Tensor], noise: Sequence[Sequence[Any]]) -> Policy:
    if isinstance(policy, Truncated):
        return _around(policy, _restored(policy.policy, weights, noise))
    if isinstance(policy, Perturbed):
        root, *path = noise[0]
        inner = _restored(policy.policy, weights, noise[1:])
        return Perturbed(inner, policy.noise, SeedTree(root, tuple(path)))
    return _with_weights(policy, weights)


def _layers(policy: Policy) -> list[Policy]:
    return [policy, *_layers(policy.policy)] if isinstance(policy, (Truncated, Perturbed)) else [policy]


def innermost(policy: Policy) -> Policy:
    """Return what is inside the wrappers."""
    return _layers(policy)[-1]


def _around(policy: Truncated | Perturbed, inner: Policy) -> Policy:
    out = copy.copy(policy)
    out.policy = inner
    return out


def _weights(policy: Policy) -> dict[str, Tensor]:
    if isinstance(policy, TransformerPolicy):
        return {name: weight.detach() for name, weight in policy.model.weights.items()}
    if isinstance(policy, TabularPolicy):
        return {"logits": policy.logits.detach()}
    raise InputError("a clock can save a TransformerPolicy or a TabularPolicy", found=type(policy).__name__)


def _with_weights(policy: Policy, weights: Mapping[str, Tensor]) -> Policy:
    if isinstance(policy, TransformerPolicy):
        out = policy.under(policy.numerics)
        out.model = Transformer(policy.config, weights)
        return out
    if isinstance(policy, TabularPolicy) and weights.keys() == {"logits"}:
        return TabularPolicy(weights["logits"].detach().clone())
    raise InputError("weights must be those of this kind of policy", found=f"{type(policy).__name__}, {list(weights)}")
