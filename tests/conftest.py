"""What every test shares: random streams, hypothesis profiles, the rule on skips, the count of what was left out.

* `seed`, `rng` and `generator` depend on the test's own id and on `--seed-epoch`, never on order, selection or workers.
* A skip is a failure unless ALLOW_SKIPS=1: a test that silently did not run has shown nothing.
* The last lines of a run say how many tests each mark left out, and the command that runs them.
* What a test `says`, such as how many cases it went through, is printed at the end, too, in whatever process it ran.
"""

from __future__ import annotations

import hashlib
import os
import signal
import threading
from collections import Counter

import hypothesis
import jaxtyping
import numpy as np
import pytest
import torch

torch.set_num_threads(1)

quiet = [hypothesis.HealthCheck.too_slow]
hypothesis.settings.register_profile(
    "ci", derandomize=True, deadline=None, max_examples=50, print_blob=True, suppress_health_check=quiet
)
hypothesis.settings.register_profile("deep", deadline=None, max_examples=1000, suppress_health_check=quiet)
hypothesis.settings.load_profile("ci")

COMMANDS = {
    "slow": "make stats",
    "gpu": ".venv/bin/python -m pytest -m gpu",
    "browser": ".venv/bin/python -m pytest -m browser",
    "repro": ".venv/bin/python -m pytest -m repro",
}
OTHER = "another selection (-k or -m)"
LEFT_OUT = pytest.StashKey[Counter]()
SAID = "says"


# ------------------------------------------------------------------------------------------------ random numbers
def pytest_addoption(parser):
    parser.addoption("--seed-epoch", type=int, default=0, help="another epoch gives every test another random stream")


def stream_seed(node_id: str, epoch: int) -> int:
    """Return a seed in [0, 2**63) that depends on the test and the epoch only."""
    return int.from_bytes(hashlib.sha256(f"{node_id}|{epoch}".encode()).digest()[:8], "big") >> 1


@pytest.fixture
def seed(request):
    return stream_seed(request.node.nodeid, request.config.getoption("--seed-epoch"))


@pytest.fixture
def rng(seed):
    return np.random.default_rng(seed)


@pytest.fixture
def generator(seed):
    return torch.Generator().manual_seed(seed)


# ------------------------------------------------------------------------------------------------ counts
@pytest.fixture
def says(record_property):
    """Call it with a line that the end of the run is to show."""
    return lambda line: record_property(SAID, line)


def said_lines(reports):
    """Return what tests said, in the order of their ids, each with the name of its test."""
    said = [(r.nodeid, line) for r in reports if r.when == "call" for name, line in r.user_properties if name == SAID]
    return [f"{node.rsplit('::', 1)[-1]}: {line}" for node, line in sorted(said, key=lambda pair: pair[0])]


def pytest_terminal_summary(terminalreporter):
    lines = said_lines([r for outcome in ("passed", "failed") for r in terminalreporter.stats.get(outcome, [])])
    if lines:
        terminalreporter.section("counts")
        for line in lines:
            terminalreporter.write_line(line)


# ------------------------------------------------------------------------------------------------ types
@pytest.fixture
def untyped():
    """What a user meets: without the runtime type checks of the test run, the library's own messages answer bad input."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


# ------------------------------------------------------------------------------------------------ skips
def refuse_skip(report, allowed):
    """Turn a skipped report into a failed one, unless skips are allowed; an expected failure is no skip."""
    if report.outcome == "skipped" and not allowed and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        report.outcome = "failed"
        report.longrepr = f"{report.nodeid}: {reason} (a skip is a failure unless ALLOW_SKIPS=1)"
    return report


def skips_allowed():
    return os.environ.get("ALLOW_SKIPS") == "1"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    return refuse_skip((yield), skips_allowed())


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    return refuse_skip((yield), skips_allowed())


# ------------------------------------------------------------------------------------------------ what was left out
def pytest_configure(config):
    config.stash[LEFT_OUT] = Counter()
    if threading.current_thread() is threading.main_thread():
        # a shell's background jobs ignore interrupts and pass that on; tests that interrupt programs need them heard
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_deselected(items):
    for item in items:
        marks = [mark for mark in COMMANDS if item.get_closest_marker(mark)]
        item.config.stash[LEFT_OUT].update(marks or [OTHER])


def pytest_sessionfinish(session):
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = dict(session.config.stash[LEFT_OUT])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error):
    # each worker selects for itself, all alike, so their counts are not added
    node.config.stash[LEFT_OUT] |= Counter(getattr(node, "workeroutput", {}).get("left_out", {}))


def left_out_lines(counts):
    """Return the closing lines: one per mark, with its count and the command that runs those tests."""
    lines = ["left out by mark:"]
    lines += [f"  {mark:8}{counts[mark]:5d}   {command}" for mark, command in COMMANDS.items()]
    return lines + ([f"left out by {OTHER}: {counts[OTHER]}"] if counts[OTHER] else [])


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config):
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and not hasattr(config, "workeroutput") and not config.option.collectonly:
        for line in left_out_lines(config.stash[LEFT_OUT]):
            reporter.write_line(line)
