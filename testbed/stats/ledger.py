"""The budget of false alarms: 200 gates at 5e-9 each, so that a full run of correct code fails with probability 1e-6.

A gate is one random decision. Each is declared to the ledger before it is decided, under a name of its own, and costs
the same however many others there are; the 201st is refused instead of thinning the guarantee of the first 200.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from testbed.core.errors import InputError

GATE_ALPHA = 5e-9
CAPACITY = 200


@dataclass(frozen=True, slots=True)
class GateResult:
    """What a gate decided, and the promise under which it did.

    Attributes
    ----------
    passed : bool          False is evidence of a fault
    statistic : float      what was measured
    threshold : float      what it was compared with
    alpha : float          probability at most alpha that correct code fails this gate
    power : float          probability at least this that the declared fault fails it
    n : int                draws used
    reason : str           one sentence

    Examples
    --------
    >>> bool(GateResult(passed=True, statistic=0.0, threshold=1.0, alpha=5e-9, power=0.99, n=10, reason="near"))
    True
    """

    passed: bool
    statistic: float
    threshold: float
    alpha: float
    power: float
    n: int
    reason: str

    def __bool__(self) -> bool:
        return self.passed


@dataclass(slots=True)
class GateLedger:
    """Counts the gates of a run and refuses what would break the family-wise rate `capacity * alpha`.

    Attributes
    ----------
    capacity : int             how many gates may ever be declared
    alpha : float              the most one gate may spend
    spent : dict[str, float]   name -> alpha of the gates declared so far

    Examples
    --------
    >>> ledger = GateLedger(capacity=1)
    >>> ledger.register("one token", 5e-9)
    >>> ledger.register("two tokens", 5e-9)
    Traceback (most recent call last):
    ...
    testbed.core.errors.InputError: a ledger holds at most 1 gates; found one more, 'two tokens' (use an exact check)
    """

    capacity: int = CAPACITY
    alpha: float = GATE_ALPHA
    spent: dict[str, float] = field(default_factory=dict)

    @property
    def family_alpha(self) -> float:
        """Bound on the probability that correct code fails any gate, whatever is declared later."""
        return self.capacity * self.alpha

    def register(self, name: str, alpha: float) -> None:
        """Declare a gate.

        Raises
        ------
        InputError   the ledger is full; the name is taken; the gate spends more than its share
        """
        if name in self.spent:
            raise InputError(
                "a gate's name must be its own",
                found=repr(name),
                hint="a gate decided twice spends its error rate twice: declare two",
            )
        if not 0 < alpha <= self.alpha:
            raise InputError(f"a gate may spend at most alpha = {self.alpha:g}", found=f"{alpha:g} for {name!r}")
        if len(self.spent) >= self.capacity:
            raise InputError(
                f"a ledger holds at most {self.capacity} gates",
                found=f"one more, {name!r}",
                hint="use an exact check",
            )
        self.spent[name] = alpha


def check_rates(alpha: float, power: float) -> None:
    """Raise InputError unless alpha and power are probabilities strictly inside (0, 1)."""
    if not 0 < alpha < 1 or not 0 < power < 1:
        raise InputError("`alpha` and `power` must be in (0, 1)", found=f"alpha = {alpha}, power = {power}")


def check_size(drawn: int, declared: int) -> None:
    """Raise InputError unless a gate gets exactly the sample it computed."""
    if drawn != declared:
        raise InputError(
            f"this gate decides on exactly sample_size() = {declared} draws",
            found=drawn,
            hint="n follows from alpha, effect and power; it is not chosen",
        )
