"""What a block of the user's code does to the memory of each device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal


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


class Measured:
    """What `measure` gives: complete when its block has ended."""

    def __init__(self) -> None:
        self.devices: tuple[DeviceMemory, ...] = ()

    def __str__(self) -> str:
        return "\n".join(
            f"{each.device} ({each.source}): {each.start_bytes:,} bytes before, {each.end_bytes:,} after, peak"
            f" {'before the block' if each.peak_bytes is None else f'{each.peak_bytes:,}'}"
            for each in self.devices
        )


@contextmanager
def measure() -> Iterator[Measured]:
    """Measure the memory of each device over a block.

    with memprof.measure() as measured:
        jax.block_until_ready(train_step(state, batch))
    print(measured)

    A step runs after its call has returned: wait for its results inside the block.
    """
    import jax

    from memprof.capture.running.memory_readings import read_pool, read_resident, resident_peak, start_resident_peak

    measured = Measured()
    devices = jax.local_devices()
    before = [read_pool(device) for device in devices]
    resident_before = start_resident_peak() if None in before else None
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


def _of_allocator(device: Any, start: Any, end: Any) -> DeviceMemory:
    return DeviceMemory(
        device=str(device),
        source="allocator",
        start_bytes=start.current_bytes,
        end_bytes=end.current_bytes,
        peak_bytes=end.peak_bytes if end.peak_bytes > start.peak_bytes else None,
    )
