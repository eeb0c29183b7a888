"""What a Pallas kernel asks for on the chip, and what the compiler says of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memprof.analysis.records.kernel import Kernel, KernelBuffer, Kind, is_about_chip


def _buffer(kind: Kind, size_bytes: int) -> KernelBuffer:
    return KernelBuffer(kind=kind, dtype="f32", shape=(size_bytes // 4,), num_buffers=1, size_bytes=size_bytes)


KERNEL = Kernel(
    instruction="kernel.1",
    buffers=(_buffer("input", 400), _buffer("scratch", 80), _buffer("output", 40), _buffer("scratch", 8)),
    smem_buffers=(_buffer("prefetch", 16), _buffer("scratch", 4)),
    limit_bytes=None,
)


def test_a_kernel_asks_for_its_blocks_and_its_scratch_memory() -> None:
    assert (KERNEL.asked_bytes, KERNEL.scratch_bytes, KERNEL.smem_bytes) == (528, 88, 20)


@pytest.mark.parametrize(("limit_bytes", "is_over"), [(None, False), (527, True), (528, False), (0, True)])
def test_a_kernel_is_over_its_limit_by_a_byte(limit_bytes: int | None, is_over: bool) -> None:
    assert replace(KERNEL, limit_bytes=limit_bytes).is_over_limit is is_over


@pytest.mark.parametrize(("limit_bytes", "is_over"), [(None, False), (19, True), (20, False), (0, True)])
def test_the_scalar_memory_of_the_chip_is_a_limit_of_its_own(limit_bytes: int | None, is_over: bool) -> None:
    assert replace(KERNEL, smem_limit_bytes=limit_bytes).is_over_smem is is_over


@pytest.mark.parametrize(
    ("refusal", "is_chip"),
    [
        ("Ran out of memory in memory space vmem. Used 20M of 16M", True),
        ("Ran out of memory in memory space smem", True),
        ("Ran out of memory in memory space hbm. Used 20G of 16G", False),
        ("Allocation (size=1) would exceed memory (size=0)", True),
        ("", False),
    ],
)
def test_a_refusal_is_about_the_chip_or_not(refusal: str, is_chip: bool) -> None:
    assert is_about_chip(refusal) is is_chip
