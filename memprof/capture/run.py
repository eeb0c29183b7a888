"""Run a compiled step over and over, on real arguments, and measure it.

Runs in the child process, after `compile.py`, so that the peak and the crash of one configuration are its own. The
arguments are made on the host and moved to the device one by one: what making them takes there would hide the peak of
the steps, since an allocator's peak is that of the whole process.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import accumulate, chain, groupby
from pathlib import Path
from typing import Any

import jax
import numpy as np

from memprof.analysis.capture import ArgumentLeaf
from memprof.analysis.categories import Role
from memprof.analysis.measurement import Measurement, OutOfMemory, PoolReading, ResidentMemory
from memprof.capture import memory_readings, xla_adapter
from memprof.capture.compile import CompiledStep
from memprof.capture.jitting import is_array
from memprof.capture.step import Feed, StepSpec
from memprof.capture.targets.gpu import gpu_of_kind
from memprof.capture.trace_reading import read_trace, session_folder
from memprof.capture.xprof_log import module_name, program_file_name
from memprof.errors import MemprofError

NUM_WARMUP_STEPS = 2
STEP_ANNOTATION = "step"  # what a trace calls a step
_PROGRESS_SECONDS = 0.5

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedStep:
    """One step: the seconds from the call to the end of its results on the device, and its loss (None: it has none)."""

    seconds: float
    loss: float | None


class Arguments:
    """The arguments of one step after another.

    Results with the shapes and dtypes of an argument's leaves, one after the other, take its place in the next step,
    as `state` does in `state, metrics = step(state, batch)`. That goes for arguments that are donated, or hold
    parameters or optimizer state; a batch or a learning rate that happens to look like a result is left alone. All
    others are new in each step.
    """

    def __init__(self, spec: StepSpec, compiled: CompiledStep) -> None:
        """Finds out which arguments may come from a result.

        Raises:
            MemprofError: the step has no real arguments.
        """
        self._abstract, self._structure = jax.tree.flatten(compiled.arguments)
        self._spans = _argument_spans(spec, compiled)
        self._new_leaves = (
            _from_feed(spec.feed) if spec.feed is not None else _own_arguments(spec, compiled, self._spans)
        )
        self._places_in_memory = [_place_in_memory(self._abstract[span], compiled.device) for span in self._spans]
        self._host = jax.local_devices(backend="cpu")[0]
        leaves = compiled.capture.arguments
        self._changes = [any(map(_changes, leaves[span])) for span in self._spans]
        self._places: dict[int, slice] | None = None
        self._next: dict[int, list[Any]] = {}

    def prepare(self, step: int) -> None:
        """Put all arguments of a step on the device, ahead of it."""
        self._next = dict(enumerate(self._of_step(step)))

    def of_step(self, step: int) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """All arguments of a step, positional and by keyword, on the device."""
        args, kwargs = jax.tree.unflatten(self._structure, chain.from_iterable(self._of_step(step)))
        return args, kwargs

    def take(self, result: Any) -> None:
        """Keep of a step's result what goes into the next one."""
        results = jax.tree.leaves(result)
        if self._places is None:
            self._places = self._find_places(results)
        self._next = {number: results[place] for number, place in self._places.items()}

    def _of_step(self, step: int) -> list[list[Any]]:
        kept, self._next = self._next, {}  # what the step donates must be in nobody's hands but its own
        return [kept[number] if number in kept else self._new(number, step) for number in range(len(self._spans))]

    def _find_places(self, results: list[Any]) -> dict[int, slice]:
        """Which results take the place of which argument: the first ones that look like it."""
        places: dict[int, slice] = {}
        taken: set[int] = set()
        for number, span in enumerate(self._spans):
            wanted = [_shape_and_dtype(leaf) for leaf in self._abstract[span]]
            if not wanted or not self._changes[number]:
                continue
            for first in range(len(results) - len(wanted) + 1):
                place = range(first, first + len(wanted))
                if taken.isdisjoint(place) and [_shape_and_dtype(results[index]) for index in place] == wanted:
                    places[number] = slice(place.start, place.stop)
                    taken.update(place)
                    break
        return places

    def _new(self, number: int, step: int) -> list[Any]:
        with jax.default_device(self._host):
            leaves = self._new_leaves(number, step)
        placed: list[Any] = jax.block_until_ready(jax.device_put(leaves, self._places_in_memory[number]))
        return placed


def measure(
    spec: StepSpec,
    compiled: CompiledStep,
    *,
    num_steps: int,
    driver: memory_readings.Driver | None,
    trace_folder: Path | None = None,
    progress: Progress,
) -> Measurement:
    """Run a step `NUM_WARMUP_STEPS` + `num_steps` times.

    Args:
        driver: opened before JAX took hold of the device; None on a CPU.
        trace_folder: where to leave a trace of the timed steps, with the program beside it; None: none is taken.
        progress: called with what the run is at.

    Returns:
        What was measured. Where memory ran out, it says so, and holds what was measured up to then.

    Raises:
        MemprofError: the step has no real arguments.
        Exception: whatever else ends the run.
    """
    if not callable(compiled.executable):
        raise MemprofError(
            f"{spec.label} cannot be run on {compiled.capture.target.name}, only compiled: it names another device"
            " itself, by backend= or by a mesh"
        )
    run = _Run(spec=spec, compiled=compiled, progress=progress)
    out_of_memory = None
    try:
        run.start()
        run.steps(0, NUM_WARMUP_STEPS, num_steps=NUM_WARMUP_STEPS + num_steps)
        with nullcontext() if trace_folder is None else _tracing(trace_folder):
            run.steps(NUM_WARMUP_STEPS, num_steps, num_steps=NUM_WARMUP_STEPS + num_steps)
    except (jax.errors.JaxRuntimeError, MemoryError) as error:
        out_of_memory = _out_of_memory(error, run.doing, compiled.device)
        if out_of_memory is None:
            raise
    measured = replace(run.measurement(driver), out_of_memory=out_of_memory)
    if trace_folder is None or out_of_memory is not None:
        return measured
    progress("reading the trace")
    session, module = session_folder(trace_folder), module_name(compiled.capture)
    trace = read_trace(session, module)
    # Where there is a program of that name, XProf takes none from the trace (see `xprof_log.py`).
    (session / program_file_name(module, trace.program_id)).write_bytes(compiled.capture.hlo_proto)
    return replace(measured, op_times=trace.op_times)


def _tracing(folder: Path) -> AbstractContextManager[None]:
    """A trace without the calls of Python, which would hide the annotations of the steps under memprof's own code."""
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    tracing: AbstractContextManager[None] = jax.profiler.trace(str(folder), profiler_options=options)
    return tracing


def timed_steps(
    executable: Callable[..., Any], arguments: Arguments, loss: Callable[[Any], float | None], numbers: range
) -> Iterator[TimedStep]:
    """Run steps one after another, each to its end before the next begins."""
    for number in numbers:
        yield _timed_step(executable, arguments, loss, number)


def _timed_step(
    executable: Callable[..., Any], arguments: Arguments, loss: Callable[[Any], float | None], number: int
) -> TimedStep:
    """One step. Nothing of it but what the next one takes lives on when this returns."""
    with jax.profiler.TraceAnnotation("feed"):
        args, kwargs = arguments.of_step(number)
    with jax.profiler.StepTraceAnnotation(STEP_ANNOTATION, step_num=number):
        started = time.perf_counter()
        result = executable(*args, **kwargs)
        del args, kwargs  # as in a loop that binds its new state to the name of the old
        jax.block_until_ready(result)
        seconds = time.perf_counter() - started
    arguments.take(result)
    with jax.profiler.TraceAnnotation("loss"):
        return TimedStep(seconds=seconds, loss=loss(result))


class _Run:
    """One run and what has been measured of it so far."""

    def __init__(self, *, spec: StepSpec, compiled: CompiledStep, progress: Progress) -> None:
        self.doing = "making the arguments"
        self._spec = spec
        self._target, self._device = compiled.capture.target, compiled.device
        self._progress = progress
        self._executable = compiled.executable
        self._argument_bytes = sum(leaf.size_bytes for leaf in compiled.capture.arguments)
        self._arguments = Arguments(spec, compiled)
        self._loss = spec.feed.loss if spec.feed is not None else _only_number
        self._done: list[TimedStep] = []
        self._readings: list[PoolReading | None] = []
        self._resident_before_bytes: int | None = None

    def start(self) -> None:
        """Make the arguments of the first step, then read what they take."""
        self._progress(self.doing)
        self._arguments.prepare(0)
        if self._target.platform == "cpu":
            self._resident_before_bytes = memory_readings.start_resident_peak()
        self._readings.append(memory_readings.read_pool(self._device))

    def steps(self, first: int, count: int, *, num_steps: int) -> None:
        """Run `count` steps from number `first` on, of `num_steps` in all."""
        reported = -_PROGRESS_SECONDS
        steps = timed_steps(self._executable, self._arguments, self._loss, range(first, first + count))
        for number in range(first, first + count):
            self.doing = f"running step {number + 1} of {num_steps}"
            if time.perf_counter() - reported > _PROGRESS_SECONDS:
                self._progress(self.doing)
                reported = time.perf_counter()
            self._done.append(next(steps))
            if number == 0:
                self._readings.append(memory_readings.read_pool(self._device))

    def measurement(self, driver: memory_readings.Driver | None) -> Measurement:
        """Everything measured up to now."""
        device = self._device
        self._readings.append(memory_readings.read_pool(device))
        timed = self._done[NUM_WARMUP_STEPS:]
        pool = memory_readings.pool_memory(device, *self._readings) if len(self._readings) == 3 else None
        resident = None
        if self._resident_before_bytes is not None:
            resident = ResidentMemory(
                before_steps_bytes=self._resident_before_bytes,
                argument_bytes=self._argument_bytes,
                peak_bytes=memory_readings.resident_peak(),
            )
        feed, gpu = self._spec.feed, gpu_of_kind(device.device_kind)
        return Measurement(
            device=self._target.description,
            platform=self._target.platform,
            num_warmup_steps=NUM_WARMUP_STEPS,
            step_seconds=tuple(step.seconds for step in timed),
            losses=tuple(step.loss for step in self._done if step.loss is not None),
            num_examples=feed.num_examples if feed else None,
            num_tokens=feed.num_tokens if feed else None,
            peak_flops_per_second=gpu.peak_flops_per_second if gpu else None,
            pool=pool,
            driver=driver.read() if driver else None,
            resident=resident,
            out_of_memory=None,
        )


def _argument_spans(spec: StepSpec, compiled: CompiledStep) -> list[slice]:
    """The leaves of each argument: of those that a feed counts, else of those that the user knows by name."""
    if spec.feed is not None:
        sizes = [len(jax.tree.leaves(argument)) for argument in compiled.arguments[0]]
    else:
        owners = (re.split(r"[.\[]", leaf.path, maxsplit=1)[0] for leaf in compiled.capture.arguments)
        sizes = [len(list(leaves)) for _, leaves in groupby(owners)]
    ends = list(accumulate(sizes))
    return [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]


def _from_feed(feed: Feed) -> Callable[[int, int], list[Any]]:
    return lambda number, step: jax.tree.leaves(feed.argument(number, step))


def _own_arguments(spec: StepSpec, compiled: CompiledStep, spans: Sequence[slice]) -> Callable[[int, int], list[Any]]:
    """The arguments that a step without a feed was given, copied for each step: it may donate them.

    Raises:
        MemprofError: they are shapes alone.
    """
    given = jax.tree.leaves(compiled.given)
    if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in given):
        raise MemprofError(
            f"{spec.label} cannot be run, only compiled: its arguments are shapes. Give the StepSpec arrays, or a feed"
        )

    def copied(number: int, step: int) -> list[Any]:
        return [jax.numpy.array(leaf, copy=True) if is_array(leaf) else leaf for leaf in given[spans[number]]]

    return copied


def _place_in_memory(leaves: Sequence[Any], device: jax.Device) -> Any:
    """Where the leaves of an argument are to lie: one place where it is that of all, which is put there faster."""
    places = [getattr(leaf, "sharding", None) or device for leaf in leaves]
    return places[0] if len(set(places)) == 1 else places


def _changes(leaf: ArgumentLeaf) -> bool:
    """Whether a leaf is something that steps change."""
    return leaf.donated or leaf.role in (Role.PARAMS, Role.OPTIMIZER_STATE)


def _shape_and_dtype(leaf: Any) -> tuple[Any, Any]:
    return np.shape(leaf), getattr(leaf, "dtype", None)


def _only_number(result: Any) -> float | None:
    """The loss of a step that does not say which of its results that is: the only floating-point scalar."""
    numbers = [
        leaf for leaf in jax.tree.leaves(result) if leaf.shape == () and jax.dtypes.issubdtype(leaf.dtype, np.floating)
    ]
    return float(numbers[0]) if len(numbers) == 1 else None


def _out_of_memory(error: Exception, doing: str, device: jax.Device) -> OutOfMemory | None:
    """The error as a result, if it says that memory ran out."""
    message = str(error).partition("\n")[0] or "out of host memory"
    if not isinstance(error, MemoryError) and not xla_adapter.is_out_of_memory(message):
        return None
    stats = device.memory_stats() or {}
    return OutOfMemory(
        doing=doing,
        asked_bytes=xla_adapter.bytes_asked_for(message),
        in_use_bytes=stats.get("bytes_in_use"),
        limit_bytes=stats.get("bytes_limit"),
        message=message,
    )
