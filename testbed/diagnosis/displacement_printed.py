"""The log-odds displacement by confidence, as a reader meets it."""

from __future__ import annotations

from typing import Any

from testbed.diagnosis.sections import Section, number, share, with_interval

ALIKE = 2.0  # MADs of all bins within this factor: one scale


def displacement_section(records: list[dict[str, Any]]) -> Section:
    """Section of the record `confidence_records` returns: the mismatch where it was recorded, else the total."""
    gap = records[0]["gap"]
    shown = [r for r in records if r["gap"] == gap]
    rows = [_row(r) for r in shown]
    header = ("p of trainer", "tokens", "median", "q05, q95", "MAD eps [95%]", "ratio")
    told = [r for r in shown if "mad_eps" in r]
    outside = [r["bin"] for r in told if not r["as_expected"]]
    remarks = [
        f"eps: displacement of log-odds ({gap}: "
        + ("proximal" if gap == "mismatch" else "target")
        + " minus behavior), nats; k: ratio of the probabilities. MAD: median distance from the median. ratio: MAD log k / MAD "
        "eps, which engine noise keeps within the bin's own 1-p (C3)"
        + (f"; * marks it outside, in {', '.join(outside)}" if outside else "")
        + ". "
        + _finite(shown)
        + "Intervals: bootstrap over responses; the others, and MAD log k, are in the JSON record"
        + (", as is the total (target minus behavior)." if len(records) > len(shown) else ".")
    ]
    return Section(
        title="DISPLACEMENT BY CONFIDENCE", says=_conclusion(gap, told), header=header, rows=rows, remarks=remarks
    )


def _row(record: dict[str, Any]) -> tuple[str, ...]:
    start = (record["bin"], number(record["tokens"]))
    if "mad_eps" not in record:
        return (*start, *["-"] * 4)
    intervals = record["intervals"] or {}
    return (
        *start,
        number(record["median"], 2),
        f"{number(record['q05'], 2)}, {number(record['q95'], 2)}",
        with_interval(record["mad_eps"], intervals.get("mad_eps"), 2),
        number(record["mad_ratio"], 2) + ("" if record["as_expected"] else "*"),
    )


def _finite(shown: list[dict[str, Any]]) -> str:
    """Say how many tokens have no finite displacement: certain or impossible for one of the two."""
    part = [f"{share(r['finite'])} in {r['bin']}" for r in shown if r["finite"] is not None and r["finite"] < 1]
    return (
        f"eps is finite for {', '.join(part)}; the rest is certain or impossible for one of the two. " if part else ""
    )


def _conclusion(gap: str, told: list[dict[str, Any]]) -> str:
    if not told:
        return "Too few tokens to describe the displacement by confidence."
    sizes = [r["mad_eps"] for r in told]
    low, high = min(sizes), max(sizes)
    if high == 0:
        return f"The {gap} displaces no log-odds: trainer and sampler recorded the same numbers."
    if low > 0 and high / low <= ALIKE:
        says = (
            f"The {gap} displaces log-odds alike at every confidence (MAD {number(low, 2)} to {number(high, 2)} nats)"
        )
        return says + (", as engine noise does." if gap == "mismatch" else ".")
    most = max(told, key=lambda r: r["mad_eps"])["bin"]
    elsewhere = f"MAD {number(high, 2)} nats, elsewhere down to {number(low, 2)}"
    return f"The {gap} displaces log-odds most where {_where(most)} ({elsewhere})."


def _where(name: str) -> str:
    return name if name.startswith("p") else f"p is in {name}"
