"""How to run it again, and how to break it."""

from __future__ import annotations

from typing import Any

from theory.report_parts.markup import Markup, element, safe

COMMANDS = """\
make verify                                     # everything on this page, again
.venv/bin/python -m theory verify {id}           # one theorem
.venv/bin/python -m theory show {id} --latex     # its derivation
.venv/bin/python -m theory break {id}{mutant}    # one mutant: prints REFUTED and the margin, exits 1
.venv/bin/python -m theory matrix               # every bug under every theorem
.venv/bin/python -m theory diff A.json B.json   # what changed between two runs
.venv/bin/python -m testbed diagnose FILE       # your own rollouts
"""


def reproduce(verdicts: list[dict[str, Any]]) -> Markup:
    """Commands, with the first mutant there is as the example."""
    example = next((v for v in verdicts if v.get("mutants")), None)
    name = str(example["id"]) if example else "S1"
    mutant = f":{example['mutants'][0]['name']}" if example else ""
    return safe(
        element("pre", element("code", COMMANDS.format(id=name, mutant=mutant))),
        element(
            "p",
            "Exact checks have no seed. Sampled checks state their false-alarm rate; another --seed must pass as well. A check "
            "that cannot fail shows nothing: each theorem names what must refute it, and a mutant that survives fails the run.",
        ),
    )
