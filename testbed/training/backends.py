"""Where cells are run: processes of this machine (loky), or a dask or ray cluster, one thread per worker."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from testbed.core.errors import InputError

BACKENDS = ("loky", "dask", "ray")
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def parallel(
    function: Callable[..., Any], tasks: Sequence[tuple[Any, ...]], *, jobs: int, backend: str
) -> Iterator[Any]:
    """Yield what a function returns for each task, as they finish.

    Parameters
    ----------
    function : callable     importable by a worker
    tasks : sequence        arguments of each call
    jobs : int              workers; 1 with loky runs in this process
    backend : str           one of BACKENDS; dask and ray start a cluster on this machine, unless DASK_SCHEDULER_ADDRESS or
                            RAY_ADDRESS names one

    Raises
    ------
    InputError   another backend, one that is not installed, fewer than one job
    """
    import joblib

    if backend not in BACKENDS:
        raise InputError(f"`--backend` must be one of {', '.join(BACKENDS)}", found=repr(backend))
    if jobs < 1:
        raise InputError("`--jobs` must be >= 1", found=jobs)
    if not tasks:
        return
    with _backend(backend, jobs) as unordered:
        mode = "generator_unordered" if unordered else "list"
        pool = joblib.Parallel(n_jobs=jobs, return_as=mode, pre_dispatch="2 * n_jobs", batch_size=1)  # type: ignore[arg-type]
        yield from pool(joblib.delayed(_one_thread)(function, *task) for task in tasks)  # type: ignore[union-attr]


def _one_thread(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function with one thread for each library: workers share the machine, and sums keep their order."""
    import torch

    if torch.get_num_threads() != 1:
        torch.set_num_threads(1)
    return function(*arguments)


@contextmanager
def _backend(name: str, jobs: int) -> Iterator[bool]:
    """Set joblib up; yield whether results can be had as they finish."""
    import joblib

    before = {key: os.environ.get(key) for key in THREADS}
    os.environ.update(dict.fromkeys(THREADS, "1"))  # read by workers when they start
    try:
        if name == "loky":
            with joblib.parallel_config(backend="loky", inner_max_num_threads=1):
                yield True
        elif name == "dask":
            distributed = _installed("distributed", "dask")
            address = os.environ.get("DASK_SCHEDULER_ADDRESS")
            own = {"n_workers": jobs, "threads_per_worker": 1, "dashboard_address": None}
            client = distributed.Client(address) if address else distributed.Client(**own)
            with client, joblib.parallel_config(backend="dask"):
                yield True
        else:
            ray = _installed("ray", "ray")
            _installed("ray.util.joblib", "ray").register_ray()
            ray.init(
                num_cpus=None if "RAY_ADDRESS" in os.environ else jobs, log_to_driver=False, ignore_reinit_error=True
            )
            try:
                with joblib.parallel_config(backend="ray"):
                    yield False
            finally:
                ray.shutdown()
    finally:
        for key, value in before.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value


def _installed(module: str, package: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        hint = "install it with: pip install 'spire-testbed[cluster]'"
        raise InputError(f"`--backend {package}` needs the package {package}", found="none", hint=hint) from None
