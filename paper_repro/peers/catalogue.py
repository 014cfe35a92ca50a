"""Which benchmarks there are, what they need, and where their cases are made; no numerical library is imported here."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from testbed.core.errors import InputError

if TYPE_CHECKING:
    from paper_repro.peers.case import Case


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """A list of cases under one name.

    Parameters
    ----------
    name : str         what `bench` takes, and the name of the record
    title : str        what is compared with what
    home : str         module whose function `cases(smoke)` makes the cases
    peer : bool        whether it needs what `make real` installs
    """

    name: str
    title: str
    home: str
    peer: bool = False

    def cases(self, smoke: bool) -> list[Case]:
        """Make the cases; their models are made when they run."""
        return importlib.import_module(f"paper_repro.peers.{self.home}").cases(smoke)


BENCHMARKS = {
    benchmark.name: benchmark
    for benchmark in (
        Benchmark(
            name="autoregressive",
            title="our two sampling loops, and generate of transformers on the same weights",
            home="autoregressive",
            peer=True,
        ),
        Benchmark(
            name="speculation",
            title="the speculative engine with drafts, and without",
            home="speculation",
        ),
        Benchmark(
            name="passes",
            title="weighting, loss and tabular sampling, and the plain passes they cannot do without",
            home="passes",
        ),
    )
}


def chosen(names: Sequence[str]) -> list[Benchmark]:
    """Return the benchmarks of these names, all for none.

    Raises
    ------
    InputError   an unknown name, or one whose peer is not installed

    Examples
    --------
    >>> [benchmark.name for benchmark in chosen(["passes"])]
    ['passes']
    """
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        raise InputError("a benchmark must be one of " + ", ".join(BENCHMARKS), found=unknown[0])
    benchmarks = [BENCHMARKS[name] for name in dict.fromkeys(names or BENCHMARKS)]
    if any(benchmark.peer for benchmark in benchmarks):
        from testbed.policies.gguf_weights import optional_module, weights_path

        for package in ("gguf", "transformers"):
            optional_module(package)
        weights_path()
    return benchmarks
