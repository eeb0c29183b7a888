"""The child process that compiles and runs: `python -m memprof.capture.child WORK_FOLDER`.

A compile can take its process down, and the user's code may print or exit; so both happen here, and the command that
started this process lives on. The job comes as one line of JSON on stdin; messages go back as lines of JSON on what was
stdout, while everything that anybody prints goes to stderr; the capture is left in the work folder as
`capture.memprof`. When stdin closes, the command is gone: then this process removes the work folder and ends at once,
so that no compile outlives a killed command.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import json
import os
import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from memprof.capture.hints import hint
from memprof.capture.inputs import watch_inputs
from memprof.capture.job import CAPTURE_FILE, RECOMPUTED_FILE, TRACE_FOLDER, Job, Message
from memprof.capture.user_traceback import user_traceback
from memprof.errors import MemprofError, WorkloadError

_MAX_REMOVALS = 100


def main() -> None:
    """Do the job that stdin names."""
    messages = _claim_stdout()
    work_folder = Path(sys.argv[1])
    line = sys.stdin.readline()
    if not line:  # the command was killed before it sent the job
        _end_with_the_command(work_folder)
    watcher = threading.Thread(target=_end_with_the_command, args=(work_folder,), daemon=True)
    watcher.start()

    def send(message: Message) -> None:
        try:
            messages.write(message.to_json() + "\n")
            messages.flush()
        except BrokenPipeError:  # nobody listens any more: the watcher is about to end this process
            watcher.join()

    job = Job.from_json(line)
    try:
        (_count if job.variants else _run)(job, work_folder, lambda stage: send(Message(kind="stage", text=stage)))
    except WorkloadError as error:
        send(Message(kind="workload_error", text=str(error), details=error.details))
    except MemprofError as error:
        send(Message(kind="error", text=str(error), error_type=type(error).__name__))
    else:
        send(Message(kind="done", text=""))


def _run(job: Job, work_folder: Path, progress: Callable[[str], None]) -> None:
    progress("importing")
    inputs = watch_inputs()
    # Imported here, after stdout is claimed and with the command watching: importing jax takes a second.
    from memprof.capture.capture_file import write_capture
    from memprof.capture.compile import compile_step
    from memprof.capture.memory_readings import open_driver
    from memprof.capture.targets.choose import choose_running_target, choose_target, spare_devices

    driver = open_driver() if job.num_steps else None  # before JAX takes hold of the device
    spare_devices(job.target)
    build = _builder(job.builder)
    # Before the target, for which JAX starts its backends: the user's code may still have to configure them.
    spec = _as_workload_error("could not be built", lambda: build(**job.arguments))
    target = choose_running_target(job.target) if job.num_steps else choose_target(job.target)
    dump_folder = work_folder / "dump"
    compiled = _as_workload_error(
        f"could not be compiled for {target.info.name}",
        lambda: compile_step(spec, target, dump_folder=dump_folder, progress=progress),
    )
    shutil.rmtree(dump_folder, ignore_errors=True)
    capture = dataclasses.replace(compiled.capture, inputs=inputs.digests())
    if job.num_steps:
        from memprof.capture.run import measure

        is_gpu = target.info.platform != "cpu"
        measured = _as_workload_error(
            "failed while it ran",
            lambda: measure(
                spec,
                compiled,
                target,
                num_steps=job.num_steps,
                driver=driver if is_gpu else None,
                trace_folder=work_folder / TRACE_FOLDER if job.traces else None,
                progress=progress,
            ),
        )
        capture = dataclasses.replace(capture, measured=measured)
    progress("writing")
    write_capture(capture, work_folder / CAPTURE_FILE)


def _count(job: Job, work_folder: Path, progress: Callable[[str], None]) -> None:
    """Count what each variant computes again. One that cannot be built or traced has its sentence instead."""
    progress("importing")
    from memprof.capture.compile import traced_recomputation
    from memprof.capture.targets.choose import choose_target, spare_devices

    spare_devices(job.target)
    build = _builder(job.builder)
    counts: list[int | str] = []
    for number, arguments in enumerate(job.variants, start=1):
        progress(f"tracing {number} of {len(job.variants)}")
        try:
            spec = _as_workload_error("could not be built", functools.partial(build, **arguments))
            target = choose_target(job.target)
            flops = _as_workload_error("could not be traced", functools.partial(traced_recomputation, spec, target))
        except MemprofError as error:
            counts.append(str(error))
        else:
            counts.append(flops)
    (work_folder / RECOMPUTED_FILE).write_text(json.dumps(counts), encoding="utf-8")


def _as_workload_error(what: str, action: Callable[[], Any]) -> Any:
    """Whatever the user's code or XLA raises is a result of the run, told with its own traceback."""
    try:
        return action()
    except MemprofError:
        raise
    except (Exception, SystemExit) as error:  # importing a user's script may end it
        message = str(error).strip().splitlines()
        summary = f"{type(error).__name__}: {message[0] if message else ''}".rstrip(": ")
        advice = hint(error)
        sentence = f"the step {what}: {summary}" + (f" ({advice})" if advice else "")
        raise WorkloadError(sentence, details=user_traceback(error)) from error


def _builder(reference: str) -> Callable[..., Any]:
    module, _, name = reference.partition(":")
    builder: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return builder


def _claim_stdout() -> TextIO:
    """Keep the real stdout for messages, and send everything else that is printed, also by C++, to stderr."""
    messages = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return messages


def _end_with_the_command(work_folder: Path) -> None:
    """Wait until the command is gone, then clean up and end."""
    sys.stdin.read()
    for _ in range(_MAX_REMOVALS):  # XLA, at work in another thread, may put back what was just removed
        shutil.rmtree(work_folder, ignore_errors=True)
        if not work_folder.exists():
            break
    os._exit(1)


if __name__ == "__main__":
    main()
