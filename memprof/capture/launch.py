"""Compile and run in a child process, and bring back the capture or what went wrong. Needs no JAX in this process."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from memprof.analysis.capture import Capture
from memprof.capture.capture_file import read_capture
from memprof.capture.job import CAPTURE_FILE, RECOMPUTED_FILE, TRACE_FOLDER, Job, Message
from memprof.capture.xprof_log import write_traced_session
from memprof.errors import InternalError, MemprofError, WorkloadError

Progress = Callable[[str], None]
_LAST_LINES = 20
_RUNNING = (
    "making the arguments",
    "running",
    "reading the trace",
)  # what the stages of a run begin with (`run.measure`)


class Children:
    """The child processes of one caller, to be ended together, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._are_ended = False

    def add(self, child: subprocess.Popen[bytes]) -> None:
        """A child that has started; it ends at once if the others have."""
        with self._lock:
            self._running.add(child)
            if self._are_ended:
                _kill_group(child)

    def remove(self, child: subprocess.Popen[bytes]) -> None:
        """A child that is gone."""
        with self._lock:
            self._running.discard(child)

    def end(self) -> None:
        """End all at once, whichever threads wait for them: those threads then report a crash."""
        with self._lock:
            self._are_ended = True
            for child in self._running:
                _kill_group(child)


def compile_in_child(
    builder: str,
    arguments: Mapping[str, Any],
    *,
    target: str | None,
    num_steps: int = 0,
    progress: Progress,
    timeout_seconds: float | None = None,
    children: Children | None = None,
) -> Capture:
    """Build and compile a step in a process of its own, and run it there.

    Args:
        builder: `module:function` that returns the `StepSpec`.
        arguments: its keyword arguments, JSON values.
        target: what the user asked for; None for the best there is.
        num_steps: how many steps to run and time; 0: none.
        progress: called with the name of each stage as it begins.
        timeout_seconds: the child is ended after so long; None: never.
        children: those that it is to end with; None: it has no company.

    Raises:
        MemprofError: a mistake that the child found.
        WorkloadError: the step failed, or compiling or running it took the child down; its last lines are in `details`.
    """
    with _work_folder() as folder:
        job = Job(builder=builder, arguments=arguments, target=target, num_steps=num_steps)
        _do(job, folder, progress, timeout_seconds, children or Children())
        return _made_here(folder)


def trace_in_child(
    builder: str,
    arguments: Mapping[str, Any],
    *,
    target: str | None,
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
    with _work_folder() as folder:
        job = Job(builder=builder, arguments=arguments, target=target, num_steps=num_steps, traces=True)
        _do(job, folder, progress, timeout_seconds, Children())
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
    target: str | None,
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
    with _work_folder() as folder:
        job = Job(builder=builder, arguments={}, target=target, variants=variants)
        _do(job, folder, progress, timeout_seconds, Children())
        counts: list[int | str] = json.loads((folder / RECOMPUTED_FILE).read_text(encoding="utf-8"))
        return counts


def _do(job: Job, folder: Path, progress: Progress, timeout_seconds: float | None, children: Children) -> None:
    """Have a child do a job in a work folder, where it leaves what came of it."""
    with (folder / "stderr").open("w+b") as stderr, _child(folder, stderr.fileno(), children) as child:
        with _deadline(child, timeout_seconds) as expired:
            last = _converse(child, job, progress)
            child.wait()
        if expired.is_set():
            stage = last.text if last else "starting"
            raise WorkloadError(
                f"The step was not done after {timeout_seconds:g} s, while it was {stage}; give it longer with"
                " --timeout, or make it smaller"
            )
        stderr.seek(0)
        printed = stderr.read().decode("utf-8", errors="replace")
    if last is None or last.kind == "stage":
        raise _crash(child.returncode, last, printed)
    if last.kind == "workload_error":
        raise WorkloadError(last.text, details=last.details)
    if last.kind == "error":
        raise (InternalError if last.error_type == "InternalError" else MemprofError)(last.text)


def _converse(child: subprocess.Popen[bytes], job: Job, progress: Progress) -> Message | None:
    """Send the job and listen until the child closes its end. Returns its last message."""
    assert child.stdin is not None
    assert child.stdout is not None
    last = None
    try:
        child.stdin.write(job.to_json().encode() + b"\n")
        child.stdin.flush()  # and left open: its end would tell the child that this process is gone
    except BrokenPipeError:
        return None
    for line in child.stdout:
        last = Message.from_json(line.decode())
        if last.kind == "stage":
            progress(last.text)
    return last


@contextmanager
def _deadline(child: subprocess.Popen[bytes], seconds: float | None) -> Iterator[threading.Event]:
    """End the child when its time is over; the event tells whether that has happened."""
    expired = threading.Event()

    def expire() -> None:
        expired.set()
        _kill_group(child)

    timer = threading.Timer(seconds, expire) if seconds is not None else None
    if timer:
        timer.start()
    try:
        yield expired
    finally:
        if timer:
            timer.cancel()


def _crash(returncode: int, last: Message | None, printed: str) -> WorkloadError:
    stage = last.text if last else "starting"
    if returncode < 0:
        how = f"was killed by {signal.Signals(-returncode).name}"
        hint = " (out of host memory, perhaps)" if -returncode == signal.SIGKILL else ""
    else:
        how, hint = f"ended with exit code {returncode}", ""
    return WorkloadError(
        f"The {'running' if stage.startswith(_RUNNING) else 'compiling'} process {how}{hint} while it was {stage}",
        details="\n".join(printed.strip().splitlines()[-_LAST_LINES:]),
    )


@contextmanager
def _work_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="memprof-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _child(work_folder: Path, stderr: int, children: Children) -> Iterator[subprocess.Popen[bytes]]:
    """The child process, gone when the block is left, however that happens.

    It has a session of its own, so that Ctrl-C reaches this process alone, which then ends the child and whatever the
    child started (ptxas runs as a process). The working folder is not on its path (`-P`): a user's `types.py` there
    would stand in for Python's own. Its temporary files go with the work folder: XLA leaves those that it gives
    to ptxas behind when it is killed.
    """
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "memprof.capture.child", str(work_folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        start_new_session=True,
        # JAX takes three quarters of a GPU in advance, unless told not to: then its allocator has no peak to measure.
        env={
            **os.environ,
            "PYTHONUNBUFFERED": "1",
            "TMPDIR": str(work_folder),
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        },
    )
    children.add(child)
    try:
        yield child
    finally:
        children.remove(child)
        _kill_group(child)
        child.wait()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                pipe.close()


def _kill_group(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is not None:
        return
    if hasattr(os, "killpg"):
        os.killpg(child.pid, signal.SIGKILL)
    else:  # Windows
        child.kill()
