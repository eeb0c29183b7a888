"""Measure the memory of each device before, during and after a block of code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from memprof.analysis.records.watched import LiveArrays

_MAX_HOLDERS = 5  # array types whose holders are looked up


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """The memory of one device over a block of code, in bytes.

    Attributes:
        device: JAX's name of the device.
        source: `allocator` if XLA's allocator counted the bytes. `resident` on a CPU, which has no such allocator: the
            bytes are the resident memory of this process, including Python and its libraries.
        start_bytes, end_bytes: the memory in use before and after the block.
        peak_bytes: the most memory in use at once. None if unknown: an allocator keeps the peak of the whole process,
            and the process reached it before the block.
    """

    device: str
    source: Literal["allocator", "resident"]
    start_bytes: int
    end_bytes: int
    peak_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayGrowth:
    """A type of array whose count changed over a block of code.

    Attributes:
        type: dtype and shape: `float32[128,784]`.
        start_count, end_count: the number of live arrays before and after the block.
        grown_bytes: the change of their total size, on the device that holds most; negative if it shrank.
        holder: a variable that holds some of them, for example `losses[...] in train (train.py:31)`. Empty if none was
            found, or if the count did not grow.
    """

    type: str
    start_count: int
    end_count: int
    grown_bytes: int
    holder: str

    def __str__(self) -> str:
        held = f", held by {self.holder}" if self.holder else ""
        return (
            f"  {self.type}: {self.start_count:,} before, {self.end_count:,} after, {self.grown_bytes:+,} bytes{held}"
        )


class Measured:
    """The result of `measure`, complete once its block has ended.

    Attributes:
        devices: the memory of each device.
        start_array_bytes, end_array_bytes: the total size of all live JAX arrays before and after the block, on the
            device that holds most; None if arrays are not counted. An allocator also holds bytes outside of arrays:
            constants and code of programs, scratch memory of running programs, and fragmentation.
        arrays: the array types whose count changed, the largest growth first.
    """

    def __init__(self) -> None:
        self.devices: tuple[DeviceMemory, ...] = ()
        self.start_array_bytes: int | None = None
        self.end_array_bytes: int | None = None
        self.arrays: tuple[ArrayGrowth, ...] = ()

    def __str__(self) -> str:
        lines = [
            f"{each.device} ({each.source}): {each.start_bytes:,} bytes before, {each.end_bytes:,} after, peak"
            f" {'before the block' if each.peak_bytes is None else f'{each.peak_bytes:,}'}"
            for each in self.devices
        ]
        if self.start_array_bytes is not None:
            lines.append(f"arrays: {self.start_array_bytes:,} bytes before, {self.end_array_bytes:,} after")
        return "\n".join([*lines, *map(str, self.arrays)])


@contextmanager
def measure(*, arrays: bool = True) -> Iterator[Measured]:
    """Measure the memory of each device over a block.

        with memprof.measure() as measured:
            jax.block_until_ready(train_step(state, batch))
        print(measured)

    JAX runs a step asynchronously, after its call has returned: wait for its results inside the block. JAX arrays are
    counted by type before and after the block. For the types whose count grew, memprof looks up a variable that holds
    some of them (at most five types).

    Args:
        arrays: whether to count arrays; it takes a moment if Python holds many objects.

    Yields:
        The measurement, which is filled when the block ends.
    """
    import jax

    from memprof.sources.jax.running.live_arrays import live_arrays
    from memprof.sources.jax.running.memory_readings import read_pool, read_resident, resident_peak, start_resident_peak

    measured = Measured()
    devices = jax.local_devices()
    before = [read_pool(device) for device in devices]
    resident_before = start_resident_peak() if None in before else None
    arrays_before = live_arrays() if arrays else None
    try:
        yield measured
    finally:
        found = []
        for device, start in zip(devices, before, strict=True):
            if start is not None:
                found.append(_of_allocator(device, start, read_pool(device)))
            elif resident_before is not None and not any(each.source == "resident" for each in found):
                found.append(
                    DeviceMemory(
                        device=str(device),
                        source="resident",
                        start_bytes=resident_before,
                        end_bytes=read_resident(),
                        peak_bytes=resident_peak(),
                    )
                )
        measured.devices = tuple(found)
        if arrays_before is not None:
            arrays_after = live_arrays()
            more = [each.type for each in arrays_after.groups if each.count > _count(arrays_before, each.type)]
            if more:
                arrays_after = live_arrays(find_holders_of=more[:_MAX_HOLDERS])
            measured.start_array_bytes, measured.end_array_bytes = arrays_before.size_bytes, arrays_after.size_bytes
            measured.arrays = _grown(arrays_before, arrays_after)


def _grown(before: LiveArrays, after: LiveArrays) -> tuple[ArrayGrowth, ...]:
    """Return the array types whose count changed."""
    start = {group.type: group for group in before.groups}
    end = {group.type: group for group in after.groups}
    found = [
        ArrayGrowth(
            type=kind,
            start_count=_count(before, kind),
            end_count=_count(after, kind),
            grown_bytes=(end[kind].size_bytes if kind in end else 0) - (start[kind].size_bytes if kind in start else 0),
            holder=end[kind].holder if kind in end else "",
        )
        for kind in {**start, **end}
        if _count(before, kind) != _count(after, kind)
    ]
    return tuple(sorted(found, key=lambda growth: -growth.grown_bytes))


def _count(live: LiveArrays, kind: str) -> int:
    return next((group.count for group in live.groups if group.type == kind), 0)


def _of_allocator(device: Any, start: Any, end: Any) -> DeviceMemory:
    return DeviceMemory(
        device=str(device),
        source="allocator",
        start_bytes=start.current_bytes,
        end_bytes=end.current_bytes,
        peak_bytes=end.peak_bytes if end.peak_bytes > start.peak_bytes else None,
    )
