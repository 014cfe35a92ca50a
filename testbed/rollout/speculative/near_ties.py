"""Near ties: the only places where two engines that round differently may part, given the same noise.

With noise keyed by (response, position) a token is argmax(log p + noise), so that two engines of one law write the same
tokens, unless their rounding decides between two candidates that are nearly equal. A ledger of partings tells such ties from
wrong laws: it holds how far apart the two best candidates were in each engine where the responses part.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from testbed.core.batch import SegmentedBatch
from testbed.core.choices import KeyedChooser
from testbed.core.errors import InputError
from testbed.core.shapes import require_shape
from testbed.policies.base import Policy

NEAR = 1e-4  # nats: candidates that are closer are a near tie in single precision


class TieChooser(KeyedChooser):
    """A keyed chooser that notes how close each draw was: the largest of log p + noise less the second largest, nats.

    The last draw of a key counts: an engine may ask for a key without a choice before it asks in earnest.

    Examples
    --------
    >>> chooser = TieChooser(1)
    >>> chooser.choose(torch.full((1, 4), 0.25), torch.tensor([[3, 0]])).tolist()
    [3]
    >>> [round(gap, 3) for gap in chooser.gaps(4, 1)[:, 0].tolist()]
    [inf, inf, inf, 0.869]
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._gaps: dict[tuple[int, int], float] = {}

    def choose(self, probs: Float[Tensor, "B V"], key: Int64[Tensor, "B 2"] | None = None) -> Int64[Tensor, " B"]:
        """Return argmax(log p + Gumbel noise of the row's key)."""
        drawn = super().choose(probs, key)
        assert key is not None  # or it would have been refused
        noise = torch.stack([self.noise(r, t, probs.shape[1]) for r, t in key.tolist()])
        gaps = leading_gap(probs.double().log() + noise.to(probs.device))
        self._gaps.update({(r, t): gap for (r, t), gap in zip(key.tolist(), gaps.tolist(), strict=True)})
        return drawn

    def noise(self, response: int, position: int, size: int) -> Float[Tensor, " V"]:
        """Noise of a key."""
        return self._gumbel(response, position, size)

    def gaps(self, responses: int, horizon: int) -> Float[Tensor, "B T"]:
        """How close each draw was, infinite where there was none; forget them, and keep the noise for another engine."""
        out = torch.full((responses, horizon), math.inf, dtype=torch.float64)
        for (response, position), gap in self._gaps.items():
            if 0 <= response < responses and 0 <= position < horizon:
                out[response, position] = gap
        self._gaps = {}
        return out


def leading_gap(scores: Float[Tensor, "*B V"]) -> Float[Tensor, "*B"]:
    """Largest score less the second largest; infinite where there is only one that is finite.

    Examples
    --------
    >>> leading_gap(torch.tensor([[1.0, 3.0, 2.5], [0.0, float("-inf"), float("-inf")]]))
    tensor([0.5000,    inf])
    """
    if scores.shape[-1] < 2:
        return torch.full(scores.shape[:-1], math.inf, dtype=scores.dtype, device=scores.device)
    best = scores.topk(2, dim=-1).values
    return best[..., 0] - best[..., 1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parting:
    """The first place where a response of one engine is not that of another.

    Parameters
    ----------
    response, position : int
    tokens : (int, int)      what the first and the second engine wrote there; -1 = the response had ended
    gaps : (float, float)    how close its draw was in each engine, nats; infinite where it made none
    exact : float | None     the same in float64, if it was computed
    """

    response: int
    position: int
    tokens: tuple[int, int]
    gaps: tuple[float, float]
    exact: float | None = None

    @property
    def near_tie(self) -> bool:
        """Whether rounding explains it: no engine saw the candidates further apart than a near tie.

        Examples
        --------
        >>> Parting(response=0, position=3, tokens=(5, 7), gaps=(2e-6, 9e-6)).near_tie
        True
        >>> Parting(response=0, position=3, tokens=(5, 7), gaps=(2e-6, 0.3)).near_tie
        False
        """
        return max(*self.gaps, self.exact or 0.0) < NEAR


def partings(first: SegmentedBatch, second: SegmentedBatch, gaps: tuple[Tensor, Tensor]) -> list[Parting]:
    """Ledger of two engines' responses under the same noise: where each response parts, if it does.

    Parameters
    ----------
    first, second : SegmentedBatch    row i of both is response i
    gaps : two Float[Tensor, "B T"]   how close the draws of the first and of the second engine were (`TieChooser.gaps`)

    Raises
    ------
    InputError   batches of different shapes

    Examples
    --------
    >>> from testbed import PrefixTree, TabularPolicy
    >>> from testbed.rollout import rollout
    >>> env, chooser = PrefixTree(2, 2, rewards=[0.0] * 4), TieChooser(0)
    >>> pi, other = TabularPolicy(torch.zeros(3, 2)), TabularPolicy(torch.tensor([[0.0, 0.0], [9.0, 0.0], [0.0, 9.0]]))
    >>> one, gaps = rollout(env, pi, 20, chooser), chooser.gaps(20, 2)
    >>> found = partings(one, rollout(env, other, 20, chooser), (gaps, chooser.gaps(20, 2)))
    >>> {parting.position for parting in found}, any(parting.near_tie for parting in found)
    ({1}, False)
    """
    shape = tuple(first.tokens.shape)
    if tuple(second.tokens.shape) != shape:
        raise InputError("a ledger compares as many responses of one horizon", found=tuple(second.tokens.shape))
    for values in gaps:
        require_shape("gaps", values, shape)
    a, b = (torch.where(batch.mask, batch.tokens, -1) for batch in (first, second))
    differs = a != b
    out = []
    for response in torch.nonzero(differs.any(1))[:, 0].tolist():
        at = int(differs[response].long().argmax())
        tokens, seen = (int(a[response, at]), int(b[response, at])), [float(x[response, at]) for x in gaps]
        seen = [math.inf if token < 0 else gap for token, gap in zip(tokens, seen, strict=True)]
        out.append(Parting(response=response, position=at, tokens=tokens, gaps=(seen[0], seen[1])))
    return out


def exact_gap(policy: Policy, prefix: Int64[Tensor, " t"], noise: Float[Tensor, " V"]) -> float:
    """How close a draw after a prefix is under a policy that answers one prompt: `leading_gap` of its law plus the noise."""
    with torch.no_grad():
        return float(leading_gap(policy.next_log_probs(prefix[None])[0] + noise))
