"""What each rule would do, as a reader meets it."""

from __future__ import annotations

from typing import Any

from testbed.core.sections import Section, number, share, with_interval
from testbed.diagnosis.response_means import FEWEST

ABBREVIATED = {"token": "t", "segment": "s", "response": "r"}


def rules_section(effects: dict[str, Any], responses: int) -> Section:
    """Section of the record `rule_records` returns; of one response only which rules are left out."""
    if responses == 1:
        says = "One response tells nothing of what a rule does to a mean or its noise."
        return Section(title="RULES", says=says, remarks=_left_out(effects))
    rules = effects["rules"]
    bias = {r["rule"]: r["bias"] for r in rules if r["bias"] is not None}
    most = max(bias, key=lambda name: abs(bias[name]), default=None)
    noisiest = max(rules, key=lambda r: r["second_moment_applied"])
    moved = "" if most is None else f"`{most}` moves the mean weight most ({bias[most]:+.2f}), which is bias; "
    says = (
        f"{moved}`{noisiest['rule']}` keeps the largest second moment ({number(noisiest['second_moment_applied'])}), which is "
        "noise."
    )
    if responses < FEWEST:
        says = f"{responses} responses are too few to tell the rules apart; the table is of these alone."
    rows = [
        (
            r["rule"],
            ABBREVIATED[r["unit"]],
            share(r["acted_share"]),
            with_interval(r["mean_weight"], r["mean_weight_interval"], 3 if r["mean_weight"] >= 0.2 else 2),
            _small(r["bias"]),
            with_interval(
                r["second_moment_applied"],
                r["second_moment_applied_interval"],
                2 if r["second_moment_applied"] >= 0.1 else 1,
            ),
        )
        for r in rules
    ]
    header = ("rule", "", "acted", "mean [95%]", "bias", "E w^2 [95%]")
    remarks = [
        "Averages over tokens (t), segments (s) or responses (r), whatever a rule weighs. acted: share of tokens. bias: mean "
        "of applied - raw, - where a raw ratio overflows; the raw ratio is that of the rule named after the granularity "
        "(`exact` for tokens). Intervals: bootstrap over responses, one set of draws for all rules; those of acted and bias, "
        "the truncation bias (raw - applied)+ and effective sample sizes are in the JSON record. Means per token or segment "
        "of a product also tell that the target writes shorter or longer responses. Default parameters (`rules` lists them)"
        + (", spire's are the caps advised below" if any(r["rule"] == "spire" for r in rules) else "")
        + f"; advantage of clip-type rules: {effects['advantage']}."
    ]
    remarks += _left_out(effects)
    return Section(title="RULES", says=says, header=header, rows=rows, remarks=remarks, text=("",))


def _left_out(effects: dict[str, Any]) -> list[str]:
    remarks = []
    for name, fields in effects["left_out"].items():
        lacking = ", ".join(f"`{field}`" for field in fields)
        laws = " (testbed.NextTokenLaws): the laws of whole vocabularies, which dumps do not hold" * (
            "next_token" in fields
        )
        remarks.append(f"Left out: {name}, which needs {lacking}{laws}.")
    return remarks


def _small(value: float | None) -> str:
    tiny = value is not None and 1e-12 < abs(value) < 1e-3
    return f"{value:.0e}" if tiny else number(value, 2)
