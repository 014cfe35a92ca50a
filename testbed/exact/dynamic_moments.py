"""Exact mean and second moment of policy-gradient estimators in Markov worlds, at any horizon.

A response's term is R sum_t c_t x_t, where x_t is the score of token t in one parameter and c_t a weight; its moments
follow from a forward recursion over the joint moments of (state, R, sum c_t x_t). Powers of R are kept as extra
coordinates of the state (a step maps R^j to (R + r)^j, a binomial combination), all parameters run side by side, and
the scale E[W_t^2] is divided out at every step. Cost O(T P S^2 J^2) for P = S A parameters and J = 3 powers of R.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import comb, exp, log

import torch
from jaxtyping import Float
from torch import Tensor

from testbed.core.errors import InputError
from testbed.environments.markov import MarkovEnvironment
from testbed.exact.dynamic_tables import MarkovTables, markov_tables
from testbed.policies.base import Policy
from testbed.policies.schedule import Schedule

# Per-step measures (`MarkovTables.measure`) that carry the moments of Y = sum_t c_t x_t; level k holds its k-th power.
# First: what moves each level along; then: what adds x to level k from level k - 1, x^2 to level 2 from level 0.
FIRST = {
    "none": (("mu", "mu"), ("mu",)),
    "token": (("mu", "mu"), ("pi",)),
    "sequence_product": (("pi", "pi"), ("pi",)),
    "prefix_return": (("pi", "mu"), ("pi",)),
}
SECOND = {
    "none": (("mu", "mu", "mu"), ("mu", "mu"), "mu"),
    "token": (("mu", "mu", "mu"), ("pi", "pi"), "tilt"),
    "sequence_product": (("tilt", "tilt", "tilt"), ("tilt", "tilt"), "tilt"),
    "prefix_return": (("tilt", "pi", "mu"), ("tilt", "pi"), "tilt"),
}
ESTIMATORS = (*FIRST, "prefix")


@dataclass(frozen=True, slots=True)
class EstimatorMoments:
    """Elementwise moments of one response's term, the second one as exp(log_scale) * scaled_second.

    Attributes
    ----------
    mean : [S, A]            exact expectation
    scaled_second : [S, A]   second moment divided by exp(log_scale)
    log_scale : float        nats; log E_mu[W_T^2] for the weighted products, 0 for "none" and "token"
    """

    mean: Float[Tensor, "S A"]
    scaled_second: Float[Tensor, "S A"]
    log_scale: float

    @property
    def log_second(self) -> Float[Tensor, "S A"]:
        """Logarithm of the second moment: finite where `second` would overflow."""
        return self.scaled_second.log() + self.log_scale

    @property
    def second(self) -> Float[Tensor, "S A"]:
        """Second moment (inf where it overflows float64)."""
        return self.log_second.exp()

    @property
    def variance(self) -> Float[Tensor, "S A"]:
        """Second moment minus squared mean."""
        return self.second - self.mean**2


class Move:
    """One step's linear map on (state, powers of R): the kernel, and the sources that multiply by the token's score.

    For parameter (s, b) the score of token a in state s is x = 1{a = b} - pi(b|s), so sums over a of x and x^2 need
    only the kernel's row and the entry of token b.
    """

    def __init__(
        self, world: MarkovTables, measure: Float[Tensor, "S A"], reward: Float[Tensor, "S A"], powers: int
    ) -> None:
        self.size, self.actions = measure.shape
        self.probs, self.arrive = world.log_target.exp(), world.transition.reshape(-1)
        self.entry = torch.zeros(self.size, self.actions, powers, powers, dtype=torch.float64)
        self.matrix = torch.zeros(self.size, powers, self.size, powers, dtype=torch.float64)
        for j in range(powers):
            for i in range(j + 1):
                self.entry[:, :, i, j] = comb(j, i) * measure * reward ** (j - i)
                self.matrix[:, i, :, j] = world.kernel(self.entry[:, :, i, j])
        self.matrix = self.matrix.reshape(self.size * powers, self.size * powers)
        self.rows = self.matrix.view(self.size, powers, self.size * powers)

    def push(self, level: Float[Tensor, "P SJ"]) -> Float[Tensor, "P SJ"]:
        """Carry moments one step along."""
        return level @ self.matrix

    def source(self, own: Float[Tensor, "S A J"], square: bool = False) -> Float[Tensor, "P SJ"]:
        """sum_a x (or x^2) times the moments of each parameter's own state, carried one step along."""
        p = self.probs
        flat, drawn = (p**2, 1 - 2 * p) if square else (-p, torch.ones_like(p))
        out = torch.bmm(own * flat[:, :, None], self.rows).view(self.size * self.actions, self.size, -1)
        here = torch.arange(self.size * self.actions)
        out[here, self.arrive] += torch.einsum("saj,saji,sa->sai", own, self.entry, drawn).flatten(0, 1)
        return out.flatten(1)


def estimator_moments(
    env: MarkovEnvironment, target: Policy, schedule: Schedule | Policy, estimator: str
) -> EstimatorMoments:
    """Exact moments of a gradient estimator's term, elementwise in the target's logits.

        none               R sum_t s_t                        sequence_product   W_T R sum_t s_t
        token              R sum_t rho_t s_t                  prefix_return      R sum_t W_t s_t
        prefix             sum_u r_u W_u sum_{t <= u} s_t     (per-step rewards, the final one in r_T; unbiased: S3)

    Parameters
    ----------
    env, target, schedule    a Markov world whose boundaries are positions
    estimator : str          one of the five above; `prefix_return` is the prefix weight with the whole return (S4)

    Returns
    -------
    EstimatorMoments         mean, second moment (scaled), variance; all [S, A]

    Raises
    ------
    InputError   unknown estimator; a world that is not Markov over the environment's states

    Numerics   float64; the second moment is scaled by E[W_t^2] at every step

    Examples
    --------
    >>> from testbed.policies.markov import MarkovPolicy
    >>> env = MarkovEnvironment.chain(n_states=1, horizon=1)
    >>> pi = MarkovPolicy(torch.zeros(1, 2), env.transition)
    >>> m = estimator_moments(env, pi, pi, "none")
    >>> m.mean, m.second
    (tensor([[-0.2500,  0.2500]], dtype=torch.float64), tensor([[0.1250, 0.1250]], dtype=torch.float64))
    """
    if estimator not in ESTIMATORS:
        raise InputError(f"`estimator` must be one of {', '.join(ESTIMATORS)}", found=estimator)
    world = markov_tables(env, target, schedule)
    if estimator == "prefix":
        return _prefix(world)
    shape = tuple(world.log_target.shape)
    mean, mean_scale = _chain(world, *FIRST[estimator], None, powers=2)
    second, log_scale = _chain(world, *SECOND[estimator], powers=3)
    return EstimatorMoments(mean.view(shape) * exp(mean_scale), second.view(shape), log_scale)


def _chain(
    world: MarkovTables, levels: tuple[str, ...], one: tuple[str, ...], two: str | None, powers: int
) -> tuple[Float[Tensor, " P"], float]:
    """E[R^k Y^k] for k = len(levels) - 1 and powers = k + 1, with the logarithm of the scale divided out."""
    size, actions = world.log_target.shape
    moves = _Moves(world, powers)
    zeroth = torch.zeros(1, size * powers, dtype=torch.float64)
    zeroth[0, world.start * powers] = 1.0
    higher = [torch.zeros(size * actions, size * powers, dtype=torch.float64) for _ in levels[1:]]
    log_scale = 0.0
    for t, label in enumerate(world.segment.tolist()):
        own = [_everywhere(zeroth, size, actions), *(_own(level, size, actions) for level in higher[:-1])]
        fresh = []
        for k, level in enumerate(higher, start=1):
            moved = moves(t, label, levels[k]).push(level).add_(moves(t, label, one[k - 1]).source(k * own[k - 1]))
            if k == 2 and two is not None:
                moved += moves(t, label, two).source(own[0], square=True)
            fresh.append(moved)
        zeroth = moves(t, label, levels[0]).push(zeroth)
        total = float(zeroth[0, ::powers].sum()) or 1.0
        zeroth, higher = zeroth / total, [level.div_(total) for level in fresh]
        log_scale += log(total)
    return higher[-1].view(size * actions, size, powers)[:, :, -1].sum(-1), log_scale


def _prefix(world: MarkovTables) -> EstimatorMoments:
    """Moments of G = sum_u r_u W_u X_u, X_u = sum_{t<=u} x_t.

    Carries the joint moments w_k = (W X^k), v_k = (W^2 X^k), g_k = (G W X^k) per state; G^2 needs no state.
    """
    size, actions = world.log_target.shape
    moves = _Moves(world, powers=1)
    zeros = torch.zeros(size * actions, size, dtype=torch.float64)
    start = world.at_start()[None]
    w0, w1, mean = start, zeros, torch.zeros(size * actions, dtype=torch.float64)
    v0, v1, v2, g0, g1, second = start, zeros, zeros, zeros, zeros, torch.zeros_like(mean)
    log_scale = 0.0
    for t, label in enumerate(world.segment.tolist()):
        pi, tilt = moves(t, label, "pi"), moves(t, label, "tilt")
        pi_r, tilt_r, tilt_rr = moves(t, label, "pi", 1), moves(t, label, "tilt", 1), moves(t, label, "tilt", 2)
        at, own = _everywhere(w0, size, actions), _everywhere(v0, size, actions)
        own1, own_g = _own(v1, size, actions), _own(g0, size, actions)
        mean = mean + (pi_r.push(w1) + pi_r.source(at)).sum(-1)
        w0, w1 = pi.push(w0), pi.push(w1) + pi.source(at)
        second = second + 2 * (pi_r.push(g1) + pi_r.source(own_g)).sum(-1)
        fresh = tilt_rr.push(v2) + tilt_rr.source(2 * own1) + tilt_rr.source(own, square=True)
        second = second + fresh.sum(-1)
        g1 = pi.push(g1) + pi.source(own_g) + tilt_r.push(v2)
        g1 = g1 + tilt_r.source(2 * own1) + tilt_r.source(own, square=True)
        g0 = pi.push(g0) + tilt_r.push(v1) + tilt_r.source(own)
        v2 = tilt.push(v2) + tilt.source(2 * own1) + tilt.source(own, square=True)
        v1, v0 = tilt.push(v1) + tilt.source(own), tilt.push(v0)
        total = float(v0.sum()) or 1.0
        v0, v1, v2, g0, g1, second = (x / total for x in (v0, v1, v2, g0, g1, second))
        log_scale += log(total)
    return EstimatorMoments(mean.view(size, actions), second.view(size, actions), log_scale)


class _Moves:
    """The moves of a world, built once per (kind of reward table, segment, measure)."""

    def __init__(self, world: MarkovTables, powers: int) -> None:
        self.world, self.powers = world, powers
        self.built: dict[tuple[bool, int, str, int], Move] = {}

    def __call__(self, t: int, label: int, measure: str, reward_factor: int = 0) -> Move:
        """Move of step t; with `reward_factor` f the measure is multiplied by r^f."""
        last = t == len(self.world.rewards) - 1
        key = (last, label, measure, reward_factor)
        if key not in self.built:
            reward = self.world.rewards[t]
            weights = self.world.measure(measure, label) * reward**reward_factor
            self.built[key] = Move(self.world, weights, reward, self.powers)
        return self.built[key]


def _own(level: Float[Tensor, "P SJ"], size: int, actions: int) -> Float[Tensor, "S A J"]:
    """Moments of each parameter (s, b) in its own state s."""
    state = torch.arange(size)
    return level.view(size, actions, size, -1)[state, :, state]


def _everywhere(level: Float[Tensor, "1 SJ"], size: int, actions: int) -> Float[Tensor, "S A J"]:
    return level.view(size, 1, -1).expand(size, actions, -1)
