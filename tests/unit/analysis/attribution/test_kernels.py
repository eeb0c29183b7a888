"""The calls of Pallas kernels: equal calls from one line are one row, and each kernel is a call of the program."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hlo import Step
from hlo_nodes import FORWARD, f32

from memprof.analysis.pipeline import analyze
from memprof.analysis.records.capture import Capture
from memprof.analysis.records.categories import Role
from memprof.analysis.records.kernel import Kernel, KernelBuffer
from memprof.errors import InternalError


def _kernel(instruction: str, *sizes: int) -> Kernel:
    blocks = [
        KernelBuffer(kind="input", dtype="f32", shape=(size // 4,), num_buffers=1, size_bytes=size) for size in sizes
    ]
    return Kernel(instruction=instruction, buffers=tuple(blocks), limit_bytes=1 << 20)


def _capture(*kernels: Kernel) -> Capture:
    """Calls on lines 14, 14 and 20 of train.py, and an addition."""
    step = Step()
    lines = [step.frame("/home/me/train.py", line) for line in (14, 20)]
    value = step.argument("x", Role.BATCH, f32(4))
    for name, frame in (("product.1", lines[0]), ("product.22.7", lines[0]), ("product.3", lines[1])):
        value = step.op(name, "custom-call", f32(4), [value], FORWARD, target="tpu_custom_call", frame=frame)
    step.result(step.op("sum", "add", f32(4), [value, value], FORWARD))
    return replace(step.capture(), kernels=kernels)


def test_equal_calls_from_one_line_are_one_row_and_the_largest_comes_first() -> None:
    kernels = _kernel("product.1", 64, 16), _kernel("product.22.7", 64, 16), _kernel("product.3", 64, 32)
    found = analyze(_capture(*kernels)).kernels
    assert [(each.name, each.num_calls, each.source, each.kernel.instruction) for each in found] == [
        ("product", 1, "/home/me/train.py:20", "product.3"),
        ("product", 2, "/home/me/train.py:14", "product.1"),
    ]
    assert [each.kernel.asked_bytes for each in found] == [96, 80]


def test_calls_that_ask_for_other_sizes_are_rows_of_their_own() -> None:
    found = analyze(_capture(_kernel("product.1", 64), _kernel("product.22.7", 128))).kernels
    assert [(each.kernel.instruction, each.num_calls) for each in found] == [("product.22.7", 1), ("product.1", 1)]


@pytest.mark.parametrize(
    "instructions",
    [("absent",), ("sum",), ("product.1", "absent"), ("product.1", "product.1"), ("",)],
)
def test_a_kernel_that_is_no_call_of_the_program_is_an_error(instructions: tuple[str, ...]) -> None:
    with pytest.raises(InternalError, match="the kernels are not those of the compiled program"):
        analyze(_capture(*(_kernel(each, 64) for each in instructions)))
