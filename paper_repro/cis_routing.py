"""Table 4 and figure 8 of the CIS paper: the more layers route a token differently, the rougher its logits."""

from __future__ import annotations

import numpy as np

from paper_repro.cis_logit_noise import measured_tails
from paper_repro.comparison import Check
from paper_repro.mismatch_samples import NoiseSample
from paper_repro.reported_tables import reported
from paper_repro.study import Finding, Found, Setting, compared, reasons
from testbed.core.errors import InputError

BINS = {"0": (0, 0), "1": (1, 1), "2-3": (2, 3), "4-6": (4, 6), ">=7": (7, 99)}


def table4(setting: Setting) -> Finding:
    """Spread and tails of the perturbation by the number of layers with routing disagreement."""
    require_experts(setting)
    printed, finding = reported(4), Finding(remarks=[*reasons(setting), FIT])
    for sample in expert_samples(setting):
        finding.sources[sample.name] = sample.entries
        assert sample.flips is not None
        said = dict.fromkeys(printed.rows(), "fitted") if sample.name.startswith("noise model") else {}
        for name, (low, high) in BINS.items():
            inside = np.nonzero((sample.flips >= low) & (sample.flips <= high))[0]
            share = setting.measure(sample, lambda s, low=low, high=high: _share(s, low, high))
            found = share | (_tails(setting, sample.of(inside)) if len(inside) else {})
            cells = {row: printed[row, name] for row in printed.rows()}
            finding.cells += compared(sample.name, cells, found, said=said)
        finding.checks.append(_rising(sample))
    return finding


FIT = (
    "the noise model's 15 numbers of this table come from four fitted parameters (base, linear, quadratic, degrees of "
    "freedom) and the shares themselves"
)


def _share(sample: NoiseSample, low: int, high: int) -> dict[str, float]:
    assert sample.flips is not None
    return {"Positions (%)": 100 * float(((sample.flips >= low) & (sample.flips <= high)).mean())}


def _tails(setting: Setting, sample: NoiseSample) -> Found:
    found = measured_tails(setting, sample)
    return {name if name == "sd(delta)" else f"{name} (%)": value for name, value in found.items()}


def _rising(sample: NoiseSample) -> Check:
    curve = by_flips(sample)
    enough = [
        (n, sd) for n, sd, count in zip(curve["flips"], curve["sd"], curve["positions"], strict=True) if count >= 30
    ]
    sds = [sd for _, sd in enough]
    slope = float(np.polyfit([n for n, _ in enough], sds, 1)[0]) if len(enough) > 1 else float("nan")
    return Check(
        statement=f"{sample.name}: sd(delta) grows with the number of layers that route differently",
        holds=None if len(enough) < 3 else slope > 0 and sds[-1] > sds[0],
        found=", ".join(f"{n}: {sd:.3f}" for n, sd in enough)
        + f"; slope {slope:.4f} per layer (counts with >= 30 positions)",
    )


def figure8(setting: Setting) -> Finding:
    """Spread of the perturbation and share beyond 0.5 at every number of layers, and the dense model's spread."""
    require_experts(setting)
    finding = Finding(remarks=reasons(setting))
    for sample in expert_samples(setting):
        finding.sources[sample.name] = sample.entries
        finding.curves[sample.name] = by_flips(sample)
        finding.checks.append(_rising(sample))
    finding.curves["dense"] = {
        sample.name: {"sd": float(sample.delta.std()), "beyond half": float((np.abs(sample.delta) > 0.5).mean())}
        for sample in setting.noise()
        if sample.model == "Dense"
    }
    return finding


def by_flips(sample: NoiseSample) -> dict[str, list[float]]:
    """Return number of layers -> positions, sd(delta), share with |delta| > 0.5."""
    assert sample.flips is not None
    curve: dict[str, list[float]] = {"flips": [], "positions": [], "sd": [], "beyond half": []}
    for n in np.unique(sample.flips):
        inside = sample.flips == n
        curve["flips"].append(int(n))
        curve["positions"].append(len(np.unique(sample.position[inside])))
        curve["sd"].append(float(sample.delta[inside].std()))
        curve["beyond half"].append(float((np.abs(sample.delta[inside]) > 0.5).mean()))
    return curve


def expert_samples(setting: Setting) -> list[NoiseSample]:
    """Perturbed logits whose number of differing layers is known: of the noise model, and of the tiny mixture."""
    from paper_repro import tiny_engines, tiny_noise

    return [
        tiny_noise.flipping(400 if setting.smoke else tiny_noise.FLIPPING),
        tiny_engines.draw("MoE", setting.smoke)[1],
    ]


def require_experts(setting: Setting) -> None:
    """Raise InputError where the model has no experts."""
    if setting.scale == "real":
        raise InputError(
            "routing disagreement needs a mixture of experts", found="the dense real model", hint="use --scale tiny"
        )
