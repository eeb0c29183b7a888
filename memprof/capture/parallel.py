"""Several compiles at once, each in a child process of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memprof.analysis.capture import Capture, Target
from memprof.capture.child_process import Children
from memprof.capture.launch import compile_in_child
from memprof.errors import MemprofError

# What one compile of a large step takes at its highest, jax and its libraries included.
_MEMORY_PER_JOB_BYTES = 2 * 1024**3


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileTask:
    """One compile: see `launch.compile_in_child`. `label` tells it from the others."""

    label: str
    builder: str
    arguments: Mapping[str, Any]
    target: Target | None
    num_steps: int = 0
    timeout_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileResult:
    """What came of a task: a capture, or the error that stands in its place."""

    task: CompileTask
    capture: Capture | None
    error: MemprofError | None


def compile_all(
    tasks: Sequence[CompileTask], *, num_jobs: int, progress: Callable[[str, str], None]
) -> Iterator[CompileResult]:
    """Compile tasks in parallel and give each result as soon as it is there, in whatever order.

    A task that fails does not touch the others. When the caller stops listening (Ctrl-C, an error), the children that
    are still at work end at once.

    Args:
        num_jobs: how many children at most at a time.
        progress: called with a task's label and the name of each stage as it begins; from several threads.
    """

    def run(task: CompileTask) -> CompileResult:
        try:
            capture = compile_in_child(
                task.builder,
                task.arguments,
                target=task.target,
                num_steps=task.num_steps,
                progress=lambda stage: progress(task.label, stage),
                timeout_seconds=task.timeout_seconds,
                children=children,
            )
        except MemprofError as error:
            return CompileResult(task=task, capture=None, error=error)
        return CompileResult(task=task, capture=capture, error=None)

    children = Children()
    executor = ThreadPoolExecutor(max_workers=num_jobs)
    try:
        for future in as_completed([executor.submit(run, task) for task in tasks]):
            yield future.result()
    finally:
        executor.shutdown(wait=False, cancel_futures=True)
        children.end()
        executor.shutdown(wait=True)


def default_num_jobs() -> int:
    """As many as there are processors, as far as the free memory goes."""
    num_processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    free_bytes = _free_memory_bytes()
    by_memory = num_processors if free_bytes is None else free_bytes // _MEMORY_PER_JOB_BYTES
    return max(1, min(num_processors, by_memory))


def _free_memory_bytes() -> int | None:
    """Memory that new processes can use without swapping; None where the system does not tell (not Linux)."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    available = next((line.split() for line in lines if line.startswith("MemAvailable:")), None)
    return None if available is None else int(available[1]) * 1024
