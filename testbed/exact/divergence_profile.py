"""How far a behavior family moves away from the target as its knob turns: exact divergences, not estimates.

Token-level and response-level numbers stand side by side because they tell different stories: a token divergence that
looks harmless multiplies up along the response.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, inf

import torch

from testbed.core.errors import InputError
from testbed.environments.base import Environment
from testbed.environments.markov import MarkovEnvironment
from testbed.exact.dynamic import state_distribution, weight_growth
from testbed.exact.dynamic_tables import markov_tables
from testbed.exact.law import enumerate_law
from testbed.policies.base import Policy


@dataclass(frozen=True, slots=True)
class Divergence:
    """Exact divergences between target pi and behavior mu at one value of the knob.

    rho = pi/mu is a token's ratio, W the product over the response.

    Attributes
    ----------
    token_kl : float         nats; E_mu[sum_t -log rho_t] / E_mu[length] = KL(mu||pi) of responses per token
    token_chi2 : float       E_mu[sum_t (rho_t - 1)^2] / E_mu[length]
    response_kl : float      nats; KL(mu||pi) of whole responses
    mean_weight : float      E_mu[W]; below 1 iff the behavior cannot write some of the target's responses
    log_response_d2 : float  nats; log E_mu[W^2]
    """

    knob: float
    token_kl: float
    token_chi2: float
    response_kl: float
    mean_weight: float
    log_response_d2: float

    @property
    def response_d2(self) -> float:
        """E_mu[W^2] of whole responses; inf where it overflows."""
        return exp(self.log_response_d2) if self.log_response_d2 < 709 else inf


def divergence_profile(
    env: Environment, target: Policy, family: Callable[[float], Policy], knobs: Sequence[float]
) -> list[Divergence]:
    """Exact divergences from the target for each value of a family's knob.

    Parameters
    ----------
    env : Environment        a MarkovEnvironment is solved by recursion at any horizon, others by enumeration
    target : Policy
    family : maps a knob to the behavior, e.g. `lambda tau: temperature(target, tau)`
    knobs : values of the knob, in the order of the answer

    Returns
    -------
    list[Divergence]         one per knob

    Raises
    ------
    TooLarge, InputError     the world is neither Markov nor small; no knob is given

    Gives      zero divergence iff the behavior is the target on every reachable prefix

    Examples
    --------
    >>> from testbed import PrefixTree, TabularPolicy
    >>> from testbed.policies import mixture
    >>> p, q = (TabularPolicy.from_probs(torch.tensor([x])) for x in ([0.5, 0.5], [0.8, 0.2]))
    >>> row = divergence_profile(PrefixTree(2, 1, [0.0, 1.0]), p, lambda weight: mixture(p, q, weight), [1.0])[0]
    >>> round(row.token_kl, 6), round(row.token_chi2, 6), round(row.response_d2, 6)
    (0.192745, 0.5625, 1.5625)
    """
    if not len(knobs):
        raise InputError("`knobs` must hold at least one value", found="none")
    rows = []
    for knob in knobs:
        if isinstance(env, MarkovEnvironment):
            rows.append(_by_recursion(env, target, family(knob), float(knob)))
        else:
            rows.append(_by_enumeration(env, target, family(knob), float(knob)))
    return rows


def _by_enumeration(env: Environment, target: Policy, behavior: Policy, knob: float) -> Divergence:
    law = enumerate_law(env, target, behavior)
    batch = law.batch
    log_ratio = torch.where(batch.mask, batch.logp_target - batch.logp_behavior, 0.0).double()
    length = float(law.expect(batch.mask.double().sum(1)))
    kl = float(law.expect(-log_ratio.sum(1)))
    chi2 = float(law.expect(torch.where(batch.mask, torch.expm1(log_ratio), 0.0).square().sum(1)))
    weight = log_ratio.sum(1)
    return Divergence(
        knob=knob,
        token_kl=kl / length,
        token_chi2=chi2 / length,
        response_kl=kl,
        mean_weight=float(law.expect(weight.exp())),
        log_response_d2=float(torch.logsumexp(law.log_prob + 2 * weight, 0)),
    )


def _by_recursion(env: MarkovEnvironment, target: Policy, behavior: Policy, knob: float) -> Divergence:
    world = markov_tables(env, target, behavior)
    mu = world.measure("mu", 0)
    log_ratio = torch.where(mu > 0, world.log_target - world.log_behavior[0], 0.0)
    visits = state_distribution(env, behavior)[:-1].sum(0)
    kl = float((visits[:, None] * torch.where(mu > 0, -mu * log_ratio, 0.0)).sum())
    chi2 = float((visits[:, None] * mu * torch.expm1(log_ratio).square()).sum())
    carried, mass = world.kernel(world.measure("pi", 0)), world.at_start()
    for _ in range(env.horizon):
        mass = mass @ carried
    return Divergence(
        knob=knob,
        token_kl=kl / env.horizon,
        token_chi2=chi2 / env.horizon,
        response_kl=kl,
        mean_weight=float(mass.sum()),
        log_response_d2=float(weight_growth(env, target, behavior).log_second[-1]),
    )
