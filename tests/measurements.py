"""Hand-made measurements. No device made them."""

from __future__ import annotations

from dataclasses import replace

from memprof.analysis.records.categories import Category, Phase
from memprof.analysis.records.measurement import (
    DriverMemory,
    MeasuredDevice,
    Measurement,
    OpTime,
    OutOfMemory,
    PoolMemory,
    PoolReading,
    ResidentMemory,
)
from memprof.analysis.records.report import OpCost

GPU_RUN = Measurement(
    device="NVIDIA H100 80GB HBM3",
    platform="cuda",
    num_warmup_steps=2,
    step_seconds=(0.04, 0.01, 0.02, 0.03),
    losses=(4.5, 4.25, 4.0, 3.5, 3.25, 3.0),
    num_examples=8,
    num_tokens=8192,
    peak_flops_per_second=989.4e12,
    pool=PoolMemory(
        before_steps=PoolReading(current_bytes=1024, peak_bytes=1280),
        after_first_step=PoolReading(current_bytes=1024, peak_bytes=1536),
        after_all_steps=PoolReading(current_bytes=1024, peak_bytes=1536),
        pool_bytes=2 * 2**20,
        limit_bytes=60 * 2**30,
    ),
    driver=DriverMemory(device_before_bytes=2**20, device_after_bytes=500 * 2**20, process_bytes=498 * 2**20),
    resident=None,
    out_of_memory=None,
    op_times=(OpTime(name="fusion.3", seconds=0.06, num_calls=4), OpTime(name="no_buffer", seconds=0.02, num_calls=8)),
)

CPU_RUN = Measurement(
    device="the host",
    platform="cpu",
    num_warmup_steps=2,
    step_seconds=(0.0015,),
    losses=(),
    num_examples=16,
    num_tokens=None,
    peak_flops_per_second=None,
    pool=None,
    driver=None,
    resident=ResidentMemory(before_steps_bytes=100 * 2**20, argument_bytes=64, peak_bytes=101 * 2**20),
    out_of_memory=None,
)


def _device(number: int, peak_bytes: int) -> MeasuredDevice:
    reading = PoolReading(current_bytes=1024, peak_bytes=1280)
    return MeasuredDevice(
        device=f"cuda:{number}",
        process=number // 2,
        argument_bytes=512,
        pool=PoolMemory(
            before_steps=reading,
            after_first_step=reading,
            after_all_steps=PoolReading(current_bytes=1024, peak_bytes=peak_bytes),
            pool_bytes=None,
            limit_bytes=None,
        ),
        driver=None,
    )


MESH_RUN = replace(
    GPU_RUN,
    peak_flops_per_second=4 * 989.4e12,
    devices=tuple(_device(number, 1536 - 100 * number) for number in range(4)),
    num_processes=2,
)

OUT_OF_MEMORY_RUN = Measurement(
    device="NVIDIA H100 80GB HBM3",
    platform="cuda",
    num_warmup_steps=2,
    step_seconds=(),
    losses=(float("nan"),),
    num_examples=32,
    num_tokens=None,
    peak_flops_per_second=989.4e12,
    pool=None,
    driver=None,
    resident=None,
    out_of_memory=OutOfMemory(
        doing="running step 2 of 12",
        asked_bytes=128 * 2**30,
        in_use_bytes=2**30,
        limit_bytes=60 * 2**30,
        message="RESOURCE_EXHAUSTED: Out of memory while trying to allocate 128.00GiB.",
    ),
)

# The times of GPU_RUN, joined with a program that nobody compiled; the loop contains the fusion.
OP_COSTS = (
    OpCost(
        name="while.1",
        op="jit(step)/while",
        seconds=0.07,
        num_calls=4,
        contains_others=True,
        phase=Phase.FORWARD,
        module="",
        category=None,
        held_bytes=0,
    ),
    OpCost(
        name="fusion.3",
        op="jit(step)/jvp(Net)/mlp/dot_general",
        seconds=0.06,
        num_calls=8,
        contains_others=False,
        phase=Phase.FORWARD,
        module="mlp",
        category=Category.ACTIVATIONS,
        held_bytes=1024,
    ),
    OpCost(
        name="no_buffer",
        op="",
        seconds=0.02,
        num_calls=4,
        contains_others=False,
        phase=Phase.NONE,
        module="",
        category=None,
        held_bytes=0,
    ),
)
