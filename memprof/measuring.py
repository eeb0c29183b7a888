"""What a block of the user's code does to the memory of each device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from memprof.analysis.records.watched import LiveArrays

_MOST_HOLDERS = 5  # types of arrays of which it is looked up what holds them


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """The memory of one device over a block of code, in bytes.

    Attributes:
        device: JAX's name of it.
        source: `allocator`: XLA's allocator counted; `resident`: a CPU has none, so it is what this process held in
            main memory, Python and libraries included.
        peak_bytes: the most that was in use at a time; None where that is unknown: an allocator keeps the peak of
            the whole process, and it was reached before the block.
    """

    device: str
    source: Literal["allocator", "resident"]
    start_bytes: int
    end_bytes: int
    peak_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayGrowth:
    """Arrays of one type of which there are more, or fewer, after a block of code.

    Attributes:
        type: `float32[128,784]`.
        start_count, end_count: how many there were.
        grown_bytes: of all of them together, on the device that holds most; negative where there are fewer.
        holder: the variable through which some of them are held, `losses[...] in train (train.py:31)`; empty where none
            was found, or where there are not more.
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
    """What `measure` gives: complete when its block has ended.

    Attributes:
        devices: the memory of each device.
        start_array_bytes, end_array_bytes: of all of JAX's arrays, on the device that holds most; None where they are
            not counted. What an allocator has
            given out beyond that is in no array: programs' constants and code, scratch of what runs, fragments.
        arrays: the types of arrays of which there are more or fewer, those that grew most first.
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

    A step runs after its call has returned: wait for its results inside the block. JAX's arrays are counted by type
    before it and after it; of those that became more, the variable that holds them is looked up.

    Args:
        arrays: whether they are, which takes Python a moment where there are many objects.
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
                arrays_after = live_arrays(find_holders_of=more[:_MOST_HOLDERS])
            measured.start_array_bytes, measured.end_array_bytes = arrays_before.size_bytes, arrays_after.size_bytes
            measured.arrays = _grown(arrays_before, arrays_after)


def _grown(before: LiveArrays, after: LiveArrays) -> tuple[ArrayGrowth, ...]:
    """The types of arrays of which there are more or fewer than before."""
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
