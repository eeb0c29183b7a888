"""What was measured when a step ran: time, loss and memory. Never mixed with what the compiler reports.

Each source of a number has a record of its own, since they do not mean the same: XLA's allocator counts the bytes that
it has given out (`PoolMemory`), the driver counts what the process holds on the card (`DriverMemory`), and on a CPU
there is only the resident memory of the whole process (`ResidentMemory`), Python and the compiler included.
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
    """XLA's allocator at one moment: bytes given out, and the most that there have been since the process began."""

    current_bytes: Bytes
    peak_bytes: Bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolMemory:
    """XLA's allocator over a run, preallocation off.

    Attributes:
        before_steps: with the arguments of the first step in place.
        pool_bytes: what the allocator itself held of the device after the run; None where it does not tell.
        limit_bytes: the most that it may take; None where it does not tell.
    """

    before_steps: PoolReading
    after_first_step: PoolReading
    after_all_steps: PoolReading
    pool_bytes: Bytes | None
    limit_bytes: Bytes | None

    @property
    def peak_bytes(self) -> int | None:
        """The peak of the steps; None where compiling or making the arguments took more, which hides it."""
        peak_bytes = self.after_all_steps.peak_bytes
        return peak_bytes if peak_bytes > self.before_steps.peak_bytes else None


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverMemory:
    """What NVML says: the part of it outside XLA's pool is the CUDA context and the handles of libraries.

    Attributes:
        device_before_bytes: in use on the device, by anybody, before JAX took hold of it.
        device_after_bytes: the same after the run, the arguments still in place.
        process_bytes: in use by this process after the run; None where NVML does not know it (in a container, mostly).
    """

    device_before_bytes: Bytes
    device_after_bytes: Bytes
    process_bytes: Bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidentMemory:
    """The resident memory of the process that ran the step.

    Attributes:
        before_steps_bytes: with the arguments of the first step in place.
        argument_bytes: of these arguments, on all its devices.
        peak_bytes: the most during the steps.
        num_devices: on how many devices it ran the step.
    """

    before_steps_bytes: Bytes
    argument_bytes: Bytes
    peak_bytes: Bytes
    num_devices: Count = 1

    @property
    def growth_bytes(self) -> int:
        """What the arguments and the steps took together.

        The arguments count with their size, since the process also grows by whatever it takes to make them.
        """
        return self.peak_bytes - self.before_steps_bytes + self.argument_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredDevice:
    """One of the devices that a sharded step ran on.

    Attributes:
        device: JAX's name of it: `cuda:3`.
        process: the number of the process that it belongs to, in a job of several.
        argument_bytes: what it held of the arguments of the first step.
        pool: None where its platform does not count, as a CPU does not.
        driver: None where NVML does not tell.
    """

    device: Text
    process: Count
    argument_bytes: Bytes
    pool: PoolMemory | None
    driver: DriverMemory | None

    @property
    def peak_bytes(self) -> int | None:
        """The peak of the steps; None where it is not known."""
        return None if self.pool is None else self.pool.peak_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemory:
    """The end of a run that took more memory than there was.

    Attributes:
        doing: what it was at: `running step 1 of 22`.
        asked_bytes: the size of the allocation that failed; None where the message does not tell.
        in_use_bytes, limit_bytes: what the allocator had given out and may give out; None where it does not tell.
        message: the first line of the runtime's own words.
    """

    doing: Text
    asked_bytes: Bytes | None
    in_use_bytes: Bytes | None
    limit_bytes: Bytes | None
    message: Words


@dataclass(frozen=True, slots=True, kw_only=True)
class OpTime:
    """The time that one operation of the compiled program took in all traced steps together."""

    name: Words
    seconds: Seconds
    num_calls: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One run of a step, over and over, in a process of its own.

    Attributes:
        device: the vendor's name of it.
        num_warmup_steps: steps before the clock counted.
        step_seconds: of each step after the warm-up, from the call to the end of its results on the device. Making a
            batch and putting it on the device are not in it.
        losses: of all steps, those of the warm-up first; empty where the step has none.
        num_examples, num_tokens: in one step; None where they are not known.
        peak_flops_per_second: of all devices together, see `targets/nvidia/gpus.toml`; None where it is not known.
        pool, driver, resident: of several devices those of the one with the highest peak, of several processes that of
            the one that grew most.
        devices: each of several, in the order of their processes; empty of one. After a run that ran out of memory,
            those of `process` alone.
        process: the number of the process that measured, in a job of several.
        num_processes: of the job.
        op_times: from a trace, those that took most first, of several devices their mean; empty where there was none.
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
        """The median time of a step; None where none was timed."""
        return median(self.step_seconds) if self.step_seconds else None

    def percentile_seconds(self, percent: int) -> float:
        """The time that `percent` of the timed steps did not exceed (nearest rank)."""
        rank = math.ceil(percent / 100 * len(self.step_seconds))
        return sorted(self.step_seconds)[max(rank, 1) - 1]

    def per_second(self, count: int | None) -> float | None:
        """A count of one step as a rate, at the median time; None where either is not known."""
        seconds = self.median_seconds
        return None if count is None or not seconds else count / seconds

    def utilization(self, model_flops: int) -> float | None:
        """MFU: the step's floating-point operations as a share of what the device could do in its time.

        Args:
            model_flops: of one step, without those that rematerialisation repeats (Chowdhery et al. 2022, appendix B).
        """
        rate = self.per_second(model_flops)
        return None if rate is None or self.peak_flops_per_second is None else rate / self.peak_flops_per_second
