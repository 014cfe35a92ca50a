"""The description of one weighting rule, free of any numerical library so that tables and `--help` stay instant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

GRANULARITIES = ("token", "prefix", "segment", "segment_prefix", "sequence_product", "sequence_geomean")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A named pair of granularity and operator, with where it comes from and what is proved about it.

    Parameters
    ----------
    name : str                 the name `weigh` takes
    granularity : str          the ratio it uses unless told otherwise
    granularities : tuple      the ratios it may use; one entry means the granularity is part of the rule
    parameters : mapping       every parameter with its default
    needs : tuple              optional batch fields it requires
    instead : mapping          field -> parameter that does without it when given
    needs_advantage : bool     whether the sign of the advantage decides
    alone : bool               whether a token's weight under fixed parameters is a function of that token and its advantage,
                               at granularity `token`: it then has a value for tokens that were not drawn
    summary, formula : str     one line each; rho_t is the token ratio target/behavior
    source : str               where the rule was published
    theorems : tuple           ids of the catalogue entries that speak about it
    differs : str              how widely used training frameworks deviate from this definition
    home : str                 module of this package that implements it

    Examples
    --------
    >>> Rule(name="half", summary="an example", formula="1/2", source="none", home="plain").generic
    False
    """

    name: str
    summary: str
    formula: str
    source: str
    home: str
    granularity: str = "token"
    granularities: tuple[str, ...] = ()
    parameters: Mapping[str, object] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    instead: Mapping[str, str] = field(default_factory=dict)
    needs_advantage: bool = False
    alone: bool = True
    theorems: tuple[str, ...] = ()
    differs: str = ""

    def __post_init__(self) -> None:
        if not self.granularities:
            object.__setattr__(self, "granularities", (self.granularity,))

    @property
    def generic(self) -> bool:
        """Whether the rule is an operator that accepts any granularity."""
        return self.granularities == GRANULARITIES
