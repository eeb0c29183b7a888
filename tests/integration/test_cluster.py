"""Rows on a Dask cluster: a real scheduler with two workers, each a process, and what becomes of rows when they die."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from integration.command import Command, parent_of, wait_until, without_progress

from memprof.analysis.records.capture import Capture
from memprof.errors import MemprofError
from memprof.sources.capture_file import read_capture
from memprof.sources.jax.processes import cluster as module
from memprof.sources.jax.processes.cluster import connected
from memprof.sources.jax.processes.launch import compile_all, compile_in_child, default_num_jobs, num_at_a_time
from memprof.sources.jax.targets.resolve import resolve
from memprof.sources.jax.xla.portable_program import CompileSettings
from memprof.sources.jax.xla.toolchain import installed_version
from memprof.studies.subject import find_subject

distributed = pytest.importorskip("distributed", reason="Dask is not installed (the extra cluster)")
pytestmark = pytest.mark.with_one_jax
COMPILED = ("mlp", "--preset", "tiny", "--target", "cpu", "--no-cache")
# What the workers compile waits while there is a folder, but for one that takes a file out of it.
HELD = """
import os, time
if IS_CHILD:
    import memprof.sources.jax.processes.task
    decoded = memprof.sources.jax.processes.task.decoded_task
    def may_go_on():
        try:
            os.rename("HOLD/one", "HOLD/taken")
            return True
        except FileNotFoundError:
            return not os.path.exists("HOLD")
    def held(line):
        while not may_go_on():
            time.sleep(0.01)
        return decoded(line)
    memprof.sources.jax.processes.task.decoded_task = held
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dask:
    """A scheduler and its workers. `machine` has their temp folder, and sees what they start; for `hold` see `HELD`."""

    machine: Command
    address: str
    scheduler: subprocess.Popen[bytes]
    hold: Path

    def working(self) -> int | None:
        """The id of the worker on which something is being compiled; None where nothing is."""
        ancestor = self.machine.compiling_process()
        workers = {pid for pid, arguments in self.machine.processes() if "multiprocessing.spawn" in str(arguments)}
        while ancestor is not None and ancestor not in workers:
            ancestor = parent_of(ancestor)
        return ancestor


@pytest.fixture
def dask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dask]:
    folder = tmp_path_factory.mktemp("cluster")
    machine, started, logs, hold = Command.in_folder(folder), [], folder / "logs", folder / "hold"
    environment = {**machine.environment, **machine.run_before_start(HELD.replace("HOLD", str(hold)))}

    def start(*arguments: str) -> subprocess.Popen[bytes]:
        with logs.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "dask", *arguments, "--no-dashboard"],
                cwd=machine.folder,
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        started.append(process)
        return process

    try:
        about = folder / "scheduler.json"
        scheduler = start("scheduler", "--host", "127.0.0.1", "--port", "0", "--scheduler-file", str(about))
        wait_until(lambda: about.exists() and about.read_text().endswith("}"))
        address = json.loads(about.read_text())["address"]
        for _ in range(2):
            start("worker", address, "--nthreads", "1")
        wait_until(lambda: logs.read_text().count("Starting worker compute stream") == 2)
        yield Dask(machine=machine, address=address, scheduler=scheduler, hold=hold)
    finally:
        for process in started:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _captures(folder: Path) -> dict[str, Capture]:
    return {capture.label: capture for capture in map(read_capture, folder.glob("*.memprof"))}


@pytest.mark.slow
def test_rows_survive_a_worker_and_end_with_their_command_and_their_scheduler(
    dask: Dask, memprof: Command, start: Any
) -> None:
    """One cluster for all of it: starting one takes longer than the compiles."""

    def started(*arguments: str) -> tuple[subprocess.Popen[str], int]:
        """A command whose rows are held where they are to be compiled, and the worker of one."""
        dask.hold.mkdir()
        running: subprocess.Popen[str] = start(*arguments, *COMPILED, "--cluster", dask.address)
        while (worker := dask.working()) is None:
            assert running.poll() is None, running.communicate()
            time.sleep(0.01)
        return running, worker

    # A worker is killed: another one does what it did.
    running, worker = started("compare", "-t", "baseline", "-t", "bf16", "-o", "killed")
    os.kill(worker, signal.SIGKILL)
    dask.hold.rmdir()
    _, stderr = running.communicate(timeout=120)
    assert running.returncode == 0
    assert without_progress(stderr).startswith("captures written to killed;")
    captures = _captures(memprof.folder / "killed")
    assert sorted(captures) == ["mlp baseline", "mlp bf16"]
    assert memprof("run", *COMPILED, "-o", "here.memprof").returncode == 0
    here, there = read_capture(memprof.folder / "here.memprof"), captures["mlp baseline"]
    for field in ("compiler", "replay", "arguments", "source_lines", "flops_by_scope"):
        assert getattr(there, field) == getattr(here, field)

    # What a worker has planned for a GPU is not compiled again here.
    for_gpu = ("run", "mlp", "--preset", "tiny", "--target", "t4")
    own_cache = {"MEMPROF_CACHE_DIR": str(memprof.folder / "cache")}
    assert memprof(*for_gpu, "--cluster", dask.address, "-o", "there.memprof", **own_cache).returncode == 0
    assert memprof(*for_gpu, "-o", "again.memprof", **own_cache).returncode == 0
    there, again = (read_capture(memprof.folder / name) for name in ("there.memprof", "again.memprof"))
    assert again.timings.cached_compile_seconds == there.timings.compile_seconds

    # A check is answered by the plan of a worker, too.
    running, _ = started("check", "--max", "1GiB", "--format", "json")
    dask.hold.rmdir()
    stdout, _ = running.communicate(timeout=60)
    assert (running.returncode, json.loads(stdout)["passed"]) == (0, True)

    # Ctrl-C: what is at work there ends, too.
    running, _ = started("run", "--no-save")
    running.send_signal(signal.SIGINT)
    assert without_progress(running.communicate(timeout=60)[1]) == "memprof: interrupted.\n"
    assert running.returncode == 130
    wait_until(lambda: dask.working() is None, seconds=30)
    dask.hold.rmdir()

    # The scheduler is killed: what is finished stays, and the others say why.
    running, _ = started("compare", "-t", "baseline", "-t", "bf16", "-t", "donate", "-o", "lost", "--format", "json")
    (dask.hold / "one").touch()
    wait_until(lambda: _captures(memprof.folder / "lost"))
    dask.scheduler.kill()
    stdout, _ = running.communicate(timeout=60)
    assert running.returncode == 0
    failures = json.loads(stdout)["failures"]
    assert (len(failures), len(_captures(memprof.folder / "lost"))) == (2, 1)
    why = f"the connection to the scheduler at {dask.address} was lost before the program was compiled"
    assert {failure["reason"] for failure in failures} == {why}


def test_what_keeps_a_cluster_from_being_used_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def sentence(address: str, **needed: str) -> str:
        with monkeypatch.context() as patch:
            if needed:
                patch.setattr(module, "needed_for", lambda targets: needed)
            with pytest.raises(MemprofError) as caught:
                connected(address, [resolve("cpu")]).__enter__()
        return str(caught.value)

    monkeypatch.setenv("MEMPROF_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(module, "_CONNECT_SECONDS", 0.5)
    assert sentence("tcp://127.0.0.1:9").startswith("no Dask scheduler answers at tcp://127.0.0.1:9 (Timed out")
    assert sentence("here").startswith("'here' is not the address of a Dask scheduler (missing port number")
    assert sentence("ftp://host:1").startswith("'ftp://host:1' is not the address of a Dask scheduler (unknown address")
    monkeypatch.setattr(module, "_CONNECT_SECONDS", 30)
    local = {"processes": False, "protocol": "tcp", "dashboard_address": ":0", "threads_per_worker": 1}
    with distributed.LocalCluster(n_workers=0, **local) as cluster:
        address = cluster.scheduler_address
        with monkeypatch.context() as patch:
            patch.setattr(module, "_FIRST_WORKER_SECONDS", 0.5)
            assert sentence(address) == (
                f"the scheduler at {address} has no worker: start one with `dask worker {address}`"
            )
        cluster.scale(1)
        found = installed_version("jaxlib")
        assert sentence(address, jaxlib="0.1").endswith(
            f" has jaxlib {found}, but 0.1 is installed here, so its plans would differ; install the same version there"
        )
        assert " has no libtpu, but 1 is installed here" in sentence(address, libtpu="1")
        settings = CompileSettings(cluster=address)
        task = find_subject("mlp", preset="tiny").task("bf16", target=resolve("h100-80gb"), settings=settings)
        assert num_at_a_time(settings, task.target) == 1 + default_num_jobs()
        (compiled,) = compile_all([task], num_jobs=1, progress=lambda label, stage: None)
        kept = compile_in_child(task, progress=lambda stage: None).capture  # its plan is in the cache now
        assert compiled.fresh is not None
        assert (compiled.fresh.capture.timings.cached_compile_seconds, kept.hlo_proto) == (
            None,
            compiled.fresh.capture.hlo_proto,
        )
        assert kept.timings.cached_compile_seconds == compiled.fresh.capture.timings.compile_seconds
    monkeypatch.setitem(sys.modules, "distributed", None)
    assert sentence(address) == '--cluster needs Dask: install it with pip install "jax-memprof[cluster]"'
