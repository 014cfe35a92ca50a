"""The printed fit of the calibrated noise laws: reported, made, relative error, and what cannot be fitted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from testbed.core.sections import Section, number
from testbed.policies.noise import calibration
from testbed.policies.noise.fit_report import (
    FitRow,
    concentration,
    confidence_rows,
    correlation_readings,
    displacement_rows,
    flip_rows,
    logit_rows,
)
from testbed.policies.noise.reported import CONFIDENCE_NAMES, FLIP_NAMES, reported
from testbed.sample_data.next_token import next_token_laws

ERROR, ROUNDS = "error", "rounds"


def noise_fit() -> tuple[list[Section], dict[str, Any]]:
    """Return the report's sections and its record."""
    recorded = float(concentration(next_token_laws().logp_target).mean())
    rows = {
        "logits": logit_rows(),
        "flips": flip_rows(),
        "displacements": displacement_rows(),
        "confidence_alike": confidence_rows(stretched=False),
        "confidence_stretched": confidence_rows(stretched=True),
    }
    readings = {model: correlation_readings(model, _concentrations(recorded)) for model in ("Dense", "MoE")}
    record: dict[str, Any] = {name: [_as_record(row) for row in part] for name, part in rows.items()}
    record["correlation"] = {
        model: [
            {"concentration": x.concentration, "correlation": x.correlation, "own_sd": x.own_sd}
            for x in readings[model]
        ]
        for model in readings
    }
    record["constants"] = {
        name: value for name, value in vars(calibration).items() if name.isupper() and isinstance(value, int | float)
    }
    return [
        _logits(rows["logits"]),
        _flips(rows["flips"]),
        _displacements(rows["displacements"]),
        _confidence(rows["confidence_alike"], rows["confidence_stretched"]),
        _correlation(readings, recorded),
    ], record


def _concentrations(recorded: float) -> tuple[float, ...]:
    return (0.0, recorded, calibration.RUNNER_UP**2, 1.0)


def _as_record(row: FitRow) -> dict[str, Any]:
    return {
        "table": row.table,
        "where": row.where,
        "quantity": row.quantity,
        "reported": row.printed.text,
        "made": row.made,
        "relative_error": row.relative_error,
        "rounds": row.rounds,
        "role": row.role,
    }


def _percent(error: float) -> str:
    return f"{100 * error:+.1f}%".replace("-0.0%", "0.0%").replace("+0.0%", "0.0%")


def _made(row: FitRow) -> str:
    return f"{number(100 * row.made)}%" if row.printed.text.endswith("%") else number(row.made, 4)


def _line(row: FitRow) -> tuple[str, ...]:
    rounds = "yes" if row.rounds else "no"
    return (
        f"{row.table} {row.where}", row.quantity.replace("Pr(", "P("), row.printed.text, _made(row),
        _percent(row.relative_error), rounds, row.role,
    )  # fmt: skip


HEADER = ("table", "quantity", "reported", "made", ERROR, ROUNDS, "role")


def _worst(rows: Sequence[FitRow], role: str) -> str:
    return _percent(max((row.relative_error for row in rows if row.role == role), key=abs))


def _logits(rows: Sequence[FitRow]) -> Section:
    return Section(
        title="NOISE OF ONE LOGIT",
        says=f"The dense law is solved for its four numbers. What Table 4 makes of the expert model's totals is at most "
        f"{_worst(rows, 'predicted')} off.",
        header=HEADER,
        rows=[_line(row) for row in rows],
        remarks=[
            "Not fitted: the means (-0.0013 and -0.0036), which these symmetric laws set to 0. The dense tail beyond 1 is one "
            "or two entries of 1.5 million.",
            f"Table 4's own totals are not those of Tables 3 and 5: they give sd {number(_table_4_sd(), 4)} against "
            f"{reported(3, 'sd(delta)', 'MoE').text}.",
        ],
        text=("quantity", ROUNDS, "role"),
    )


def _table_4_sd() -> float:
    shares = calibration.reported_flip_shares()
    sds = [reported(4, "sd(delta)", name).value for name in FLIP_NAMES]
    return math.sqrt(sum(w * s * s for w, s in zip(shares, sds, strict=True)))


def _flips(rows: Sequence[FitRow]) -> Section:
    by_bin = [[row for row in rows if row.where == name] for name in FLIP_NAMES]
    lines = []
    for group in by_bin:
        shares, *rest = group
        cells = [f"{row.printed.text} {_made(row)} {_percent(row.relative_error)}" for row in rest]
        lines.append((shares.where, shares.printed.text, *cells))
    return Section(
        title="NOISE BY ROUTING FLIPS (Table 4)",
        says=f"Variance {number(calibration.MOE_BASE)} + {number(calibration.MOE_LINEAR)} N + "
        f"{number(calibration.MOE_QUADRATIC)} N^2, Student t with {calibration.MOE_DF:.2f} degrees of freedom. Each cell: "
        f"reported, made, error; the largest is {_worst(rows, 'fitted')}. Four numbers for fifteen.",
        header=("layers", "share", "sd", "P(>0.5)", "P(>1)"),
        rows=lines,
        remarks=["The shares are the law's by construction. The base is what no replay of routing removes."],
    )


def _displacements(rows: Sequence[FitRow]) -> Section:
    return Section(
        title="DISPLACEMENT OF DRAWN TOKENS (Table 6)",
        says=f"Both sd are solved for; the quantiles follow, up to {_worst(rows, 'predicted')} off.",
        header=HEADER,
        rows=[_line(row) for row in rows],
        remarks=[
            "Not fitted: the dense model's shape. Its displacements are calmer in the bulk and rougher in the tail than "
            "those of this law, whose shape its logits have set. Nor the share of tokens without finite displacement (3.7% "
            "and 0.5%), since no probability of these laws is exactly 1."
        ],
        text=("quantity", ROUNDS, "role"),
    )


def _confidence(alike: Sequence[FitRow], stretched: Sequence[FitRow]) -> Section:
    lines = [
        (
            a.where,
            a.quantity,
            a.printed.text,
            _made(a),
            _percent(a.relative_error),
            _made(s),
            _percent(s.relative_error),
        )
        for a, s in zip(alike, stretched, strict=True)
    ]
    return Section(
        title="DISPLACEMENT BY CONFIDENCE (Table 7)",
        says=f"With one scale for all, then with scale ~ max(1 - p, {calibration.CONFIDENCE_FLOOR:.4f})^"
        f"-{calibration.CONFIDENCE_EXPONENT:.3f}, fitted to the widths q95 - q05 of the five ranges.",
        header=("confidence", "quantity", "reported", "alike", ERROR, "stretched", ERROR),
        rows=lines,
        remarks=[
            f"Not fitted: the median absolute deviations. Half the width over the deviation is {_flatness()} as reported, "
            "and at least 2.44 for every mixture of centered normals: the reported bulk is flatter than normal."
        ],
        text=("quantity",),
    )


def _flatness() -> str:
    """Range over Table 7 of (q95 - q05) / 2 MAD; 2.44 for a normal law."""
    ratios = []
    for name in CONFIDENCE_NAMES:
        low, high, mad = (reported(7, name, what).value for what in ("q05(epsilon)", "q95(epsilon)", "MAD(epsilon)"))
        ratios.append((high - low) / 2 / mad)
    return f"{min(ratios):.2f} to {max(ratios):.2f}"


def _correlation(readings: dict[str, Any], recorded: float) -> Section:
    lines = [
        (model, f"{x.concentration:.3f}", f"{x.correlation:+.3f}", f"{x.own_sd:.4f}")
        for model, part in readings.items()
        for x in part
    ]
    least, most = (readings["MoE"][i].correlation for i in (0, -1))
    return Section(
        title="TWO READINGS OF sd(eps) AGAINST sd(delta)",
        says=f"The expert model's displacements vary less (sd {reported(6, 'sd(epsilon)', 'MoE').text}) than one logit does "
        f"({reported(3, 'sd(delta)', 'MoE').text}), whereas uncorrelated logits give Var(eps) = sd^2 (1 + S), more than one "
        f"logit's; S = sum pt^2 of the tokens not drawn. Measured on the same positions, the logits of a prefix have "
        f"correlation r between {least:.2f} and {most:.2f}. If they are uncorrelated, the tokens whose eps was taken had "
        "logits with the sd in the last column.",
        header=("model", "S", "r, if same positions", "sd(delta), if r = 0"),
        rows=lines,
        remarks=[
            f"Used: S = {calibration.RUNNER_UP**2:.3f}, the least at which the dense model needs no negative r, and for "
            f"the expert model r = {calibration.MOE_CORRELATION:.3f}, solved beyond the first order of this table. Both "
            "readings give one policy: a common part moves no law.",
            f"At the bundled positions of a small model S averages {recorded:.2f}: there the dense pair would need r < 0, "
            "which says that its eps and delta were not taken from like positions, or that eps has noise of its own.",
        ],
    )  # fmt: skip
