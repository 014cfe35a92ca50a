"""Where cells are run: processes of this machine (loky), or a dask or ray cluster, one thread per worker."""

from __future__ import annotations

import importlib.util
import logging
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import resource_tracker
from typing import Any

from testbed.core.errors import InputError

BACKENDS = ("loky", "dask", "ray")
MODULES = {"dask": "distributed", "ray": "ray"}
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}  # no statistics sent, no advice printed
STORE = 100 * 2**20  # bytes of shared memory of a ray of our own: records go to files, not through it

PATIENCE = 5.0  # seconds that processes have to end

Tasks = Sequence[tuple[Any, ...]]


def parallel(function: Callable[..., Any], tasks: Tasks, *, jobs: int, backend: str) -> Iterator[Any]:
    """Yield what a function returns for each task, as they finish.

    Parameters
    ----------
    function : callable     importable by a worker
    tasks : sequence        arguments of each call
    jobs : int              workers; 1 with loky runs in this process
    backend : str           one of BACKENDS; dask and ray start a cluster on this machine, unless DASK_SCHEDULER_ADDRESS or
                            RAY_ADDRESS names one, whose size then counts instead of `jobs`

    Raises
    ------
    InputError   another backend, one that is not installed, fewer than one job
    """
    require_backend(backend)
    if jobs < 1:
        raise InputError("`--jobs` must be >= 1", found=jobs)
    if not tasks:
        return
    with _environment(dict.fromkeys(THREADS, "1")):  # read by workers when they start
        if backend == "loky":
            yield from _loky(function, tasks, jobs)
        elif backend == "dask":
            yield from _dask(function, tasks, jobs)
        else:
            yield from _ray(function, tasks, jobs)


def require_backend(name: str) -> None:
    """Refuse a backend that does not exist or is not installed.

    Raises
    ------
    InputError

    Examples
    --------
    >>> require_backend("mpi")
    Traceback (most recent call last):
    ...
    testbed.core.errors.InputError: `--backend` must be one of loky, dask, ray; found 'mpi'
    """
    if name not in BACKENDS:
        raise InputError(f"`--backend` must be one of {', '.join(BACKENDS)}", found=repr(name))
    if name in MODULES and importlib.util.find_spec(MODULES[name]) is None:
        hint = "install it with: pip install 'spire-testbed[cluster]'"
        raise InputError(f"`--backend {name}` needs the package {MODULES[name]}", found="none", hint=hint)


def _loky(function: Callable[..., Any], tasks: Tasks, jobs: int) -> Iterator[Any]:
    import joblib

    with joblib.parallel_config(backend="loky", inner_max_num_threads=1):
        pool = joblib.Parallel(n_jobs=jobs, return_as="generator_unordered", pre_dispatch="2 * n_jobs", batch_size=1)  # type: ignore[arg-type]
        yield from pool(joblib.delayed(_one_thread)(function, *task) for task in tasks)  # type: ignore[union-attr]


def _dask(function: Callable[..., Any], tasks: Tasks, jobs: int) -> Iterator[Any]:
    import distributed

    address = os.environ.get("DASK_SCHEDULER_ADDRESS")
    # a worker that takes seconds to leave is killed with a warning; its records are written by then
    own = {"n_workers": jobs, "threads_per_worker": 1, "dashboard_address": None, "silence_logs": logging.ERROR}
    with _deaf_children():
        client = distributed.Client(address) if address else distributed.Client(**own)
    with client:
        futures = [client.submit(_one_thread, function, *task, pure=False) for task in tasks]
        for _, result in distributed.as_completed(futures, with_results=True):
            yield result


def _ray(function: Callable[..., Any], tasks: Tasks, jobs: int) -> Iterator[Any]:
    with _environment(QUIET):
        import psutil
        import ray

        local, this = "RAY_ADDRESS" not in os.environ, psutil.Process()
        own = {"num_cpus": jobs, "object_store_memory": STORE, "include_dashboard": False} if local else {}
        others = set(this.children(recursive=True))
        try:
            ray.init(log_to_driver=False, logging_level=logging.ERROR, **own)
            call = ray.remote(num_cpus=1)(_one_thread)
            left = [call.remote(function, *task) for task in tasks]
            while left:
                done, left = ray.wait(left)
                yield from ray.get(done)
        finally:
            started = set(this.children(recursive=True)) - others
            ray.shutdown()
            for process in psutil.wait_procs(started, timeout=PATIENCE)[1]:  # a worker that was still starting
                process.kill()


@contextmanager
def _deaf_children() -> Iterator[None]:
    """Let processes started now, and by threads started now, not hear Ctrl-C: it is the parent's affair."""
    resource_tracker.ensure_running()  # it would let the thread that starts it hear again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _one_thread(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function with one thread for each library: workers share the machine, and sums keep their order."""
    import torch

    if torch.get_num_threads() != 1:
        torch.set_num_threads(1)
    return function(*arguments)


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Set variables of the environment for a while."""
    before = {key: os.environ.get(key) for key in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value
