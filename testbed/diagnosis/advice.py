"""What to set: a cap for every kind of weight and a share of replay, each with the theorem it comes from and its noise.

Advice is computed from the batch's own weights and advantages, so it is as noisy as they are: whole responses are drawn
anew, caps and share together, and with fewer than 20 responses there is no interval and no advice.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from testbed.core.batch import SegmentedBatch
from testbed.core.seeds import SeedTree
from testbed.diagnosis.advised_cap import cap_record, owned, weight_samples
from testbed.diagnosis.advised_share import best_share, check_costs, proxies, response_terms, share_record
from testbed.diagnosis.response_draws import percentile_interval, response_draws
from testbed.diagnosis.response_means import FEWEST
from testbed.diagnosis.rule_effects import batch_advantage

MOST_CAPS, LEAST_DRAWS, MOST_DRAWS = 20_000, 200, 1000  # caps in all draws together; draws


def advice_records(batch: SegmentedBatch, seeds: SeedTree, cost_fresh: float, cost_replay: float) -> dict[str, Any]:
    """Advise caps and a replay share.

    Parameters
    ----------
    batch : SegmentedBatch             every response with at least one token
    cost_fresh, cost_replay : float    of one response, any unit

    Returns
    -------
    dict   n (responses), fewest (responses below which nothing is advised), caps (list of `cap_record`, each with an
           interval, None below `fewest`; `advised` is then "too few" where a cap would act), replay (`share_record` with
           interval and regimes (regime -> share of draws), None where nothing is advised, and advantage: where A comes
           from)

    Raises
    ------
    InputError   a cost that is not finite, fresh <= 0, replay < 0

    Examples
    --------
    >>> from testbed.diagnosis.dump import load_dump
    >>> from testbed.sample_data import partial_rollouts_path
    >>> found = advice_records(load_dump(partial_rollouts_path()), SeedTree("example"), 1.0, 0.25)
    >>> [(cap["weight"], round(cap["cap"], 2)) for cap in found["caps"]], found["replay"]["regime"]
    ([('segment product', 8.61), ('segment product', 8.61), ('token ratio', 2.17)], 'none')
    """
    check_costs(cost_fresh, cost_replay)
    n = batch.batch_size
    samples = weight_samples(batch)
    caps = [cap_record(sample, n) for sample in samples]
    advantage, origin = batch_advantage(batch)
    last = len(samples) - 2  # the product over whole responses; tokens come after it
    terms = response_terms(batch, samples[last]["values"], advantage)
    replay = share_record(terms, caps[last]["cap"], cost_fresh, cost_replay)
    drawn_caps: list[list[float]] = [[] for _ in caps]
    shares: list[float] = []
    regimes: Counter[str] = Counter()
    if n >= FEWEST:
        prepared = [owned(sample, n) for sample in samples]
        resamples = min(max(MOST_CAPS // len(samples), LEAST_DRAWS), MOST_DRAWS)
        for counts in response_draws(n, seeds, resamples):
            for drawn, weights in zip(drawn_caps, prepared, strict=True):
                drawn.append(weights.cap(counts))
            found = proxies(terms, drawn_caps[last][-1], counts)
            best = best_share(found, n, cost_fresh, cost_replay) if found else None
            if best is not None:
                shares.append(best.share)
                regimes[best.regime] += 1
    for cap, drawn in zip(caps, drawn_caps, strict=True):
        cap["interval"] = percentile_interval(drawn) if drawn else None
        if not drawn and cap["advised"] == "cap":
            cap["advised"] = "too few"
    decided = bool(shares) and replay["share"] is not None
    replay |= {
        "interval": percentile_interval(shares) if decided else None,
        "regimes": {name: count / len(shares) for name, count in regimes.most_common()} if decided else None,
        "advantage": origin,
    }
    return {"n": n, "fewest": FEWEST, "caps": caps, "replay": replay}
