"""Numbers of a diagnosis, found a second way: from the arrays of the file, with NumPy and without the library."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from testbed.core.seeds import SeedTree

EDGES = (0.0, 0.5, 0.9, 0.99, 0.999, 1.0)  # of the trainer's p
LEVELS = [0.025, 0.975]


class Dump:
    """Arrays of a dump, whatever its layout calls them: log-probs q and p, mask, reward, group, version or None."""

    def __init__(self, q: Any, p: Any, mask: Any, reward: Any, group: Any, version: Any = None) -> None:
        self.mask = np.asarray(mask) != 0
        self.q, self.p = (np.where(self.mask, np.asarray(x, dtype=float), 0.0) for x in (q, p))
        self.reward, self.group, self.version = np.asarray(reward, dtype=float), np.asarray(group), version
        self.log_k, self.rows = self.p - self.q, np.nonzero(self.mask)[0]

    @staticmethod
    def read(path: Path) -> Dump:
        """Read a file of verl's names (.npz) or of TRL's (.pt)."""
        if path.suffix == ".npz":
            with np.load(path) as file:
                held = {name: file[name] for name in file.files}
            q, p, mask = (held[name] for name in ("rollout_log_probs", "old_log_probs", "response_mask"))
            reward = (held["token_level_scores"] * mask).sum(1)
            return Dump(q, p, mask, reward, held["uid"], held["max_global_steps"])
        held = {name: tensor.numpy() for name, tensor in torch.load(path, weights_only=True).items()}
        q, p, mask = (held[name] for name in ("sampling_per_token_logps", "old_per_token_logps", "completion_mask"))
        return Dump(q, p, mask, held["rewards"], held["prompt_ids"][:, 0])

    @staticmethod
    def of(batch: Any) -> Dump:
        """Take the columns of a batch."""
        q, p, mask = batch.logp_behavior.numpy(), batch.logp_target.numpy(), batch.mask.numpy()
        return Dump(q, p, mask, batch.reward.numpy(), batch.group.numpy())

    # ------------------------------------------------------------------------------------------- the sections
    def batch(self) -> list[float]:
        """Responses, groups, tokens, longest, segments (one), behaviors, mean reward."""
        behaviors = 1 if self.version is None else len(set(self.version.tolist()))
        lengths = self.mask.sum(1)
        counts = [len(self.mask), len(set(self.group.tolist())), int(lengths.sum()), int(lengths.max())]
        return [*counts, 1, behaviors, float(self.reward.mean())]

    def divergence(self) -> float:
        """Mean of k - 1 - log k, nats per token."""
        log_k = self.log_k[self.mask]
        return float((np.exp(log_k) - 1 - log_k).mean())

    def odds(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean log-odds of trainer and sampler, and their difference, of tokens where both are finite."""
        with np.errstate(divide="ignore", invalid="ignore"):
            high, low = (x - np.log(-np.expm1(x)) for x in (self.p[self.mask], self.q[self.mask]))
            middle, shift = (high + low) / 2, high - low
        finite = np.isfinite(middle) & np.isfinite(shift)
        return middle[finite], shift[finite]

    def line(self) -> tuple[float, float]:
        """Slope of the displacement on the log-odds, and the share it explains; both bounded as the detector bounds them."""
        x, y = (np.clip(values, -end, end) for values, end in zip(self.odds(), (8.0, 5.0), strict=True))
        if len(x) < 200 or x.std(ddof=1) < 0.5:
            return 0.0, 0.0
        slope = float(np.cov(x, y)[0, 1] / x.var(ddof=1))
        return slope, float(np.corrcoef(x, y)[0, 1] ** 2) if y.std() > 0 else 0.0

    def temperature(self) -> tuple[float, float]:
        """Temperature that a slope of 2 (T - 1) / (T + 1) speaks of, and the share explained."""
        slope, explained = self.line()
        return (2 + slope) / (2 - slope), explained

    def displaced(self, least: int = 30) -> list[list[float]]:
        """By the trainer's confidence: tokens, median and median distance from it of the displacement, if there are enough."""
        middle, shift = self.odds()
        p, out = np.exp(self.p[self.mask]), []
        assert len(middle) == len(p)
        for low, high in pairwise(EDGES):
            inside = shift[(p >= low) & ((p < high) | (high == 1))]
            median = np.median(inside) if len(inside) else 0.0
            out.append([len(inside), *([median, np.median(np.abs(inside - median))] if len(inside) >= least else [])])
        return out

    def mean_ratio(self) -> float:
        """Mean of k over tokens."""
        return float(np.exp(self.log_k[self.mask]).mean())

    def products(self) -> np.ndarray:
        """Product of the ratios of each response."""
        return np.exp(self.log_k.sum(1))

    def effective(self, cap: float = np.inf) -> float:
        """Effective responses: (sum w)^2 / sum w^2."""
        w = np.minimum(self.products(), cap)
        return float(w.sum() ** 2 / (w**2).sum())

    def ages(self) -> dict[int, list[float]]:
        """Version tag -> mean log |displacement| of each response with this tag, tokens with a finite one."""
        assert self.version is not None
        with np.errstate(divide="ignore", invalid="ignore"):
            shift = np.abs((self.p - np.log(-np.expm1(self.p))) - (self.q - np.log(-np.expm1(self.q))))
        out: dict[int, list[float]] = {}
        for row, tag in enumerate(self.version.tolist()):
            sizes = shift[row][self.mask[row] & np.isfinite(shift[row])]
            if len(sizes):
                out.setdefault(tag, []).append(float(np.log(np.maximum(sizes, 1e-6)).mean()))
        return out

    def rule(self, name: str) -> tuple[float, float, float]:
        """Share of tokens acted on, mean weight, second moment: over tokens, or over responses for products."""
        k, w = np.exp(self.log_k)[self.mask], self.products()
        if name == "exact":
            return 0.0, float(k.mean()), float((k**2).mean())
        if name == "tis":
            return float((k > 2).mean()), float(np.minimum(k, 2).mean()), float((np.minimum(k, 2) ** 2).mean())
        if name == "sequence_product":
            return 0.0, float(w.mean()), float((w**2).mean())
        return 0.0, 1.0, 1.0

    # ------------------------------------------------------------------------------------------- the advice
    def draws(self) -> list[np.ndarray]:
        """How often each response occurs in each bootstrap draw: the stream of the report's advice."""
        rng, n = SeedTree(0)["diagnosis"]["advice"].numpy_generator(), len(self.mask)
        return [np.bincount(rng.integers(0, n, n), minlength=n) for _ in range(1000)]

    def caps(self) -> list[list[float]]:
        """Best cap of products and of token ratios: cap, ends of its interval, weights above it."""
        n, lengths, out = len(self.mask), self.mask.sum(1), []
        samples = [(self.products(), np.arange(n), np.ones(n)), (np.exp(self.log_k)[self.mask], self.rows, lengths)]
        for values, owner, sizes in samples:
            cap = _best_cap(values, np.full(len(values), 1 / len(values)), n)
            drawn = [_best_cap(values, counts[owner] / (counts @ sizes), n) for counts in self.draws()]
            out.append([cap, *np.quantile(drawn, LEVELS), int((values > cap).sum())])
        return out

    def share(self, fresh: float, replay: float, counts: np.ndarray | None = None, points: int = 2001) -> float:
        """Share of replay with the least error at a budget of n fresh responses, among so many: by trying them."""
        n, w = len(self.mask), self.products()
        each = np.ones(n) if counts is None else counts
        stale = each * ((np.abs(self.log_k) * self.mask).max(1) > 1e-6)
        chances, stale = each / each.sum(), stale / stale.sum()
        a = self.reward - np.array([self.reward[self.group == g].mean() for g in self.group])
        cap = _best_cap(w, chances, n)
        capped, bias = np.minimum(w, cap) * a, stale @ (np.maximum(w - cap, 0) * np.abs(a))
        spread = [chance @ (x - chance @ x) ** 2 for chance, x in ((chances, a), (stale, capped))]
        shares = np.linspace(0, 1, points)
        variance = ((1 - shares) * spread[0] + shares * spread[1]) * (shares * replay + (1 - shares) * fresh)
        return float(shares[np.argmin((shares * bias) ** 2 + variance / (n * fresh))])

    def share_with_interval(self, fresh: float, replay: float) -> list[float]:
        """The share, and the ends of its interval over the draws."""
        drawn = [self.share(fresh, replay, counts) for counts in self.draws()]
        return [self.share(fresh, replay), *np.quantile(drawn, LEVELS)]

    def accused_of_a_temperature(self) -> bool:
        """Whether the line is as steep, and explains as much, as the detector asks for without the drawing weights."""
        slope, explained = self.line()
        return abs(slope) >= 0.10 and explained >= 0.30


def _best_cap(values: np.ndarray, probs: np.ndarray, n: int) -> float:
    """Root of c = 1 + (n-1) E(W - c)+ by halving an interval."""
    low, high = 1.0, max(1.0, float(values.max()))
    for _ in range(50):
        c = (low + high) / 2
        low, high = (c, high) if c < 1 + (n - 1) * (probs * np.maximum(values - c, 0)).sum() else (low, c)
    return high


def looks_shifted(batch: Any) -> bool:
    """Whether the target is nearer to the sampler's, or the drawing weights', log-prob of a neighbor than of the same token."""
    mask, target = batch.mask.numpy(), batch.logp_target.double().numpy()
    both = mask[:, 1:] & mask[:, :-1]
    for other in (batch.logp_behavior.double().numpy(), batch.logp_proximal.double().numpy()):
        here = np.abs(target[:, 1:] - other[:, 1:])[both].mean()
        there = [target[:, :-1] - other[:, 1:], target[:, 1:] - other[:, :-1]]
        if min(np.abs(gap)[both].mean() for gap in there) < here:
            return True
    return False


def power_of(check: str) -> tuple[float, float, int, int]:
    """Least power of a detector over the strengths that were planted, in percent; the most; false alarms; healthy dumps."""
    folder = Path(__file__).resolve().parents[1] / "testbed" / "diagnosis" / "detectors"
    study = json.loads((folder / "power.json").read_text(encoding="utf-8"))
    found = [each["simulated"]["named"] / each["simulated"]["dumps"] for each in study["power"][check].values()]
    healthy = study["healthy"]["simulated"]
    return 100 * min(found), max(found), healthy["by_check"].get(check, 0), healthy["dumps"]
