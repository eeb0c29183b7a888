"""A running Dask cluster that compiles steps lowered in this process. Only this module uses Dask.

    with connected("tcp://host:8786", targets) as cluster:
        plan = cluster.call(plan_on_worker, program, task, target=target)

The scheduler sends a call to a worker, and to another worker if the first is lost. A call runs one memprof function on
records, so a worker needs the same memprof and the same XLA, but none of the user's code. Both sides import this
module; only the connecting side needs the extra `cluster`.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from memprof.analysis.records.capture import Target
from memprof.errors import MemprofError, WorkloadError
from memprof.sources.jax.processes.child_process import Children
from memprof.sources.jax.targets.families import families
from memprof.sources.jax.targets.resolve import AskedTarget, default_target
from memprof.sources.jax.user_traceback import first_line
from memprof.sources.jax.xla.toolchain import installed_version
from memprof.version import __version__

INSTALL = 'pip install "jax-memprof[cluster]"'
_CONNECT_SECONDS, _FIRST_WORKER_SECONDS = 10.0, 10.0
_POLL_SECONDS = 2.0  # between two checks of a long call
_NO_WORKER_TIMEOUT_SECONDS = 60.0  # time that a call waits for a worker: nannies restart killed workers
_LOGGERS = ("distributed", "distributed.client", "distributed.core", "distributed.comm", "tornado.application")

_Result = TypeVar("_Result")


class Cluster:
    """A connection to a scheduler.

    Attributes:
        num_threads: number of threads of all workers at connection time, the number of concurrent calls.
    """

    def __init__(self, client: Any, address: str) -> None:
        self.num_threads: int = sum(client.nthreads().values())
        self._client = client
        self._address = address
        self._seen_workers = time.monotonic()

    def check_workers(self, needed: Mapping[str, str]) -> None:
        """Raise `MemprofError` if a worker lacks a package or has another version of it."""
        for worker, found in self._client.run(version_mismatch, needed, on_error="return").items():
            if isinstance(found, OSError):  # it has ended in the meantime; other workers take its calls
                continue
            if isinstance(found, BaseException):  # it cannot load the function
                raise _no_memprof(worker, found)
            if found:
                raise MemprofError(f"the worker {worker} {found}")

    def call(self, function: Callable[..., _Result], *arguments: Any, target: Target, children: Children) -> _Result:
        """Call a memprof function on a worker, and wait for its result.

        Args:
            target: the target of the compile, which determines the worker's requirements.
            children: child processes that end together with this call.

        Raises:
            MemprofError: the function raised it; or the cluster is lost or cannot run the call.
        """
        try:
            future = self._client.submit(call_on_worker, needed_for([target]), function, *arguments, pure=False)
        except Exception as error:  # Dask's own error if the scheduler has been lost for longer than the client waits
            raise self._lost() from error
        call = _Call(self._client, future)
        children.add(call)
        try:
            while True:
                with suppress(TimeoutError):
                    result: _Result = future.result(timeout=_POLL_SECONDS)
                    return result
                self._check_alive()
        except MemprofError:
            raise
        except CancelledError as error:
            raise self._lost() from error
        except Exception as error:  # transport errors have many types
            raise (self._lost() if _is_closed(error) else _failed(error)) from error
        finally:
            children.remove(call)
            call.end()

    def _check_alive(self) -> None:
        if self._client.status != "running":
            raise self._lost()
        try:
            num_threads = self._client.nthreads()
        except OSError as error:  # the scheduler is shutting down
            raise self._lost() from error
        if num_threads:
            self._seen_workers = time.monotonic()
        elif time.monotonic() - self._seen_workers > _NO_WORKER_TIMEOUT_SECONDS:
            raise MemprofError(
                f"the scheduler at {self._address} has had no worker for {_NO_WORKER_TIMEOUT_SECONDS:g} s"
            )

    def _lost(self) -> MemprofError:
        return MemprofError(
            f"the connection to the scheduler at {self._address} was lost before the program was compiled"
        )


class _Call:
    """A call that ends together with children of this machine."""

    def __init__(self, client: Any, future: Any) -> None:
        self._client = client
        self._future = future

    def end(self) -> None:
        """Remove the call from the queue, or make its worker end it."""
        if self._client.status == "running" and not self._future.done():
            self._client.cancel([self._future])


@contextmanager
def connected(address: str, targets: Iterable[AskedTarget]) -> Iterator[Cluster]:
    """Connect to a scheduler whose workers compile for the targets exactly as this machine does.

    Raises:
        MemprofError: Dask is not installed, no scheduler answers, there is no worker, or a worker has other versions.
    """
    try:
        from distributed import Client
    except ImportError as error:
        raise MemprofError(f"--cluster needs Dask: install it with {INSTALL}") from error
    for name in _LOGGERS:  # memprof reports errors in one sentence of its own
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    # Check first, because a client that cannot connect leaves threads and tracebacks behind. Use a new thread, because
    # an event loop may already run in this one.
    with ThreadPoolExecutor(max_workers=1) as thread:
        thread.submit(lambda: asyncio.run(_check_answers(address))).result()
    try:
        client = Client(address, timeout=_CONNECT_SECONDS, set_as_default=False, name="memprof")
    except OSError as error:
        raise _no_scheduler(address, error) from error
    try:
        with suppress(TimeoutError):
            client.wait_for_workers(1, timeout=_FIRST_WORKER_SECONDS)
        cluster = Cluster(client, address)
        if not cluster.num_threads:
            raise MemprofError(f"the scheduler at {address} has no worker: start one with `dask worker {address}`")
        cluster.check_workers(needed_for(targets))
        yield cluster
    finally:
        client.close(timeout=_POLL_SECONDS)


async def _check_answers(address: str) -> None:
    from distributed import Security
    from distributed.comm import connect

    try:
        comm = await connect(address, timeout=_CONNECT_SECONDS, **Security().get_connection_args("client"))
    except ValueError as error:
        raise MemprofError(
            f"'{address}' is not the address of a Dask scheduler ({error}): write tcp://host:8786"
        ) from error
    except (OSError, TypeError) as error:  # an encrypted address without a certificate raises TypeError
        raise _no_scheduler(address, error) from error
    comm.abort()


def needed_for(targets: Iterable[AskedTarget]) -> dict[str, str]:
    """Return the packages and versions that a worker needs to compile for the targets as this machine does."""
    absent = [default_target("") if target is None else target for target in targets]
    platforms = {target.platform for target in absent if isinstance(target, Target) and target.is_deviceless}
    names = ("jaxlib", *(name for each in families() if each.facts.platform in platforms for name in each.packages))
    found = {"memprof": __version__, **{name: installed_version(name) for name in names}}
    return {name: version for name, version in found.items() if version is not None}


def version_mismatch(needed: Mapping[str, str]) -> str:
    """Return what this worker lacks, as `has no jaxlib, ...`, or an empty string if it has everything needed."""
    for name, version in needed.items():
        found = __version__ if name == "memprof" else installed_version(name)
        if found != version:
            what = f"no {name}" if found is None else f"{name} {found}"
            return (
                f"has {what}, but {version} is installed here, so its plans would differ; install the same "
                "version there"
            )
    return ""


def call_on_worker(needed: Mapping[str, str], function: Callable[..., _Result], *arguments: Any) -> _Result:
    """Call a function on this worker, and end its `children` (a keyword argument) if the call is cancelled.

    Raises:
        MemprofError: a worker that joined later has other versions than needed; or the function raised it.
    """
    from distributed import get_worker

    worker = get_worker()
    sentence = version_mismatch(needed)
    if sentence:
        raise MemprofError(f"the worker {worker.address} {sentence}")
    key, children, is_over = worker.get_current_task(), Children(), threading.Event()

    def end_when_unwanted() -> None:
        while not is_over.wait(_POLL_SECONDS / 2):
            task = worker.state.tasks.get(key)
            if task is None or task.state == "cancelled":  # Dask does not stop a running function
                children.end()
                return

    threading.Thread(target=end_when_unwanted, name="cancel", daemon=True).start()
    try:
        return function(*arguments, children=children)
    except WorkloadError as error:
        raise WorkloadError(f"{error} (on the worker {worker.address})", details=error.details) from error
    finally:
        is_over.set()


def _no_scheduler(address: str, error: Exception) -> MemprofError:
    return MemprofError(
        f"no Dask scheduler answers at {address} ({first_line(error)}): start one with `dask scheduler`, or leave "
        "out --cluster to compile here"
    )


def _no_memprof(worker: str, error: BaseException) -> MemprofError:
    return MemprofError(
        f"the worker {worker} cannot load memprof ({first_line(error)}): install the same memprof there"
    )


def _is_closed(error: Exception) -> bool:
    """Whether the connection closed during an answer."""
    from distributed.comm import CommClosedError

    return isinstance(error, CommClosedError)


def _failed(error: Exception) -> MemprofError:
    from distributed import KilledWorker

    if isinstance(error, KilledWorker):
        return MemprofError(f"every worker that compiled this was lost, {error.allowed_failures + 1} in total")
    if isinstance(error, ImportError):
        return _no_memprof("that should compile this", error)
    return MemprofError(f"the cluster could not compile this ({type(error).__name__}: {first_line(error)})")
