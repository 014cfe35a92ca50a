"""The advice as a reader meets it: what to set, what it rests on, and what would make it wrong."""

from __future__ import annotations

from typing import Any

from testbed.core.sections import Section, number, share, with_interval
from testbed.diagnosis.advised_cap import WORST

FARTHEST = 10.0  # regret; beyond, the least error is next to nothing and the multiple of it says no more
FEW_ABOVE = 5  # a cap with fewer weights above it rests on them alone
CLOSED_FORMS = {"O3": "O3, from d2", "O4": "O4, from chi2", "O9": "O9, upper bound"}


def advice_sections(advice: dict[str, Any]) -> list[Section]:
    """Sections of the record `advice_records` returns; of one response there is nothing to tabulate."""
    if advice["n"] == 1:
        return [
            Section(title="ADVISED CAP", says=_cap_conclusion(advice)),
            Section(title="ADVISED REPLAY SHARE", says=_share_conclusion(advice)),
        ]
    return [_caps(advice), _share(advice)]


def _name(cap: dict[str, Any]) -> str:
    return "token ratio" if cap["through_segment"] is None else f"W_({cap['through_segment']})"


def _interval(found: dict[str, Any] | None) -> str:
    return "none" if found is None else f"[{number(found['low'])}, {number(found['high'])}]"


def _percent(regret: float | None) -> str:
    """Format the squared error above the least one.

    Below 0, or a thousandfold, the least error of this sample is next to none and a share of it says nothing: the mean is
    taken as known to be 1, which that of a few weights is not.
    """
    if regret is None or regret < -5e-5:
        return "-"
    return "+0%" if regret < 5e-5 else f"{100 * regret:+.2g}%" if regret < FARTHEST else f">{100 * FARTHEST:.0f}%"


def _beside(cap: float | None, regret: float | None, told: bool) -> str:
    """Format a cap and what it costs, or the first alone where too few responses tell the second."""
    return number(cap) + f" ({_percent(regret)})" * told


def _caps(advice: dict[str, Any]) -> Section:
    caps, told = advice["caps"], advice["n"] >= advice["fewest"]
    *products, tokens = caps
    shown = ([products[0], products[-1]] if len(products) > 1 else products) + [tokens]
    lines = {
        "O1, exact": [number(cap["cap"]) for cap in shown],
        "95% interval": [_interval(cap["interval"]) for cap in shown],
        "largest weight": [number(cap["largest"]) for cap in shown],
        "above the cap": [f"{cap['above']} ({share(cap['above_share'])})" for cap in shown],
        **{
            label: [
                _beside(found["cap"], found["regret"], told)
                for found in (cap["closed_forms"][theorem] for cap in shown)
            ]
            for theorem, label in CLOSED_FORMS.items()
        },
        "sqrt n": [_beside(cap["sqrt_n"]["cap"], cap["sqrt_n"]["regret"], told) for cap in shown],
        "no cap": [f"({_percent(cap['none']['regret'])})" for cap in shown],
    }
    if not told:  # neither an interval nor what a choice costs
        lines = {name: cells for name, cells in lines.items() if name not in ("95% interval", "no cap")}
    remarks = [
        f"For a mean over n = {advice['n']} responses and a constant signal (spire's default sets these caps). "
        + "In brackets: squared error above O1's, on these weights. " * told
        + "The closed forms know the second moment only; where large "
        "weights are rare they err by a multiple of the least error, at worst in the regret table (O6) "
        + ", ".join(f"{name} by {times:g}" for name, times in WORST.items())
        + " times."
    ]
    for cap in products[-1:]:
        if told and cap["advised"] == "cap" and cap["above"] < FEW_ABOVE:
            word = "response" if cap["above"] == 1 else "responses"
            remarks.append(
                f"The cap of {_name(cap)} rests on the {cap['above']} {word} above it: trust the interval more than the "
                "number, and neither if larger weights are yet to come."
            )
    if len(shown) < len(caps):
        remarks.append(f"Of {len(products)} segments the first and the last are shown; the JSON record has all.")
    rows = [(name, *cells) for name, cells in lines.items()]
    header = ("cap", *map(_name, shown))
    return Section(title="ADVISED CAP", says=_cap_conclusion(advice), header=header, rows=rows, remarks=remarks)


def _cap_conclusion(advice: dict[str, Any]) -> str:
    *products, tokens = advice["caps"]
    last = products[-1]
    if advice["n"] < advice["fewest"]:  # also where no weight exceeds its cap: the next response may
        below = "" if advice["n"] == 1 else "; the numbers below are what these responses alone would say"
        return f"No cap is advised: {_too_few(advice)}{below}."
    if last["advised"] == "none":
        both = "" if tokens["advised"] == "cap" else f", nor any token ratio {number(tokens['cap'])}"
        return (
            f"No cap is needed: no product {_name(last)} exceeds O1's cap of {number(last['cap'])} by more than "
            f"rounding{both}."
        )
    regret = last["none"]["regret"]
    gain = "" if regret is None else f"; without a cap the squared error is {share(regret)} larger"
    return f"Cap {_name(last)} at {with_interval(last['cap'], last['interval'])} (O1){gain}."


def _too_few(advice: dict[str, Any]) -> str:
    return f"{advice['n']} of the {advice['fewest']} responses that an interval takes, too few to tell"


def _share(advice: dict[str, Any]) -> Section:
    found = advice["replay"]
    title, says = "ADVISED REPLAY SHARE", _share_conclusion(advice)
    rows = [
        ("variance, fresh", number(found["v_fresh"]), f"of A: {found['advantage']}"),
        ("variance, replay", number(found["v_replay"]), f"of min(W, {number(found['cap'])}) A, stale responses"),
        ("bias, replay", number(found["bias"]), "mean of (W - cap)+ |A|, the excess (O7), nothing cancels"),
        (
            "costs",
            f"{number(found['cost_fresh'])}, {number(found['cost_replay'])}",
            f"fresh, replay; budget {number(found['budget'])} = {found['n']} fresh responses",
        ),
    ]
    if found["share"] is not None:
        price = found["multipliers"]
        regimes = found["regimes"]
        spread = "; draws: " + ", ".join(f"{name} {share(p)}" for name, p in regimes.items()) if regimes else ""
        rows += [
            ("share a*", _shares(found), f"K1, 95% {_share_interval(found['interval'])}"),
            ("regime", found["regime"], "K1" + spread),
            ("multipliers", f"{number(price['at_least_0'])}, {number(price['at_most_1'])}", "of a >= 0, a <= 1 (K1)"),
            ("error", number(found["mse"]), f"squared, at a*; all fresh {number(found['mse_all_fresh'])}"),
            ("responses", number(found["n_samples"]), f"at a*, {number(_replayed(found))} of them replayed"),
        ]
    remarks = [
        "A proxy without gradients: it holds if scores have one size and are unrelated to weight and length, stored "
        "responses are as stale as these and used once each, no larger weights are to come, and costs are as given "
        "(--cost-fresh, --cost-replay; by default a replay skips generation and costs a quarter); where one of these "
        "fails, the share is wrong."
    ]
    return Section(
        title=title, says=says, header=("quantity", "value", "from"), rows=rows, remarks=remarks, text=("from",)
    )


def _shares(found: dict[str, Any]) -> str:
    both = [found["share"]] + ([found["other"]] if found["other"] is not None else [])
    return " or ".join(share(a) for a in both)


def _share_interval(found: dict[str, Any] | None) -> str:
    return "interval: none" if found is None else f"[{share(found['low'])}, {share(found['high'])}]"


def _replayed(found: dict[str, Any]) -> float:
    return found["share"] * found["n_samples"] if found["share"] else 0.0


def _share_conclusion(advice: dict[str, Any]) -> str:
    found = advice["replay"]
    if advice["n"] < advice["fewest"]:
        return f"No replay share is advised: {_too_few(advice)}."
    if found["share"] is None:
        return "No replay share is advised: every advantage is 0, so there is nothing to estimate."
    if found["interval"] is None:
        return "No replay share is advised: no draw of these responses has a share."
    says = {
        "none": "Replay nothing at these costs",
        "all": "Replay is worth more than fresh responses at these costs, as far as the store reaches",
        "tie": f"Fresh and replayed responses are worth the same at these costs (tie of {_shares(found)})",
    }.get(found["regime"], f"Replay {_shares(found)} of the responses at these costs")
    spread = found["interval"]["high"] - found["interval"]["low"]
    doubt = (
        f", but only by a proxy (K1), and {share(1 - found['regimes'].get(found['regime'], 0.0))} of the bootstrap draws "
        "say otherwise."
    )
    return says + (doubt if spread > 0.5 and len(found["regimes"]) > 1 else ", by a proxy (K1).")
