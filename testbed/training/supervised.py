"""A warm start: a transformer learns right answers of a verifiable task by maximum likelihood.

Reinforcement learning from a verifiable reward needs a policy that is sometimes right. Which problems a step sees, and in
what order, is a function of the seed and the step's number, so that a run picked up from a checkpoint is the run that was
never stopped.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from testbed.core.errors import InputError
from testbed.core.numerics import masked_mean
from testbed.core.seeds import SeedTree
from testbed.environments.verifiable import VerifiableTask
from testbed.policies.base import Policy
from testbed.policies.transformer.model import Transformer
from testbed.policies.transformer.numerics import Numerics
from testbed.policies.transformer.policy import TransformerPolicy
from testbed.training.recipe import Recipe


def task_policy(model: Transformer, task: VerifiableTask, numerics: Numerics | None = None) -> TransformerPolicy:
    """Return the policy that answers the task's prompts with a transformer's weights (None: float32)."""
    every = task.prompts()
    numerics = numerics or Numerics(dtype="float32")
    return TransformerPolicy(model, task.prompt_tokens(every), task.prompt_lengths(every), numerics)


arithmetic_policy = task_policy  # its name when addition was the only task


def solution_loss(policy: Policy, tokens: Int64[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, ""]:
    """Mean negative log-likelihood of the given responses, per token, nats.

        L = - sum_bt mask_bt log pi(y_bt | x_b, y_b,<t) / sum_bt mask_bt

    Parameters
    ----------
    policy : Policy                conditioned on the rows' prompts
    tokens : Int64[Tensor, "B T"]
    mask : Bool[Tensor, "B T"]     True on the tokens to learn, the end token among them

    Examples
    --------
    >>> from testbed import TabularPolicy
    >>> coin = TabularPolicy(torch.zeros(3, 2))
    >>> solution_loss(coin, torch.tensor([[0, 1]]), torch.tensor([[True, False]])).exp()
    tensor(2., dtype=torch.float64)
    """
    return -masked_mean(policy.score(tokens), mask)


class WarmStart:
    """Maximum likelihood on the responses that the task demonstrates, one update at a time.

    Parameters
    ----------
    model : Transformer              trained in place
    task : VerifiableTask            its `demonstration` of each problem is learned
    prompts : Int64[Tensor, " n"]    problems to learn from, n >= recipe.batch
    recipe : Recipe
    seed : SeedTree | int            address of the order of the problems

    Raises
    ------
    InputError   fewer problems than one batch holds

    Examples
    --------
    >>> from testbed import ArithmeticTask, TransformerConfig
    >>> task, config = ArithmeticTask(1), TransformerConfig(vocab_size=14, width=8, heads=2, layers=1, hidden=8)
    >>> run = WarmStart(Transformer.random(config, 0), task, task.prompts(), Recipe(steps=20, batch=4), seed=0)
    >>> losses = [run.advance() for _ in range(20)]
    >>> losses[-1] < losses[0], run.step
    (True, 20)
    """

    def __init__(
        self,
        model: Transformer,
        task: VerifiableTask,
        prompts: Int64[Tensor, " n"],
        recipe: Recipe,
        seed: SeedTree | int,
    ) -> None:
        if len(prompts) < recipe.batch:
            hint = f"set `batch` (--batch) to at most {len(prompts)}, or take a larger task (--max-operand)"
            raise InputError(f"a batch of {recipe.batch} needs as many problems", found=len(prompts), hint=hint)
        self.model, self.prompts, self.recipe, self.step = model, prompts, recipe, 0
        self.seed = SeedTree(seed) if isinstance(seed, int) else seed
        self.policy = task_policy(model, task)
        self.task = {"name": task.name, **task.params}
        self.tokens, self.mask = task.demonstration(prompts)
        matrices = [w for w in model.parameters() if w.dim() > 1]
        scales = [w for w in model.parameters() if w.dim() == 1]
        groups = [{"params": matrices, "weight_decay": recipe.decay}, {"params": scales, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=recipe.rate, betas=recipe.betas)

    def rows(self, step: int) -> Int64[Tensor, " batch"]:
        """Problems of an update: every one once per pass, in an order of the pass's own (what is left over is dropped)."""
        passed, place = divmod(step, len(self.prompts) // self.recipe.batch)
        order = torch.randperm(len(self.prompts), generator=self.seed["order"][passed].torch_generator())
        return order[place * self.recipe.batch :][: self.recipe.batch]

    def shown(self, rows: Int64[Tensor, " batch"]) -> Int64[Tensor, " batch"]:
        """Problems whose answers are shown for these: their own, but for a share `recipe.corruption`."""
        if not self.recipe.corruption:
            return rows
        generator = self.seed["corruption"][self.step].torch_generator()
        other = torch.randint(len(self.prompts), rows.shape, generator=generator)
        return torch.where(torch.rand(rows.shape, generator=generator) < self.recipe.corruption, other, rows)

    def advance(self) -> float:
        """Make one update and return the loss before it."""
        rows = self.rows(self.step)
        for group in self.optimizer.param_groups:
            group["lr"] = self.recipe.rate_at(self.step)
        self.optimizer.zero_grad()
        shown = self.shown(rows)
        loss = solution_loss(self.policy.at(self.prompts[rows]), self.tokens[shown], self.mask[shown])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip)
        self.optimizer.step()
        self.step += 1
        return float(loss.detach())

    def state(self) -> dict[str, Any]:
        """Everything a later run needs to go on as this one would: tensors and plain values only."""
        return {
            "step": self.step,
            "made_by": self._made_by(),
            "weights": {name: w.detach().clone() for name, w in self.model.weights.items()},
            "optimizer": self.optimizer.state_dict(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state.

        Raises
        ------
        InputError   a state of another model, recipe, seed or set of problems
        """
        there, here = state["made_by"], self._made_by()
        if there != here:
            differs = [_difference(name, there.get(name), here[name]) for name in here if there.get(name) != here[name]]
            raise InputError(
                "a checkpoint belongs to the run that wrote it",
                found=f"another {', another '.join(differs)}",
                hint="resume with the options of that run, or start anew without --resume",
            )
        with torch.no_grad():
            for name, weight in self.model.weights.items():
                weight.copy_(state["weights"][name])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step = state["step"]

    def _made_by(self) -> dict[str, Any]:
        recipe = {**asdict(self.recipe), "betas": list(self.recipe.betas)}
        problems = self.prompts.tolist()
        seed = self.seed.integer()
        model = asdict(self.model.config)
        return {"model": model, "recipe": recipe, "seed": seed, "problems": problems, "task": self.task}


def _difference(name: str, there: Any, here: Any) -> str:
    """Name what differs, and for settings each one with its value in the checkpoint and in this run."""
    if not (isinstance(there, dict) and isinstance(here, dict)):
        return name
    settings = [f"{k} {there.get(k)} there and {value} here" for k, value in here.items() if there.get(k) != value]
    return f"{name}: {', '.join(settings)}" if settings else name
