"""Verdicts: what was decided, by how much, and what was seen to fail."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimResult:
    """A claim over all its instances, with the worst case."""

    name: str
    relation: str
    says: str
    holds: bool
    instances: int
    gap: float
    slack: float | None
    worst: str
    lhs: float
    rhs: float
    tolerance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MutantResult:
    """Whether a mutant was rejected, and by what margin (least violation over the claims it must break)."""

    name: str
    kind: str
    killed: bool
    margin: float
    required: float
    why: str
    broke: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DerivationResult:
    """Whether each step follows from the one before and the expressions match the library.

    `silent` are instances at which the library gives none of the quantities that the steps name.
    """

    holds: bool
    steps: int
    points: int
    gap: float
    problem: str = ""
    silent: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The decision on one theorem.

    `holds` means decided as catalogued: claims hold, derivation checks, every mutant is killed, the sampled check passes.
    """

    id: str
    kind: str
    title: str
    source: str
    reading: bool
    holds: bool
    lhs: float
    rhs: float
    gap: float
    tolerance: float
    instances: int
    mutants: tuple[MutantResult, ...]
    sampled: dict[str, Any] | None
    seconds: float
    claims: tuple[ClaimResult, ...] = ()
    derivation: DerivationResult | None = None
    hypotheses: tuple[str, ...] = ()
    statement: str = ""
    outcome: str = ""
    problems: tuple[str, ...] = field(default=())
    table: tuple[dict[str, Any], ...] = ()

    def record(self) -> dict[str, Any]:
        """Return the verdict as plain data for JSON."""
        return asdict(self)
