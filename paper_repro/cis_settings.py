"""Where arms are compared: a model and a size of the mismatch, with the runs that were made there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from paper_repro.lab_results import Quantity, Results, results_of
from paper_repro.study import Setting

ARMS_STUDIES = ("mismatch", "mismatch_experts")
SIZES = {"paper": "the paper's mismatch", "x8": "8 times the paper's mismatch", "x24": "24 times the paper's mismatch"}
FEW = {"noise": ("x8",)}  # levels of a smoke run


@dataclass(frozen=True, slots=True)
class Place:
    """Runs of one model at one size of the mismatch.

    Parameters
    ----------
    results : Results   of a study with the factors `arm` and `noise`
    noise : str         level of the latter
    """

    results: Results
    noise: str

    @property
    def model(self) -> str:
        """Return "dense" or "experts"."""
        return "experts" if self.results.base("experts") else "dense"

    @property
    def kept(self) -> bool:
        """Whether the noise is drawn once for a run."""
        return self.results.base("noise_lasts") == "run"

    @property
    def key(self) -> str:
        """Name for files."""
        return f"{self.model}_{self.noise}{'_kept' if self.kept else ''}"

    @property
    def words(self) -> str:
        """Name for readers."""
        model = f"{self.results.base('experts')} experts" if self.model == "experts" else "dense model"
        return f"{model}, {SIZES[self.noise]}{', kept for the run' if self.kept else ''}"

    def values(self, quantity: Quantity, arm: str) -> list[float]:
        """Return a number of every run of an arm, by seed."""
        return self.results.values(quantity, arm=arm, noise=self.noise)

    def runs(self, arm: str) -> list[dict[str, Any]]:
        """Return every run of an arm, by seed."""
        return self.results.runs(arm=arm, noise=self.noise)


def places_of(results: Results) -> list[Place]:
    """Return the places of a study, the paper's size of mismatch first."""
    return [Place(results, noise) for noise in results.levels("noise")]


def dense_places(setting: Setting) -> list[Place]:
    """Return the places of the dense model: every other study of CIS has its settings."""
    return places_of(results_of(ARMS_STUDIES[0], setting, FEW))


def arms_studies(setting: Setting) -> list[Results]:
    """Return the results of both models' studies of arms."""
    return [results_of(name, setting, FEW) for name in ARMS_STUDIES]
