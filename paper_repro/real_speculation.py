"""Measure speculation on a real model: heads taught on its own samples, drafts accepted, and its tokens against the loop's.

In float32, on our own transformer. Responses to the taught prompts are sampled by the engine without drafts, which shows the
streams that heads read; heads are taught on them; then every held-out prompt is answered by the autoregressive loop and by the
engine with each kind of draft, under one noise per (response, position). A response that is not the loop's, token for token,
is entered in a ledger of near ties. What is measured last is a few responses in an order of summation that does not depend on
the shape of a pass, where no response may part at all.

Each unit of work leaves a file in a folder of its own, and the teaching a checkpoint after some updates, so that an
interruption loses at most a minute or two.
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
from paper_repro.speculation_arrays import Arrays, batch_arrays, batch_of, ledger_arrays
from paper_repro.speculation_prompts import FORMS
from paper_repro.speculation_rounds import RoundNotes, StreamNotes, ranks
from paper_repro.speculation_subject import Asked, FreeText, Plan, Subject, load_subject
from testbed.core.batch import SegmentedBatch
from testbed.core.choices import RandomChooser
from testbed.core.seeds import SeedTree
from testbed.policies.transformer import Numerics, TransformerPolicy
from testbed.policies.transformer.forward import next_token_laws
from testbed.rollout import rollout
from testbed.rollout.speculative import (
    Drafter,
    FutureHeads,
    HeadDrafter,
    PromptLookup,
    speculative_rollout,
)
from testbed.rollout.speculative.head_training import HeadTeacher, future_tokens
from testbed.rollout.speculative.near_ties import TieChooser, partings
from testbed.rollout.speculative.rounds import Round
from testbed.training.checkpoints import load_checkpoint, save_checkpoint

DRAFTS = ("untaught heads", "taught heads", "prompt lookup")
TOP = (1, 4)  # a token is counted as found among so many of a law's most probable
CHECKPOINT = 10  # updates
POSITIONS = 32  # whose laws exist at a time
COST = {"sample": 10, "teach": 115, "loop": 14, "draft": 40, "heads": 8, "fixed": 25}  # of a unit, in any unit of time


@dataclass(frozen=True, slots=True)
class Unit:
    """One file's worth of work: its kind, and the numbers that tell it apart."""

    kind: str
    number: int = 0
    draft: int = 0

    @property
    def name(self) -> str:
        """File name, less its ending."""
        return f"{self.kind}-{self.number:02d}" + (f"-{self.draft}" if self.kind in ("draft", "fixed") else "")


def units(plan: Plan) -> list[Unit]:
    """Return everything that is measured, in an order in which each finds what it needs."""
    out = [Unit("sample", form) for form in range(len(FORMS))] + [Unit("teach")]
    for part in range(plan.parts):
        out += [Unit("loop", part), *(Unit("draft", part, draft) for draft in range(len(DRAFTS))), Unit("heads", part)]
    return out + ([Unit("fixed", 0, draft) for draft in (0, 1)] if plan.fixed else [])


class Speculation:
    """A subject under measurement; every unit is a method that gives the arrays of its file.

    Parameters
    ----------
    plan : Plan
    subject : Subject
    folder : Path              where finished units lie
    say : callable             told of the teaching's progress
    """

    def __init__(self, plan: Plan, subject: Subject, folder: Path, say: Callable[[str], Any] = print) -> None:
        self.plan, self.subject, self.folder, self.say = plan, subject, folder, say
        self.asked = Asked.of(subject, plan)
        self.seeds = SeedTree(plan.seed)["speculation"]
        self.env = FreeText(subject.model.config.vocab_size, plan.horizon, subject.eos)

    @property
    def policy(self) -> TransformerPolicy:
        """The model behind all prompts."""
        return self.asked.policy

    def done(self, unit: Unit) -> Arrays:
        """Read a finished unit."""
        return load_part(self.folder / f"{unit.name}.npz")

    # ------------------------------------------------------------------------------------------- teaching
    def sample(self, unit: Unit) -> Arrays:
        """Answer a form's taught prompts without drafts, and keep the streams."""
        group, chooser = self.asked.taught(unit.number), RandomChooser(self.seeds["sample"][unit.number])
        streams = StreamNotes(len(group), self.plan.horizon, self.policy.config.width)
        batch = speculative_rollout(self.env, self.policy, len(group), chooser, group=group, watch=streams)
        return batch_arrays(batch) | {"states": streams.states.numpy()}

    def teach(self, unit: Unit) -> Arrays:
        """Teach heads on all samples, from the latest checkpoint on."""
        heads = self.heads()
        parts = [self.done(Unit("sample", form)) for form in range(len(FORMS))]
        batch = SegmentedBatch.concatenated([batch_of(part) for part in parts])
        states = torch.cat([torch.from_numpy(part["states"]) for part in parts]).to(heads.matrix.dtype)
        teacher = HeadTeacher(heads, self.policy, batch, self.plan.recipe, self.seeds["teach"], states)
        path, losses = self.folder / "heads.pt", []
        if path.exists():
            kept = load_checkpoint(path)
            teacher.restore(kept)
            losses = kept["losses"]
        while teacher.step < self.plan.recipe.steps:
            losses.append(teacher.advance())
            if teacher.step % CHECKPOINT == 0 or teacher.step == self.plan.recipe.steps:
                save_checkpoint(path, teacher.state() | {"losses": losses})
                self.say(f"teaching: {teacher.step}/{self.plan.recipe.steps} updates, loss {losses[-1]:.3f}")
        return {"losses": np.array(losses), "positions": np.array(int(teacher.real.any(-1).sum()))}

    def heads(self, taught: bool = False) -> FutureHeads:
        """Heads as new, or as the teaching left them."""
        heads = FutureHeads.of(self.policy, self.plan.heads)
        if taught:
            learned = load_checkpoint(self.folder / "heads.pt")
            with torch.no_grad():
                for weight, kept in zip(heads.parameters(), learned["heads"], strict=True):
                    weight.copy_(kept)
        return heads

    # ------------------------------------------------------------------------------------------- drafting
    def drafter(self, draft: int) -> Drafter:
        """Return a kind of drafts."""
        name = DRAFTS[draft]
        if name == "prompt lookup":
            return PromptLookup()
        return HeadDrafter(self.heads(taught=name == "taught heads"), self.plan.fan_out)

    def noise(self, part: int) -> TieChooser:
        """Noise of a part's responses, the same for every engine."""
        return TieChooser(self.seeds["noise"][part].integer())

    def loop(self, unit: Unit) -> Arrays:
        """Answer a part of the held-out prompts in the autoregressive loop."""
        return self._loop(self.policy, self.asked.held(unit.number), self.env, unit.number)

    def draft(self, unit: Unit) -> Arrays:
        """Answer them with drafts, and compare."""
        group, loop = self.asked.held(unit.number), self.done(Unit("loop", unit.number))
        drafter, nodes = self.drafter(unit.draft), self.plan.nodes
        return self._drafted(self.policy, group, self.env, loop, drafter, nodes, unit.number)

    def fixed(self, unit: Unit) -> Arrays:
        """Answer a few prompts with sums in one order: first in the loop, then with drafts of taught heads."""
        policy = self.policy.under(Numerics(dtype="float32", reduction="fixed"))
        group = self.asked.held(0)[: self.plan.fixed]
        env = FreeText(self.env.vocab_size, self.plan.fixed_horizon, self.env.eos)
        if unit.draft == 0:
            return self._loop(policy, group, env, 0)
        drafter = self.drafter(DRAFTS.index("taught heads"))
        return self._drafted(policy, group, env, self.done(Unit("fixed", 0, 0)), drafter, self.plan.fixed_nodes, 0)

    def _loop(self, policy: TransformerPolicy, group: Tensor, env: FreeText, part: int) -> Arrays:
        chooser = self.noise(part)
        batch = rollout(env, policy, len(group), chooser, group=group)
        return batch_arrays(batch) | {"gaps": chooser.gaps(len(group), env.horizon).numpy()}

    def _drafted(
        self,
        policy: TransformerPolicy,
        group: Tensor,
        env: FreeText,
        loop: Arrays,
        drafter: Drafter,
        nodes: int,
        part: int,
    ) -> Arrays:
        count, chooser = len(group), self.noise(part)
        notes = RoundNotes(count, env.horizon, env.eos)
        streams = StreamNotes(count, env.horizon, policy.config.width)

        def watch(finished: Round) -> None:
            notes(finished)
            streams(finished)

        written = speculative_rollout(
            env, policy, count, chooser, drafter=drafter, nodes=nodes, group=group, watch=watch
        )
        first, gaps = batch_of(loop), (torch.from_numpy(loop["gaps"]), chooser.gaps(count, env.horizon))
        out = batch_arrays(written) | {name: value.numpy() for name, value in notes.sums.items()}
        out |= ledger_arrays(partings(first, written, gaps), first, written, gaps[0], policy, chooser)
        return out | {"states": streams.states.numpy()}

    # ------------------------------------------------------------------------------------------- heads
    def heads_judged(self, unit: Unit) -> Arrays:
        """Rank every future token of a part's responses under the model's own next law, untaught and taught heads.

        The first column is the model's law of the next token itself, then come untaught heads 1 .. K, then taught ones.
        """
        part = self.done(Unit("draft", unit.number))
        batch, states = batch_of(part), torch.from_numpy(part["states"])
        heads, columns = self.heads(taught=True), 1 + 2 * self.plan.heads
        target, real = future_tokens(batch.tokens, batch.mask, heads.count)
        known, row = batch.mask, torch.nonzero(batch.mask)[:, 0]
        states = states[known].to(heads.matrix.dtype)
        token = torch.cat([batch.tokens[..., None], target, target], -1)[known]
        counts = torch.cat([known[..., None], real, real], -1)[known]
        found = []
        with torch.no_grad():
            weights, numerics = self.policy.weights(), self.policy.numerics
            for piece in torch.arange(len(row)).split(POSITIONS):
                own = next_token_laws(states[piece], weights, self.policy.config, numerics)[:, None]
                laws = torch.cat(
                    [own.expand(-1, 1 + heads.count, -1), heads.log_laws(states[piece], weights, numerics)], 1
                )
                found.append((ranks(laws, token[piece]), -laws.gather(-1, token[piece][..., None])[..., 0]))
        rank, surprise = (torch.cat(values) for values in zip(*found, strict=True))
        out = {"count": counts.double()} | {f"top{k}": (rank < k) & counts for k in TOP}
        out["surprise"] = torch.where(counts, surprise, 0.0)
        zero = torch.zeros(len(batch.tokens), columns, dtype=torch.float64)
        return {name: zero.index_add(0, row, value.double()).numpy() for name, value in out.items()}

    def measured(self, unit: Unit) -> Arrays:
        """Do a unit."""
        return getattr(self, "heads_judged" if unit.kind == "heads" else unit.kind)(unit)


def measure_speculation(
    plan: Plan, work: Path, subject: Callable[[], Subject] = load_subject, say: Callable[[str], Any] = print
) -> dict[Unit, Arrays]:
    """Measure every unit of a plan, taking those a former run finished from its folder.

    Parameters
    ----------
    work : Path           units go to work / plan.name() / KIND-NN.npz, each written whole; heads to heads.pt beside them
    subject : function    called only if something is left to measure
    say : function        given a line per measured unit, with the time that remains

    Raises
    ------
    InputError   a file that cannot be read; whatever `subject` raises
    """
    folder, wanted = work / plan.name(), units(plan)
    missing = [unit for unit in wanted if not (folder / f"{unit.name}.npz").exists()]
    if missing:
        loaded = subject()  # before any folder is made: it may not be installed
        folder.mkdir(parents=True, exist_ok=True)
        run, started = Speculation(plan, loaded, folder, say), time.perf_counter()
        whole = left = sum(COST[unit.kind] for unit in missing)
        for unit in missing:
            before = time.perf_counter()
            found = run.measured(unit)
            now = time.perf_counter()
            save_part(folder / f"{unit.name}.npz", found | {"seconds": np.array(now - before)})
            left -= COST[unit.kind]
            remains = (now - started) * left / (whole - left)
            told = f"{unit.name}: {now - before:.0f} s{_told(unit, found)}; "
            say(told + f"{now - started:.0f} s so far, about {remains:.0f} s left")
    return {unit: load_part(folder / f"{unit.name}.npz") for unit in wanted}


def _told(unit: Unit, found: Arrays) -> str:
    """What a line of progress says of a unit."""
    if "tokens" not in found:
        return ""
    text = f", {int(found['mask'].sum()):,} tokens"
    if "rounds" in found:
        parted = int((found["parted"] >= 0).sum())
        text += f" ({DRAFTS[unit.draft] if unit.kind == 'draft' else 'taught heads'}), "
        text += f"{found['accepted'].sum() / found['rounds'].sum():.3f} accepted per round, {parted} partings"
    return text
