"""What a theorem is here: hypotheses, claims about named quantities, a derivation, instances, and mutants that must fail.

A theorem file says *what* is claimed and how the library computes each quantity; `theory.judge` decides it:

* every claim holds on every instance that carries its quantities (and each claim is exercised somewhere);
* every step of the derivation follows from the one before, at random rational points;
* the derivation's expressions, evaluated at each instance, equal the library's numbers;
* every mutant breaks exactly the claims it names, by more than 1000 times the tolerance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from theory.derivation import Derivation
    from theory.sampled import SampledCheck

Kind = Literal["identity", "bound", "optimum", "counterexample", "report"]
Relation = Literal["equal", "at_most", "differs"]
Quantities = Mapping[str, Any]  # name -> number, torch tensor or numpy array

TOLERANCE = 1e-10  # float64 identities, relative to the larger side (and to 0.01 where both are smaller)
KILL_FACTOR = 1e3  # a mutant must miss by this many tolerances


class Instance(Protocol):
    """One concrete case; anything with a name. Most theorems use `theory.worlds.World`."""

    @property
    def name(self) -> str:
        """Name in snake_case, unique within the theorem."""
        ...


@dataclass(frozen=True, slots=True)
class Claim:
    """A relation between two named quantities, checked elementwise on every instance that has both.

    equal     |left - right| <= tolerance * scale
    at_most   left - right <= tolerance * scale
    differs   max |left - right| >= margin * scale    (a counterexample: the equality is refuted by this much)

    scale = max(|left|, |right|, 0.01) over all elements.
    """

    name: str
    relation: Relation
    left: str
    right: str
    says: str
    margin: float = 1e-3
    tolerance: float = TOLERANCE


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A theorem gone wrong: a hypothesis dropped, or a bug planted in a library function.

    Parameters
    ----------
    name : str                what is wrong, in snake_case
    kind : "hypothesis" or "bug"
    why : str                 what is wrong, and why the instances can tell
    breaks : tuple of str     the claims that must fail; all others must still hold
    instances : callable      instances that violate the hypothesis (default: the theorem's own)
    on : tuple of str         restrict to the instances of these names
    plant : callable          context manager under which the library is wrong (see `theory.planting`)
    measure : callable        how the mutated reading computes its quantities (default: the theorem's own)
    """

    name: str
    kind: Literal["hypothesis", "bug"]
    why: str
    breaks: tuple[str, ...]
    instances: Callable[[], Sequence[Any]] | None = None
    on: tuple[str, ...] = ()
    plant: Callable[[], AbstractContextManager[Any]] | None = None
    measure: Callable[[Any], Quantities] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Theorem:
    """A catalogue entry.

    Parameters
    ----------
    id, kind, title           S4, "identity", a line
    hypotheses : tuple        what is assumed, first
    statement : str           the formula, in the catalogue's notation
    source : str              paper | literature (cited) | ours
    reading : bool            whether the formula is our reading of an abstract rather than a printed formula
    claims, instances, measure, derive, mutants, sampled
    outcome : str             what the decision means for a practitioner
    refutes : str             of a counterexample: the usual claim that it shows to be false
    table : callable          rows to print with the theorem, each column -> number or word; a new table where columns change
    """

    id: str
    kind: Kind
    title: str
    hypotheses: tuple[str, ...]
    statement: str
    source: str
    claims: tuple[Claim, ...]
    instances: Callable[[], Sequence[Any]]
    measure: Callable[[Any], Quantities]
    derive: Callable[[Any], Derivation]
    outcome: str
    mutants: tuple[Mutant, ...] = ()
    sampled: Callable[[], SampledCheck] | None = None
    reading: bool = False
    refutes: str = ""
    references: tuple[str, ...] = field(default=())
    table: Callable[[], list[dict[str, Any]]] | None = None

    @property
    def headline(self) -> str:
        """Title as tables show it; a counterexample quotes the claim that it refutes."""
        return f'"{self.refutes}": no, {self.title}' if self.refutes else self.title
