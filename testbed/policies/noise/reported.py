"""What was measured on real engines: the numbers that the calibrated noise laws are held to.

From "Rethinking Training-Inference Mismatch in LLM Reinforcement Learning" (T. Yu et al., 2026), Tables 3 to 7: a dense
model and a mixture of experts (Qwen1.5-MoE-A2.7B), each in a sampling and a training engine. Kept as printed, so that a fit
can be asked whether it rounds to them.
"""

from __future__ import annotations

from dataclasses import dataclass

from testbed.core.errors import InputError

FLIP_BINS = ((0, 0), (1, 1), (2, 3), (4, 6), (7, 24))  # of Table 4; the model has 24 layers
FLIP_NAMES = ("0", "1", "2-3", "4-6", ">=7")
CONFIDENCE_NAMES = ("p<0.5", "0.5-0.9", "0.9-0.99", "0.99-0.999", "p>0.999")

_DELTA = ("sd(delta)", "Pr(|delta|>0.5)", "Pr(|delta|>1)")
_EPSILON = ("Tokens", "MAD(epsilon)", "q05(epsilon)", "q95(epsilon)", "MAD(log k)")
_TABLES: dict[int, tuple[tuple[str, ...], dict[str, str]]] = {  # columns, then row -> printed numbers
    3: (("Dense", "MoE"), {"sd(delta)": "0.079 0.336", "q99(|delta|)": "0.250 1.144"}),
    4: (
        FLIP_NAMES,
        {
            "Positions (%)": "8.0% 15.6% 33.1% 28.2% 15.1%",
            "sd(delta)": "0.240 0.269 0.307 0.352 0.457",
            "Pr(|delta|>0.5) (%)": "4.51% 5.42% 7.85% 11.86% 18.48%",
            "Pr(|delta|>1) (%)": "0.47% 0.68% 1.11% 1.65% 3.73%",
        },
    ),
    5: (_DELTA, {"Dense": "0.079 0.003% 0.0001%", "MoE, N_flip>0": "0.343 10.35% 1.62%"}),
    6: (
        ("Dense", "MoE"),
        {"sd(epsilon)": "0.0997 0.2947", "q95(|epsilon|)": "0.165 0.599", "q99(|epsilon|)": "0.336 1.055"},
    ),
    7: (
        _EPSILON,
        {
            "p<0.5": "2824021 0.156 -0.375 0.259 1.15e-1",
            "0.5-0.9": "2337554 0.175 -0.376 0.355 3.96e-2",
            "0.9-0.99": "1951864 0.186 -0.453 0.420 6.43e-3",
            "0.99-0.999": "1549915 0.203 -0.492 0.472 6.78e-4",
            "p>0.999": "3562738 0.237 -0.504 0.501 9.90e-6",
        },
    ),
}


@dataclass(frozen=True, slots=True)
class Printed:
    """A number as a table prints it.

    Examples
    --------
    >>> number = Printed("4.51%")
    >>> number.value, number.rounds_to(0.04514), number.rounds_to(0.04516)
    (0.0451, True, False)
    """

    text: str

    @property
    def unit(self) -> float:
        """0.01 for a percentage, else 1."""
        return 0.01 if self.text.endswith("%") else 1.0

    @property
    def value(self) -> float:
        """The number."""
        return round(float(self.text.rstrip("%")) * self.unit, 12)

    @property
    def half_digit(self) -> float:
        """Half a unit of the last printed digit."""
        mantissa, _, exponent = self.text.rstrip("%").partition("e")
        decimals = len(mantissa.partition(".")[2])
        return 0.5 * 10.0 ** (int(exponent or 0) - decimals) * self.unit

    def rounds_to(self, value: float) -> bool:
        """Whether `value`, rounded as the table rounds, is this number."""
        return abs(value - self.value) <= self.half_digit * (1 + 1e-9)


def reported(table: int, row: str, column: str) -> Printed:
    """Return one number of Tables 3 to 7.

    Raises
    ------
    InputError   a table, row or column that is not kept here

    Examples
    --------
    >>> reported(3, "sd(delta)", "MoE").value
    0.336
    """
    columns, rows = _TABLES.get(table, ((), {}))
    if row not in rows or column not in columns:
        raise InputError("kept are numbers of Tables 3 to 7", found=f"table {table}, row {row!r}, column {column!r}")
    return Printed(rows[row].split()[columns.index(column)])


def kept_cells() -> list[tuple[int, str, str]]:
    """Return (table, row, column) of every number kept here."""
    return [(table, row, column) for table, (columns, rows) in _TABLES.items() for row in rows for column in columns]
