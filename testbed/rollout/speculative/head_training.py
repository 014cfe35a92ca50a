"""Teaching future-token heads with what their own model wrote; the model itself stays as it is.

The streams that the heads read are computed once. An update takes its positions in pieces, so that no more than some
millions of log-probabilities exist at a time, whatever the vocabulary.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from testbed.core.batch import SegmentedBatch
from testbed.core.errors import InputError
from testbed.core.seeds import SeedTree
from testbed.core.shapes import require_shape
from testbed.policies.transformer.policy import TransformerPolicy
from testbed.rollout.speculative.heads import FutureHeads

ENTRIES = 2**22  # log-probabilities at a time: 32 MiB of them, and a few times that for the gradient


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadRecipe:
    """How heads are taught: AdamW at a constant rate on shuffled responses.

    Parameters
    ----------
    steps, batch : int      updates; responses per update
    rate : float            learning rate
    discount : float        in (0, 1]: weight of head k is discount^(k-1)
    decay : float           weight decay

    Raises
    ------
    InputError   a size below 1, or a rate or discount outside its range
    """

    steps: int = 200
    batch: int = 64
    rate: float = 3e-3
    discount: float = 0.8
    decay: float = 0.0

    def __post_init__(self) -> None:
        for name in ("steps", "batch"):
            if getattr(self, name) < 1:
                raise InputError(f"`{name}` must be >= 1", found=getattr(self, name))
        if not (self.rate > 0 and 0 < self.discount <= 1):
            raise InputError("`rate` must be > 0 and `discount` in (0, 1]", found=f"{self.rate}, {self.discount}")


def future_tokens(
    tokens: Int64[Tensor, "B T"], mask: Bool[Tensor, "B T"], heads: int
) -> tuple[Int64[Tensor, "B T K"], Bool[Tensor, "B T K"]]:
    """Token that head k speaks of at each position, t + k, and whether the response has one.

    Examples
    --------
    >>> target, real = future_tokens(torch.tensor([[5, 6, 7]]), torch.tensor([[True, True, True]]), 2)
    >>> target[0, 0].tolist(), real[0].tolist()
    ([6, 7], [[True, True], [True, False], [False, False]])
    """
    at = torch.arange(tokens.shape[1])[:, None] + torch.arange(1, heads + 1)  # [T, K]
    inside = at < tokens.shape[1]
    at = at.clamp(max=tokens.shape[1] - 1).to(tokens.device)
    return tokens[:, at], mask[:, at] & inside.to(tokens.device)


def loss_weights(real: Bool[Tensor, "B T K"], discount: float = 0.8) -> Float[Tensor, "B T K"]:
    """Weight of each future token in the loss: discount^(k-1) / n_k, n_k the number of tokens that head k is scored on.

    Examples
    --------
    >>> loss_weights(torch.tensor([[[True, True], [True, False]]]), 0.5)
    tensor([[[0.5000, 0.5000],
             [0.5000, 0.0000]]], dtype=torch.float64)
    """
    heads = real.shape[-1]
    scale = discount ** torch.arange(heads, dtype=torch.float64, device=real.device)
    return real.double() * scale / real.flatten(0, -2).sum(0).clamp(min=1)


def weighted_surprise(
    log_laws: Float[Tensor, "*B K V"], target: Int64[Tensor, "*B K"], weight: Float[Tensor, "*B K"]
) -> Float[Tensor, ""]:
    """Weighted sum of negative log-likelihoods, nats; a token of weight 0 counts for nothing, however improbable."""
    surprise = -log_laws.gather(-1, target[..., None])[..., 0]
    return (weight.to(surprise) * torch.where(weight > 0, surprise, torch.zeros_like(surprise))).sum()


def head_loss(
    log_laws: Float[Tensor, "B T K V"],
    target: Int64[Tensor, "B T K"],
    real: Bool[Tensor, "B T K"],
    discount: float = 0.8,
) -> Float[Tensor, ""]:
    """Weighted sum of the heads' mean negative log-likelihoods, nats.

        L = sum_k discount^(k-1) mean over (b, t) of -log q_k(y_b,t+k | h_bt)

    Examples
    --------
    >>> coin = torch.full((1, 2, 1, 2), 0.5).log()
    >>> head_loss(coin, torch.zeros(1, 2, 1, dtype=torch.int64), torch.ones(1, 2, 1, dtype=torch.bool)).exp()
    tensor(2.)
    """
    return weighted_surprise(log_laws, target, loss_weights(real, discount))


class HeadTeacher:
    """Heads being taught, in place, one update at a time.

    Parameters
    ----------
    heads : FutureHeads          of the policy's model
    policy : TransformerPolicy   the batch's author; its weights are read and never changed
    batch : SegmentedBatch       responses that it wrote
    recipe : HeadRecipe | None   None: the default
    seed : SeedTree | int        address of the order of the responses
    states : Float[Tensor, "B T d"] | None   streams that the responses' tokens were drawn from, as `hidden_states` gives
                                 them, where they are known; None: a pass over the batch

    Raises
    ------
    InputError   responses too short to have a future: none of two tokens; states of another shape

    Gives        the same losses and weights for the same arguments and number of threads, interrupted (`state`, `restore`)
                 or not

    Examples
    --------
    >>> from testbed import KeyedChooser, PrefixTree
    >>> from testbed.policies.transformer import Transformer, TransformerConfig
    >>> from testbed.rollout import rollout
    >>> config = TransformerConfig(vocab_size=3, width=8, heads=2, layers=1, hidden=8)
    >>> pi = TransformerPolicy(Transformer.random(config, seed=0, sharpness=3.0))
    >>> batch = rollout(PrefixTree(3, 5, rewards=[0.0] * 243), pi, 40, KeyedChooser(0))
    >>> one, other = (HeadTeacher(FutureHeads.of(pi), pi, batch) for _ in range(2))
    >>> losses = [one.advance() for _ in range(3)]
    >>> other.restore(one.state())
    >>> other.step, one.advance() == other.advance()
    (3, True)
    """

    def __init__(
        self,
        heads: FutureHeads,
        policy: TransformerPolicy,
        batch: SegmentedBatch,
        recipe: HeadRecipe | None = None,
        seed: SeedTree | int = 0,
        states: Float[Tensor, "B T d"] | None = None,
    ) -> None:
        self.heads, self.numerics, self.recipe = heads, policy.numerics, recipe or HeadRecipe()
        self.seed = SeedTree(seed) if isinstance(seed, int) else seed
        target, real = future_tokens(batch.tokens, batch.mask, heads.count)
        if not bool(real.any()):
            raise InputError("heads learn from responses of two tokens or more", found="none")
        with torch.no_grad():
            self.weights = policy.weights()
            self.states = policy.at(batch.group).hidden_states(batch.tokens) if states is None else states
        require_shape("states", self.states, (*batch.tokens.shape, heads.config.width))
        self.target, self.real = target.to(self.states.device), real.to(self.states.device)
        self.optimizer = torch.optim.AdamW(heads.parameters(), lr=self.recipe.rate, weight_decay=self.recipe.decay)
        self.step = 0

    def rows(self, step: int) -> Int64[Tensor, " batch"]:
        """Responses of an update: every one once per pass, in an order of the pass's own (what is left over is dropped)."""
        count = len(self.states)
        size = min(self.recipe.batch, count)
        passed, place = divmod(step, count // size)
        order = torch.randperm(count, generator=self.seed["order"][passed].torch_generator())
        return order[place * size :][:size]

    def advance(self) -> float:
        """Make one update and return the loss before it."""
        rows = self.rows(self.step).to(self.states.device)
        taught = self.real[rows].any(-1)  # the last position of a response has no future
        states, target = self.states[rows][taught], self.target[rows][taught]
        weight = loss_weights(self.real[rows], self.recipe.discount)[taught]
        self.optimizer.zero_grad()
        count, total = max(1, ENTRIES // (self.heads.count * self.heads.config.vocab_size)), 0.0
        for piece in torch.arange(len(states), device=states.device).split(count):
            laws = self.heads.log_laws(states[piece], self.weights, self.numerics)
            loss = weighted_surprise(laws, target[piece], weight[piece])
            loss.backward()
            total += float(loss.detach())
        self.optimizer.step()
        self.step += 1
        return total

    def state(self) -> dict[str, Any]:
        """Everything a later run needs to go on as this one would: tensors and plain values only."""
        return {
            "step": self.step,
            "made_by": self._made_by(),
            "heads": [x.detach().clone() for x in self.heads.parameters()],
            "optimizer": self.optimizer.state_dict(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state.

        Raises
        ------
        InputError   a state of another recipe, seed, number of heads or set of responses
        """
        if state["made_by"] != self._made_by():
            raise InputError(
                "a checkpoint belongs to the teaching that wrote it", found="another recipe, seed or batch"
            )
        with torch.no_grad():
            for weight, kept in zip(self.heads.parameters(), state["heads"], strict=True):
                weight.copy_(kept)
        self.optimizer.load_state_dict(state["optimizer"])
        self.step = state["step"]

    def _made_by(self) -> dict[str, Any]:
        shape = [*self.target.shape, int(self.real.sum()), int(self.target[self.real].sum())]
        return {"recipe": asdict(self.recipe), "seed": self.seed.integer(), "batch": shape}


def teach_heads(
    heads: FutureHeads,
    policy: TransformerPolicy,
    batch: SegmentedBatch,
    recipe: HeadRecipe | None = None,
    seed: SeedTree | int = 0,
) -> list[float]:
    """Fit the heads, in place, to responses that the policy wrote; return the loss before every update.

    Parameters
    ----------
    heads : FutureHeads          of the policy's model
    policy : TransformerPolicy   the batch's author; its weights are read and never changed
    batch : SegmentedBatch
    recipe : HeadRecipe | None   None: the default
    seed : SeedTree | int        address of the order of the responses

    Raises
    ------
    InputError   responses too short to have a future: none of two tokens

    Gives        the same losses and weights for the same arguments and number of threads

    Examples
    --------
    >>> from testbed import KeyedChooser, PrefixTree
    >>> from testbed.policies.transformer import Transformer, TransformerConfig
    >>> from testbed.rollout import rollout
    >>> config = TransformerConfig(vocab_size=3, width=8, heads=2, layers=1, hidden=8)
    >>> pi = TransformerPolicy(Transformer.random(config, seed=0, sharpness=3.0))
    >>> batch = rollout(PrefixTree(3, 5, rewards=[0.0] * 243), pi, 40, KeyedChooser(0))
    >>> losses = teach_heads(FutureHeads.of(pi), pi, batch, HeadRecipe(steps=30, batch=40))
    >>> losses[-1] < losses[0]
    True
    """
    teacher = HeadTeacher(heads, policy, batch, recipe, seed)
    return [teacher.advance() for _ in range(teacher.recipe.steps)]
