"""A policy with noise on its logits, which is a policy with a law of its own: it can be asked what it would have said.

The noise belongs to the prefix: whoever asks about a prefix, whenever and in whatever order, meets the same noise, so the
perturbed policy samples and reports one law. Policies that answer prompts have other noise at every prompt.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from testbed.core.prefix_order import prefixes
from testbed.core.seeds import SeedTree
from testbed.core.shapes import require_shape
from testbed.policies.base import Decoder, Policy
from testbed.policies.markov import MarkovPolicy
from testbed.policies.noise.law import NoiseLaw
from testbed.policies.noise.streams import NoiseStreams, PrefixKey
from testbed.policies.tabular import TabularPolicy


def perturb(policy: Policy, noise: NoiseLaw, seed: SeedTree | int) -> Policy:
    """Add noise to the logits of every prefix, the same noise whenever the same prefix is asked for.

        mu(y | h) = softmax(log pi(. | h) + delta_h)_y,     delta_h ~ noise, keyed by (seed, h)

    Parameters
    ----------
    policy : Policy           a MarkovPolicy gets one perturbation per *state* and stays Markov
    noise : NoiseLaw          with one seed, its parameters move one fixed draw; one of `testbed.policies.noise`: Gaussian,
                              Laplace, StudentT, ScaleMixture, CommonMode (a shift shared by all logits),
                              ConfidenceScaled, RoutingFlips, Rounding, or the calibrated dense_noise() and moe_noise()
    seed : SeedTree | int     address of the noise

    Returns
    -------
    Policy                    tabular for a tabular policy, with the wrapper's law prefix by prefix; else a `Perturbed`

    Gives      tokens of probability 0 keep it: the support is the policy's

    Examples
    --------
    >>> from testbed.policies.noise.gaussian import Gaussian
    >>> pi = TabularPolicy(torch.zeros(3, 2))
    >>> torch.equal(perturb(pi, Gaussian(0.0), seed=1).table, pi.table)
    True
    """
    if isinstance(policy, TabularPolicy):
        keys: Sequence[tuple[int, ...]] = prefixes(policy.vocab_size, policy.horizon)
        table, streams = policy.table, NoiseStreams.of(_address(seed)["prefix"], keys)
        return TabularPolicy(table + noise.draw(streams, table))
    if isinstance(policy, MarkovPolicy):
        states = [(state,) for state in range(policy.n_states)]
        table, streams = policy.table, NoiseStreams.of(_address(seed)["state"], states)
        return MarkovPolicy(table + noise.draw(streams, table), policy.transition, policy.start)
    return Perturbed(policy, noise, seed)


class Perturbed(Policy):
    """Any policy with noise on its logits, keyed by the prefix and, where there are prompts, by the prompt (see `perturb`).

    Parameters
    ----------
    policy : Policy
    noise : NoiseLaw
    seed : SeedTree | int
    group : Int64[Tensor, " B"] | None   prompts the policy was conditioned on; set by `at`
    """

    def __init__(
        self, policy: Policy, noise: NoiseLaw, seed: SeedTree | int, group: Int64[Tensor, " B"] | None = None
    ) -> None:
        self.policy, self.noise, self.seed, self.vocab_size = policy, noise, seed, policy.vocab_size
        self.group = group

    def next_log_probs(self, prefix: Int64[Tensor, "B t"]) -> Float[Tensor, "B V"]:
        """Log law of the next token under the noise of each prefix."""
        keys = [key.then(row) for key, row in zip(self.roots(prefix.shape[0]), prefix.tolist(), strict=True)]
        return self.disturbed(keys, self.policy.next_log_probs(prefix))

    def log_probs(self, tokens: Int64[Tensor, "B T"]) -> Float[Tensor, "B T V"]:
        """Log law at every position, from one pass of the wrapped policy."""
        laws, keys = self.policy.log_probs(tokens), self.roots(tokens.shape[0])
        out = torch.empty_like(laws, dtype=torch.float64)
        for t in range(tokens.shape[1]):
            out[:, t] = self.disturbed(keys, laws[:, t])
            keys = [key.then([token]) for key, token in zip(keys, tokens[:, t].tolist(), strict=True)]
        return out

    def at(self, group: Int64[Tensor, " B"]) -> Perturbed:
        """Perturb the law that answers these prompts, each with noise of its own."""
        inner = self.policy.at(group)
        return self if inner is self.policy else Perturbed(inner, self.noise, self.seed, group)

    def decoder(self, group: Int64[Tensor, " B"]) -> Decoder:
        """Perturb what the wrapped policy's own decoder says."""
        return PerturbedDecoder(self, group)

    def disturbed(self, keys: Sequence[PrefixKey], law: Float[Tensor, "N V"]) -> Float[Tensor, "N V"]:
        """Log law after noise, given the prefixes' keys and the log law before it."""
        delta = self.noise.draw(NoiseStreams([key.state() for key in keys]), law)
        return torch.log_softmax(law.double() + delta.to(law.device), -1)

    def roots(self, rows: int) -> list[PrefixKey]:
        """Keys of the empty prefix, one per row."""
        address = _address(self.seed)
        if self.group is None:
            return [PrefixKey.of(address["prefix"])] * rows
        require_shape("group", self.group, (rows,))
        return [PrefixKey.of(address["prompt"][prompt]) for prompt in self.group.tolist()]


class PerturbedDecoder(Decoder):
    """Keeps the key of every response, and the wrapped policy's decoder."""

    def __init__(self, policy: Perturbed, group: Int64[Tensor, " B"]) -> None:
        super().__init__(policy, group)
        self.perturbed, self.inner = policy, policy.policy.decoder(group)
        self.keys = policy.at(group).roots(len(group))

    def next_log_probs(self, prefix: Int64[Tensor, "b t"], rows: Int64[Tensor, " b"]) -> Float[Tensor, "b V"]:
        """Log law of the token after each prefix."""
        law, numbers = self.inner.next_log_probs(prefix, rows), rows.tolist()
        for row, tokens in zip(numbers, prefix.tolist(), strict=True):
            self.keys[row] = self.keys[row].then(tokens[self.keys[row].length :])
        return self.perturbed.disturbed([self.keys[row] for row in numbers], law)


def _address(seed: SeedTree | int) -> SeedTree:
    return (SeedTree(seed) if isinstance(seed, int) else seed)["logit_noise"]
