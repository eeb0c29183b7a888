"""Two hundred rows on a Dask cluster of two workers, of which one is killed on the way: every row has to be there.

    python -m benchmarks.cluster_rows [--rows 200] [-o RESULT.json]

The rows are the tiny Transformer: batches, lengths of the sequence, techniques and targets, nine in ten of them the
CPU. A row that XLA itself refuses is there with XLA's words, as it is without a cluster: jaxlib 0.10.2 refuses bf16
with scan and remat on an H100 for lengths of 12 and 24, and for these lengths none. The scheduler and its workers are
processes of this machine. After a quarter of the rows, a worker that is at work is killed with SIGKILL. Needs the
extras `cluster` and `deviceless`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path
from typing import Any

from memprof.analysis.records.capture import Capture
from memprof.sources.jax.processes.launch import compile_all, num_at_a_time
from memprof.sources.jax.processes.task import Task
from memprof.sources.jax.targets.resolve import resolve
from memprof.sources.jax.xla.portable_program import CompileSettings
from memprof.sources.jax.xla.toolchain import installed_version
from memprof.studies.subject import find_subject

TECHNIQUES = (
    *("baseline", "donate", "bf16", "bf16+donate", "bf16+donate+scan", "bf16+donate+remat", "bf16+accum2"),
    *("opt=sgd", "opt=lion", "bf16+donate+scan+remat"),
)
BATCHES, LENGTHS = (8, 16, 24, 32, 40), (8, 16, 32, 64)
NUM_WORKERS = 2


def tasks(num_rows: int, address: str) -> list[Task]:
    """The rows, each with a label of its own."""
    settings = CompileSettings(use_cache=False, cluster=address, timeout_seconds=600)
    sizes = find_subject("transformer", preset="tiny", overrides=[f"max_seq_len={max(LENGTHS)}"])
    rows = []
    for number, (batch, length, row) in enumerate(product(BATCHES, LENGTHS, TECHNIQUES)):
        target = "h100-80gb" if number % 10 == 9 else "cpu"
        sized = sizes.with_override("batch_size", batch).with_override("seq_len", length)
        label = f"batch {batch}, length {length}, {row}, {target}"
        rows.append(sized.task(row, target=resolve(target), label=label, settings=settings))
    return rows[:num_rows]


@contextmanager
def cluster(folder: Path) -> Iterator[str]:
    """A scheduler and its workers, each of one thread. Gives the scheduler's address."""
    about = folder / "scheduler.json"
    with ExitStack() as stack:
        scheduler = ("scheduler", "--host", "127.0.0.1", "--port", "0", "--scheduler-file", str(about))
        stack.enter_context(_dask(folder, *scheduler))
        while not about.exists() or not about.read_text().endswith("}"):
            time.sleep(0.1)
        address: str = json.loads(about.read_text())["address"]
        for _ in range(NUM_WORKERS):
            stack.enter_context(_dask(folder, "worker", address, "--nthreads", "1"))
        yield address


@contextmanager
def _dask(folder: Path, *arguments: str) -> Iterator[None]:
    with (folder / f"{arguments[0]}.log").open("ab") as log:
        command = [sys.executable, "-m", "dask", *arguments, "--no-dashboard"]
        process = subprocess.Popen(
            command, stdout=log, stderr=log, env={**os.environ, "TMPDIR": str(folder)}, start_new_session=True
        )
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def kill_a_worker(client: Any) -> str:
    """Kill one that is at work, as the system does when memory is short; its address."""
    while not (at_work := [address for address, keys in client.processing().items() if keys]):
        time.sleep(0.05)
    pid = client.run(os.getpid, workers=at_work[:1])[at_work[0]]
    os.kill(pid, signal.SIGKILL)
    return str(at_work[0])


def measure(num_rows: int, folder: Path) -> dict[str, Any]:
    from distributed import Client

    captures: list[Capture] = []
    refused: dict[str, str] = {}  # by XLA
    lost: dict[str, str] = {}
    killed_at, finished_at = None, []
    with cluster(folder) as address, Client(address, timeout=120, set_as_default=False) as client:
        client.wait_for_workers(NUM_WORKERS, timeout=120)
        rows = tasks(num_rows, address)
        num_jobs = num_at_a_time(rows[0].settings, None)
        started, used = time.perf_counter(), os.times()
        for result in compile_all(rows, num_jobs=num_jobs, progress=lambda label, stage: None):
            finished_at.append(round(time.perf_counter() - started, 1))
            if result.fresh is not None:
                captures.append(result.fresh.capture)
            else:
                sentence = str(result.error)
                (refused if "could not be compiled for" in sentence else lost)[result.task.label] = sentence
            print(f"{finished_at[-1]:8.1f} s {len(finished_at):4} {result.task.label} {result.error or ''}", flush=True)
            if killed_at is None and len(finished_at) >= num_rows // 4:
                killed_at = len(finished_at)
                print(f"killed {kill_a_worker(client)}", flush=True)
        left = client.processing()
    now = os.times()
    assert not any(left.values()), left
    return {
        "command": f"python -m benchmarks.cluster_rows --rows {num_rows}",
        "num_captures": len(captures),
        "refused_by_xla": refused,
        "lost": lost,
        "targets": Counter(capture.target.name for capture in captures),
        "num_workers": NUM_WORKERS,
        "rows_finished_when_one_was_killed": killed_at,
        "rows_at_a_time": num_jobs,
        "wall_seconds": finished_at[-1],
        "processor_seconds_here": now.user + now.system + now.children_user - used.user - used.system
        - used.children_user + now.children_system - used.children_system,
        "compile_seconds": sum(capture.timings.compile_seconds for capture in captures),
        "lower_seconds": sum(capture.timings.lower_seconds for capture in captures),
        "finished_at_seconds": finished_at,
        "versions": {name: installed_version(name) for name in ("jax", "jaxlib", "distributed")},
        "python": platform.python_version(),
        "machine": {"architecture": platform.machine(), "num_processors": os.cpu_count(), "load": os.getloadavg()},
    }  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=200, metavar="N", help="how many rows, 200 at most")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="also write the result as JSON")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="cluster-rows-") as folder:
        result = measure(given.rows, Path(folder))
    print(
        f"{given.rows} rows in {result['wall_seconds']} s: {result['num_captures']} captures,"
        f" {len(result['refused_by_xla'])} refused by XLA, {len(result['lost'])} lost"
    )
    if given.output is not None:
        given.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if result["lost"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
