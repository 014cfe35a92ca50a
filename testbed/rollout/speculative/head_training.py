"""Teaching future-token heads with what their own model wrote; the model itself stays as it is."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from testbed.core.batch import SegmentedBatch
from testbed.core.errors import InputError
from testbed.core.numerics import masked_mean
from testbed.core.seeds import SeedTree
from testbed.policies.transformer.policy import TransformerPolicy
from testbed.rollout.speculative.heads import FutureHeads


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
    surprise = -log_laws.gather(-1, target[..., None])[..., 0]
    each = masked_mean(surprise.movedim(-1, 0).flatten(1), real.movedim(-1, 0).flatten(1), dim=1)
    return (each * discount ** torch.arange(len(each), dtype=each.dtype, device=each.device)).sum()


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
    recipe = recipe or HeadRecipe()
    tree = SeedTree(seed) if isinstance(seed, int) else seed
    target, real = future_tokens(batch.tokens, batch.mask, heads.count)
    if not bool(real.any()):
        raise InputError("heads learn from responses of two tokens or more", found="none")
    with torch.no_grad():
        state, weights = policy.at(batch.group).hidden_states(batch.tokens), policy.weights()
    optimizer = torch.optim.AdamW(heads.parameters(), lr=recipe.rate, weight_decay=recipe.decay)
    size = min(recipe.batch, batch.batch_size)
    losses = []
    for step in range(recipe.steps):
        passed, place = divmod(step, batch.batch_size // size)
        order = torch.randperm(batch.batch_size, generator=tree["order"][passed].torch_generator())
        rows = order[place * size :][:size].to(state.device)
        optimizer.zero_grad()
        laws = heads.log_laws(state[rows], weights, policy.numerics)
        loss = head_loss(laws, target[rows].to(state.device), real[rows].to(state.device), recipe.discount)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses
