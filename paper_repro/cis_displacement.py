"""Tables 6 and 7, figures 4 and 9 of the CIS paper: the shift of the drawn token's log-odds, overall and by confidence.

The paper's claim: the law of the displacement hardly depends on how sure the token is, while that of log k shrinks with 1 - p.
"""

from __future__ import annotations

import numpy as np

from paper_repro.cis_logit_noise import ORDER_PUZZLE, READINGS, depth_check, order_of_spreads, printed_row
from paper_repro.comparison import FEWEST, Check, median_deviation
from paper_repro.mismatch_samples import BINS, Array, TokenSample
from paper_repro.reported_tables import reported
from paper_repro.study import Finding, Found, Setting, compared, reasons

ENOUGH = 500  # tokens of a range before anything is said about it
REQUIRED = 20_000  # tokens of the real model before its spread counts
SMALL = 0.05  # a median is called 0 within this share of the paper's MAD
DOUBT_EDGES = 10.0 ** np.arange(-6.0, 0.01, 0.5)
QUANTILES = (0.01, 0.1, 0.5, 0.9, 0.99)
POINTS = 3000  # of the scatter in figure 4


def overall(sample: TokenSample) -> dict[str, float]:
    """Return the statistics of table 6, in its units."""
    epsilon = sample.epsilon[sample.finite]
    size = np.abs(epsilon)
    return {
        "Sampled tokens": float(len(sample)),
        "Finite epsilon": float(len(epsilon)),
        "Finite fraction": 100 * len(epsilon) / len(sample),
        "sd(epsilon)": float(epsilon.std()),
        "q95(|epsilon|)": float(np.quantile(size, 0.95)),
        "q99(|epsilon|)": float(np.quantile(size, 0.99)),
    }


def by_confidence(sample: TokenSample, ranges: list[str]) -> dict[str, float]:
    """Return the statistics of table 7, named "range: statistic", and how much the MADs of these ranges differ."""
    found: dict[str, float] = {}
    epsilon, log_k, bins = sample.epsilon, sample.log_k, sample.bin
    for number, name in enumerate(BINS):
        inside = sample.finite & (bins == number)
        eps = epsilon[inside]
        low, middle, high = np.quantile(eps, [0.05, 0.5, 0.95]) if len(eps) else (np.nan,) * 3
        found |= {
            f"{name}: Tokens": float(len(eps)),
            f"{name}: Med. epsilon": float(middle),
            f"{name}: MAD(epsilon)": median_deviation(eps),
            f"{name}: q05(epsilon)": float(low),
            f"{name}: q95(epsilon)": float(high),
            f"{name}: MAD(log k)": median_deviation(log_k[inside]),
        }
    mads = [found[f"{name}: MAD(epsilon)"] for name in ranges]
    found["largest over least MAD"] = max(mads) / min(mads) if len(mads) > 1 and min(mads) > 0 else float("nan")
    return found


def full_ranges(sample: TokenSample) -> list[str]:
    """Return the ranges of confidence with enough finite tokens to say something about them."""
    counts = np.bincount(sample.bin[sample.finite], minlength=len(BINS))
    return [name for name, count in zip(BINS, counts, strict=True) if count >= ENOUGH]


SAID = {"Sampled tokens": "size", "Finite epsilon": "size", "Finite fraction": "other model"}


def table6(setting: Setting) -> Finding:
    """Spread and quantiles of the displacement, share of tokens where it is finite."""
    printed, finding = reported(6), Finding(remarks=[*reasons(setting), FINITE])
    models = set()
    for tokens, readings in setting.pairs():
        models.add(tokens.model)
        found = setting.measure(tokens, overall)
        finding.sources[tokens.name] = f"{len(tokens):,} tokens in {len(np.unique(tokens.response)):,} responses"
        finding.cells += compared(
            tokens.name,
            {row: printed[row, tokens.model] for row in printed.rows()},
            found,
            said=SAID | ({"sd(epsilon)": "fitted"} if tokens.name.startswith("noise model") else {}),
        )
        if setting.scale == "real":
            finding.checks.append(_enough(tokens, found))
        finding.checks += [order_of_spreads(tokens, noise) for noise in readings]
        finding.checks += [check for noise in readings for check in depth_check(tokens, noise)]
    if "MoE" not in models:
        finding.cells += compared("no mixture of experts", {row: printed[row, "MoE"] for row in printed.rows()}, None)
    finding.remarks += [ORDER_PUZZLE] + ([READINGS] if setting.scale == "real" else [])
    return finding


FINITE = (
    "finite fraction: a token's log-odds are finite unless the float32 log-softmax of either engine gives it probability 1; "
    "how often that happens says how sure the model is of its tokens, not how the engines differ"
)


def _enough(sample: TokenSample, found: Found) -> Check:
    value, low, high = found["sd(epsilon)"]
    return Check(
        statement=f"{sample.name}: sd(eps) is measured on at least {REQUIRED:,} tokens",
        holds=len(sample) >= REQUIRED,
        found=f"{value:.4f} [{low:.4f}, {high:.4f}] on {int(found['Finite epsilon'][0]):,} finite of {len(sample):,} tokens, "
        "beside the paper's .0997 (dense)",
    )


def table7(setting: Setting) -> Finding:
    """Median, spread and quantiles of the displacement in each range of confidence."""
    printed, finding = reported(7), Finding(remarks=reasons(setting))
    mads = [printed.value(name, "MAD(epsilon)") for name in BINS]
    finding.remarks.append(
        f"the paper's MAD(eps) grows from {mads[0]} to {mads[-1]}, by a factor {mads[-1] / mads[0]:.2f}: "
        "'approximately invariant' is relative to MAD(log k), which falls by a factor of 11,600"
    )
    if setting.scale == "real":
        finding.remarks.append(
            "table 7 is the paper's mixture of experts; a dense model is expected to have less spread"
        )
    for sample in setting.tokens():
        if setting.scale == "tiny" and sample.model == "Dense":
            continue
        ranges = full_ranges(sample)
        found = setting.measure(sample, lambda drawn, ranges=ranges: by_confidence(drawn, ranges))
        finding.sources[sample.name] = f"{len(sample):,} tokens, {sample.model}"
        for name in BINS:
            row = printed_row(printed, name)
            part = {column: found[f"{name}: {column}"] for column in row}
            few = part["Tokens"][0] < FEWEST
            said = {}
            if few or sample.model == "Dense":
                said = dict.fromkeys(row, "too few" if few else "other model")
            elif sample.name.endswith("rougher when sure"):
                said = {"q05(epsilon)": "fitted", "q95(epsilon)": "fitted"}
            room = SMALL * printed.value(name, "MAD(epsilon)")
            finding.cells += compared(
                sample.name, row, part, said=said | {"Tokens": "size"}, tolerances={"Med. epsilon": room}
            )
        finding.checks += [ratio_check(sample), invariance(sample, found)]
    return finding


def ratio_check(sample: TokenSample) -> Check:
    """In every range with enough tokens MAD(log k) / MAD(eps) lies between the range's least and largest 1 - p."""
    lines, holds = [], True
    epsilon, log_k, doubt, bins = sample.epsilon, sample.log_k, sample.doubt, sample.bin
    for number, name in enumerate(BINS):
        inside = sample.finite & (bins == number)
        if inside.sum() < ENOUGH:
            continue
        ratio = median_deviation(log_k[inside]) / median_deviation(epsilon[inside])
        least, most = float(doubt[inside].min()), float(doubt[inside].max())
        holds = holds and least <= ratio <= most
        lines.append(f"{name}: {ratio:.3g} in [{least:.3g}, {most:.3g}]")
    return Check(
        statement=f"{sample.name}: MAD(log k) / MAD(eps) lies between the least and the largest 1 - p of each range "
        f"with at least {ENOUGH} tokens",
        holds=holds if lines else None,
        found="; ".join(lines) or "no range has enough tokens",
    )


def invariance(sample: TokenSample, found: Found) -> Check:
    """The spread of eps varies over the ranges of confidence by no more than in the paper's own table."""
    table = reported(7)
    mads = [table.value(name, "MAD(epsilon)") for name in BINS]
    paper = max(mads) / min(mads)
    value, low, high = found["largest over least MAD"]
    return Check(
        statement=f"{sample.name}: MAD(eps) varies over the ranges of confidence by no more than the paper's "
        f"factor {paper:.2f}",
        holds=None if not np.isfinite(value) or low <= paper <= high else high < paper,
        found=f"largest over least MAD {value:.2f} [{low:.2f}, {high:.2f}] (ranges with at least {ENOUGH} tokens)",
    )


def figure4(setting: Setting) -> Finding:
    """Displacement against the token's uncertainty, with its running median."""
    finding = Finding(remarks=reasons(setting))
    for sample in setting.tokens():
        curve = binned(sample)
        finite = np.nonzero(sample.finite)[0]
        shown = finite[:: max(1, len(finite) // POINTS)][:POINTS]
        finding.sources[sample.name] = f"{len(finite):,} tokens, {sample.model}"
        finding.curves[sample.name] = {
            "model": sample.model,
            "scatter": {"doubt": sample.doubt[shown], "epsilon": sample.epsilon[shown]},
            **{name: curve[name] for name in ("doubt", "tokens", "q50")},
        }
        off = [
            abs(middle) / mad
            for middle, mad, n in zip(curve["q50"], curve["mad epsilon"], curve["tokens"], strict=True)
            if n >= ENOUGH and mad > 0
        ]
        finding.checks.append(
            Check(
                statement=f"{sample.name}: the median of eps stays near 0 at every confidence (within a quarter of the MAD)",
                holds=max(off) <= 0.25 if off else None,
                found=f"largest |median| / MAD {max(off):.2f} over {len(off)} intervals of 1 - p"
                if off
                else "too few tokens",
            )
        )
    return finding


def figure9(setting: Setting) -> Finding:
    """Quantile intervals of the displacement, and the MADs of displacement and log k, against 1 - p."""
    finding = Finding(remarks=reasons(setting))
    for sample in setting.tokens():
        finding.sources[sample.name] = f"{int(sample.finite.sum()):,} tokens, {sample.model}"
        finding.curves[sample.name] = {"model": sample.model, **binned(sample)}
        finding.checks += [ratio_check(sample), slopes(sample)]
    return finding


def binned(sample: TokenSample) -> dict[str, list[float]]:
    """Return quantiles of eps and the two MADs in each interval of 1 - p that holds a finite token."""
    curve: dict[str, list[float]] = {name: [] for name in ("doubt", "tokens", "mad epsilon", "mad log k")}
    curve |= {f"q{100 * level:.0f}": [] for level in QUANTILES}
    epsilon, log_k, doubt = sample.epsilon, sample.log_k, sample.doubt
    place = np.searchsorted(DOUBT_EDGES, doubt, side="right")
    for number in range(len(DOUBT_EDGES) + 1):
        inside = sample.finite & (place == number)
        if not inside.any():
            continue
        curve["doubt"].append(float(np.exp(np.log(doubt[inside]).mean())))
        curve["tokens"].append(int(inside.sum()))
        curve["mad epsilon"].append(median_deviation(epsilon[inside]))
        curve["mad log k"].append(median_deviation(log_k[inside]))
        for level in QUANTILES:
            curve[f"q{100 * level:.0f}"].append(float(np.quantile(epsilon[inside], level)))
    return curve


def slopes(sample: TokenSample) -> Check:
    """MAD(log k) falls like 1 - p, MAD(eps) hardly changes: slopes of both on double logarithmic axes."""
    curve = binned(sample)
    keep = np.array(curve["tokens"]) >= ENOUGH // 5
    if keep.sum() < 3:
        return Check(
            statement=f"{sample.name}: MAD(log k) is proportional to 1 - p", holds=None, found="too few tokens"
        )
    x = np.log(np.array(curve["doubt"])[keep])
    of_eps, of_k = (_slope(x, np.array(curve[name])[keep]) for name in ("mad epsilon", "mad log k"))
    return Check(
        statement=f"{sample.name}: MAD(log k) grows like 1 - p (slope .9 to 1.1) and MAD(eps) does not (slope within .1 of 0)",
        holds=abs(of_k - 1) <= 0.1 and abs(of_eps) <= 0.1,
        found=f"slopes {of_k:.3f} and {of_eps:.3f} over {int(keep.sum())} intervals; the paper's five ranges: "
        f"{PAPER_SLOPES[0]:.3f} and {PAPER_SLOPES[1]:.3f}",
    )


def _slope(x: Array, y: Array) -> float:
    return float(np.polyfit(x, np.log(y), 1)[0])


def _paper_slopes() -> tuple[float, float]:
    """Slopes in the paper's table 7, 1 - p of a range taken as its MAD(log k) / MAD(eps)."""
    table = reported(7)
    eps, log_k = (np.array([table.value(name, what) for name in BINS]) for what in ("MAD(epsilon)", "MAD(log k)"))
    x = np.log(log_k / eps)
    return _slope(x, log_k), _slope(x, eps)


PAPER_SLOPES = _paper_slopes()
