"""Rules whose bound depends on how sure the trainer is: CIS truncates, KPop masks.

Two engines that disagree by eps in the log-odds of a token disagree by a ratio k = p + (1-p) e^eps in its probability,
p being the *trainer's* (C1): the surer the token, the closer k is to 1 whatever eps. A constant threshold on eps is therefore
a cap on k that tightens with confidence (C4), and the capped second moment stays bounded (C5). KPop's gate tightens too,
but is open for rare tokens: its second moment is not bounded (C9).

**A reading.** The row of the CIS paper that states the cap is cut off in the only copy available. `odds` is the form that
a constant threshold on eps implies; `linear` and `loglinear` are the two others that fit the paper's numbers, and are
there to be compared. The paper also tries a bound from below, (1+p)/2: the ratio of a displacement of -log 2, so that the
two bounds are one band of displacements. That form is printed.

The ratio is target/behavior here as in every rule, and the confidence that of the target. To correct the mismatch of two
engines alone, next to a separate policy ratio, weigh a batch whose target is the proximal policy.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from testbed.core.errors import InputError
from testbed.core.numerics import log1m_exp
from testbed.weighting.binary_divergence import binary_kl
from testbed.weighting.limits import at_least, log, nearest
from testbed.weighting.mask import log_slack
from testbed.weighting.weights import Request, Weights, finish

CAP_FORMS = ("odds", "linear", "loglinear")


def displacement(logp_target: Float[Tensor, "..."], logp_behavior: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Shift of a token's log-odds from the behavior to the target.

        eps = log p/(1-p) - log q/(1-q),  p the target's, q the behavior's probability

    Parameters
    ----------
    logp_target, logp_behavior : Float[Tensor, "..."]    nats, <= 0; 0 and -inf are allowed

    Returns
    -------
    Float[Tensor, "..."]       nats; +-inf where exactly one of p, q is 0 or 1; 0 where p = q, at 0 and 1 too; never NaN

    Gives          k = p + (1-p) e^eps (C1); antisymmetric: exchanging the two changes the sign and nothing else
    Numerics       float64 inside, in a form without cancellation: relative error 1e-12 for |eps| from 1e-300 to 1e3
    References     CIS paper (Sep 2026)

    Examples
    --------
    >>> p, q = torch.tensor([-1e-9, -0.5, 0.0, 0.0]), torch.tensor([-2e-9, -0.5, -0.5, 0.0])
    >>> displacement(p, q)
    tensor([0.6931, 0.0000,    inf, 0.0000])
    """
    target, behavior = logp_target.double(), logp_behavior.double()
    surer = torch.maximum(target, behavior)
    gap = surer - torch.minimum(target, behavior)
    # with p > q: eps = log p/q + log (1-q)/(1-p) and (1-q)/(1-p) = 1 + (1 - q/p) p/(1-p): two terms, both positive
    log_odds_gain = log1m_exp(-gap) + surer - log1m_exp(surer)
    size = gap + torch.logaddexp(torch.zeros_like(gap), log_odds_gain)
    shift = torch.where(target == behavior, torch.zeros_like(gap), torch.where(target > behavior, size, -size))
    return shift.to(torch.promote_types(logp_target.dtype, logp_behavior.dtype))


def confidence_log_cap(
    logp_target: Float[Tensor, "..."], lam: float | int = 2.3, floor: float | int = 5e-3, cap_form: str = "odds"
) -> Float[Tensor, "..."]:
    """Log of the cap on a token's ratio that CIS is read to use.

        phi = max(1-p, floor);  odds: cap = 1 + phi (e^lam - 1);  linear: 1 + lam phi;  loglinear: e^(lam phi)

    Parameters
    ----------
    logp_target : Float[Tensor, "..."]   nats, <= 0
    lam : float                          >= 0, nats: the largest displacement left alone; inf means no cap
    floor : float                        in [0, 1]: a token surer than 1 - floor is treated as if it were that sure
    cap_form : str                       odds, linear or loglinear: three readings of a formula that is cut off

    Returns
    -------
    Float[Tensor, "..."]       nats, >= 0: a ratio of 1 is never cut

    Raises
    ------
    InputError     lam < 0, floor outside [0, 1], an unknown form
    Gives          odds with 1-p >= floor acts iff eps > lam (C4); E w^2 <= 1 + (e^lam - 1) E_p phi <= e^lam (C5)
    Numerics       1-p by expm1: it does not vanish before log p does
    References     a reading of the CIS paper (Sep 2026); lam and floor are its defaults

    Examples
    --------
    >>> confidence_log_cap(torch.log(torch.tensor([0.5, 0.9, 1.0]))).exp()
    tensor([5.4871, 1.8974, 1.0449])
    """
    lam, floor = at_least("lam", lam, 0.0), at_least("floor", floor, 0.0, 1.0)
    if cap_form not in CAP_FORMS:
        raise InputError("`cap_form` is unknown", found=repr(cap_form), hint=nearest(cap_form, CAP_FORMS))
    doubt = (-torch.expm1(logp_target)).clamp(min=floor)
    if cap_form == "loglinear":
        cap = lam * doubt
    else:
        log_slope = (lam + log(-math.expm1(-lam))) if cap_form == "odds" else log(lam)
        cap = torch.logaddexp(torch.zeros_like(doubt), log_slope + doubt.log())
    return torch.where(doubt > 0, cap, torch.zeros_like(doubt))


def confidence_log_low(logp_target: Float[Tensor, "..."], low: float | int) -> Float[Tensor, "..."]:
    """Log of the smallest ratio that a two-sided CIS leaves alone.

        low_t = p + (1-p) low

    Parameters
    ----------
    logp_target : Float[Tensor, "..."]   nats, <= 0
    low : float                          in [0, 1]: smallest odds ratio e^eps left alone; .5 is the band of the paper, (1+p)/2

    Returns
    -------
    Float[Tensor, "..."]       nats, <= 0: a ratio of 1 is never raised; -inf for an impossible token, whose weight stays 0

    Raises
    ------
    InputError     low outside [0, 1]
    Gives          acts iff eps < log low; with low = 0 never, since k >= p whatever the sampler says (C1)
    Numerics       a sum of two positive terms: the bound has the relative error of its format
    References     CIS paper (Sep 2026), its two-sided ablation

    Examples
    --------
    >>> confidence_log_low(torch.log(torch.tensor([0.0, 0.2, 0.9])), low=0.5).exp()
    tensor([0.0000, 0.6000, 0.9500])
    """
    share = at_least("low", low, 0.0, 1.0)
    raised = torch.logaddexp(logp_target, log1m_exp(logp_target) + log(share)).clamp(max=0.0)
    return torch.where(torch.isneginf(logp_target), logp_target, raised)


def truncate_displacement(
    logp_target: Float[Tensor, "..."], logp_behavior: Float[Tensor, "..."], lam: float | int
) -> Float[Tensor, "..."]:
    """Ratio rebuilt from a displacement cut at lam: CIS without its floor, by the other route.

        w = p + (1-p) e^min(eps, lam)

    Parameters
    ----------
    logp_target, logp_behavior : Float[Tensor, "..."]    nats, <= 0
    lam : float                                          >= 0, nats

    Returns
    -------
    Float[Tensor, "..."]       dimensionless; min(k, 1 + (1-p)(e^lam - 1)) (C4)

    Raises
    ------
    InputError     lam < 0
    References     CIS paper (Sep 2026): large positive displacements are truncated at a single constant threshold

    Examples
    --------
    >>> truncate_displacement(torch.log(torch.tensor([0.5, 0.5])), torch.log(torch.tensor([0.4, 0.01])), lam=2.3)
    tensor([1.2500, 5.4871])
    """
    threshold = at_least("lam", lam, 0.0)
    acts = displacement(logp_target, logp_behavior) > threshold
    ratio = torch.where(logp_target == logp_behavior, torch.zeros_like(logp_target), logp_target - logp_behavior).exp()
    cut = 1.0 - torch.expm1(logp_target) * math.expm1(min(threshold, 700.0))
    return torch.where(acts, cut, ratio)


def kpop_gate(
    logp_target: Float[Tensor, "..."], logp_behavior: Float[Tensor, "..."], phi: float | int
) -> Bool[Tensor, "..."]:
    """Gate of KPop: True where the two engines' coins are close in both directions.

        keep = 1{KL(p||q) <= phi and KL(q||p) <= phi}, KL as `binary_kl`

    Parameters
    ----------
    logp_target, logp_behavior : Float[Tensor, "..."]    nats, <= 0
    phi : float                                          >= 0, nats

    Returns
    -------
    Bool[Tensor, "..."]        True where kept, ties included; True wherever p = q
    Gives          no bound on the kept ratio's second moment: at p = .5, phi = 2 ratios up to 108.69 pass (C9)

    Examples
    --------
    >>> kpop_gate(torch.log(torch.tensor([0.5, 0.5, 1.0])), torch.log(torch.tensor([0.0047, 0.0045, 1.0])), 2.0)
    tensor([ True, False,  True])
    """
    bound = at_least("phi", phi, 0.0)
    far = torch.maximum(binary_kl(logp_target, logp_behavior), binary_kl(logp_behavior, logp_target))
    return far <= bound + log_slack(bound, torch.promote_types(logp_target.dtype, logp_behavior.dtype))


def weigh_cis(request: Request, lam: object, floor: object, cap_form: object, low: object) -> Weights:
    """Weight: the ratio, at most the cap that the target's confidence allows (a reading of the paper), raised if `low` > 0."""
    limits = at_least("lam", lam, 0.0), at_least("floor", floor, 0.0, 1.0), str(cap_form)
    share, log_ratio, logp = at_least("low", low, 0.0, 1.0), request.log_ratio(), request.batch.logp_target.detach()
    log_value = torch.minimum(log_ratio, confidence_log_cap(logp, *limits).to(log_ratio.dtype))
    if share > 0:
        log_value = torch.maximum(log_value, confidence_log_low(logp, share).to(log_ratio.dtype))
    return finish(request, log_ratio, log_value.exp())


def weigh_kpop(request: Request, phi: object) -> Weights:
    """Weight: the ratio where the binary divergences of both directions are at most phi, else 0."""
    batch, log_ratio = request.batch, request.log_ratio()
    keep = kpop_gate(batch.logp_target.detach(), batch.logp_behavior.detach(), at_least("phi", phi, 0.0))
    return finish(request, log_ratio, log_ratio.exp(), gate=keep)
