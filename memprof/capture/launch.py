"""Compile and run in a child process, and bring back the capture or what went wrong. Needs no JAX in this process."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from memprof.analysis.capture import Capture, Target
from memprof.capture.capture_file import read_capture
from memprof.capture.child_process import ChildProcess, Children, Progress
from memprof.capture.job import CAPTURE_FILE, RECOMPUTED_FILE, TRACE_FOLDER, Job
from memprof.capture.work_folder import work_folder
from memprof.capture.xprof_log import write_traced_session


def compile_in_child(
    builder: str,
    arguments: Mapping[str, Any],
    *,
    target: Target | None,
    num_steps: int = 0,
    progress: Progress,
    timeout_seconds: float | None = None,
    children: Children | None = None,
) -> Capture:
    """Build and compile a step in a process of its own, and run it there.

    Args:
        builder: `module:function` that returns the `StepSpec`.
        arguments: its keyword arguments, JSON values.
        target: what to compile for; None for the best there is.
        num_steps: how many steps to run and time; 0: none.
        progress: called with the name of each stage as it begins.
        timeout_seconds: the child is ended after so long; None: never.
        children: those that it is to end with; None: it has no company.

    Raises:
        MemprofError: a mistake that the child found.
        WorkloadError: the step failed, or compiling or running it took the child down; its last lines are in `details`.
    """
    job = Job(builder=builder, arguments=arguments, target=target, num_steps=num_steps)
    with _done(job, progress, timeout_seconds, children) as folder:
        return _made_here(folder)


def trace_in_child(
    builder: str,
    arguments: Mapping[str, Any],
    *,
    target: Target | None,
    num_steps: int,
    log_folder: Path,
    session_name: Callable[[Capture], str],
    progress: Progress,
    timeout_seconds: float | None = None,
) -> tuple[Capture, Path | None]:
    """Like `compile_in_child`, with a trace of the timed steps, written as a session to a log directory.

    Returns:
        The capture, and the session's folder; None where the step ran out of memory.

    Raises:
        MemprofError, WorkloadError: see `compile_in_child`; or the session cannot be written.
    """
    job = Job(builder=builder, arguments=arguments, target=target, num_steps=num_steps, traces=True)
    with _done(job, progress, timeout_seconds, None) as folder:
        capture = _made_here(folder)
        if capture.measured is None or capture.measured.out_of_memory is not None:
            return capture, None
        return capture, write_traced_session(folder / TRACE_FOLDER, log_folder, name=session_name(capture))


def _made_here(folder: Path) -> Capture:
    """The capture that the child has left: what is wrong with it is no damage to a file, but a defect."""
    return replace(read_capture(folder / CAPTURE_FILE), file=None)


def recomputed_in_child(
    builder: str,
    variants: Sequence[Mapping[str, Any]],
    *,
    target: Target | None,
    progress: Progress,
    timeout_seconds: float | None = None,
) -> list[int | str]:
    """Count how many operations steps compute again, by tracing them: no compile, so that it takes seconds.

    Args:
        variants: keyword arguments of the builder, one set for each step; at least one.

    Returns:
        For each its floating-point operations, or the sentence that says why it cannot be built or traced.

    Raises:
        MemprofError, WorkloadError: see `compile_in_child`.
    """
    job = Job(builder=builder, arguments={}, target=target, variants=variants)
    with _done(job, progress, timeout_seconds, None) as folder:
        counts: list[int | str] = json.loads((folder / RECOMPUTED_FILE).read_text(encoding="utf-8"))
        return counts


@contextmanager
def _done(job: Job, progress: Progress, timeout_seconds: float | None, children: Children | None) -> Iterator[Path]:
    """Have a child do a job, and give the work folder with what came of it; the folder is gone with the child."""
    with work_folder() as folder, ChildProcess.started(folder, job, children or Children()) as child:
        child.finish(progress, timeout_seconds)
        yield folder
