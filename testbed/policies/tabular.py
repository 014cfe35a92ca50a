"""Tabular policies: one unshared softmax block per prefix, the setting in which every claim here can be enumerated.

Rows are in the library's prefix order (`testbed.core.prefix_order`).
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from testbed.core.errors import InputError, TooLarge
from testbed.core.prefix_order import node_count, node_index
from testbed.core.seeds import SeedTree
from testbed.core.shapes import require_shape
from testbed.policies.base import Decoder, Policy


class TabularPolicy(Policy):
    """A softmax of free logits after every prefix.

    Parameters
    ----------
    logits : Float[Tensor, "N V"]   N = node_count(V, T) for some T; dimensionless; -inf forbids a token

    Raises
    ------
    InputError   if the number of rows is no node count, or a row forbids every token

    Examples
    --------
    >>> pi = TabularPolicy(torch.zeros(3, 2))
    >>> pi.horizon, pi.next_log_probs(torch.tensor([[1]])).exp()
    (2, tensor([[0.5000, 0.5000]], dtype=torch.float64))
    """

    def __init__(self, logits: Float[Tensor, "N V"]) -> None:
        if logits.dim() != 2:
            raise InputError("`logits` must be [prefixes, V]", found=f"shape {tuple(logits.shape)}")
        self.logits = logits.double()
        self.vocab_size = logits.shape[1]
        horizon, count = 0, 0
        while count < logits.shape[0]:
            count += self.vocab_size**horizon
            horizon += 1
        if count != logits.shape[0]:
            raise InputError(
                f"`logits` must have 1 + V + ... + V^(T-1) rows for V = {self.vocab_size}",
                found=logits.shape[0],
                hint=f"the nearest are {node_count(self.vocab_size, horizon - 1)} and {count}",
            )
        self.horizon = horizon
        improper = torch.isnan(self.logits) | torch.isposinf(self.logits)
        if bool(improper.any()) or bool(torch.isneginf(self.logits).all(-1).any()):
            raise InputError(
                "every row of `logits` must allow a token and hold no NaN or +inf", found="a row that does not"
            )

    @staticmethod
    def from_probs(probs: Float[Tensor, "N V"]) -> TabularPolicy:
        """Build from next-token probabilities (rows sum to 1; zeros become -inf logits).

        Examples
        --------
        >>> TabularPolicy.from_probs(torch.tensor([[0.2, 0.8]])).table.exp()
        tensor([[0.2000, 0.8000]], dtype=torch.float64)
        """
        p = probs.double()
        if bool((p < 0).any()) or bool(((p.sum(-1) - 1).abs() > 1e-6).any()):
            raise InputError("`probs` rows must be non-negative and sum to 1", found=f"sums {p.sum(-1).tolist()[:4]}")
        return TabularPolicy(p.log())

    @staticmethod
    def random(vocab_size: int, horizon: int, seed: SeedTree | int, scale: float = 1.0) -> TabularPolicy:
        """Independent Gaussian logits of standard deviation `scale` after every prefix."""
        tree = SeedTree(seed) if isinstance(seed, int) else seed
        shape = (node_count(vocab_size, horizon), vocab_size)
        if shape[0] * shape[1] > 2**27:
            raise TooLarge(
                "a table may hold up to 2^27 logits",
                found=f"{shape[0]:.3g} x {vocab_size}" if shape[0] < 1e300 else "more than 1e300 rows",
                hint="a MarkovPolicy has one row per state",
            )
        noise = torch.randn(shape, generator=tree["tabular"].torch_generator(), dtype=torch.float64)
        return TabularPolicy(scale * noise)

    @property
    def table(self) -> Float[Tensor, "N V"]:
        """Log-probability of every token after every prefix."""
        return torch.log_softmax(self.logits, -1)

    def next_log_probs(self, prefix: Int64[Tensor, "B t"]) -> Float[Tensor, "B V"]:
        """Log-probabilities after these prefixes (t < horizon)."""
        batch, t = prefix.shape
        if t >= self.horizon:
            raise InputError(f"prefixes must be shorter than the horizon {self.horizon}", found=f"length {t}")
        last = torch.zeros(batch, 1, dtype=torch.int64, device=prefix.device)
        return self.table[node_index(torch.cat([prefix, last], 1), self.vocab_size)[:, -1]]

    def decoder(self, group: Int64[Tensor, " B"]) -> Decoder:
        """Open a decoder that keeps the place of every response in the tree."""
        return TabularDecoder(self, group)

    def log_probs(self, tokens: Int64[Tensor, "B T"]) -> Float[Tensor, "B T V"]:
        """Log-probabilities at every position, in one table look-up."""
        if tokens.shape[1] > self.horizon:
            raise InputError(f"responses must have at most {self.horizon} tokens", found=tokens.shape[1])
        return self.table[node_index(tokens, self.vocab_size)]

    def score(self, tokens: Int64[Tensor, "B T"]) -> Float[Tensor, "B T"]:
        """Log-probability of the token at every position, without the [B, T, V] table in between."""
        if tokens.shape[1] > self.horizon:
            raise InputError(f"responses must have at most {self.horizon} tokens", found=tokens.shape[1])
        return self.table[node_index(tokens, self.vocab_size), tokens]

    def score_terms(self, tokens: Int64[Tensor, "B T"], coefficient: Float[Tensor, "B T"]) -> Float[Tensor, "B N V"]:
        """sum_t c_t grad log pi(y_t|h_t): the block of prefix h_t gets c_t (e_{y_t} - pi(.|h_t)).

        Positions whose coefficient is 0 (padding) contribute nothing.
        """
        require_shape("coefficient", coefficient, tuple(tokens.shape))
        c = coefficient.double()
        nodes = node_index(tokens, self.vocab_size)
        block = -c[..., None] * self.table.exp()[nodes]
        block.scatter_add_(-1, tokens[..., None], c[..., None])
        out = torch.zeros(tokens.shape[0], *self.logits.shape, dtype=torch.float64)
        return out.scatter_add_(1, nodes[..., None].expand_as(block), block)


class TabularDecoder(Decoder):
    """Reads the table once, then follows each response down the tree: one look-up per token, whatever its length.

    Examples
    --------
    >>> decoder = TabularPolicy.random(2, 3, 0).decoder(torch.tensor([0, 0]))
    >>> first, both = torch.tensor([0]), torch.tensor([0, 1])
    >>> law = decoder.next_log_probs(torch.tensor([[1]]), first)
    >>> later = decoder.next_log_probs(torch.tensor([[1, 0], [0, 1]]), both)  # row 1 catches up by two tokens
    >>> torch.equal(later, decoder.policy.next_log_probs(torch.tensor([[1, 0], [0, 1]])))
    True
    """

    def __init__(self, policy: TabularPolicy, group: Int64[Tensor, " B"]) -> None:
        super().__init__(policy, group)
        self.table, self.horizon = policy.table, policy.horizon
        self.code = torch.zeros_like(group)  # of the tokens seen, among all responses of their length
        self.seen = torch.zeros_like(group)

    def next_log_probs(self, prefix: Int64[Tensor, "b t"], rows: Int64[Tensor, " b"]) -> Float[Tensor, "b V"]:
        """Log-probabilities of the token after each prefix (t < horizon)."""
        t, vocab_size = prefix.shape[1], self.table.shape[1]
        if t >= self.horizon:
            raise InputError(f"prefixes must be shorter than the horizon {self.horizon}", found=f"length {t}")
        code, seen = self.code[rows], self.seen[rows]
        for s in range(int(seen.min()) if len(rows) else t, t):
            code = torch.where(seen <= s, code * vocab_size + prefix[:, s], code)
        self.code[rows], self.seen[rows] = code, t
        return self.table.index_select(0, code + node_count(vocab_size, t))
