"""Of those that want the same plan at one moment, one makes it; nobody waits for who is gone, or for another plan."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from memprof.sources.jax.xla import claims
from memprof.sources.jax.xla.claims import claimed
from memprof.sources.jax.xla.plan import Plan
from memprof.sources.jax.xla.plan_cache import PlanCache

pytestmark = pytest.mark.with_one_jax

KEY, OTHER = "1" * 64, "f" * 64
PLAN = Plan(hlo_proto=b"proto", memory_report=b"", totals=None, compile_seconds=1.0)


class WaitedError(Exception):
    """Somebody has the claim."""


def waited() -> None:
    raise WaitedError


@pytest.fixture
def cache(tmp_path: Path) -> PlanCache:
    return PlanCache(folder=tmp_path / "plans", limit_bytes=1 << 20)


def test_what_several_want_at_once_is_made_once(cache: PlanCache) -> None:
    made: list[str] = []
    all_but_one_wait = threading.Barrier(4)

    def make(key: str) -> Plan:
        made.append(key)
        all_but_one_wait.wait(timeout=30)
        return PLAN

    def use(key: str) -> Plan:
        has_waited = threading.Event()

        def waiting() -> None:
            if not has_waited.is_set():
                has_waited.set()
                all_but_one_wait.wait(timeout=30)

        return cache.find_or_make(key, lambda: make(key), waiting=waiting)

    with ThreadPoolExecutor(max_workers=4) as executor:
        plans = list(executor.map(use, [KEY] * 4))
    assert made == [KEY]
    assert sorted(plan.is_cached for plan in plans) == [False, True, True, True]


def test_another_plan_is_not_waited_for(cache: PlanCache) -> None:
    def make() -> Plan:
        return cache.find_or_make(OTHER, lambda: PLAN, waiting=waited)

    assert cache.find_or_make(KEY, make, waiting=waited) == PLAN


def test_who_cannot_make_it_leaves_it_to_the_next(cache: PlanCache) -> None:
    def fail() -> Plan:
        raise OSError

    with pytest.raises(OSError):  # noqa: PT011 - it is its own
        cache.find_or_make(KEY, fail, waiting=waited)
    assert cache.find_or_make(KEY, lambda: PLAN, waiting=waited) == PLAN


def test_a_process_that_is_killed_keeps_nobody_waiting(tmp_path: Path) -> None:
    code = """
import pathlib, signal, sys
from memprof.sources.jax.xla.claims import claimed
with claimed(pathlib.Path(sys.argv[1]), sys.argv[2], waiting=lambda: sys.exit("another has it")):
    print("held", flush=True)
    signal.pause()
"""
    file = tmp_path / "claims"
    holding = [sys.executable, "-c", code, str(file), KEY]
    with subprocess.Popen(holding, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        with pytest.raises(WaitedError), claimed(file, KEY, waiting=waited):
            pass
        process.kill()
    with claimed(file, KEY, waiting=waited):
        pass


def test_a_fork_that_outlives_the_claim_keeps_nobody_waiting(tmp_path: Path) -> None:
    code = """
import os, pathlib, signal, sys
from memprof.sources.jax.xla.claims import claimed
for _ in range(2):
    with claimed(pathlib.Path(sys.argv[1]), sys.argv[2], waiting=lambda: sys.exit("another has it")):
        if os.fork() == 0:
            signal.pause()
os.killpg(0, signal.SIGKILL)
"""
    holding = [sys.executable, "-c", code, str(tmp_path / "claims"), KEY]
    assert subprocess.run(holding, start_new_session=True).returncode == -signal.SIGKILL


def test_waiting_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "_LONGEST_SECONDS", 0.1)
    waits: list[str] = []
    again = claimed(tmp_path / "claims", KEY, waiting=lambda: waits.append("waiting"))
    with claimed(tmp_path / "claims", KEY, waiting=waited), again:
        waits.append("over")
    assert waits[0] == "waiting"
    assert waits[-1] == "over"


def test_where_nothing_can_be_locked_nobody_waits(tmp_path: Path) -> None:
    (tmp_path / "claims").mkdir()
    with claimed(tmp_path / "claims", KEY, waiting=waited), claimed(tmp_path / "claims", KEY, waiting=waited):
        pass
    off = PlanCache(folder=tmp_path / "plans", limit_bytes=0)
    assert off.find_or_make(KEY, lambda: PLAN, waiting=waited) == PLAN
    assert not off.folder.exists()


def test_a_pipe_in_the_place_of_the_claims_keeps_nobody_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "claims")
    with claimed(tmp_path / "claims", KEY, waiting=waited):  # opening one waits for a reader
        assert (tmp_path / "claims").is_fifo()
