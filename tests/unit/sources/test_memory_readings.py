"""Readings of memory, from stand-ins for a device and for NVML: no GPU answered here."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from memprof.analysis.records.measurement import DriverMemory, PoolMemory, PoolReading
from memprof.sources.jax.running import memory_readings
from memprof.sources.jax.running.memory_readings import pool_memory, read_pool
from memprof.sources.jax.targets.nvidia import driver
from memprof.sources.jax.targets.nvidia.driver import Driver
from memprof.sources.jax.xla.xla_adapter import bytes_asked_for, is_out_of_memory


@dataclass
class FakeDevice:
    stats: dict[str, int] | None

    def memory_stats(self) -> dict[str, int] | None:
        return self.stats


@dataclass
class FakeNvml:
    """NVML with two devices; what is in use changes by itself."""

    used: list[int]
    processes: list[Any] = field(default_factory=list)

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:  # noqa: N802 - NVML's name
        return SimpleNamespace(used=self.used.pop(0))

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> Any:  # noqa: N802
        return self.processes

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:  # noqa: N802
        return f"device {index}"

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        return f"device {uuid}"


def test_a_device_that_does_not_count_has_no_readings() -> None:
    assert read_pool(FakeDevice(None)) is None
    assert read_pool(FakeDevice({})) is None
    assert pool_memory(FakeDevice(None), None, None, None) is None


def test_the_readings_of_a_run_come_together() -> None:
    device = FakeDevice({"bytes_in_use": 30, "peak_bytes_in_use": 50, "pool_bytes": 64, "bytes_limit": 100})
    last = read_pool(device)
    before, first = PoolReading(current_bytes=10, peak_bytes=10), PoolReading(current_bytes=20, peak_bytes=40)
    assert pool_memory(device, before, first, last) == PoolMemory(
        before_steps=before,
        after_first_step=first,
        after_all_steps=PoolReading(current_bytes=30, peak_bytes=50),
        pool_bytes=64,
        limit_bytes=100,
    )


def test_the_driver_is_read_before_and_after() -> None:
    own = SimpleNamespace(pid=os.getpid(), usedGpuMemory=600)
    other = SimpleNamespace(pid=os.getpid() + 1, usedGpuMemory=7)
    driver = Driver(FakeNvml(used=[100, 900], processes=[other, own]), "device 0")
    assert driver.read() == DriverMemory(device_before_bytes=100, device_after_bytes=900, process_bytes=600)


def test_a_process_that_nvml_does_not_know_is_not_made_up() -> None:
    driver = Driver(FakeNvml(used=[100, 900]), "device 0")
    assert driver.read().process_bytes is None


@pytest.mark.parametrize(
    ("visible", "devices"),
    [
        (None, ["device 0", "device 1"]),
        ("", ["device 0", "device 1"]),
        ("3,1", ["device 3", "device 1"]),
        ("GPU-8f6a, GPU-1", ["device GPU-8f6a", "device GPU-1"]),
    ],
)
def test_devices_come_as_cuda_numbers_them(visible: str | None, devices: list[str]) -> None:
    assert driver._visible(FakeNvml(used=[]), visible) == devices


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux tells the peak of a process")
def test_the_resident_peak_outlives_what_made_it() -> None:
    before_bytes = memory_readings.start_resident_peak()
    if before_bytes is None:
        pytest.skip("this system does not let a process reset its peak")
    np.ones(64 * 2**20, np.uint8)  # 64 MiB, touched, and given back at once
    peak_bytes = memory_readings.resident_peak()
    assert 60 * 2**20 < peak_bytes - before_bytes < 80 * 2**20
    again_bytes = memory_readings.start_resident_peak()
    assert again_bytes is not None
    assert again_bytes - before_bytes < 16 * 2**20


@pytest.mark.parametrize(
    ("message", "asked_bytes"),
    [
        ("RESOURCE_EXHAUSTED: Out of memory allocating 43980465111488 bytes.", 43980465111488),
        ("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 34359738368 bytes.", 34359738368),
        ("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1.50GiB.", 3 * 2**29),
        ("RESOURCE_EXHAUSTED: no more handles", None),
    ],
)
def test_what_was_asked_for_is_read_from_the_message(message: str, asked_bytes: int | None) -> None:
    assert is_out_of_memory(message)
    assert bytes_asked_for(message) == asked_bytes
    assert not is_out_of_memory("INTERNAL: something else")
