"""What speculation is measured on: a model with its prompts, and the plan of a measurement."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from paper_repro.speculation_prompts import FORMS, prompts_of
from testbed.core.seeds import SeedTree
from testbed.environments.base import Environment
from testbed.policies.transformer import Numerics, Transformer, TransformerPolicy
from testbed.rollout.speculative import HeadRecipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is measured.

    Parameters
    ----------
    seed : int
    taught, responses : int        prompts of each form that heads are taught on, and responses to each
    held, each : int               prompts of each form that are held out, one response to each; so many of a form per part
    horizon : int                  most tokens of a response
    recipe : HeadRecipe            of the teaching
    heads, nodes : int             heads; candidates per response and round
    fan_out : tuple of int         candidates considered at each depth
    fixed : int                    responses of the first part that are written in the fixed order of summation, too
    fixed_horizon, fixed_nodes : int   their most tokens, and candidates
    """

    seed: int = 0
    taught: int = 6
    responses: int = 4
    held: int = 12
    each: int = 4
    horizon: int = 48
    recipe: HeadRecipe = field(default_factory=lambda: HeadRecipe(steps=160, batch=4, rate=3e-2))
    heads: int = 3
    nodes: int = 8
    fan_out: tuple[int, ...] = (4, 3, 2)
    fixed: int = 3
    fixed_horizon: int = 16
    fixed_nodes: int = 4

    @property
    def parts(self) -> int:
        """Parts of the held-out responses."""
        return self.held // self.each

    def name(self) -> str:
        """Return a folder name that tells two plans apart."""
        taught = f"{self.taught}x{self.responses}_{self.recipe.steps}x{self.recipe.batch}at{self.recipe.rate:g}"
        shape = f"{self.held}by{self.each}x{self.horizon}_{self.heads}heads{self.nodes}nodes"
        return f"seed{self.seed}_{taught}_{shape}_{self.fixed}x{self.fixed_horizon}x{self.fixed_nodes}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A model, what turns a question into token ids behind its start id, and the token that ends a response."""

    model: Transformer
    encode: Callable[[str], Int64[Tensor, " L"]]
    eos: int | None


def load_subject() -> Subject:
    """Load the small language model as our own transformer; the start id stands for its prompts' first token.

    Raises
    ------
    InputError   `make real` has not been run
    """
    from testbed.policies.pretrained import END, chat_prompt
    from testbed.policies.pretrained_transformer import pretrained_transformer, prompts_without_start

    first = int(chat_prompt(FORMS[0])[0])
    return Subject(
        model=pretrained_transformer(start=first),
        encode=lambda text: prompts_without_start([chat_prompt(text)], first)[0],
        eos=END,
    )


class FreeText(Environment):
    """Responses of at most `horizon` tokens that nobody rewards."""

    def __init__(self, vocab_size: int, horizon: int, eos: int | None) -> None:
        self.vocab_size, self.horizon, self.eos = vocab_size, horizon, eos

    def reward(
        self, tokens: Int64[Tensor, "B T"], mask: Bool[Tensor, "B T"], group: Int64[Tensor, " B"]
    ) -> Float[Tensor, " B"]:
        """Zeros."""
        return torch.zeros(len(tokens), dtype=torch.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Every prompt of a plan as one policy's groups: form after form, of each those to teach with, then those held out."""

    policy: TransformerPolicy
    plan: Plan

    @staticmethod
    def of(subject: Subject, plan: Plan) -> Asked:
        """Encode the prompts and put the model behind them, in float32."""
        seeds, texts = SeedTree(plan.seed)["speculation"]["prompts"], []
        for form in range(len(FORMS)):
            learn, judge = prompts_of(form, plan.taught, plan.held, seeds)
            texts += learn + judge
        ids = [subject.encode(text) for text in texts]
        lengths = torch.tensor([len(one) for one in ids])
        padded = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True)
        return Asked(policy=TransformerPolicy(subject.model, padded, lengths, Numerics(dtype="float32")), plan=plan)

    def taught(self, form: int) -> Int64[Tensor, " n"]:
        """Groups of a form's responses to teach with, in the order they are written."""
        first = form * (self.plan.taught + self.plan.held)
        return torch.arange(first, first + self.plan.taught).repeat_interleave(self.plan.responses)

    def held(self, part: int) -> Int64[Tensor, " n"]:
        """Groups of one part of the held-out prompts: `each` of every form, form after form."""
        first = (
            torch.arange(len(FORMS)) * (self.plan.taught + self.plan.held) + self.plan.taught + part * self.plan.each
        )
        return (first[:, None] + torch.arange(self.plan.each)).flatten()
