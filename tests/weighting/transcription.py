"""Compare a rule with its formula, transcribed at 50 digits from where it was published.

A formula is a function of one token, registered under the rule's name with the defaults it was published with:

    @transcribes("tis", cap=2.0)
    def tis(x, cap):
        return Outcome(min(x.w, cap))

It lives in a module of `tests/weighting/formulas` (each is imported by `load_formulas`), uses mpmath only, and never imports
from the library. `x` is a `Token`; parameters arrive as exact numbers, strings and lists. `disagreements` then
walks a batch and lists the tokens where weight, gate, raw ratio or surrogate value differ; [] means the rule is its formula.
"""

from __future__ import annotations

import importlib
import math
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import mpmath
import torch

from testbed.weighting.rules import RULES, weigh
from tests.weighting import formulas
from tests.weighting.worlds import recorded

mpmath.mp.dps = 50
LARGEST = mpmath.mpf(torch.finfo(torch.float64).max)
FORMULAS: dict[str, Formula] = {}


@dataclass(frozen=True)
class Outcome:
    """What a rule makes of one token: weight with the gate applied, gate, surrogate value of clip-type rules."""

    value: object
    kept: bool = True
    objective: object = None


@dataclass(frozen=True)
class Formula:
    """A transcription and the defaults it was published with."""

    of: Callable[..., Outcome]
    defaults: dict


def transcribes(name, **defaults):
    """Register the formula of a rule together with its published defaults."""

    def register(function):
        assert name not in FORMULAS, f"{name} is transcribed twice"
        FORMULAS[name] = Formula(function, defaults)
        return function

    return register


def load_formulas():
    """Return every registered formula: name -> Formula."""
    for module in pkgutil.iter_modules(formulas.__path__):
        importlib.import_module(f"{formulas.__name__}.{module.name}")
    return FORMULAS


# ------------------------------------------------------------------------------------------- what a formula sees
@dataclass
class Slot:
    """One token of a next-token law: both log-probs, and whether it is the one that was drawn."""

    drawn: bool
    log_p: object
    log_q: object


@dataclass
class Response:
    """The real tokens of one response: log-probs as exact numbers, segment labels, advantages, group."""

    target: list
    behavior: list
    proximal: list
    segment: list
    advantage: list
    group: int
    heads: list | None = None  # per token, the slots of its next-token laws
    rests: list | None = None  # per token, the mass of target and behavior outside them

    def __len__(self):
        return len(self.target)

    @cached_property
    def log_ratios(self):
        return [a - b for a, b in zip(self.target, self.behavior, strict=True)]

    @cached_property
    def ratios(self):
        return [mpmath.exp(x) for x in self.log_ratios]

    def at(self, granularity, t):
        """Ratio of token t at a granularity, multiplied out factor by factor."""
        n = len(self)
        if granularity == "token":
            chosen = [t]
        elif granularity == "prefix":
            chosen = range(t + 1)
        elif granularity == "segment":
            chosen = [s for s in range(n) if self.segment[s] == self.segment[t]]
        elif granularity == "segment_prefix":
            chosen = [s for s in range(n) if self.segment[s] <= self.segment[t]]
        else:
            assert granularity in ("sequence_product", "sequence_geomean")
            chosen = range(n)
        product = mpmath.fprod(self.ratios[s] for s in chosen)
        return mpmath.root(product, n) if granularity == "sequence_geomean" else product


@dataclass
class Token:
    """One token of one response of a batch (`rows`: every response that has a token, for rules that see them all)."""

    rows: list
    row: Response
    t: int
    granularity: str

    @cached_property
    def w(self):
        """Ratio at the rule's granularity."""
        return self.row.at(self.granularity, self.t)

    @property
    def rho(self):
        """Ratio of this token alone."""
        return self.row.ratios[self.t]

    @property
    def log_rho(self):
        return self.row.log_ratios[self.t]

    @property
    def log_p(self):
        """Log-prob of the target (the trainer)."""
        return self.row.target[self.t]

    @property
    def log_q(self):
        """Log-prob of the behavior (the sampler)."""
        return self.row.behavior[self.t]

    @property
    def p(self):
        return mpmath.exp(self.log_p)

    @property
    def q(self):
        return mpmath.exp(self.log_q)

    @property
    def k(self):
        """Mismatch ratio proximal/behavior."""
        return mpmath.exp(self.row.proximal[self.t] - self.log_q)

    @property
    def r(self):
        """Policy ratio target/proximal."""
        return mpmath.exp(self.log_p - self.row.proximal[self.t])

    @property
    def head(self):
        """Recorded part of this token's next-token laws, for rules that read them."""
        return self.row.heads[self.t]

    @property
    def rest_p(self):
        return self.row.rests[self.t][0]

    @property
    def rest_q(self):
        return self.row.rests[self.t][1]

    @property
    def advantage(self):
        return self.row.advantage[self.t]

    @property
    def length(self):
        return len(self.row)


def responses(batch, advantage=None):
    """Yield (row index, positions of its real tokens, Response) of every response with a token."""
    spread = (batch.reward if advantage is None else advantage).double()
    spread = spread if spread.dim() == 2 else spread[:, None].expand(batch.mask.shape)
    for b in range(batch.batch_size):
        where = [t for t in range(batch.horizon) if bool(batch.mask[b, t])]
        if where:
            logs = (batch.logp_target, batch.logp_behavior, batch.logp_proximal)
            columns = [[mpmath.mpf(x[b, t].item()) for t in where] for x in logs]
            labels = [batch.segment[b, t].item() for t in where]
            signed = [mpmath.mpf(spread[b, t].item()) for t in where]
            yield b, where, Response(*columns, labels, signed, int(batch.group[b]), *laws_of(batch, b, where))


def laws_of(batch, b, where):
    """Return the next-token laws at these positions as (heads, rests), or nothing."""
    laws = batch.next_token
    if laws is None:
        return ()
    slots = [
        [
            Slot(i == int(batch.tokens[b, t]), mpmath.mpf(p), mpmath.mpf(q))
            for i, p, q in zip(
                *(x[b, t].tolist() for x in (laws.ids, laws.logp_target, laws.logp_behavior)), strict=True
            )
            if i >= 0
        ]
        for t in where
    ]
    rests = [[mpmath.mpf(x[b, t].item()) for x in (laws.remaining_target, laws.remaining_behavior)] for t in where]
    return slots, rests


def exact(value):
    """Return a parameter as the exact number the library was given."""
    if isinstance(value, list):
        return [exact(x) for x in value]
    return mpmath.mpf(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


# ------------------------------------------------------------------------------------------- the comparison
def close(got, want, rtol="1e-10"):
    """Whether a float is an exact number up to rounding; overflow is inf, underflow 0."""
    if abs(want) > LARGEST or (abs(want) > LARGEST / 4 and math.isinf(got)):  # a ratio may overflow before its product
        return got == (math.inf if want > 0 else -math.inf)
    return abs(mpmath.mpf(got) - want) <= mpmath.mpf(rtol) * abs(want) + mpmath.mpf("1e-300")


def disagreements(rule, batch, granularity=None, advantage=None, weights=None, **given):
    """Where the library's weights of a float64 batch are not what the rule's formula says: one line per token, [] if nowhere.

    `weights` replaces the library's answer (a rule that draws: fix its draw there); otherwise `weigh` is called.
    """
    formula = load_formulas()[rule]
    if "next_token" in RULES[rule].needs and batch.next_token is None:
        batch = recorded(batch, 0.7, 0.4)
    w = weigh(rule, batch, advantage=advantage, granularity=granularity, **given) if weights is None else weights
    level = RULES[rule].granularity if granularity is None else granularity
    params = {name: exact(value) for name, value in {**formula.defaults, **given}.items()}
    found = list(responses(batch, advantage))
    rows = [row for _, _, row in found]
    lines = []
    for b, where, row in found:
        for i, t in enumerate(where):
            x = Token(rows, row, i, level)
            want = formula.of(x, **params)
            pairs = {"value": (w.value, want.value), "raw": (w.raw, x.w)}
            if (want.objective is None) != (w.objective is None):
                lines.append(f"({b}, {t}): a surrogate value on one side only")
            elif want.objective is not None:
                pairs["objective"] = (w.objective, want.objective)
            wrong = [
                f"{name} {got[b, t].item()!r}, not {mpmath.nstr(right, 20)}"
                for name, (got, right) in pairs.items()
                if not close(got[b, t].item(), right)
            ]
            if bool(w.gate[b, t]) != bool(want.kept):
                wrong.append(f"gate {bool(w.gate[b, t])}")
            if wrong:
                lines.append(f"({b}, {t}): log p {float(x.log_p)!r}, log q {float(x.log_q)!r}: {'; '.join(wrong)}")
    off = ~batch.mask
    for name in ("value", "raw", "gate", "acted"):
        if bool(getattr(w, name)[off].any()):
            lines.append(f"{name} is not 0 on padding")
    return lines
