"""Compile and run steps in child processes, and return captures or errors. This process needs no JAX.

The functions raise `MemprofError` if a child finds a user's mistake, and `WorkloadError` if a step fails or crashes its
child; its `details` are the child's last lines.
"""

from __future__ import annotations

import functools
import glob
import importlib.util
import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from memprof.analysis.hlo.decoded import FreshCapture
from memprof.analysis.records.capture import Capture
from memprof.analysis.records.exported import Exported
from memprof.errors import MemprofError
from memprof.sources.jax.processes.child_process import ChildProcess, Children, Progress
from memprof.sources.jax.processes.handover import Handover
from memprof.sources.jax.processes.task import (
    EXPORTED_FILE,
    PLAN_FILE,
    PLAN_TASK_FILE,
    RECOMPUTED_FILE,
    TRACE_FOLDER,
    AnyTask,
    CountingTask,
    Task,
    decoded_task,
)
from memprof.sources.jax.processes.work_folder import work_folder
from memprof.sources.jax.targets.resolve import AskedTarget
from memprof.sources.jax.xla.plan import Plan, PlannedStep, with_plan
from memprof.sources.jax.xla.plan_cache import PlanCache, checked
from memprof.sources.jax.xla.portable_program import CompileSettings, PlanTask, PortableProgram

if TYPE_CHECKING:
    from memprof.sources.jax.processes.cluster import Cluster

_MAX_WAITING = 2  # tasks for each job that run, or whose result waits for the caller
# Peak memory of one compile of a large step, including jax and its libraries.
_MEMORY_PER_JOB_BYTES = 2 * 1024**3


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileResult:
    """The result of a task: a capture or an error."""

    task: Task
    fresh: FreshCapture | None = None
    error: MemprofError | None = None


def compile_in_child(task: Task, *, progress: Progress) -> FreshCapture:
    """Build and compile a step in a separate process, and run it there if the task asks for it.

    With a cluster, the process only lowers the step, and a process of a worker compiles it.

    Args:
        progress: called with the name of each stage when it begins.
    """
    with _planner_of([task]) as planner:
        return planner.start(task, progress)()


def compile_all(
    tasks: Sequence[Task], *, num_jobs: int, progress: Callable[[str, str], None]
) -> Iterator[CompileResult]:
    """Compile tasks in parallel, and yield each result as soon as it is available, in any order.

    A failed task does not affect the others. If the caller stops iterating (Ctrl-C, an error), the running children end
    at once. Memory does not grow with the tasks: a program is decoded when its result is yielded, and if the caller is
    slower than the compiles, these wait.

    Args:
        num_jobs: maximum number of concurrent tasks.
        progress: called with a task's label and the name of each stage when it begins; from several threads.

    Raises:
        MemprofError: the tasks' cluster cannot be reached, or cannot compile them.
    """
    with _planner_of(tasks) as planner:
        executor = ThreadPoolExecutor(max_workers=num_jobs)
        rows: dict[Future[Callable[[], FreshCapture]], Task] = {}
        waiting = iter(tasks)
        try:
            while True:
                for task in islice(waiting, _MAX_WAITING * num_jobs - len(rows)):
                    rows[executor.submit(planner.start, task, functools.partial(progress, task.label))] = task
                if not rows:
                    return
                future = next(as_completed(rows))
                yield _result(rows.pop(future), future)
        finally:
            executor.shutdown(wait=False, cancel_futures=True)
            planner.children.end()
            executor.shutdown(wait=True)


def _result(task: Task, future: Future[Callable[[], FreshCapture]]) -> CompileResult:
    try:
        return CompileResult(task=task, fresh=future.result()())
    except MemprofError as error:
        return CompileResult(task=task, error=error)


def trace_in_child(
    task: Task, *, write_session: Callable[[Capture, Path], Path], progress: Progress
) -> tuple[FreshCapture, Path | None]:
    """Like `compile_in_child`, with a trace of the timed steps.

    Args:
        write_session: called with the capture and the folder of the trace, which is removed when it returns.

    Returns:
        The capture and the result of `write_session`, or None instead of the result if the step ran out of memory.
    """
    with _done(replace(task, traces=True), progress) as folder:
        fresh = with_plan(Handover.read(folder).planned())  # a step that runs is compiled, not read from the cache
        measured = fresh.capture.measured
        if measured is None or measured.out_of_memory is not None:
            return fresh, None
        return fresh, write_session(fresh.capture, folder / TRACE_FOLDER)


@contextmanager
def exported_in_child(task: Task, *, progress: Progress) -> Iterator[tuple[Capture, Exported, tuple[Path, ...]]]:
    """Write a step as an ONNX model in a child process.

    Yields:
        The step's capture without a program, a record of the export, and the files: the model and large weights. The
        files are removed when the block exits.
    """
    if importlib.util.find_spec("onnx") is None:
        raise MemprofError("ONNX is not installed: pip install 'jax-memprof[onnx]'")
    with _done(task, progress) as folder:
        exported = msgspec.json.decode((folder / EXPORTED_FILE).read_bytes(), type=Exported)
        yield (Handover.read(folder).step, exported, tuple(sorted(folder.glob(f"{glob.escape(task.exports)}*"))))


def recomputed_in_child(task: CountingTask, *, progress: Progress) -> list[int | str]:
    """Count the operations that steps recompute, by tracing alone: without a compile, this takes seconds.

    Returns:
        The recomputed FLOPs of each step, or the sentence that says why it cannot be built or traced.
    """
    with _done(task, progress) as folder:
        counts: list[int | str] = json.loads((folder / RECOMPUTED_FILE).read_text(encoding="utf-8"))
        return counts


def num_at_a_time(settings: CompileSettings, target: AskedTarget) -> int:
    """Return the number of concurrent compiles: the capacity of the cluster and a few more that are being lowered.

    Raises:
        MemprofError: the cluster cannot be reached, or cannot compile for the target.
    """
    if settings.cluster is None:
        return default_num_jobs()
    from memprof.sources.jax.processes.cluster import connected

    with connected(settings.cluster, [target]) as cluster:
        return cluster.num_threads + default_num_jobs()


def default_num_jobs() -> int:
    """Return the number of processors, limited by the free memory."""
    num_processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    free_bytes = free_memory_bytes()
    by_memory = num_processors if free_bytes is None else free_bytes // _MEMORY_PER_JOB_BYTES
    return max(1, min(num_processors, by_memory))


def plan_in_child(
    program: PortableProgram, task: PlanTask, *, progress: Progress, children: Children | None = None
) -> Plan:
    """Compile an already lowered program in a separate process."""
    with _done(task, progress, children, program) as folder:
        return Plan.decoded((folder / PLAN_FILE).read_bytes())


def plan_on_worker(program: PortableProgram, task: PlanTask, *, children: Children) -> Plan:
    """Run `plan_in_child` on a worker of a cluster, which loads this function by its name."""
    return plan_in_child(program, task, progress=lambda stage: None, children=children)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Planner:
    """Compiles steps in child processes. With a cluster, these only lower, and processes of its workers compile.

    Attributes:
        children: child processes that end together.
        lowering: held during lowering for a cluster.
    """

    cluster: Cluster | None
    children: Children = field(default_factory=Children)
    lowering: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(default_num_jobs()))

    def start(self, task: Task, progress: Progress) -> Callable[[], FreshCapture]:
        """Compile a step, and return a function that decodes and checks its plan."""
        plan = functools.partial(self._plan if self.cluster is None else self._plan_on_cluster, task, progress)
        return functools.partial(checked, plan(), plan)

    def _plan(self, task: Task, progress: Progress) -> PlannedStep:
        with _done(task, progress, self.children) as folder:
            return Handover.read(folder).planned()

    def _plan_on_cluster(self, task: Task, progress: Progress) -> PlannedStep:
        assert self.cluster is not None
        progress("waiting")
        with self.lowering:
            self.children.check()
            with _done(replace(task, lowers_only=True), progress, self.children) as folder:
                step = Handover.read(folder)
                if step.plan is not None:
                    return step.planned()
                program = PortableProgram.read(folder)
                plan_task = decoded_task((folder / PLAN_TASK_FILE).read_bytes())
        assert isinstance(plan_task, PlanTask)
        progress("on the cluster")
        call = functools.partial(
            self.cluster.call, plan_on_worker, program, plan_task, target=plan_task.target, children=self.children
        )
        cache, key = PlanCache.of_user(), step.cache_key
        plan = cache.find_or_make(key, call, waiting=self.children.check) if key else call()
        return replace(step, plan=plan).planned()


@contextmanager
def _planner_of(tasks: Sequence[Task]) -> Iterator[_Planner]:
    """Connect to the cluster of the tasks, which all share one, if they have one."""
    addresses = {task.settings.cluster for task in tasks} - {None}
    if not addresses:
        yield _Planner(cluster=None)
        return
    from memprof.sources.jax.processes.cluster import connected

    (address,) = addresses
    with connected(str(address), [task.target for task in tasks]) as cluster:
        yield _Planner(cluster=cluster)


@contextmanager
def _done(
    task: AnyTask, progress: Progress, children: Children | None = None, program: PortableProgram | None = None
) -> Iterator[Path]:
    """Run a task in a child, and yield the work folder with its results; the folder is removed with the child.

    Args:
        program: the program that the task compiles, if it is lowered already.
    """
    with work_folder() as folder:
        if program is not None:
            program.write(folder)
        with ChildProcess.started(folder, task, children or Children()) as child:
            child.finish(progress, task.settings.timeout_seconds)
            yield folder


def free_memory_bytes() -> int | None:
    """Return the memory that new processes can use without swapping, or None if it is unknown (not Linux)."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    available = next((line.split() for line in lines if line.startswith("MemAvailable:")), None)
    return None if available is None else int(available[1]) * 1024
