"""Conversion of a memory snapshot to a capture."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

from memprof.analysis.records.capture import NO_COMPILER, Capture, Target, Timings, Toolchain
from memprof.analysis.records.categories import Phase
from memprof.analysis.records.live_buffer import StackFrame
from memprof.analysis.records.timeline import PhaseSpan
from memprof.analysis.records.trace import Recording, Trace, TracedValue, TraceEvent, fault_of
from memprof.errors import MemprofError
from memprof.sources.snapshot.history import Allocation, History, Snapshot, devices_of, history_of
from memprof.sources.snapshot.plain_pickle import UnsafePickleError, load_plain
from memprof.sources.snapshot.purposes import Frame, ends_of, is_python, operation_of, phase_of, purpose_of
from memprof.untrusted import UnfitError, as_record, clean, open_regular
from memprof.version import __version__

_SUFFIXES = (".pickle", ".pkl")
_MAX_FILE_BYTES = 2 << 30
_INSTALLED = re.compile(r".*[/\\](?:site|dist)-packages[/\\](.*)")
_STANDARD_LIBRARY = re.compile(r".*[/\\]lib[/\\]python3\.[0-9]+[/\\]")
_UNKNOWN = Target(
    name="gpu",
    description="a GPU that the snapshot does not name",
    platform="cuda",
    memory_bytes=None,
    compute_capability=None,
    reason="give it with --target",
)


def is_snapshot(path: Path) -> bool:
    """Whether a file is a memory snapshot, by its name."""
    return path.suffix in _SUFFIXES and not path.is_dir()


def import_snapshot(path: Path, *, target: Target | None) -> Capture:
    """Return the capture of a memory snapshot; if it has several devices, of the one with the most memory.

    Args:
        target: the device that it was recorded on; None: unknown, because the snapshot does not name it.

    Raises:
        MemprofError: the file cannot be read, holds more than plain values, or is not a memory snapshot.
    """
    snapshot, settings = _read(path)
    devices = devices_of(snapshot)
    if not devices:
        raise MemprofError(
            f"{path} is a memory snapshot without segments and without a history: no memory was allocated"
        )
    history = history_of(snapshot, devices[0])
    trace = _Tracing().trace(history)
    fault = fault_of(trace)
    if fault:
        raise MemprofError(f"{path} is an incomplete memory snapshot: {fault}")
    return Capture(
        label=path.stem,
        workload=path.stem,
        techniques=(),
        config={"imported_from": str(path), "device": devices[0], "num_events": history.num_events, **settings},
        target=target or _UNKNOWN,
        toolchain=Toolchain(
            memprof=__version__, python="", jax="", jaxlib="", cuda_plugin=None, flax=None, optax=None, xla_flags=""
        ),
        compiler=NO_COMPILER,
        arguments=(),
        flops=0,
        recomputed_flops=0,
        timings=Timings(lower_seconds=0.0, compile_seconds=0.0),
        doubts=tuple(_doubts(history, len(devices))),
        trace=trace,
        file=str(path),
    )


def _read(path: Path) -> tuple[Snapshot, dict[str, str]]:
    try:
        with open_regular(path) as file:
            data = file.read(_MAX_FILE_BYTES + 1)
    except FileNotFoundError as error:
        raise MemprofError(f"there is no file {path}") from error
    except OSError as error:
        raise MemprofError(f"{path} cannot be read: {error.strerror or error}") from error
    if len(data) > _MAX_FILE_BYTES:
        raise MemprofError(f"{path} has more than {_MAX_FILE_BYTES >> 30} GiB: record fewer events (max_entries=)")
    try:
        values = load_plain(data)
        snapshot = as_record(values, Snapshot)
    except UnsafePickleError as error:
        raise MemprofError(f"{path} cannot be read as a memory snapshot: {clean(str(error))}") from error
    except UnfitError as error:
        raise MemprofError(f"{path} is not a PyTorch memory snapshot: {error}") from error
    settings = values.get("allocator_settings", {})
    asked = settings.get("PYTORCH_CUDA_ALLOC_CONF", "") if isinstance(settings, dict) else ""
    return snapshot, {"PYTORCH_CUDA_ALLOC_CONF": clean(str(asked))[:1000]} if asked else {}


def _doubts(history: History, num_devices: int) -> Iterator[str]:
    yield "Categories come only from the stacks in the snapshot, which do not show the purpose of a tensor."
    early = sum(each.size_bytes for each in history.allocations if each.born is None)
    if not history.num_events:
        yield "The snapshot has no history (_record_memory_history), so its peak is the moment at which it was taken."
    elif early:
        yield f"{early:,} bytes were allocated before the history begins: an earlier peak may have been higher."
    if history.out_of_memory_bytes is not None:
        yield f"A request for {history.out_of_memory_bytes:,} bytes ran out of memory; it is not in the sizes here."
    if num_devices > 1:
        yield f"The snapshot covers {num_devices} devices; this is the one that holds the most memory."


class _Tracing:
    """Converter of a history to a trace. Snapshots share equal stacks, so each stack is converted once."""

    def __init__(self) -> None:
        self._frames: dict[int, tuple[Frame, ...]] = {}
        self._stacks: dict[tuple[StackFrame, ...], int] = {(): 0}

    def trace(self, history: History) -> Trace:
        allocations = history.allocations
        ends: list[tuple[int, int, bool]] = []
        for number, each in enumerate(allocations):
            ends.append((each.born if each.born is not None else -1, number, True))
            if each.died is not None:
                ends.append((each.died, number, False))
        ends.sort()
        values = tuple(self._value(each, number) for number, each in enumerate(allocations))
        return Trace(
            framework="torch",
            num_positions=history.num_events,
            step_starts=(0,),
            values=values,
            events=tuple(TraceEvent(max(position, 0), number, is_birth) for position, number, is_birth in ends),
            phases=tuple(_spans(values, history)),
            stacks=tuple(self._stacks),
            recording=Recording(
                reserved_bytes=history.reserved_bytes, addresses=tuple(each.address for each in allocations)
            ),
        )

    def _value(self, allocation: Allocation, number: int) -> TracedValue:
        made_by = self._stack(allocation.made_by)
        freed_by = None if allocation.died is None else self._stack(allocation.freed_by)
        category, rule, evidence = purpose_of(ends_of(made_by, freed_by, is_early=allocation.born is None))
        stack = tuple(map(_shown, filter(is_python, reversed(made_by))))
        own = [f"{frame.file}:{frame.line}" for frame in stack if frame.is_own]
        libraries = [f"{frame.file}:{frame.line}" for frame in stack if not frame.is_own]
        op = operation_of(made_by)
        return TracedValue(
            size_bytes=allocation.size_bytes,
            shape=(allocation.size_bytes,),
            dtype="bytes",
            category=category,
            phase=Phase.ARGUMENT if allocation.born is None else phase_of(made_by),
            module="",
            name=f"{op}.{number}",
            op=op,
            source=own[-1] if own else "",
            library=libraries[-1] if libraries else "",
            rule=rule,
            evidence=evidence,
            stack=self._stacks.setdefault(stack, len(self._stacks)),
        )

    def _stack(self, frames: Any) -> tuple[Frame, ...]:
        """Return the frames of a stack, innermost call first."""
        if not isinstance(frames, list):
            return ()
        if id(frames) not in self._frames:
            try:
                self._frames[id(frames)] = as_record(frames, tuple[Frame, ...])
            except UnfitError as error:
                raise MemprofError(f"the snapshot has an invalid stack: {error}") from error
        return self._frames[id(frames)]


def _shown(frame: Frame) -> StackFrame:
    installed = _INSTALLED.match(frame.filename)
    file = installed.group(1) if installed else frame.filename
    is_own = not (installed or _STANDARD_LIBRARY.match(file) or file.startswith("<"))
    return StackFrame(clean(file), clean(frame.name), max(frame.line, 1), is_own)


def _spans(values: Sequence[TracedValue], history: History) -> Iterator[PhaseSpan]:
    """Yield runs of events in one phase. The phase of an event is that of the last allocation."""
    phases = [Phase.NONE] * history.num_events
    for value, allocation in zip(values, history.allocations, strict=True):
        if allocation.born is not None:
            phases[allocation.born] = value.phase
    starts = sorted(each.born for each in history.allocations if each.born is not None)
    for start, end in pairwise([*starts, history.num_events]):
        phases[start:end] = [phases[start]] * (end - start)
    start = 0
    for phase, run in groupby(phases):
        length = sum(1 for _ in run)
        yield PhaseSpan(phase=phase, start=start, end=start + length - 1)
        start += length
