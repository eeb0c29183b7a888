"""The child process that compiles and runs: `python -m memprof.sources.jax.child WORK_FOLDER`, or a fork of a server.

A compile can crash its process, and the user's code may do anything. So both happen here, and the command that started
this process survives. The task arrives as one line of JSON on stdin; then this process forks. The parent becomes the
supervisor (see `supervisor.py`). The fork runs the task, writes its result to the work folder (for a step, see
`handover.py`), and ends. It sends messages back as lines of JSON.
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

from memprof.errors import MemprofError, WorkloadError
from memprof.sources.jax.hints import as_workload_error
from memprof.sources.jax.processes.supervisor import fork_worker
from memprof.sources.jax.processes.task import (
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
from memprof.sources.jax.processes.work_folder import remove_folder
from memprof.sources.jax.user_traceback import first_line
from memprof.sources.jax.xla.portable_program import PlanTask, PortableProgram

if TYPE_CHECKING:
    from memprof.sources.jax.compile import LoweredStep
    from memprof.sources.jax.tracing.step import StepSpec


def do_task(work_folder: Path) -> NoReturn:
    """Run the task from stdin, and end this process."""
    line = sys.stdin.readline()
    if not line:  # the command was killed before it sent the task
        remove_folder(work_folder)
        os._exit(1)
    messages = fork_worker(work_folder)
    exit_code = 1
    try:
        _work(line, work_folder, _Line(messages, work_folder))
        exit_code = 0
    except BaseException:  # the user's signal handler may raise anything, anywhere
        traceback.print_exc()
    finally:
        # Skip Python's own shutdown, which waits for threads and for the user's exit handlers.
        os._exit(exit_code)


def _work(line: str, work_folder: Path, line_to_command: _Line) -> None:
    """Run the task, and send its outcome."""
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
    except (OSError, MemoryError) as error:  # limits set by the user's code also apply to memprof's
        lacking = f"{type(error).__name__}: {first_line(error)}".rstrip(": ")
        result = Message(kind="workload_error", text=f"the process of the step lacks a resource: {lacking}")
    else:
        result = Message(kind="done", text="")
    line_to_command.result(result)


class _Line:
    """The worker's line to the command, which survives anything that the user's code does to this process.

    Before each message, it also restores process state that the user's code may have changed.
    """

    def __init__(self, messages: int, work_folder: Path) -> None:
        self._messages = messages
        self._pipe = _identity(messages)
        self._work_folder = work_folder
        self._process, self._supervisor = os.getpid(), os.getppid()
        self._umask = os.umask(0o077)
        os.umask(self._umask)

    def stage(self, name: str) -> None:
        """Report that a stage begins."""
        self._take_back()
        self._send(Message(kind="stage", text=name))

    def result(self, message: Message) -> None:
        """Report the outcome of the task."""
        self._take_back()
        if not self._send(message):
            half = self._work_folder / f"{RESULT_FILE}.half"
            half.write_bytes(encoded(message))
            half.rename(self._work_folder / RESULT_FILE)

    def _send(self, message: Message) -> bool:
        """Send a message, and return whether the pipe still exists: the user's code may have reused its descriptor."""
        if _identity(self._messages) != self._pipe:
            return False
        data = encoded(message)
        while data:
            data = data[os.write(self._messages, data) :]
        return True

    def _take_back(self) -> None:
        if os.getpid() != self._process:  # a fork that returned from the user's code: the task is not its own
            os._exit(0)
        with suppress(ProcessLookupError):
            os.kill(self._supervisor, signal.SIGCONT)
        os.umask(self._umask)
        for stream in range(3):  # otherwise the next opened file would receive C++'s stderr
            if _identity(stream) is None:
                os.open(os.devnull, os.O_RDWR)


def _identity(descriptor: int) -> tuple[int, int] | None:
    try:
        found = os.fstat(descriptor)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _run(task: Task, work_folder: Path, progress: Callable[[str], None]) -> None:
    # Import here, after stdout is redirected and while the command watches, because importing jax takes a second.
    from memprof.sources.jax.compile import check_portable, compile_lowered, lower_step
    from memprof.sources.jax.processes import job
    from memprof.sources.jax.processes.handover import Handover
    from memprof.sources.jax.targets.choose import spare_devices
    from memprof.sources.jax.targets.families import open_drivers
    from memprof.sources.jax.targets.mesh import target_of_step
    from memprof.sources.jax.targets.resolve import if_known
    from memprof.sources.jax.xla.xla_adapter import cudnn_of_absent_device

    drivers = open_drivers() if task.num_steps else ()  # before JAX opens the devices
    spare_devices(task.target)
    is_users_code = not task.recipe.imports
    if task.num_steps and not is_users_code:
        job.join()
    # Before the target, which makes JAX start its backends: the user's code may still have to configure them.
    with cudnn_of_absent_device(if_known(task.target)):
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
    planned = compiled.planned
    if task.num_steps:
        from memprof.sources.jax.running.run import measure

        shutil.rmtree(dump_folder, ignore_errors=True)  # otherwise it would use disk space during the whole run
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
        lowered = dataclasses.replace(planned.lowered, measured=measured)
        planned = dataclasses.replace(planned, lowered=lowered)
    job.leave()
    progress("writing")
    Handover.of(planned.lowered, planned.plan, planned.cache_key).write(work_folder)


def _leave_lowered(task: Task, step: LoweredStep, work_folder: Path) -> None:
    """Write the inputs that another process needs to compile a step, or its plan if it is in the cache."""
    from memprof.sources.jax.planning import plan_key
    from memprof.sources.jax.processes.handover import Handover
    from memprof.sources.jax.xla.plan_cache import PlanCache

    program, plan_task, target = step.program, step.plan_task(task.settings), step.capture.target
    plan, key = None, ""
    if task.settings.use_cache and not task.settings.complete:
        key = plan_key(program, target, plan_task.options)
        plan = PlanCache.of_user().find(key)
        if plan is None and not target.is_deviceless:
            key = ""  # a plan made for another machine's processor is not valid for this one
    Handover.of(step.capture, plan, key).write(work_folder)
    if plan is None:
        program.write(work_folder)
        (work_folder / PLAN_TASK_FILE).write_bytes(encoded_task(plan_task))


def _export(task: Task, spec: StepSpec, step: LoweredStep, work_folder: Path, progress: Callable[[str], None]) -> None:
    """Write the step as an ONNX model, with the step's capture and a record of the export."""
    from memprof.sources.jax.exporting.export import compare_with_jax, write_model
    from memprof.sources.jax.processes.handover import Handover

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
    from memprof.sources.jax.compile import compile_program
    from memprof.sources.jax.targets.choose import spare_devices

    spare_devices(task.target)
    program = PortableProgram.read(work_folder)
    progress("compiling")
    plan = as_workload_error(
        f"could not be compiled for {task.target.name}",
        lambda: compile_program(program, task, work_folder / DUMP_FOLDER),
    )
    (work_folder / PLAN_FILE).write_bytes(plan.encoded())


def _count(task: CountingTask, work_folder: Path, progress: Callable[[str], None]) -> None:
    """Count the FLOPs that each step recomputes, or write the error of a step that cannot be built or traced."""
    from memprof.sources.jax.compile import traced_recomputation
    from memprof.sources.jax.targets.choose import spare_devices
    from memprof.sources.jax.targets.mesh import target_of_step
    from memprof.sources.jax.targets.resolve import if_known
    from memprof.sources.jax.xla.xla_adapter import cudnn_of_absent_device

    spare_devices(task.target)
    counts: list[int | str] = []
    for number, recipe in enumerate(task.recipes, start=1):
        progress(f"tracing {number} of {len(task.recipes)}")
        try:
            with cudnn_of_absent_device(if_known(task.target)):
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
