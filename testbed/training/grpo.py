"""GRPO on a verifiable task: batches from any system, weights from any rule, and a run that is a function of its settings.

Which prompts are asked, which tokens are drawn and what the optimizer does follow from settings and seed; a run picked up
from a checkpoint is the run that was never stopped, bit for bit. A run that diverges says so and ends; it does not crash.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from testbed.core.batch import SegmentedBatch
from testbed.core.choices import NotALaw, RandomChooser
from testbed.core.errors import InputError
from testbed.core.seeds import SeedTree
from testbed.environments.base import Environment
from testbed.estimators.advantage import group_advantage
from testbed.estimators.loss import policy_loss
from testbed.policies.transformer.model import Transformer
from testbed.rollout.engine import rollout
from testbed.training.engines import Engines
from testbed.training.grpo_config import GRPOConfig
from testbed.training.grpo_metrics import BatchMetrics, batch_metrics
from testbed.training.held_out import split_prompts
from testbed.training.sources import Drawn, Source
from testbed.weighting.rules import weigh
from testbed.weighting.weights import Weights

NOT_FINITE = "a law that is trained is not finite"
CURVES = (*BatchMetrics.__dataclass_fields__, "loss", "grad_norm", "engine_seconds", "trainer_seconds")


class GRPORun:
    """A run that is advanced update by update.

    Parameters
    ----------
    config : GRPOConfig
    env : Environment        a task with prompts
    model : Transformer      trained in place
    source : callable        (run) -> Source; called once, when everything else of the run exists
    seed : SeedTree | int    address of everything random

    Examples
    --------
    >>> from testbed import ArithmeticTask
    >>> from testbed.policies.transformer import TransformerConfig
    >>> from testbed.training.sources import OnPolicySource
    >>> config = GRPOConfig(updates=2, prompts=2, responses=2, width=8, heads=2, layers=1, hidden=8, evaluate_responses=4)
    >>> shape = TransformerConfig(vocab_size=14, width=8, heads=2, layers=1, hidden=8)
    >>> task = ArithmeticTask(2)
    >>> def source(run):
    ...     return OnPolicySource(config, task, run.sampler(), run.prompts, run.seed["source"])
    >>> run = GRPORun(config, task, Transformer.random(shape, 0, dtype=torch.float32), source, seed=0)
    >>> run.advance(), run.advance(), run.done, run.outcome
    (True, False, 2, 'finished')
    """

    def __init__(
        self,
        config: GRPOConfig,
        env: Environment,
        model: Transformer,
        source: Callable[[GRPORun], Source],
        seed: SeedTree | int,
    ) -> None:
        self.config, self.env, self.model = config, env, model
        self.seed = SeedTree(seed) if isinstance(seed, int) else seed
        self.done, self.outcome, self.reason = 0, "running", ""
        self.engines = Engines(config, env, self.seed)
        held_out = min(500, env.n_prompts // 4)
        self.prompts, self.unseen = split_prompts(env, held_out)  # the same for all seeds
        self.policy = self.engines.trainer(model)
        self.optimizer = torch.optim.AdamW(
            model.parameters(), lr=config.rate, betas=config.betas, weight_decay=config.decay
        )
        self.curve: dict[str, list[Any]] = {name: [] for name in CURVES}
        self.kept: dict[int, float] = {}  # response -> advantage
        self.evaluations: list[tuple[int, float]] = [(0, self.evaluate())]
        self.source = source(self)

    def sampler(self) -> Any:
        """Return the sampler's policy with a copy of the weights as they are now."""
        return self.engines.sampler(self.model.copy(), self.done)

    # ------------------------------------------------------------------------------------------------ an update
    def advance(self) -> bool:
        """Take a batch and train on it; return whether the run goes on.

        Raises
        ------
        InputError   the rule needs what the batches do not hold, or refuses its parameters
        """
        if self.outcome != "running":
            return False
        try:
            drawn = self.source.next_batch()
        except NotALaw:
            return self._diverged("a law that is sampled is not finite")
        try:
            batch, laws = self._scored(drawn.batch)
        except NotALaw:
            return self._diverged(NOT_FINITE)
        advantage, parts = self._advantage(drawn), self._parts(batch)
        noted = asdict(batch_metrics(batch, self._weights(batch, advantage, parts), laws, self.done))
        steps = torch.tensor([self._step(batch, advantage, rows) for rows in parts], dtype=torch.float64)
        noted |= {"loss": float(steps[-1, 0]), "grad_norm": float(steps[:, 1].max())}  # NaN if one of them is
        noted |= {"engine_seconds": drawn.engine_seconds, "trainer_seconds": drawn.trainer_seconds}
        for name, value in noted.items():
            self.curve[name].append(value)
        self.done += 1
        if self.outcome == "diverged":
            return False
        if self.done % self.config.evaluate_every == 0 or self.done == self.config.updates:
            try:
                self.evaluations.append((self.done, self.evaluate()))
            except NotALaw:
                return self._diverged("a law that is judged is not finite")
        if self.done == self.config.updates:
            self.outcome = "finished"
            return False
        self.source.updated(self.sampler())
        return True

    def _advantage(self, drawn: Drawn) -> Float[Tensor, " B"]:
        """Advantage of each response in the group it was drawn in; a replayed one keeps that of its first time."""
        rows = torch.nonzero(~drawn.replayed)[:, 0]
        together = drawn.batch.replaced(group=drawn.number).select(rows)
        fresh = group_advantage(together, self.config.baseline, self.config.scale)  # type: ignore[arg-type]
        self.kept.update(zip(drawn.response[rows].tolist(), fresh.tolist(), strict=True))
        return torch.tensor([self.kept[number] for number in drawn.response.tolist()], dtype=fresh.dtype)

    def _scored(self, batch: SegmentedBatch) -> tuple[SegmentedBatch, Float[Tensor, "B T V"]]:
        """The batch as the trainer sees it before the update: its log-probs are target and proximal.

        Raises
        ------
        NotALaw   weights that have gone to NaN or infinity
        """
        with torch.no_grad():
            laws = self.policy.at(batch.group).log_probs(batch.tokens)
        if not bool(laws[batch.mask].isfinite().all()):
            raise NotALaw(NOT_FINITE, found=f"update {self.done}")
        logp = laws.gather(-1, batch.tokens[..., None])[..., 0]
        logp = torch.where(batch.mask, logp, 0.0).to(batch.logp_behavior.dtype)
        return batch.replaced(logp_target=logp, logp_proximal=logp), laws

    def _weights(self, batch: SegmentedBatch, advantage: Float[Tensor, " B"], parts: list[Tensor | None]) -> Weights:
        """Weights of the first epoch's steps before any of them is made: a rule may look at the step's rows as a whole."""

        def weights_of(rows: Tensor | None) -> Weights:
            part = batch if rows is None else batch.select(rows)
            signs = advantage if rows is None else advantage[rows]
            return weigh(self.config.rule, part, advantage=signs, **self.config.rule_params)

        if parts[0] is None:
            return weights_of(None)
        chunks = [rows for rows in parts[: self.config.minibatches] if rows is not None and len(rows)]
        found, back = [weights_of(rows) for rows in chunks], torch.cat(chunks).argsort()
        whole = {name: torch.cat([getattr(w, name) for w in found])[back] for name in ("value", "gate", "acted", "raw")}
        return replace(found[0], objective=None, saturated=sum(w.saturated for w in found), **whole)

    def _parts(self, batch: SegmentedBatch) -> list[Tensor | None]:
        """Rows of each optimizer step; None is the whole batch."""
        if self.config.minibatches == 1:
            return [None] * self.config.epochs
        parts: list[Tensor | None] = []
        for epoch in range(self.config.epochs):
            generator = self.seed["order"][self.done][epoch].torch_generator()
            parts += torch.randperm(batch.batch_size, generator=generator).tensor_split(self.config.minibatches)
        return parts

    def _step(self, batch: SegmentedBatch, advantage: Tensor, rows: Tensor | None) -> tuple[float, float]:
        """One optimizer step; (loss, gradient norm), and a run that has diverged says so."""
        if self.outcome == "diverged":
            return float("nan"), float("nan")
        if rows is not None:
            batch, advantage = batch.select(rows), advantage[rows]
        try:
            loss = self.loss(batch, advantage)
        except NotALaw:
            self._diverged(NOT_FINITE)
            return float("nan"), float("nan")
        self.optimizer.zero_grad()
        loss.backward()
        limit = float("inf") if self.config.clip_norm is None else self.config.clip_norm
        norm = float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit))
        if not torch.isfinite(loss.detach()) or not 0 <= norm < float("inf"):
            self._diverged("loss or gradient is not finite")
        else:
            self.optimizer.step()
            if not all(bool(w.detach().isfinite().all()) for w in self.model.parameters()):
                self._diverged("a weight is not finite")
        return float(loss.detach()), norm

    def loss(self, batch: SegmentedBatch, advantage: Float[Tensor, " B"]) -> Float[Tensor, ""]:
        """Loss of a batch under the weights of the moment, with its graph.

        Raises
        ------
        NotALaw   weights that have gone to NaN or infinity
        """
        logp = self.policy.at(batch.group).score(batch.tokens)
        if not bool(logp.detach()[batch.mask].isfinite().all()):
            raise NotALaw(NOT_FINITE, found=f"update {self.done}")
        return policy_loss(
            torch.where(batch.mask, logp, 0.0),
            batch,
            self.config.rule,
            advantage,
            self.config.normalizer,  # type: ignore[arg-type]
            self.config.denominator,  # type: ignore[arg-type]
            self.config.constant,
            **self.config.rule_params,
        )

    def _diverged(self, reason: str) -> bool:
        """Record the end of a run that went wrong; it does not go on."""
        self.outcome, self.reason = "diverged", f"{reason} at update {self.done}"
        return False

    def evaluate(self) -> float:
        """Mean reward of sampled responses of the trainer's policy, the prompts judged asked in turn."""
        asked = self.prompts if self.config.judged == "trained" else self.unseen
        order = torch.randperm(len(asked), generator=SeedTree("judged").torch_generator())  # prompt numbers are sorted
        group = asked[order[torch.arange(self.config.evaluate_responses) % len(asked)]]
        chooser = RandomChooser(self.seed["evaluation"][self.done])
        batch = rollout(self.env, self.policy, len(group), chooser, group=group)
        return float(batch.reward.double().mean())

    # ------------------------------------------------------------------------------------------------ to be continued
    def state(self) -> dict[str, Any]:
        """Everything a later run needs to go on as this one would: tensors and plain values only."""
        return {
            "step": self.done,
            "config": self.config.plain(),
            "seed": self.seed.integer(),
            "outcome": [self.outcome, self.reason],
            "curve": self.curve,
            "evaluations": [list(pair) for pair in self.evaluations],
            "advantages": [torch.tensor(list(self.kept)), torch.tensor(list(self.kept.values()), dtype=torch.float64)],
            "weights": {name: w.detach().clone() for name, w in self.model.weights.items()},
            "optimizer": self.optimizer.state_dict(),
            "source": self.source.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state.

        Raises
        ------
        InputError   a state of another run
        """
        here = {"config": self.config.plain(), "seed": self.seed.integer()}
        differs = [name for name, value in here.items() if state.get(name) != value]
        if differs:
            hint = "resume with the settings of that run, or start anew"
            raise InputError("a checkpoint belongs to the run that wrote it", found=f"another {differs[0]}", hint=hint)
        with torch.no_grad():
            for name, weight in self.model.weights.items():
                weight.copy_(state["weights"][name])
        self.optimizer.load_state_dict(state["optimizer"])
        self.done, (self.outcome, self.reason) = state["step"], state["outcome"]
        self.curve = {name: list(values) for name, values in state["curve"].items()}
        numbers, values = state["advantages"]
        self.kept = dict(zip(numbers.tolist(), values.tolist(), strict=True))
        self.evaluations = [(int(step), float(reward)) for step, reward in state["evaluations"]]
        self.source.restore(state["source"], self._kept)

    def _kept(self, kept: Any) -> Any:
        """Sampler of kept weights (None: of the trainer's own)."""
        return self.sampler() if kept is None else self.engines.sampler(*kept)
