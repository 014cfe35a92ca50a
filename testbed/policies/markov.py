"""Policies whose next-token law depends on a state that the tokens themselves drive.

The state is a deterministic function of the prefix (`state' = transition[state, token]`), so a Markov policy is an
ordinary policy with shared parameters: one softmax block per state instead of one per prefix. Its tables stay small at
any horizon, which is what makes the recursions of `testbed.exact.dynamic` linear in the horizon.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from testbed.core.errors import InputError
from testbed.core.seeds import SeedTree
from testbed.core.shapes import require_shape
from testbed.policies.base import Decoder, Policy


def checked_transition(transition: Tensor, n_states: int, n_actions: int) -> Int64[Tensor, "S A"]:
    """Return the next-state table as int64 [S, A]; InputError for a wrong shape, fractions or unknown states."""
    table = torch.as_tensor(transition)
    require_shape("transition", table, (n_states, n_actions))
    if table.is_floating_point() or table.dtype == torch.bool:
        raise InputError(
            "`transition` must hold integer next states",
            found=str(table.dtype),
            hint="transitions are deterministic: the state is a function of the prefix",
        )
    if table.numel() and (int(table.min()) < 0 or int(table.max()) >= n_states):
        found = f"{int(table.min())}..{int(table.max())}"
        raise InputError(f"every next state must lie in 0..{n_states - 1}", found=found)
    return table.to(torch.int64)


def checked_start(start: int, n_states: int) -> int:
    """Return the start state, or raise InputError if it is no state."""
    if not 0 <= int(start) < n_states:
        raise InputError(f"`start` must lie in 0..{n_states - 1}", found=start)
    return int(start)


def state_path(tokens: Int64[Tensor, "B T"], transition: Int64[Tensor, "S A"], start: int) -> Int64[Tensor, "B T+1"]:
    """States visited along each response: column t is the state before token t, the last column the final state.

    Examples
    --------
    >>> state_path(torch.tensor([[1, 0]]), torch.tensor([[0, 1], [1, 0]]), start=0)
    tensor([[0, 1, 1]])
    """
    state = torch.full((tokens.shape[0],), start, dtype=torch.int64, device=tokens.device)
    path = [state]
    for t in range(tokens.shape[1]):
        state = transition[state, tokens[:, t]]
        path.append(state)
    return torch.stack(path, dim=1)


class MarkovPolicy(Policy):
    """One softmax block per state, the state following the tokens.

        pi(a | h) = softmax(logits[s(h)])_a,     s(h, a) = transition[s(h), a],     s(empty) = start

    Parameters
    ----------
    logits : Float[Tensor, "S A"]       the parameters; need not be normalized; -inf forbids a token
    transition : Int64[Tensor, "S A"]   deterministic next state
    start : int                         state before the first token

    Raises
    ------
    InputError   if shapes disagree, a next state does not exist, or a row of logits has NaN, +inf or no finite entry

    Examples
    --------
    >>> pi = MarkovPolicy(torch.zeros(2, 3, dtype=torch.float64), torch.tensor([[0, 1, 1], [1, 0, 0]]))
    >>> pi.next_log_probs(torch.tensor([[2]])).exp().sum().item()
    1.0
    """

    def __init__(self, logits: Tensor, transition: Tensor, start: int = 0) -> None:
        if logits.dim() != 2 or 0 in logits.shape:
            raise InputError("`logits` must have shape (states, tokens), both at least 1", found=tuple(logits.shape))
        plain = logits.detach()
        if bool(torch.isnan(plain).any()) or not bool(torch.isfinite(plain.amax(-1)).all()):
            raise InputError(
                "each row of `logits` must have a finite largest entry and no NaN", found="a row that gives no law"
            )
        self.logits = logits.double()
        self.vocab_size = logits.shape[1]
        self.n_states = logits.shape[0]
        self.transition = checked_transition(transition, self.n_states, self.vocab_size)
        self.start = checked_start(start, self.n_states)

    @staticmethod
    def random(
        transition: Int64[Tensor, "S A"], seed: SeedTree | int, scale: float = 1.0, start: int = 0
    ) -> MarkovPolicy:
        """Independent Gaussian logits of standard deviation `scale` in every state."""
        tree = SeedTree(seed) if isinstance(seed, int) else seed
        generator = tree["markov_policy"].torch_generator()
        logits = scale * torch.randn(transition.shape, generator=generator, dtype=torch.float64)
        return MarkovPolicy(logits, transition, start)

    @staticmethod
    def from_probs(probs: Float[Tensor, "S A"], transition: Int64[Tensor, "S A"], start: int = 0) -> MarkovPolicy:
        """Build from next-token probabilities per state (rows sum to 1; zeros become -inf logits)."""
        p = probs.double()
        if bool((p < 0).any()) or bool(((p.sum(-1) - 1).abs() > 1e-6).any()):
            raise InputError("`probs` rows must be non-negative and sum to 1", found=f"sums {p.sum(-1).tolist()[:4]}")
        return MarkovPolicy(p.log(), transition, start)

    @property
    def table(self) -> Float[Tensor, "S A"]:
        """Log-probabilities per state (log-softmax of the logits, float64)."""
        return torch.log_softmax(self.logits, -1)

    def same_states(self, other: MarkovPolicy) -> bool:
        """Whether another Markov policy follows the same states from the same start."""
        return self.start == other.start and torch.equal(self.transition, other.transition)

    def states(self, tokens: Int64[Tensor, "B T"]) -> Int64[Tensor, "B T"]:
        """State before each token."""
        return state_path(tokens, self.transition, self.start)[:, :-1]

    def next_log_probs(self, prefix: Int64[Tensor, "B t"]) -> Float[Tensor, "B V"]:
        """Log law of the token that follows each prefix (a function of the state the prefix ends in)."""
        return self.table[state_path(prefix, self.transition, self.start)[:, -1]]

    def decoder(self, group: Int64[Tensor, " B"]) -> Decoder:
        """Open a decoder that keeps the state of every response."""
        return MarkovDecoder(self, group)

    def log_probs(self, tokens: Int64[Tensor, "B T"]) -> Float[Tensor, "B T V"]:
        """Log law at every position of each response, in one table look-up."""
        return self.table[self.states(tokens)]

    def score_terms(self, tokens: Int64[Tensor, "B T"], coefficient: Float[Tensor, "B T"]) -> Float[Tensor, "B S A"]:
        """Weighted score of each response with respect to the logits, in closed form.

            out[b, s, a] = sum_t c_bt 1{s_t = s} (1{y_t = a} - pi(a | s))

        Parameters
        ----------
        tokens : Int64[Tensor, "B T"]
        coefficient : Float[Tensor, "B T"]     0 on padding

        Returns
        -------
        Float[Tensor, "B S A"]                 same shape as the logits, one per response
        """
        require_shape("coefficient", coefficient, tuple(tokens.shape))
        state, rows = self.states(tokens), tokens.shape[0]
        coefficient = coefficient.double()
        drawn = torch.zeros(rows, self.n_states * self.vocab_size, dtype=torch.float64, device=tokens.device)
        drawn.scatter_add_(1, state * self.vocab_size + tokens, coefficient)
        visits = torch.zeros(rows, self.n_states, dtype=torch.float64, device=tokens.device)
        visits.scatter_add_(1, state, coefficient)
        return drawn.view(rows, self.n_states, self.vocab_size) - visits[:, :, None] * self.table.detach().exp()


class MarkovDecoder(Decoder):
    """Reads the table once, then moves each response's state along its new tokens.

    Examples
    --------
    >>> pi = MarkovPolicy(torch.tensor([[0.0, 0.0], [0.0, 1.0]]), torch.tensor([[0, 1], [1, 0]]))
    >>> decoder, rows = pi.decoder(torch.tensor([0])), torch.tensor([0])
    >>> laws = [decoder.next_log_probs(torch.tensor([[1, 1]])[:, :t], rows) for t in range(3)]
    >>> [torch.equal(law, pi.next_log_probs(torch.tensor([[1, 1]])[:, :t])) for t, law in enumerate(laws)]
    [True, True, True]
    """

    def __init__(self, policy: MarkovPolicy, group: Int64[Tensor, " B"]) -> None:
        super().__init__(policy, group)
        self.table, self.transition = policy.table, policy.transition
        self.state = torch.full_like(group, policy.start)
        self.seen = torch.zeros_like(group)

    def next_log_probs(self, prefix: Int64[Tensor, "b t"], rows: Int64[Tensor, " b"]) -> Float[Tensor, "b V"]:
        """Log law of the token after each prefix."""
        t = prefix.shape[1]
        state, seen = self.state[rows], self.seen[rows]
        for s in range(int(seen.min()) if len(rows) else t, t):
            state = torch.where(seen <= s, self.transition[state, prefix[:, s]], state)
        self.state[rows], self.seen[rows] = state, t
        return self.table.index_select(0, state)
