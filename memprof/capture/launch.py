"""Compile in a child process, and bring back the capture or what went wrong. Needs no JAX in this process."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from memprof.analysis.capture import Capture
from memprof.capture.capture_file import read_capture
from memprof.capture.job import Job, Message
from memprof.errors import InternalError, MemprofError, WorkloadError

Progress = Callable[[str], None]
_LAST_LINES = 20
_lock = threading.Lock()
_children: set[subprocess.Popen[bytes]] = set()


def compile_in_child(builder: str, arguments: Mapping[str, Any], *, target: str | None, progress: Progress) -> Capture:
    """Build and compile a step in a process of its own.

    Args:
        builder: `module:function` that returns the `StepSpec`.
        arguments: its keyword arguments, JSON values.
        target: what the user asked for; None for the best there is.
        progress: called with the name of each stage as it begins.

    Raises:
        MemprofError: a mistake that the child found.
        WorkloadError: the step failed, or the compiler took the child down; its last lines are in `details`.
    """
    with _work_folder() as folder:
        job = Job(builder=builder, arguments=arguments, target=target)
        with (folder / "stderr").open("w+b") as stderr, _child(folder, stderr.fileno()) as child:
            last = _converse(child, job, progress)
            child.wait()
            stderr.seek(0)
            printed = stderr.read().decode("utf-8", errors="replace")
        if last is None or last.kind == "stage":
            raise _crash(child.returncode, last, printed)
        if last.kind == "workload_error":
            raise WorkloadError(last.text, details=last.details)
        if last.kind == "error":
            raise (InternalError if last.error_type == "InternalError" else MemprofError)(last.text)
        return read_capture(folder / "capture.memprof")


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


def _crash(returncode: int, last: Message | None, printed: str) -> WorkloadError:
    stage = last.text if last else "starting"
    if returncode < 0:
        how = f"was killed by {signal.Signals(-returncode).name}"
        hint = " (out of host memory, perhaps)" if -returncode == signal.SIGKILL else ""
    else:
        how, hint = f"ended with exit code {returncode}", ""
    return WorkloadError(
        f"The compiling process {how}{hint} while it was {stage}",
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
def _child(work_folder: Path, stderr: int) -> Iterator[subprocess.Popen[bytes]]:
    """The child process, gone when the block is left, however that happens.

    It has a session of its own, so that Ctrl-C reaches this process alone, which then ends the child and whatever the
    child started (ptxas runs as a process). Its temporary files go with the work folder: XLA leaves those that it gives
    to ptxas behind when it is killed.
    """
    child = subprocess.Popen(
        [sys.executable, "-m", "memprof.capture.child", str(work_folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        start_new_session=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1", "TMPDIR": str(work_folder)},
    )
    with _lock:
        _children.add(child)
    try:
        yield child
    finally:
        with _lock:
            _children.discard(child)
        _kill_group(child)
        child.wait()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                pipe.close()


def kill_children() -> None:
    """End all children at once, whichever threads wait for them: those threads then report a crash."""
    with _lock:
        for child in _children:
            _kill_group(child)


def _kill_group(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is not None:
        return
    if hasattr(os, "killpg"):
        os.killpg(child.pid, signal.SIGKILL)
    else:  # Windows
        child.kill()
