"""Calls on a cluster whose processes end at any moment, by a client that stands in for Dask's."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from memprof.errors import MemprofError
from memprof.sources.jax.processes.child_process import Children
from memprof.sources.jax.processes.cluster import Cluster
from memprof.sources.jax.targets.resolve import cpu

pytestmark = pytest.mark.with_one_jax

comm = pytest.importorskip("distributed.comm", reason="Dask is not installed (the extra cluster)")


@dataclass
class Future:
    """One that is never done, whatever comes of waiting for it."""

    error: Exception

    def result(self, timeout: float) -> None:
        raise self.error

    def done(self) -> bool:
        return False


@dataclass
class Client:
    """One that is connected. `fails` is what fails, by the name of the method, once it is made."""

    fails: dict[str, Exception] = field(default_factory=dict)
    found: dict[str, object] = field(default_factory=dict)
    status: str = "running"

    def nthreads(self) -> dict[str, int]:
        return self._done("nthreads", {"tcp://one": 1})

    def submit(self, *_: object, **__: object) -> Future:
        return self._done("submit", Future(self.fails.get("result", TimeoutError())))

    def run(self, *_: object, **__: object) -> dict[str, object]:
        return self.found

    def cancel(self, futures: list[Future]) -> None:
        pass

    def _done(self, name: str, result: Any) -> Any:
        if name in self.fails:
            raise self.fails[name]
        return result


@pytest.mark.parametrize(
    "fails",
    [
        {"submit": Exception("Client is closed")},
        {"nthreads": OSError("Timed out")},
        {"result": comm.CommClosedError("in <TCP (closed)>: Stream is closed")},
    ],
    ids=str,
)
def test_a_scheduler_that_is_gone_is_one_sentence_whoever_notices_first(fails: dict[str, Exception]) -> None:
    client = Client()
    cluster = Cluster(client, "tcp://here")
    client.fails = fails
    with pytest.raises(MemprofError, match="the connection to the scheduler at tcp://here was lost before"):
        cluster.call(_nothing, target=cpu(""), children=Children())


def test_a_worker_that_ends_while_it_is_asked_is_no_worker_without_memprof() -> None:
    client = Client(found={"tcp://one": "", "tcp://two": OSError("in <TCP (closed)>: Stream is closed")})
    Cluster(client, "tcp://here").check_workers({})
    client.found["tcp://two"] = ModuleNotFoundError("No module named 'memprof'")
    with pytest.raises(MemprofError, match="tcp://two cannot load memprof"):
        Cluster(client, "tcp://here").check_workers({})


def _nothing(**_: object) -> None:
    pass
