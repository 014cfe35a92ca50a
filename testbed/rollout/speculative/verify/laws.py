"""The three moves of rejection verification: how likely a drafted token is accepted, and what is left of either law if not.

And what a row draws from that has nothing to draw.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor


def acceptance(p: Float[Tensor, "b V"], q: Float[Tensor, "b V"], token: Int64[Tensor, " b"]) -> Float[Tensor, " b"]:
    """Probability of accepting a token drawn from q for a sample of p: min(1, p(x) / q(x)).

    A token that q cannot draw (q(x) = 0) is never accepted. p may be any multiple of a law.

    Examples
    --------
    >>> p, q = torch.tensor([[0.4, 0.6]]), torch.tensor([[0.8, 0.2]])
    >>> [round(float(acceptance(p, q, torch.tensor([x]))), 6) for x in (0, 1)]
    [0.5, 1.0]
    """
    at_p, at_q = p.gather(1, token[:, None])[:, 0], q.gather(1, token[:, None])[:, 0]
    drawn = at_q > 0
    return torch.where(drawn, (at_p / torch.where(drawn, at_q, 1.0)).clamp(max=1.0), 0.0)


def residual(
    p: Float[Tensor, "b V"], q: Float[Tensor, "b V"], share: Float[Tensor, " b"] | None = None
) -> tuple[Float[Tensor, "b V"], Float[Tensor, " b"]]:
    """Law of what acceptance leaves over, (share p - q)+ normalized, and its mass before.

    `share` (None: 1) is the part of p that the draft so far stands for. Where nothing is left over, a rejection has
    probability 0 and the law is p.

    Examples
    --------
    >>> law, mass = residual(torch.tensor([[0.4, 0.3, 0.3]]), torch.tensor([[0.1, 0.2, 0.7]]))
    >>> law, round(float(mass), 6)
    (tensor([[0.7500, 0.2500, 0.0000]]), 0.4)
    """
    excess = ((p if share is None else share[:, None] * p) - q).clamp(min=0.0)
    mass = excess.sum(-1)
    left = mass > 0
    return torch.where(left[:, None], excess / torch.where(left, mass, 1.0)[:, None], p), mass


def without(law: Float[Tensor, "b V"], token: Int64[Tensor, " b"]) -> Float[Tensor, "b V"]:
    """Law conditioned on not being `token`; all zeros where the law knows no other token.

    Examples
    --------
    >>> without(torch.tensor([[0.5, 0.25, 0.25], [1.0, 0.0, 0.0]]), torch.tensor([0, 0]))
    tensor([[0.0000, 0.5000, 0.5000], [0.0000, 0.0000, 0.0000]])
    """
    rest = law.scatter(1, token[:, None], 0.0)
    total = rest.sum(-1, keepdim=True)
    return rest / torch.where(total > 0, total, 1.0)


def certain_unless(asked: Bool[Tensor, " b"], law: Float[Tensor, "b V"]) -> Float[Tensor, "b V"]:
    """Law in rows that are asked; in the others token 0 for certain.

    So all rows draw together, whatever the device knows about them, and a row that has nothing to decide decides nothing:
    a chooser that walks every branch finds one.

    Examples
    --------
    >>> certain_unless(torch.tensor([True, False]), torch.full((2, 2), 0.5))
    tensor([[0.5000, 0.5000],
            [1.0000, 0.0000]])
    """
    certain = law.new_zeros(law.shape[-1])
    certain[0] = 1.0
    return torch.where(asked[:, None], law, certain)
