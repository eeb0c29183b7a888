"""A card's memory use as NVIDIA's driver reports it. No allocator of this process can see all of it."""

from __future__ import annotations

import os
from typing import Any

from memprof.analysis.records.measurement import DriverMemory


class Driver:
    """NVML's view of one device, from before JAX starts until after the run.

    Args:
        nvml: the module `pynvml`, initialised.
        handle: NVML's handle of the device.
    """

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle
        self._before_bytes = self._used_bytes()

    def read(self) -> DriverMemory:
        """Return the memory in use now, and when the view was opened."""
        processes = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)
        own = [each.usedGpuMemory for each in processes if each.pid == os.getpid()]
        return DriverMemory(
            device_before_bytes=self._before_bytes,
            device_after_bytes=self._used_bytes(),
            process_bytes=own[0] if own else None,
        )

    def _used_bytes(self) -> int:
        return int(self._nvml.nvmlDeviceGetMemoryInfo(self._handle).used)


def open_drivers() -> tuple[Driver, ...]:
    """Return NVML's views of the devices visible to JAX, in CUDA's order; empty without `nvidia-ml-py` or a driver."""
    try:
        import pynvml
    except ImportError:
        return ()
    try:
        pynvml.nvmlInit()
        handles = _visible(pynvml, os.environ.get("CUDA_VISIBLE_DEVICES"))
        return tuple(Driver(pynvml, handle) for handle in handles)
    except pynvml.NVMLError:
        return ()


def _visible(nvml: Any, visible: str | None) -> list[Any]:
    """Return the devices in CUDA's order: those in CUDA_VISIBLE_DEVICES, by number or UUID, or all devices."""
    if not visible:
        return [nvml.nvmlDeviceGetHandleByIndex(number) for number in range(nvml.nvmlDeviceGetCount())]
    names = [name.strip() for name in visible.split(",")]
    return [
        nvml.nvmlDeviceGetHandleByIndex(int(name)) if name.isdecimal() else nvml.nvmlDeviceGetHandleByUUID(name)
        for name in names
    ]
