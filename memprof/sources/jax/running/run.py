"""Run a compiled step repeatedly on real arguments, and measure it.

This happens in the child process, after `compile.py`, so that each configuration has its own peak and its own crash.
The arguments are made on the host and moved to the device one by one. If they were made on the device, the memory of
this could hide the peak of the steps, because an allocator's peak covers the whole process.

A sharded step runs on all devices of its mesh. Each process of a job measures its own devices, and all processes share
their measurements at the end (see `job.py`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from memprof.analysis.records.device_family import family_of
from memprof.analysis.records.measurement import MeasuredDevice, Measurement, OutOfMemory, PoolReading, ResidentMemory
from memprof.errors import MemprofError
from memprof.sources.jax.compile import CompiledStep
from memprof.sources.jax.processes import job
from memprof.sources.jax.processes.task import plain
from memprof.sources.jax.running import memory_readings
from memprof.sources.jax.running.feeding import Arguments
from memprof.sources.jax.running.trace_reading import read_trace, session_folder
from memprof.sources.jax.running.xprof_log import module_name, program_file_name
from memprof.sources.jax.targets.families import family_of_device, is_host
from memprof.sources.jax.targets.family import Driver
from memprof.sources.jax.tracing.step import StepSpec
from memprof.sources.jax.xla import xla_adapter
from memprof.untrusted import convert

NUM_WARMUP_STEPS = 2
STEP_ANNOTATION = "step"  # name of a step in a trace
_PROGRESS_SECONDS = 0.5

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedStep:
    """One step: the seconds from the call until its results are ready on the device, and its loss, if any."""

    seconds: float
    loss: float | None


def measure(
    spec: StepSpec,
    compiled: CompiledStep,
    *,
    num_steps: int,
    drivers: Sequence[Driver] = (),
    trace_folder: Path | None = None,
    progress: Progress,
) -> Measurement:
    """Run a step `NUM_WARMUP_STEPS` + `num_steps` times.

    Args:
        drivers: drivers of this machine's devices, in JAX's order, opened before JAX used the devices; empty on a CPU.
        trace_folder: folder for a trace of the timed steps, with the program beside it; None for no trace.
        progress: called with the current stage of the run.

    Returns:
        The measurement. If memory ran out, it records this and the measurements up to then.

    Raises:
        MemprofError: the step's arguments are shapes without values, or it names another device.
        Exception: any other error that ends the run.
    """
    lowered = compiled.planned.lowered
    if not callable(compiled.executable):
        raise MemprofError(
            f"{spec.label} cannot be run on {lowered.target.name}, only compiled: it names another device"
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
        out_of_memory = _out_of_memory(error, run.doing, compiled.devices)
        if out_of_memory is None:
            raise
    measured = replace(run.measurement(drivers), out_of_memory=out_of_memory)
    if out_of_memory is None:
        measured = _with_other_processes(measured)
    if trace_folder is None or out_of_memory is not None:
        return measured
    progress("reading the trace")
    session, module = session_folder(trace_folder), module_name(compiled.planned.plan.hlo_proto)
    trace = read_trace(session, module, num_devices=len(compiled.devices))
    # If a program of this name exists, XProf does not take it from the trace (see `xprof_log.py`).
    (session / program_file_name(module, trace.program_id)).write_bytes(compiled.planned.plan.hlo_proto)
    return replace(measured, op_times=trace.op_times)


def _tracing(folder: Path) -> AbstractContextManager[None]:
    """Trace without Python calls, which would hide the annotations of the steps under memprof's own code."""
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    options.session_id = job.session_name()  # all processes of a job write to one session
    tracing: AbstractContextManager[None] = jax.profiler.trace(str(folder), profiler_options=options)
    return tracing


def timed_steps(
    executable: Callable[..., Any], arguments: Arguments, loss: Callable[[Any], float | None], numbers: range
) -> Iterator[TimedStep]:
    """Run steps one after another; each completes before the next begins."""
    for number in numbers:
        yield _timed_step(executable, arguments, loss, number)


def _timed_step(
    executable: Callable[..., Any], arguments: Arguments, loss: Callable[[Any], float | None], number: int
) -> TimedStep:
    """Run one step, and keep only the parts of its result that the next step needs."""
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
    """One run, and its measurements so far."""

    def __init__(self, *, spec: StepSpec, compiled: CompiledStep, progress: Progress) -> None:
        self.doing = "making the arguments"
        self._spec = spec
        self._target, self._devices = compiled.planned.lowered.target, compiled.devices
        self._progress = progress
        self._executable = compiled.executable
        self._leaf_bytes = sum(leaf.size_bytes for leaf in compiled.planned.lowered.arguments)
        self._arguments = Arguments(spec, compiled)
        self._loss = spec.feed.loss if spec.feed is not None else _only_number
        self._done: list[TimedStep] = []
        self._argument_bytes: list[int] = []
        self._readings: list[list[PoolReading | None]] = []
        self._resident_before_bytes: int | None = None

    def start(self) -> None:
        """Make the arguments of the first step, then read their memory."""
        self._progress(self.doing)
        self._arguments.prepare(0)
        is_alone = self._target.topology.num_devices == 1
        self._argument_bytes = [
            self._leaf_bytes if is_alone else self._arguments.bytes_on(device) for device in self._devices
        ]
        if family_of(self._target.platform).is_host:
            self._resident_before_bytes = memory_readings.start_resident_peak()
        self._read()

    def steps(self, first: int, count: int, *, num_steps: int) -> None:
        """Run `count` steps beginning with number `first`, out of `num_steps` in total."""
        reported = -_PROGRESS_SECONDS
        steps = timed_steps(self._executable, self._arguments, self._loss, range(first, first + count))
        for number in range(first, first + count):
            self.doing = f"running step {number + 1} of {num_steps}"
            if time.perf_counter() - reported > _PROGRESS_SECONDS:
                self._progress(self.doing)
                reported = time.perf_counter()
            self._done.append(next(steps))
            if number == 0:
                self._read()

    def measurement(self, drivers: Sequence[Driver]) -> Measurement:
        """Return all measurements of this process up to now."""
        self._read()
        timed = self._done[NUM_WARMUP_STEPS:]
        resident = None
        if self._resident_before_bytes is not None:
            resident = ResidentMemory(
                before_steps_bytes=self._resident_before_bytes,
                argument_bytes=sum(self._argument_bytes),
                peak_bytes=memory_readings.resident_peak(),
                num_devices=len(self._devices),
            )
        num_devices = self._target.topology.num_devices
        feed, first = self._spec.feed, self._devices[0]
        known = family_of_device(first).device_of_kind(first.device_kind)
        peak_flops = known.peak_flops_per_second if known else None
        return _with_devices(
            Measurement(
                device=self._target.description,
                platform=self._target.platform,
                num_warmup_steps=NUM_WARMUP_STEPS,
                step_seconds=tuple(step.seconds for step in timed),
                losses=tuple(step.loss for step in self._done if step.loss is not None),
                num_examples=feed.num_examples if feed else None,
                num_tokens=feed.num_tokens if feed else None,
                peak_flops_per_second=peak_flops * num_devices if peak_flops else None,
                pool=None,
                driver=None,
                resident=resident,
                out_of_memory=None,
                process=jax.process_index(),
                num_processes=jax.process_count(),
            ),
            tuple(self._of_device(number, drivers) for number in range(len(self._devices))),
            num_devices=num_devices,
        )

    def _of_device(self, number: int, drivers: Sequence[Driver]) -> MeasuredDevice:
        device, readings = self._devices[number], [reading[number] for reading in self._readings]
        has_driver = not is_host(device) and device.local_hardware_id in range(len(drivers))
        return MeasuredDevice(
            device=str(device),
            process=device.process_index,
            argument_bytes=self._argument_bytes[number] if self._argument_bytes else 0,
            pool=memory_readings.pool_memory(device, *readings) if len(readings) == 3 else None,
            driver=drivers[device.local_hardware_id].read() if has_driver else None,
        )

    def _read(self) -> None:
        self._readings.append([memory_readings.read_pool(device) for device in self._devices])


def _with_devices(measured: Measurement, devices: tuple[MeasuredDevice, ...], *, num_devices: int) -> Measurement:
    """Add the devices of a run; the device with the highest peak represents them all."""
    highest = max(devices, key=lambda each: each.pool.after_all_steps.peak_bytes if each.pool else 0)
    return replace(measured, pool=highest.pool, driver=highest.driver, devices=devices if num_devices > 1 else ())


def _with_other_processes(measured: Measurement) -> Measurement:
    """Add the devices of all processes of the job, each of which calls this."""
    if measured.num_processes == 1:
        return measured
    own = json.dumps(plain((measured.devices, measured.resident))).encode()
    found = [
        convert(json.loads(text), tuple[tuple[MeasuredDevice, ...], ResidentMemory | None])
        for text in job.gathered(own)
    ]
    devices = tuple(device for of_one, _ in found for device in of_one)
    residents = [resident for _, resident in found if resident is not None]
    measured = replace(measured, resident=max(residents, key=lambda each: each.growth_bytes, default=None))
    return _with_devices(measured, devices, num_devices=len(devices)) if devices else measured


def _only_number(result: Any) -> float | None:
    """Return the loss of a step without a feed: its only floating-point scalar result, if there is exactly one."""
    numbers = [
        leaf for leaf in jax.tree.leaves(result) if leaf.shape == () and jax.dtypes.issubdtype(leaf.dtype, np.floating)
    ]
    return float(numbers[0]) if len(numbers) == 1 else None


def _out_of_memory(error: Exception, doing: str, devices: Sequence[jax.Device]) -> OutOfMemory | None:
    """Convert the error to a result if it means that memory ran out."""
    message = str(error).partition("\n")[0] or "out of host memory"
    if not isinstance(error, MemoryError) and not xla_adapter.is_out_of_memory(message):
        return None
    # The error does not name the device, so take the fullest one.
    stats = max((device.memory_stats() or {} for device in devices), key=lambda each: each.get("bytes_in_use", 0))
    return OutOfMemory(
        doing=doing,
        asked_bytes=xla_adapter.bytes_asked_for(message),
        in_use_bytes=stats.get("bytes_in_use"),
        limit_bytes=stats.get("bytes_limit"),
        message=message,
    )
