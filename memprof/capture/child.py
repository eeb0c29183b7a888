"""The child process that compiles and runs: `python -m memprof.capture.child WORK_FOLDER`, or a fork of a server.

A compile can take its process down, and the user's code may do anything at all; so both happen here, and the command
that started this process lives on. The task comes as one line of JSON on stdin; then this process forks: see
`supervisor.py` for what becomes of the first one. The second does it, leaves what came of it in the work folder (for a
step: see `handover.py`), and ends. Messages go back as lines of JSON.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import msgspec

from memprof.capture.hints import as_workload_error
from memprof.capture.processes.supervisor import fork_worker
from memprof.capture.processes.task import (
    DUMP_FOLDER,
    EXPORTED_FILE,
    PLAN_FILE,
    PLAN_TASK_FILE,
    RECOMPUTED_FILE,
    RESULT_FILE,
    TRACE_FOLDER,
    CountingTask,
    Message,
    Task,
    decoded_task,
    encoded,
    encoded_task,
)
from memprof.capture.processes.work_folder import remove_folder
from memprof.capture.user_traceback import first_line
from memprof.capture.xla.portable_program import PlanTask, PortableProgram
from memprof.errors import MemprofError, WorkloadError

if TYPE_CHECKING:
    from memprof.capture.compile import LoweredStep
    from memprof.capture.tracing.step import StepSpec


def do_task(work_folder: Path) -> NoReturn:
    """Do the task that stdin names, and end this process."""
    line = sys.stdin.readline()
    if not line:  # the command was killed before it sent the task
        remove_folder(work_folder)
        os._exit(1)
    messages = fork_worker(work_folder)
    exit_code = 1
    try:
        _work(line, work_folder, _Line(messages, work_folder))
        exit_code = 0
    except BaseException:  # a signal handler of the user's may raise anything, anywhere
        traceback.print_exc()
    finally:
        # Without Python's own end, which waits for threads and for what the user's code wants done at exit.
        os._exit(exit_code)


def _work(line: str, work_folder: Path, line_to_command: _Line) -> None:
    """Do the task, and say how it came out."""
    try:
        line_to_command.stage("importing")
        task = decoded_task(line)
        if isinstance(task, CountingTask):
            _count(task, work_folder, line_to_command.stage)
        elif isinstance(task, PlanTask):
            _plan(task, work_folder, line_to_command.stage)
        else:
            _run(task, work_folder, line_to_command.stage)
    except WorkloadError as error:
        result = Message(kind="workload_error", text=str(error), details=error.details)
    except MemprofError as error:
        result = Message(kind="error", text=str(error), error_type=type(error).__name__)
    except (OSError, MemoryError) as error:  # limits that the user's code has set count for ours, too
        lacking = f"{type(error).__name__}: {first_line(error)}".rstrip(": ")
        result = Message(kind="workload_error", text=f"the process of the step lacks what it needs: {lacking}")
    else:
        result = Message(kind="done", text="")
    line_to_command.result(result)


class _Line:
    """How the worker reaches the command, whatever the user's code does to this process.

    Each message is also the moment to put right what that code may have changed under our feet.
    """

    def __init__(self, messages: int, work_folder: Path) -> None:
        self._messages = messages
        self._pipe = _identity(messages)
        self._work_folder = work_folder
        self._process, self._supervisor = os.getpid(), os.getppid()
        self._umask = os.umask(0o077)
        os.umask(self._umask)

    def stage(self, name: str) -> None:
        """A stage begins."""
        self._take_back()
        self._send(Message(kind="stage", text=name))

    def result(self, message: Message) -> None:
        """The work is over."""
        self._take_back()
        if not self._send(message):
            half = self._work_folder / f"{RESULT_FILE}.half"
            half.write_bytes(encoded(message))
            half.rename(self._work_folder / RESULT_FILE)

    def _send(self, message: Message) -> bool:
        """Returns whether the pipe was still there: its number may be that of a file of the user's by now."""
        if _identity(self._messages) != self._pipe:
            return False
        data = encoded(message)
        while data:
            data = data[os.write(self._messages, data) :]
        return True

    def _take_back(self) -> None:
        if os.getpid() != self._process:  # a fork that came back from the user's code: the work is not its own
            os._exit(0)
        with suppress(ProcessLookupError):
            os.kill(self._supervisor, signal.SIGCONT)
        os.umask(self._umask)
        for stream in range(3):  # else the next file that is opened would get what C++ writes to stderr
            if _identity(stream) is None:
                os.open(os.devnull, os.O_RDWR)


def _identity(descriptor: int) -> tuple[int, int] | None:
    try:
        found = os.fstat(descriptor)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _run(task: Task, work_folder: Path, progress: Callable[[str], None]) -> None:
    # Imported here, after stdout is claimed and with the command watching: importing jax takes a second.
    from memprof.capture.compile import check_portable, compile_lowered, lower_step
    from memprof.capture.processes import job
    from memprof.capture.processes.handover import Handover
    from memprof.capture.targets.choose import spare_devices
    from memprof.capture.targets.families import open_drivers
    from memprof.capture.targets.mesh import target_of_step
    from memprof.capture.xla.xla_adapter import cudnn_of_absent_device

    drivers = open_drivers() if task.num_steps else ()  # before JAX takes hold of the devices
    spare_devices(task.target)
    is_users_code = not task.recipe.imports
    if task.num_steps and not is_users_code:
        job.join()
    # Before the target, for which JAX starts its backends: the user's code may still have to configure them.
    with cudnn_of_absent_device(task.target):
        spec = as_workload_error("could not be built", lambda: task.recipe.build(task.target))
    if task.num_steps and task.label:
        job.refuse_rows()
    progress("preparing")
    target = target_of_step(spec, task.target, runs=bool(task.num_steps))
    if task.lowers_only:
        check_portable(target)
    step = as_workload_error(f"could not be lowered for {target.name}", lambda: lower_step(spec, target, progress))
    if task.lowers_only:
        _leave_lowered(task, step, work_folder)
        return
    if task.exports:
        _export(task, spec, step, work_folder, progress)
        return
    dump_folder = work_folder / DUMP_FOLDER
    compiled = as_workload_error(
        f"could not be compiled for {target.name}",
        lambda: compile_lowered(
            step,
            dump_folder=dump_folder,
            progress=progress,
            stop_at_plan=not (task.num_steps or task.settings.complete),
            use_cache=task.settings.use_cache,
        ),
    )
    lowered = compiled.lowered
    if task.num_steps:
        from memprof.capture.running.run import measure

        shutil.rmtree(dump_folder, ignore_errors=True)  # else it would lie there for as long as the step runs
        measured = as_workload_error(
            "failed while it ran",
            lambda: measure(
                spec,
                compiled,
                num_steps=task.num_steps,
                drivers=drivers,
                trace_folder=work_folder / TRACE_FOLDER if task.traces else None,
                progress=progress,
            ),
        )
        lowered = dataclasses.replace(lowered, measured=measured)
    job.leave()
    progress("writing")
    Handover.of(lowered, compiled.plan, compiled.cache_key).write(work_folder)


def _leave_lowered(task: Task, step: LoweredStep, work_folder: Path) -> None:
    """Leave what another process needs to compile a step, or its plan where it is in the cache."""
    from memprof.capture.planning import plan_key
    from memprof.capture.processes.handover import Handover
    from memprof.capture.xla.plan_cache import PlanCache

    program, plan_task, target = step.program, step.plan_task(task.settings), step.capture.target
    plan, key = None, ""
    if task.settings.use_cache and not task.settings.complete:
        key = plan_key(program, target, plan_task.options)
        plan = PlanCache.of_user().find(key)
        if plan is None and not target.is_deviceless:
            key = ""  # what another machine's processor gets is no plan for this one
    Handover.of(step.capture, plan, key).write(work_folder)
    if plan is None:
        program.write(work_folder)
        (work_folder / PLAN_TASK_FILE).write_bytes(encoded_task(plan_task))


def _export(task: Task, spec: StepSpec, step: LoweredStep, work_folder: Path, progress: Callable[[str], None]) -> None:
    """Leave the step as an ONNX model, and what is known of both."""
    from memprof.capture.exporting.export import compare_with_jax, write_model
    from memprof.capture.processes.handover import Handover

    path = work_folder / task.exports
    progress("writing the ONNX model")
    model = write_model(spec, step, path)
    agreement = None
    if task.verifies:
        progress("comparing with JAX")
        agreement = compare_with_jax(spec, step, path)
    (work_folder / EXPORTED_FILE).write_bytes(msgspec.json.encode({"model": model, "agreement": agreement}))
    Handover.of(step.capture, None, "").write(work_folder)


def _plan(task: PlanTask, work_folder: Path, progress: Callable[[str], None]) -> None:
    os.environ["XLA_FLAGS"] = task.xla_flags  # before XLA reads it
    from memprof.capture.compile import compile_program
    from memprof.capture.targets.choose import spare_devices

    spare_devices(task.target)
    program = PortableProgram.read(work_folder)
    progress("compiling")
    plan = as_workload_error(
        f"could not be compiled for {task.target.name}",
        lambda: compile_program(program, task, work_folder / DUMP_FOLDER),
    )
    plan.write(work_folder / PLAN_FILE)


def _count(task: CountingTask, work_folder: Path, progress: Callable[[str], None]) -> None:
    """Count what each step computes again. One that cannot be built or traced has its sentence instead."""
    from memprof.capture.compile import traced_recomputation
    from memprof.capture.targets.choose import spare_devices
    from memprof.capture.targets.mesh import target_of_step
    from memprof.capture.xla.xla_adapter import cudnn_of_absent_device

    spare_devices(task.target)
    counts: list[int | str] = []
    for number, recipe in enumerate(task.recipes, start=1):
        progress(f"tracing {number} of {len(task.recipes)}")
        try:
            with cudnn_of_absent_device(task.target):
                spec = as_workload_error("could not be built", functools.partial(recipe.build, task.target))
            target = target_of_step(spec, task.target)
            count = functools.partial(traced_recomputation, spec, target)
            flops = as_workload_error("could not be traced", count)
        except MemprofError as error:
            counts.append(str(error))
        else:
            counts.append(flops)
    (work_folder / RECOMPUTED_FILE).write_text(json.dumps(counts), encoding="utf-8")


if __name__ == "__main__":
    do_task(Path(sys.argv[1]))
