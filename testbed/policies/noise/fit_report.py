"""How near the calibrated noise laws come to the reported numbers, entry by entry, and what they leave open."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from testbed.policies.noise.calibration import (
    CONFIDENCE_EXPONENT,
    CONFIDENCE_FLOOR,
    RUNNER_UP,
    confidence_stretch,
    dense_noise,
    moe_noise,
)
from testbed.policies.noise.fitting import profile_laws
from testbed.policies.noise.reported import CONFIDENCE_NAMES, FLIP_BINS, FLIP_NAMES, Printed, reported

SOLVED, FITTED, PREDICTED = "solved", "fitted", "predicted"


@dataclass(frozen=True, slots=True)
class FitRow:
    """One reported number and what the law makes of it.

    Attributes
    ----------
    table : int
    where, quantity : str    row and column, whichever way round the table has them
    printed : Printed        as reported
    made : float             by the calibrated law
    role : str               "solved": the law has it by construction; "fitted": one of many a fit was held to;
                             "predicted": not looked at
    """

    table: int
    where: str
    quantity: str
    printed: Printed
    made: float
    role: str

    @property
    def relative_error(self) -> float:
        """Relative error, made / reported - 1."""
        return self.made / self.printed.value - 1

    @property
    def rounds(self) -> bool:
        """Whether what is made rounds to what is printed."""
        return self.printed.rounds_to(self.made)


@dataclass(frozen=True, slots=True)
class CorrelationReading:
    """What sd(eps) against sd(delta) says, for one concentration S = sum pt^2 of the tokens not drawn.

    Attributes
    ----------
    concentration : float     S in [0, 1]
    correlation : float       r = 1 - (sd_eps / sd_delta)^2 / (1 + S), if both were measured on the same positions; below 0
                              no correlation explains the pair
    own_sd : float            sd_eps / sqrt(1 + S), nats: the sd that delta had where eps was measured, if logits are uncorrelated
    """

    concentration: float
    correlation: float
    own_sd: float


def logit_rows() -> list[FitRow]:
    """Tables 3 and 5: one logit's perturbation."""
    dense, moe, some = dense_noise(), moe_noise(), moe_noise().given(1, FLIP_BINS[-1][1])
    rows = [
        FitRow(3, model, what, reported(3, what, model), made, SOLVED if law is dense else PREDICTED)
        for model, law in (("Dense", dense), ("MoE", moe))
        for what, made in (("sd(delta)", law.sd), ("q99(|delta|)", law.quantile(0.99)))
    ]
    for name, law, role in (("Dense", dense, SOLVED), ("MoE, N_flip>0", some, PREDICTED)):
        made = {"sd(delta)": law.sd, "Pr(|delta|>0.5)": law.tail(0.5), "Pr(|delta|>1)": law.tail(1.0)}
        rows += [FitRow(5, name, what, reported(5, name, what), value, role) for what, value in made.items()]
    return rows


def flip_rows() -> list[FitRow]:
    """Table 4: the perturbation by the number of layers that route differently."""
    moe, rows = moe_noise(), []
    for name, (low, high) in zip(FLIP_NAMES, FLIP_BINS, strict=True):
        law = moe.given(low, high)
        made = {"sd(delta)": law.sd, "Pr(|delta|>0.5) (%)": law.tail(0.5), "Pr(|delta|>1) (%)": law.tail(1.0)}
        total = math.fsum(moe.shares[low : high + 1])
        rows.append(FitRow(4, name, "Positions (%)", reported(4, "Positions (%)", name), total, SOLVED))
        rows += [FitRow(4, name, what, reported(4, what, name), value, FITTED) for what, value in made.items()]
    return rows


def displacement_rows() -> list[FitRow]:
    """Table 6: the log-odds displacement of drawn tokens, all confidences together."""
    rows = []
    for model, law in (("Dense", dense_noise()), ("MoE", moe_noise().mixture)):
        eps = profile_laws(law, RUNNER_UP)[1]
        made = {"sd(epsilon)": eps.sd, "q95(|epsilon|)": eps.spread(0.95), "q99(|epsilon|)": eps.spread(0.99)}
        for what, value in made.items():
            role = SOLVED if what.startswith("sd") else PREDICTED
            rows.append(FitRow(6, model, what, reported(6, what, model), value, role))
    return rows


def confidence_rows(*, stretched: bool) -> list[FitRow]:
    """Table 7: the displacement by the token's confidence, with one scale for all or with the fitted dependence."""
    stretch = confidence_stretch(CONFIDENCE_EXPONENT, CONFIDENCE_FLOOR) if stretched else None
    rows = []
    for name, law in zip(CONFIDENCE_NAMES, profile_laws(moe_noise().mixture, RUNNER_UP, stretch)[0], strict=True):
        made = {"MAD(epsilon)": law.mad, "q05(epsilon)": law.quantile(0.05), "q95(epsilon)": law.quantile(0.95)}
        for what, value in made.items():
            role = FITTED if stretched and what.startswith("q") else PREDICTED
            rows.append(FitRow(7, name, what, reported(7, name, what), value, role))
    return rows


def correlation_readings(model: str, concentrations: tuple[float, ...]) -> list[CorrelationReading]:
    """Both readings of sd(eps) against sd(delta) of one model, to first order in the noise.

    Parameters
    ----------
    model : "Dense" or "MoE"
    concentrations : tuple of float   values of sum pt^2, in [0, 1]

    Examples
    --------
    >>> [round(x.correlation, 2) for x in correlation_readings("MoE", (0.0, 1.0))]
    [0.23, 0.62]
    """
    eps, delta = reported(6, "sd(epsilon)", model).value, reported(3, "sd(delta)", model).value
    return [
        CorrelationReading(s, 1 - (eps / delta) ** 2 / (1 + s), eps / math.sqrt(1 + s)) for s in sorted(concentrations)
    ]


def concentration(log_probs: Float[Tensor, "P V"]) -> Float[Tensor, " P"]:
    """Concentration sum pt^2 of the tokens not drawn, averaged over the drawn one: what the displacement's spread depends on.

        S = sum_y p_y sum_{j != y} (p_j / (1 - p_y))^2

    Examples
    --------
    >>> [round(x, 6) for x in concentration(torch.tensor([[0.5, 0.5], [1.0, 0.0]]).log()).tolist()]
    [1.0, 1.0]
    """
    p = log_probs.double().exp()
    top, place = p.max(-1, keepdim=True)
    others = p.scatter(-1, place, 0.0)
    rest = others.sum(-1, keepdim=True)
    at_top = torch.where(rest > 0, (others / torch.where(rest > 0, rest, 1.0)).square().sum(-1, keepdim=True), 1.0)
    left = torch.where(others > 0, 1 - p, 1.0)
    at_others = torch.where(others > 0, (p.square().sum(-1, keepdim=True) - p.square()) / left.square(), 0.0)
    return (top * at_top)[..., 0] + (others * at_others).sum(-1)
