"""Measure the mismatch of two engines of a real model: who draws in bfloat16 with a cache, who scores in full passes.

The sampler draws every token from its own law (temperature 1, the whole vocabulary) and that law is scored again by two
trainers: float32, the more exact one, and bfloat16, what a trainer usually is. All log-probabilities are taken in
float64 from the logits an engine gave. A token's probability "rounds to 1" in an engine if the float32 log-softmax of
its logits is exactly 0 there: an engine that reports float32 then leaves no finite log-odds.

At every STRIDE-th position the perturbation of the logits, trainer's minus sampler's, is kept for the TOP tokens the
sampler finds likeliest.

Finished parts lie in a folder of their own, so an interruption loses at most one. One thread does all arithmetic, so the
same seed gives the same tokens on the same machine (another processor rounds bfloat16 sums in another order).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paper_repro.part_files import load_part, save_part
from paper_repro.real_prompts import QUESTIONS, questions
from testbed.core.choices import RandomChooser
from testbed.core.seeds import SeedTree
from testbed.policies.pretrained import END, LanguageModel, PretrainedPolicy
from theory.run import one_thread

STRIDE, TOP = 24, 20
TRAINERS = ("float32", "bfloat16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is measured: `parts` batches of `responses` responses of at most `horizon` tokens each."""

    seed: int = 0
    parts: int = len(QUESTIONS)
    responses: int = 64
    horizon: int = 96

    def name(self) -> str:
        """Return a folder name that tells two plans apart."""
        return f"seed{self.seed}_{self.parts}x{self.responses}x{self.horizon}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Engines:
    """The sampler, the two trainers in the order of TRAINERS, and what turns a question into token ids."""

    sampler: LanguageModel
    trainers: tuple[LanguageModel, LanguageModel]
    encode: Callable[[str], Tensor]


def load_engines() -> Engines:
    """Load the small language model three times from one reading of its file.

    Raises
    ------
    InputError   `make real` has not been run
    """
    from testbed.policies.gguf_weights import read_llama
    from testbed.policies.pretrained import chat_prompt, load_pretrained

    weights = read_llama()
    return Engines(
        sampler=load_pretrained("bfloat16", attention="eager", weights=weights),
        trainers=(load_pretrained("float32", weights=weights), load_pretrained("bfloat16", weights=weights)),
        encode=chat_prompt,
    )


def measure_part(engines: Engines, plan: Plan, number: int) -> dict[str, np.ndarray]:
    """Draw and score one batch of responses to question number mod 12.

    Returns
    -------
    dict   one entry per drawn token: response, position, token, logp_behavior, logp_target_* (nats), one (bit i set:
           the probability rounds to 1 in the sampler, i = 0, or in trainer i - 1). One entry per kept logit: noise_*:
           response, position, token, logq, drawn (is it the drawn token?), delta_* (trainer's logit minus the
           sampler's), normalizer_* (difference of the log-sums) and shift_* (sum_j q_j delta_j over all j)
    """
    seeds = SeedTree(plan.seed)["real mismatch"][number]
    prompts = [engines.encode(text) for text in questions(number % len(QUESTIONS), plan.responses, seeds)]
    group = torch.arange(plan.responses)
    decoder = PretrainedPolicy(engines.sampler, prompts).decoder(group)
    chooser = RandomChooser(seeds["tokens"])
    tokens = torch.zeros(plan.responses, plan.horizon, dtype=torch.int64)
    logp = torch.zeros(plan.responses, plan.horizon, dtype=torch.float64)
    one = torch.zeros(plan.responses, plan.horizon, dtype=torch.uint8)
    live = torch.ones(plan.responses, dtype=torch.bool)
    length = torch.zeros(plan.responses, dtype=torch.int64)
    kept: dict[tuple[int, int], Tensor] = {}
    for t in range(plan.horizon):
        rows = torch.nonzero(live)[:, 0]
        if rows.numel() == 0:
            break
        logits = decoder.next_logits(tokens[rows, :t], rows)
        law = torch.log_softmax(logits.double(), -1)
        drawn = chooser.choose(law.exp())
        tokens[rows, t], length[rows] = drawn, t + 1
        logp[rows, t] = law.gather(1, drawn[:, None])[:, 0]
        one[rows, t] = _rounds_to_one(logits, drawn)
        kept.update({(int(r), t): logits[i] for i, r in enumerate(rows.tolist()) if (7 * r + t) % STRIDE == 0})
        live[rows] = drawn != END
    mask = torch.arange(plan.horizon) < length[:, None]
    found = {"logp_behavior": logp[mask].numpy()}
    noise: dict[tuple[int, int], list[dict[str, np.ndarray]]] = {key: [] for key in sorted(kept)}
    for bit, (name, trainer) in enumerate(zip(TRAINERS, engines.trainers, strict=True), 1):
        scored = torch.zeros_like(logp)
        for row, logits in PretrainedPolicy(trainer, prompts).at(group).response_logits(tokens[:, : int(length.max())]):
            n = int(length[row])
            law = torch.log_softmax(logits[:n].double(), -1)
            scored[row, :n] = law.gather(1, tokens[row, :n, None])[:, 0]
            one[row, :n] |= _rounds_to_one(logits[:n], tokens[row, :n]) << bit
            for t in range(n):
                if (row, t) in kept:
                    noise[row, t].append(_perturbation(kept[row, t], logits[t], name))
        found[f"logp_target_{name}"] = scored[mask].numpy()
    row, position = (index.numpy() for index in torch.nonzero(mask, as_tuple=True))
    found |= {"response": row, "position": position, "token": tokens[mask].numpy(), "one": one[mask].numpy()}
    return found | _noise_columns(noise, kept, tokens)


def _rounds_to_one(logits: Tensor, drawn: Tensor) -> Tensor:
    return (torch.log_softmax(logits.float(), -1).gather(1, drawn[:, None])[:, 0] == 0).to(torch.uint8)


def _perturbation(sampler: Tensor, trainer: Tensor, name: str) -> dict[str, np.ndarray]:
    """Differences of logits at one position: of the sampler's TOP tokens, of the log-sums, and the mean under q."""
    q, p = sampler.double(), trainer.double()
    delta, top = p - q, q.topk(TOP).indices
    normalizer = torch.logsumexp(p, -1) - torch.logsumexp(q, -1)
    shift = (torch.softmax(q, -1) * delta).sum()
    return {
        f"delta_{name}": delta[top].numpy(),
        f"normalizer_{name}": normalizer.expand(TOP).numpy(),
        f"shift_{name}": shift.expand(TOP).numpy(),
    }


def _noise_columns(
    noise: dict[tuple[int, int], list[dict[str, np.ndarray]]], kept: dict[tuple[int, int], Tensor], tokens: Tensor
) -> dict[str, np.ndarray]:
    columns: dict[str, list[np.ndarray]] = {}
    for (row, t), parts in noise.items():
        law = torch.log_softmax(kept[row, t].double(), -1)
        top = kept[row, t].double().topk(TOP).indices
        entry: dict[str, np.ndarray] = {
            "response": np.full(TOP, row),
            "position": np.full(TOP, t),
            "token": top.numpy(),
            "logq": law[top].numpy(),
            "drawn": (top == tokens[row, t]).numpy(),
        }
        for part in parts:
            entry |= part
        for name, values in entry.items():
            columns.setdefault(f"noise_{name}", []).append(values)
    return {name: np.concatenate(values) for name, values in columns.items()}


def measure(
    plan: Plan, work: Path, engines: Callable[[], Engines] = load_engines, say: Callable[[str], Any] = print
) -> list[dict[str, np.ndarray]]:
    """Measure every part of a plan, taking those a former run finished from its folder.

    Parameters
    ----------
    work : Path           parts go to work / plan.name() / part-NN.npz, each written whole
    engines : function    called only if something is left to measure
    say : function        given one line per measured part, with the time that remains

    Raises
    ------
    InputError   a part that cannot be read or written; whatever `engines` raises
    """
    folder = work / plan.name()
    missing = [number for number in range(plan.parts) if not _part_path(folder, number).exists()]
    loaded = engines() if missing else None  # before any folder is made: they may not be installed
    folder.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    for done, number in enumerate(missing, 1):
        assert loaded is not None
        before = time.perf_counter()
        found = one_thread(measure_part, loaded, plan, number)
        save_part(_part_path(folder, number), found | {"seconds": np.array(time.perf_counter() - before)})
        spent = time.perf_counter() - started
        left = spent / done * (len(missing) - done)
        say(f"part {number + 1}/{plan.parts}: {len(found['token']):,} tokens, {spent:.0f} s, about {left:.0f} s left")
    return [load_part(_part_path(folder, number)) for number in range(plan.parts)]


def _part_path(folder: Path, number: int) -> Path:
    return folder / f"part-{number:02d}.npz"
