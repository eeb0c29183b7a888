"""The measurements of a run: time, loss and memory. They are never mixed with the compiler's figures.

Each source of a number has its own record, because the meanings differ: XLA's allocator counts the bytes that it has
allocated (`PoolMemory`), the driver counts the memory of the process on the card (`DriverMemory`), and on a CPU only
the resident memory of the whole process is available (`ResidentMemory`), which includes Python and the compiler.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median
from typing import Annotated

from msgspec import Meta

from memprof.untrusted import Bytes, Count, Seconds, Text, Words


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolReading:
    """XLA's allocator at one moment: allocated bytes, and their maximum since the process started."""

    current_bytes: Bytes
    peak_bytes: Bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolMemory:
    """XLA's allocator over a run.

    Attributes:
        before_steps: the reading with the arguments of the first step in memory.
        pool_bytes: the device memory that the allocator itself held after the run, with preallocation its whole pool;
            None if it does not report it.
        limit_bytes: the limit of the allocator; None if it does not report it.
    """

    before_steps: PoolReading
    after_first_step: PoolReading
    after_all_steps: PoolReading
    pool_bytes: Bytes | None
    limit_bytes: Bytes | None

    @property
    def peak_bytes(self) -> int | None:
        """The peak of the steps; None if a higher peak of compiling or making the arguments hides it."""
        peak_bytes = self.after_all_steps.peak_bytes
        return peak_bytes if peak_bytes > self.before_steps.peak_bytes else None


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverMemory:
    """NVML's figures. The part outside XLA's pool is the CUDA context and the handles of libraries.

    Attributes:
        device_before_bytes: memory in use on the device, by any process, before JAX initialized it.
        device_after_bytes: memory in use on the device after the run, with the arguments still in memory.
        process_bytes: memory in use by this process after the run; None if NVML does not know it (usually in a
            container).
    """

    device_before_bytes: Bytes
    device_after_bytes: Bytes
    process_bytes: Bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidentMemory:
    """The resident memory of the process that ran the step.

    Attributes:
        before_steps_bytes: the resident memory with the arguments of the first step in memory.
        argument_bytes: the size of these arguments, on all its devices.
        peak_bytes: the maximum during the steps.
        num_devices: the number of devices on which it ran the step.
    """

    before_steps_bytes: Bytes
    argument_bytes: Bytes
    peak_bytes: Bytes
    num_devices: Count = 1

    @property
    def growth_bytes(self) -> int:
        """The memory of the arguments and the steps together.

        The arguments count with their size, because making them also takes memory of the process.
        """
        return self.peak_bytes - self.before_steps_bytes + self.argument_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredDevice:
    """One device in a run of a sharded step.

    Attributes:
        device: JAX's name of it: `cuda:3`.
        process: the number of its process, in a job of several processes.
        argument_bytes: its share of the arguments of the first step.
        pool: the allocator's figures; None if the platform has none, like a CPU.
        driver: NVML's figures; None if NVML does not report them.
    """

    device: Text
    process: Count
    argument_bytes: Bytes
    pool: PoolMemory | None
    driver: DriverMemory | None

    @property
    def peak_bytes(self) -> int | None:
        """The peak of the steps; None if unknown."""
        return None if self.pool is None else self.pool.peak_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemory:
    """The end of a run that ran out of memory.

    Attributes:
        doing: its activity at that moment: `running step 1 of 22`.
        asked_bytes: the size of the allocation that failed; None if the message does not contain it.
        in_use_bytes, limit_bytes: the allocator's allocated bytes and its limit; None if it does not report them.
        message: the first line of the runtime's own message.
    """

    doing: Text
    asked_bytes: Bytes | None
    in_use_bytes: Bytes | None
    limit_bytes: Bytes | None
    message: Words


@dataclass(frozen=True, slots=True, kw_only=True)
class OpTime:
    """The total time of one operation of the compiled program in all traced steps."""

    name: Words
    seconds: Seconds
    num_calls: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """A run of many steps, in its own process.

    Attributes:
        device: the vendor's name of the device.
        num_warmup_steps: the number of steps before timing began.
        step_seconds: the time of each step after the warm-up, from the call until its results are ready on the device.
            It excludes making a batch and copying it to the device.
        losses: the losses of all steps, warm-up first; empty if the step has no loss.
        num_examples, num_tokens: the number per step; None if unknown.
        peak_flops_per_second: the peak of all devices together, see `targets/nvidia/gpus.toml`; None if unknown.
        pool, driver, resident: the memory figures. For several devices, those of the device with the highest peak; for
            several processes, those of the process that grew most.
        devices: the figures of each of several devices, in the order of their processes; empty for one device. After a
            run that ran out of memory, only the devices of `process`.
        process: the number of the measuring process, in a job of several processes.
        num_processes: the number of processes of the job.
        op_times: the times from a trace, longest first, averaged over devices; empty without a trace.
    """

    device: Text
    platform: Text
    num_warmup_steps: Count
    step_seconds: tuple[Seconds, ...]
    losses: tuple[float, ...]
    num_examples: Count | None
    num_tokens: Count | None
    peak_flops_per_second: Annotated[float, Meta(gt=0, le=1e30)] | None
    pool: PoolMemory | None
    driver: DriverMemory | None
    resident: ResidentMemory | None
    out_of_memory: OutOfMemory | None
    op_times: tuple[OpTime, ...] = ()
    devices: tuple[MeasuredDevice, ...] = ()
    process: Count = 0
    num_processes: Count = 1

    @property
    def median_seconds(self) -> float | None:
        """The median time of a step; None if no step was timed."""
        return median(self.step_seconds) if self.step_seconds else None

    def percentile_seconds(self, percent: int) -> float:
        """Return a percentile of the step times (nearest rank)."""
        rank = math.ceil(percent / 100 * len(self.step_seconds))
        return sorted(self.step_seconds)[max(rank, 1) - 1]

    def per_second(self, count: int | None) -> float | None:
        """Convert a count per step to a rate per second at the median time; None if either is unknown."""
        seconds = self.median_seconds
        return None if count is None or not seconds else count / seconds

    def utilization(self, model_flops: int) -> float | None:
        """Return the MFU: the step's FLOPs as a share of the FLOPs that the device could do in the same time.

        Args:
            model_flops: FLOPs of one step, without those that rematerialisation repeats (Chowdhery et al. 2022,
                appendix B).
        """
        rate = self.per_second(model_flops)
        return None if rate is None or self.peak_flops_per_second is None else rate / self.peak_flops_per_second
