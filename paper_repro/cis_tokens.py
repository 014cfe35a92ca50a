"""Figure 12 of the CIS paper: which tokens each operator leaves alone, early, in the middle and late in training.

Runs are made on the spot, with the settings of the study `mismatch`: a sweep keeps no tokens. The same walk through a run
gives the constant caps that the study `mismatch_controls` compares CIS with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from paper_repro.lab_cis import ARMS, FRESH, READING
from paper_repro.lab_results import bundled, small
from paper_repro.mismatch_samples import Array
from paper_repro.study import Finding, Setting
from testbed.core.batch import SegmentedBatch
from testbed.environments.tasks import make_task
from testbed.policies.base import Policy
from testbed.training.grpo import GRPORun
from testbed.training.grpo_config import GRPOConfig
from testbed.training.lab import RUN, first_policy, source_of
from testbed.training.sources import Drawn, Source
from testbed.weighting.confidence import confidence_log_cap
from testbed.weighting.rules import weigh

STUDY, SEED, ROUNDS = "mismatch", 2, 4  # the paper's figure is of its seed two; ROUNDS updates make one panel
OPERATORS = ("cis", "icepop", "tis", "kpop")  # panels (a) to (d)
LEVELS = {"noise": "x8"}  # where rules act about as often as in the paper's training
TIMES = ("early", "middle", "late")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """Tokens of one batch, as the trainer sees them before its update; arrays of one entry per token."""

    update: int
    logp: Array
    log_k: Array
    acted: Array


class Watched:
    """A source of batches that notes what the trainer is about to learn from.

    Parameters
    ----------
    run : GRPORun       whose policy scores the tokens
    source : Source     that the batches are from
    """

    def __init__(self, run: GRPORun, source: Source) -> None:
        self.run, self.source, self.noted = run, source, []

    def next_batch(self) -> Drawn:
        """Take the next batch and note its tokens."""
        drawn = self.source.next_batch()
        self.noted.append(tokens_of(self.run, drawn.batch))
        return drawn

    def updated(self, policy: Policy) -> None:
        """Pass an update on."""
        self.source.updated(policy)

    def state(self) -> dict[str, Any]:
        """Return the source's own state."""
        return self.source.state()

    def restore(self, state: dict[str, Any], policy: Callable[[Any], Policy]) -> None:
        """Restore the source."""
        self.source.restore(state, policy)


def tokens_of(run: GRPORun, batch: SegmentedBatch) -> Tokens:
    """Score a batch with a run's trainer and weigh it with its rule."""
    with torch.no_grad():
        logp = run.policy.at(batch.group).score(batch.tokens)
    batch = batch.replaced(logp_target=torch.where(batch.mask, logp, 0.0).to(batch.logp_behavior.dtype))
    acted = weigh(run.config.rule, batch, batch.reward, **run.config.rule_params).acted[batch.mask]
    p, q = (x[batch.mask].double().numpy() for x in (batch.logp_target, batch.logp_behavior))
    return Tokens(update=run.done, logp=p, log_k=p - q, acted=acted.numpy())


def walked(config: GRPOConfig, seed: int, cache: Path | None = None) -> list[Tokens]:
    """Train a run to its end and return the tokens of every batch: it is the run that a sweep makes of these settings."""
    task, watched = make_task(config.task, **config.task_params), []

    def source(run: GRPORun) -> Source:
        watched.append(Watched(run, source_of(run)))
        return watched[0]

    run = GRPORun(config, task, first_policy(config, task, cache), source, RUN[seed])
    while run.advance():
        pass
    return watched[0].noted


def matched_caps(config: GRPOConfig, seeds: tuple[int, ...], cache: Path | None = None) -> dict[str, float]:
    """Return the constant caps to compare CIS with, from all tokens of some runs of CIS itself.

    Returns
    -------
    mean cap            mean over tokens of the cap that CIS gives them
    cap of equal share  the constant that as many of these tokens exceed as exceed their own cap
    share               of tokens that CIS acts on
    largest share       of tokens that any constant cap >= 1 acts on

    Raises
    ------
    InputError   a rule other than CIS
    """
    tokens = [one for seed in seeds for one in walked(config, seed, cache)]
    logp, log_k, acted = (np.concatenate([getattr(one, name) for one in tokens]) for name in ("logp", "log_k", "acted"))
    params = {name: value for name, value in config.rule_params.items() if name in ("lam", "floor", "cap_form")}
    caps = confidence_log_cap(torch.from_numpy(logp), **params).exp()
    share = float(acted.mean())
    return {
        "mean cap": float(caps.mean()),
        "cap of equal share": float(np.exp(np.quantile(log_k, 1 - share))),
        "share": share,
        "largest share": float((log_k > 0).mean()),
    }


def figure12(setting: Setting) -> Finding:
    """Confidence and log ratio of tokens, and which were acted on, operator by operator."""
    study, cache = bundled(STUDY), None
    if setting.smoke:
        study, cache = small(study), (setting.out or Path("out")) / "warm"
    finding = Finding(
        sources={
            "runs": f"one run of each operator, seed {SEED}, settings of the study {STUDY}, noise {LEVELS['noise']}"
        }
    )
    for arm in OPERATORS:
        config = study.cell({"arm": arm, **LEVELS}, SEED).config  # with the warm start of this seed
        config = replace(config, updates=len(TIMES)) if setting.smoke else config
        rounds = min(ROUNDS, max(1, config.updates // len(TIMES)))
        starts = [0, (config.updates - rounds) // 2, config.updates - rounds]
        wanted = {start + k: time for time, start in zip(TIMES, starts, strict=True) for k in range(rounds)}
        panels: dict[str, list[Tokens]] = {time: [] for time in TIMES}
        for one in walked(config, SEED, cache):
            if one.update in wanted:
                panels[wanted[one.update]].append(one)
        finding.curves[arm] = {
            "rule": config.rule,
            "name": ARMS[arm][0],
            "params": dict(config.rule_params),
            "panels": {time: _panel(batches) for time, batches in panels.items() if batches},
        }
        finding.rows += [{"operator": ARMS[arm][0], **_shares(finding.curves[arm]["panels"])}]
    finding.remarks += [
        f"acted on: share of the tokens of {ROUNDS} updates in a row; the paper's figure gives the share in its panel titles, "
        "which the text we had does not show",
        READING,
        FRESH,
    ]
    return finding


def _panel(batches: list[Tokens]) -> dict[str, object]:
    logp, log_k, acted = (
        np.concatenate([getattr(one, name) for one in batches]) for name in ("logp", "log_k", "acted")
    )
    return {
        "updates": [batches[0].update, batches[-1].update],
        "doubt": [float(f"{x:.4g}") for x in -np.expm1(logp)],
        "log k": [float(f"{x:.4g}") for x in log_k],
        "acted": [int(x) for x in acted],
        "share": float(acted.mean()),
    }


def _shares(panels: dict[str, dict[str, object]]) -> dict[str, str]:
    return {f"acted on, {time}": f"{100 * float(panel['share']):.2f}%" for time, panel in panels.items()}  # type: ignore[arg-type]
