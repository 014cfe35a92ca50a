"""Small runs: a task of nine prompts, a model of some hundred weights, and another one that has drifted from it."""

from functools import lru_cache

import torch

from testbed import ArithmeticTask
from testbed.policies.transformer import Transformer, TransformerConfig
from testbed.training.grpo import GRPORun
from testbed.training.grpo_config import GRPOConfig
from testbed.training.recipe import Recipe
from testbed.training.sources import OnPolicySource
from testbed.training.supervised import WarmStart

TASK = ArithmeticTask(2)
SHAPE = TransformerConfig(vocab_size=14, width=8, heads=2, layers=1, hidden=8, context=8)
SMALL = {"width": 8, "heads": 2, "layers": 1, "hidden": 8, "prompts": 4, "responses": 4, "evaluate_responses": 2}
EXACT = {"sampler": {"dtype": "float64"}, "trainer": {"dtype": "float64"}}


@lru_cache
def taught(seed):
    """Weights under which right answers are not rare."""
    run = WarmStart(Transformer.random(SHAPE, seed), TASK, TASK.prompts(), Recipe(steps=40, batch=9, rate=1e-2), seed)
    for _ in range(40):
        run.advance()
    return run.model


def model(seed=0, dtype=torch.float32):
    """A copy of them in a format."""
    return Transformer(SHAPE, {name: w.to(dtype) for name, w in taught(seed).weights.items()})


def on_policy(run):
    """The source of a synchronous run."""
    return OnPolicySource(run.config, run.env, run.sampler(), run.prompts, run.seed["source"])


def made(seed=0, source=on_policy, weights=None, env=TASK, **settings):
    """A run."""
    return GRPORun(GRPOConfig.of({**SMALL, **settings}), env, model() if weights is None else weights, source, seed)


def ran(*args, **settings):
    """A run to its end."""
    run = made(*args, **settings)
    while run.advance():
        pass
    return run
