"""Behavior families with one knob: how far a behavior is from its target, turned continuously from zero.

Each function maps a policy and a knob to a policy with its own law. Tabular policies stay tabular and Markov policies
Markov, so that enumeration and recursions still apply; any other policy is wrapped. What divergence a knob produces is
answered by `testbed.exact.divergence_profile`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from testbed.core.errors import InputError
from testbed.core.seeds import SeedTree
from testbed.policies.base import Decoder, MappedDecoder, Policy
from testbed.policies.markov import MarkovPolicy
from testbed.policies.noise.gaussian import Gaussian
from testbed.policies.perturbed import perturb
from testbed.policies.tabular import TabularPolicy
from testbed.policies.truncated import Truncated

Checkpoint = TypeVar("Checkpoint")


def temperature(pi: Policy, knob: float) -> Policy:
    """Sharpen (knob < 1) or flatten (knob > 1) every next-token law: softmax(log pi / knob).

    Raises
    ------
    InputError   unless knob is finite and > 0

    Examples
    --------
    >>> pi = TabularPolicy.from_probs(torch.tensor([[0.8, 0.2]]))
    >>> temperature(pi, 2.0).table.exp()
    tensor([[0.6667, 0.3333]], dtype=torch.float64)
    """
    tempered = Truncated(pi, temperature=knob)
    if isinstance(pi, TabularPolicy | MarkovPolicy):
        return _with_table(pi, tempered.tempered(pi.table))
    return tempered


def logit_noise(pi: Policy, sigma: float, seed: SeedTree | int) -> Policy:
    """Add Gaussian noise to the logits of every prefix, the same noise whenever the same prefix is asked for.

        mu(y | h) = softmax(log pi(. | h) + sigma z_h)_y,     z_h ~ N(0, I), keyed by (seed, h)

    Parameters
    ----------
    pi : Policy               a MarkovPolicy gets one noise vector per *state* and stays Markov
    sigma : float             >= 0, nats; with one seed, sigma scales one fixed direction
    seed : SeedTree | int     address of the noise

    Returns
    -------
    Policy                    tabular for a tabular policy (equal to the wrapper's law prefix by prefix)

    Raises
    ------
    InputError   unless sigma is finite and >= 0

    Gives      over the noise, E d2 = sum p^2 + e^{sigma^2} (1 - sum p^2) per prefix (S11). It is the Gaussian member of
               `testbed.policies.perturbed.perturb`

    Examples
    --------
    >>> pi = TabularPolicy(torch.zeros(3, 2))
    >>> torch.equal(logit_noise(pi, 0.0, seed=1).table, pi.table)
    True
    """
    return perturb(pi, Gaussian(sigma), seed)


def mixture(pi: Policy, other: Policy, weight: float) -> Policy:
    """Mix two next-token laws after every prefix: (1 - weight) pi + weight other.

    Raises
    ------
    InputError   unless weight lies in [0, 1] and the vocabularies agree

    Assumes    the mixture is drawn token by token; mixing whole responses is another law (S17)
    Gives      pi / mixture <= 1 / (1 - weight): bounded ratios toward pi

    Examples
    --------
    >>> p, q = (TabularPolicy.from_probs(torch.tensor([x])) for x in ([1.0, 0.0], [0.2, 0.8]))
    >>> mixture(p, q, 0.5).table.exp()
    tensor([[0.6000, 0.4000]], dtype=torch.float64)
    """
    if not 0 <= weight <= 1:
        raise InputError("`weight` must lie in [0, 1]", found=weight)
    if pi.vocab_size != other.vocab_size:
        raise InputError("both policies must share one vocabulary", found=f"{pi.vocab_size} and {other.vocab_size}")
    if isinstance(pi, TabularPolicy) and isinstance(other, TabularPolicy) and pi.horizon == other.horizon:
        return _with_table(pi, _mixed(pi.table, other.table, weight))
    if isinstance(pi, MarkovPolicy) and isinstance(other, MarkovPolicy) and pi.same_states(other):
        return _with_table(pi, _mixed(pi.table, other.table, weight))
    return MixturePolicy(pi, other, weight)


class MixturePolicy(Policy):
    """Token-level mixture of two policies of any kind (see `mixture`)."""

    def __init__(self, policy: Policy, other: Policy, weight: float) -> None:
        self.policy, self.other, self.weight, self.vocab_size = policy, other, weight, policy.vocab_size

    def next_log_probs(self, prefix: Int64[Tensor, "B t"]) -> Float[Tensor, "B V"]:
        """Log law of the next token."""
        return _mixed(self.policy.next_log_probs(prefix), self.other.next_log_probs(prefix), self.weight)

    def at(self, group: Int64[Tensor, " B"]) -> MixturePolicy:
        """Mix the two laws that answer these prompts."""
        first, second = self.policy.at(group), self.other.at(group)
        plain = first is self.policy and second is self.other
        return self if plain else MixturePolicy(first, second, self.weight)

    def decoder(self, group: Int64[Tensor, " B"]) -> Decoder:
        """Mix what the two policies' own decoders say."""
        decoders = [self.policy.decoder(group), self.other.decoder(group)]
        return MappedDecoder(decoders, lambda prefix, first, second: _mixed(first, second, self.weight))


def steps_behind(checkpoints: Sequence[Checkpoint], k: int) -> Checkpoint:
    """Return the policy k updates before the last checkpoint (k = 0: the last itself).

    Raises
    ------
    InputError   if k is negative or the history is not that long

    Examples
    --------
    >>> steps_behind(["first", "second", "third"], 1)
    'second'
    """
    if not 0 <= k < len(checkpoints):
        raise InputError(f"`k` must lie in 0..{len(checkpoints) - 1} for {len(checkpoints)} checkpoints", found=k)
    return checkpoints[len(checkpoints) - 1 - k]


def _with_table(pi: TabularPolicy | MarkovPolicy, logits: Tensor) -> TabularPolicy | MarkovPolicy:
    return TabularPolicy(logits) if isinstance(pi, TabularPolicy) else MarkovPolicy(logits, pi.transition, pi.start)


def _mixed(first: Tensor, second: Tensor, weight: float) -> Tensor:
    if weight in (0, 1):
        return second if weight else first
    return torch.logaddexp(first.double() + math.log1p(-weight), second.double() + math.log(weight))
