"""A running Dask cluster that compiles what is lowered here. What is Dask's stays in this file.

    with connected("tcp://host:8786", targets) as cluster:
        plan = cluster.call(plan_on_worker, program, task, target=target)

The scheduler hands a call to a worker, and to another one when that one is lost. A call is of one function of memprof
with records, so a worker needs the same memprof and the same XLA, and nothing of the user's. Both sides import this
module, and only the one that connects needs to have the extra `cluster`.
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
from memprof.capture.processes.child_process import Children
from memprof.capture.targets.families import families
from memprof.capture.targets.resolve import default_target
from memprof.capture.user_traceback import first_line
from memprof.capture.xla.toolchain import installed_version
from memprof.errors import MemprofError, WorkloadError
from memprof.version import __version__

INSTALL = 'pip install "jax-memprof[cluster]"'
_CONNECT_SECONDS, _FIRST_WORKER_SECONDS = 10.0, 10.0
_LOOK_SECONDS = 2.0  # between two looks at a call that takes long
_LONELY_SECONDS = 60.0  # a call waits for a worker so long: those that are killed are started again by their nannies
_LOGGERS = ("distributed", "distributed.client", "distributed.core", "distributed.comm", "tornado.application")

_Result = TypeVar("_Result")


class Cluster:
    """A connection to a scheduler.

    Attributes:
        num_threads: of all workers, when it was made: so many calls are at work at a time.
    """

    def __init__(self, client: Any, address: str) -> None:
        self.num_threads: int = sum(client.nthreads().values())
        self._client = client
        self._address = address
        self._seen_workers = time.monotonic()

    def check_workers(self, needed: Mapping[str, str]) -> None:
        """Raises `MemprofError` where a worker has other versions than are needed, or none."""
        for worker, found in self._client.run(misfit, needed, on_error="return").items():
            if isinstance(found, OSError):  # it has ended meanwhile, and its calls go to the others
                continue
            if isinstance(found, BaseException):  # it cannot even load the function
                raise _no_memprof(worker, found)
            if found:
                raise MemprofError(f"the worker {worker} {found}")

    def call(self, function: Callable[..., _Result], *arguments: Any, target: Target, children: Children) -> _Result:
        """Call a function of memprof's on a worker, and wait for what it returns.

        Args:
            target: what is compiled for, which decides what the worker needs.
            children: those that it is to end with.

        Raises:
            MemprofError: what the function raises; or the cluster is gone, or cannot do it.
        """
        try:
            future = self._client.submit(call_on_worker, needed_for([target]), function, *arguments, pure=False)
        except Exception as error:  # of a client whose scheduler has been gone for longer than it waits: Dask's own
            raise self._lost() from error
        call = _Call(self._client, future)
        children.add(call)
        try:
            while True:
                with suppress(TimeoutError):
                    result: _Result = future.result(timeout=_LOOK_SECONDS)
                    return result
                self._check_alive()
        except MemprofError:
            raise
        except CancelledError as error:
            raise self._lost() from error
        except Exception as error:  # what went wrong on the way: there is no end of types
            raise (self._lost() if _is_closed(error) else _failed(error)) from error
        finally:
            children.remove(call)
            call.end()

    def _check_alive(self) -> None:
        if self._client.status != "running":
            raise self._lost()
        try:
            num_threads = self._client.nthreads()
        except OSError as error:  # it is just going
            raise self._lost() from error
        if num_threads:
            self._seen_workers = time.monotonic()
        elif time.monotonic() - self._seen_workers > _LONELY_SECONDS:
            raise MemprofError(f"the scheduler at {self._address} has had no worker for {_LONELY_SECONDS:g} s")

    def _lost(self) -> MemprofError:
        return MemprofError(f"the connection to the scheduler at {self._address} was lost before this was compiled")


class _Call:
    """A call that is to end with children of this machine."""

    def __init__(self, client: Any, future: Any) -> None:
        self._client = client
        self._future = future

    def end(self) -> None:
        """Take it from the queue, or have its worker end it."""
        if self._client.status == "running" and not self._future.done():
            self._client.cancel([self._future])


@contextmanager
def connected(address: str, targets: Iterable[Target | None]) -> Iterator[Cluster]:
    """A connection to the scheduler at an address, whose workers can compile for targets as this machine can.

    Raises:
        MemprofError: Dask is not installed, nobody answers there, there is no worker, or one has other versions.
    """
    try:
        from distributed import Client
    except ImportError as error:
        raise MemprofError(f"--cluster needs Dask: install it with {INSTALL}") from error
    for name in _LOGGERS:  # what matters of it becomes one sentence of ours
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    # First, since a client that cannot connect leaves threads and tracebacks behind; a loop may run in this thread.
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
        client.close(timeout=_LOOK_SECONDS)


async def _check_answers(address: str) -> None:
    from distributed import Security
    from distributed.comm import connect

    try:
        comm = await connect(address, timeout=_CONNECT_SECONDS, **Security().get_connection_args("client"))
    except ValueError as error:
        raise MemprofError(f"'{address}' is no address of a Dask scheduler ({error}): write tcp://host:8786") from error
    except (OSError, TypeError) as error:  # a TypeError for an encrypted address without a certificate
        raise _no_scheduler(address, error) from error
    comm.abort()


def needed_for(targets: Iterable[Target | None]) -> dict[str, str]:
    """What a worker must have to compile for targets as it is done here, with versions."""
    absent = [default_target("") if target is None else target for target in targets]
    platforms = {target.platform for target in absent if target.is_deviceless}
    names = ("jaxlib", *(name for each in families() if each.facts.platform in platforms for name in each.packages))
    found = {"memprof": __version__, **{name: installed_version(name) for name in names}}
    return {name: version for name, version in found.items() if version is not None}


def misfit(needed: Mapping[str, str]) -> str:
    """What a worker lacks, on which this is called: `has no jaxlib, ...`; empty where it has all that is needed."""
    for name, version in needed.items():
        found = __version__ if name == "memprof" else installed_version(name)
        if found != version:
            what = f"no {name}" if found is None else f"{name} {found}"
            return f"has {what}, and {version} is here: its plans would be others; install the same version there"
    return ""


def call_on_worker(needed: Mapping[str, str], function: Callable[..., _Result], *arguments: Any) -> _Result:
    """Call a function on the worker that this is called on; its keyword `children` are ended when nobody waits for it.

    Raises:
        MemprofError: a worker that has come later has other versions than are needed; or whatever the function raises.
    """
    from distributed import get_worker

    worker = get_worker()
    sentence = misfit(needed)
    if sentence:
        raise MemprofError(f"the worker {worker.address} {sentence}")
    key, children, is_over = worker.get_current_task(), Children(), threading.Event()

    def end_when_unwanted() -> None:
        while not is_over.wait(_LOOK_SECONDS / 2):
            task = worker.state.tasks.get(key)
            if task is None or task.state == "cancelled":  # Dask itself lets a function that runs go on
                children.end()
                return

    threading.Thread(target=end_when_unwanted, name="end when unwanted", daemon=True).start()
    try:
        return function(*arguments, children=children)
    except WorkloadError as error:
        raise WorkloadError(f"{error} (on the worker {worker.address})", details=error.details) from error
    finally:
        is_over.set()


def _no_scheduler(address: str, error: Exception) -> MemprofError:
    return MemprofError(
        f"no Dask scheduler answers at {address} ({first_line(error)}): start one with `dask scheduler`, or leave"
        " --cluster out to compile here"
    )


def _no_memprof(worker: str, error: BaseException) -> MemprofError:
    return MemprofError(
        f"the worker {worker} cannot load memprof ({first_line(error)}): install the same memprof there"
    )


def _is_closed(error: Exception) -> bool:
    """Whether the connection went in the middle of an answer."""
    from distributed.comm import CommClosedError

    return isinstance(error, CommClosedError)


def _failed(error: Exception) -> MemprofError:
    from distributed import KilledWorker

    if isinstance(error, KilledWorker):
        return MemprofError(f"each worker that compiled this was lost, {error.allowed_failures + 1} in all")
    if isinstance(error, ImportError):
        return _no_memprof("that was to compile this", error)
    return MemprofError(f"the cluster could not compile this ({type(error).__name__}: {first_line(error)})")
