"""Numbers of the notebook on stale training, found a second way: from the batches, with NumPy and no rule of the library."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import ceil, comb, sqrt
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from scipy.stats import t as student
from torch import Tensor

from testbed.core.seeds import SeedTree

RESAMPLES = 4000
Array = Any


# ------------------------------------------------------------------------------------------------ few runs
def middle_mean(values: Sequence[float]) -> float:
    """Mean of the runs that are left when a quarter of them, rounded down, is dropped at either end."""
    ordered, cut = sorted(values), len(values) // 4
    kept = ordered[cut : len(ordered) - cut]
    return sum(kept) / len(kept)


def interval(values: Sequence[float], seeds: SeedTree) -> tuple[float, float, float]:
    """Interquartile mean and its bootstrap interval, the draws spelled out; percentiles of few runs lie farther out."""
    tail = NormalDist().cdf(-sqrt(len(values) / (len(values) - 1)) * student.isf(0.025, len(values) - 1))
    draws = max(RESAMPLES, ceil(50 / tail)) if 40_000 * tail > 50 else 40_000
    drawn = seeds.numpy_generator().integers(0, len(values), (draws, len(values)))
    means = [middle_mean(row) for row in np.asarray(values)[drawn].tolist()]
    low, high = np.quantile(means, [tail, 1 - tail])
    return middle_mean(values), float(low), float(high)


def all_on_one_side(runs: int) -> float:
    """Probability that all runs fall on the same side of their median, by listing the sides."""
    sides = list(product((0, 1), repeat=runs))
    return sum(len(set(side)) == 1 for side in sides) / len(sides)


def final(evaluations: Sequence[tuple[int, float]]) -> float:
    """Mean of the last three."""
    return sum(reward for _, reward in evaluations[-3:]) / len(evaluations[-3:])


# ------------------------------------------------------------------------------------------------ the log of a run
def advantages(found: Any) -> list[Array]:
    """Advantage of every response, update by update; a replayed one keeps what it had in its own group."""
    size, kept, out = found.run.config.responses, {}, []
    for seen in found.seen:
        reward, ids = seen.batch.reward.double().tolist(), seen.delivery.response.tolist()
        fresh = ~seen.delivery.replayed.numpy()
        for start in {i // size for i, new in zip(ids, fresh, strict=True) if new}:
            members = [row for row, (i, new) in enumerate(zip(ids, fresh, strict=True)) if new and i // size == start]
            values = [reward[row] for row in members]
            mean = sum(values) / len(values)
            spread = sqrt(sum((x - mean) ** 2 for x in values) / len(values))
            kept |= {ids[row]: (reward[row] - mean) / spread if spread > 1e-9 else 0.0 for row in members}
        out.append(np.array([kept[i] for i in ids]))
    return out


def weights(rule: str, seen: Any, advantage: Array) -> tuple[Array, Array, Array]:
    """Ratio at the rule's granularity, weight as applied, and loss per token of one batch: [B, T], 0 on padding."""
    mask = seen.batch.mask.numpy()
    logp, log_k = seen.batch.logp_target.double().numpy(), _log_ratio(seen)
    a = advantage[:, None] * mask
    k = np.exp(log_k) * mask
    whole = np.exp(log_k.sum(1, keepdims=True)) * mask
    if rule == "none":
        return k, 1.0 * mask, -a * logp
    if rule == "exact":
        return k, k, -k * a * logp
    if rule == "ppo_clip":
        open_gate = ~((a > 0) & (k > 1.2) | (a < 0) & (k < 0.8))
        return k, k * open_gate, -np.minimum(k * a, np.clip(k, 0.8, 1.2) * a)
    if rule == "topr":
        w = np.where(a >= 0, 1.0, np.minimum(whole, 1.0)) * mask
        return whole, w, -w * a * logp
    w = np.minimum(whole, _best_cap(whole[:, 0])) * mask
    return whole, w, -w * a * logp


def _log_ratio(seen: Any) -> Array:
    gap = seen.batch.logp_target.double() - seen.batch.logp_behavior.double()
    return torch.where(seen.batch.mask, gap, 0.0).numpy()


def _best_cap(values: Array) -> float:
    """Root of c = 1 + (n-1) mean (W - c)+ by halving an interval."""
    low, high = 1.0, max(1.0, float(values.max()))
    for _ in range(80):
        c = (low + high) / 2
        low, high = (c, high) if c < 1 + (len(values) - 1) * np.maximum(values - c, 0).mean() else (low, c)
    return high


def log_of(found: Any) -> dict[str, list[float]]:
    """The log of a run, found again from its batches."""
    out: dict[str, list[float]] = {
        name: [] for name in ("reward", "max_log_k", "ess_raw", "ess_applied", "loss", "staleness")
    }
    for done, (seen, advantage) in enumerate(zip(found.seen, advantages(found), strict=True)):
        mask = seen.batch.mask.numpy()
        raw, applied, loss = weights(found.run.config.rule, seen, advantage)
        written = np.where(mask, seen.batch.version.numpy(), done)
        out["reward"].append(float(seen.batch.reward.double().mean()))
        out["max_log_k"].append(float(np.abs(_log_ratio(seen)).max()))
        out["ess_raw"].append(_kish(raw[mask]))
        out["ess_applied"].append(_kish(applied[mask]))
        out["loss"].append(float(loss[mask].sum() / mask.sum()))
        out["staleness"].append(float((done - written.min(1)).mean()))
    return out


def same_log(found: Any) -> bool:
    """Whether the log of a run is what its batches say, number by number."""
    for what, values in log_of(found).items():
        if not np.allclose(found.run.curve[what], values, rtol=1e-3, atol=1e-4):
            raise AssertionError(f"`{what}` of {found.run.config.rule} is not what the batches say")
    return True


def finals(arm: Sequence[Any]) -> list[float]:
    """Final reward of each run."""
    return [final(found.run.evaluations) for found in arm]


def standing(arm: Sequence[Any], other: Sequence[Any], seeds: SeedTree, against: str) -> list[Any]:
    """Best evaluation; final reward; and how much more than another arm, seed by seed: with intervals."""
    apart = [mine - its for mine, its in zip(finals(arm), finals(other), strict=False)]
    best = middle_mean([max(reward for _, reward in found.run.evaluations) for found in arm])
    return [best, interval(finals(arm), seeds["final"]), interval(apart, seeds[against])]


def pushing(arm: Sequence[Any], after: int) -> list[Any]:
    """Share acted on; effective share, raw and applied; shares of the push: means over updates and runs."""
    logs = [log_of(found) for found in arm]
    ess = [np.mean([log[what] for log in logs]) for what in ("ess_raw", "ess_applied")]
    pushed = np.mean([push_shares(found) for found in arm], axis=0)
    return [np.mean([acted(found, after) for found in arm]), *ess, *pushed]


def _kish(w: Array) -> float:
    """Effective share: (sum w)^2 / sum w^2 over the number."""
    return float(w.sum() ** 2 / (w**2).sum() / len(w))


def acted(found: Any, after: int) -> float:
    """Share of the tokens whose ratio the rule changed, in single precision; mean over updates from `after` on."""
    out = []
    for seen, advantage in list(zip(found.seen, advantages(found), strict=True))[after:]:
        raw, applied, _ = weights(found.run.config.rule, seen, advantage)
        changed = raw.astype(np.float32) != applied.astype(np.float32)
        mask = seen.batch.mask.numpy()
        out.append(float(changed[mask].mean()) if found.run.config.rule != "none" else 0.0)
    return float(np.mean(out))


def push_shares(found: Any) -> tuple[float, float]:
    """Means over updates of the shares of |w A| on tokens with k < 1/2 and A < 0, and on tokens with k > 2."""
    behind, ahead = [], []
    for seen, advantage in zip(found.seen, advantages(found), strict=True):
        _, applied, _ = weights(found.run.config.rule, seen, advantage)
        push, k = np.abs(applied * advantage[:, None]), np.exp(_log_ratio(seen))
        total = push.sum()
        behind.append(push[(k < 0.5) & (advantage[:, None] < 0)].sum() / total if total else 0.0)
        ahead.append(push[k > 2].sum() / total if total else 0.0)
    return float(np.mean(behind)), float(np.mean(ahead))


def parted(arm: Sequence[Any]) -> list[float]:
    """Mean advantage of fresh and of replayed responses, over all runs of an arm."""
    each = [(seen, a) for found in arm for seen, a in zip(found.seen, advantages(found), strict=True)]
    old = np.concatenate([seen.delivery.replayed.numpy() for seen, _ in each])
    a = np.concatenate([advantage for _, advantage in each])
    return [float(a[~old].mean()), float(a[old].mean())]


def right_share(policy: Any, task: Any, prompts: Tensor) -> float:
    """Probability of a right answer, mean over prompts a + b: the sum, with and without a leading zero, then the end."""
    total = 0.0
    for prompt in prompts.tolist():
        a, b = divmod(prompt, task.max_operand + 1)
        for text in {f"{a + b}<eos>", f"{a + b:02d}<eos>"}:
            tokens = torch.tensor([task.encode(text)])
            with torch.no_grad():
                total += float(policy.at(torch.tensor([prompt])).score(tokens).sum().exp())
    return total / len(prompts)


# ------------------------------------------------------------------------------------------------ a frozen moment
def mean_update(moment: Any, push: Array) -> Tensor:
    """Differentiate sum over all responses of probability times sum_t push_t log pi(y_t), in one pass."""
    batch = moment.batch
    score = torch.where(batch.mask, moment.pi.at(batch.group).score(batch.tokens), 0.0)
    total = (score * torch.as_tensor(push)).sum()
    return torch.cat([part.reshape(-1) for part in torch.autograd.grad(total, moment.pi.parameters())]).double()


def pushes(moment: Any, rule: str) -> Array:
    """Weight times advantage of every token of every response, without the library's rules."""
    batch, a = moment.batch, (moment.batch.reward - moment.level).numpy()
    seen = type("Seen", (), {"batch": batch})()
    if rule == "prefix":
        return np.exp(np.cumsum(_log_ratio(seen), 1)) * a[:, None] * batch.mask.numpy()
    if rule == "sequence_product":
        return np.exp(_log_ratio(seen).sum(1, keepdims=True)) * a[:, None] * batch.mask.numpy()
    if rule == "spire":
        return np.minimum(np.exp(_log_ratio(seen).sum(1, keepdims=True)), 2.0) * a[:, None] * batch.mask.numpy()
    return weights(rule, seen, a)[1] * a[:, None]


def second_moment(moment: Any, push: Array, left_out: float = 1e-5) -> float:
    """E |term|^2, one response after the other, without those that make up less than such a share of all."""
    batch, probs = moment.batch, moment.probs.numpy()
    size = probs * (push**2).sum(1)
    order = np.argsort(-size)
    enough = int(np.searchsorted(np.cumsum(size[order]), (1 - left_out) * size.sum())) + 1
    total = 0.0
    for row in order[:enough]:
        group, tokens = batch.group[row : row + 1], batch.tokens[row : row + 1]
        score = torch.where(batch.mask[row], moment.pi.at(group).score(tokens)[0], 0.0)
        parts = torch.autograd.grad((score * torch.as_tensor(push[row])).sum(), moment.pi.parameters())
        total += float(probs[row]) * sum(float(part.square().sum()) for part in parts)
    return total


def estimator(moment: Any, rule: str, gradient: Tensor, measured: Tensor, batch: int, drawn: int) -> list[float]:
    """Bias, noise of a batch, expected and found distance from the mean, distance from the gradient, over its length."""
    push = pushes(moment, rule)
    mean = mean_update(moment, moment.probs.numpy()[:, None] * push)
    noise = (second_moment(moment, push) - float(mean.square().sum())) ** 0.5
    off = [float((measured - x).norm()) for x in (mean, gradient)]
    found = [float((mean - gradient).norm()), noise / batch**0.5, noise / drawn**0.5, *off]
    return [x / float(gradient.norm()) for x in found]


def on_policy(moment: Any) -> Tensor:
    """Gradient: every response with the trainer's probability, pushed by its reward."""
    batch = moment.batch
    chance = torch.where(batch.mask, batch.logp_target, 0.0).sum(1).exp()
    return mean_update(moment, ((chance * batch.reward)[:, None] * batch.mask).numpy())


# ------------------------------------------------------------------------------------------------ replay
def kept_advantage(p: float, size: int) -> float:
    """Mean advantage that a stored success keeps: over the groups it may come from, m of `size` right."""
    chance = [comb(size, m) * p**m * (1 - p) ** (size - m) for m in range(size + 1)]
    each = [sqrt((size - m) / m) if 0 < m < size else 0.0 for m in range(size + 1)]
    return sum(c * m * a for m, (c, a) in enumerate(zip(chance, each, strict=True))) / (size * p)
