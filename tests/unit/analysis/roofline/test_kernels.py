"""What single kernels, transfers and collectives take on a device whose peaks make every sum plain."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hlo import Step, program_of
from hlo_nodes import Node, Shape, array, f32, tuple_of

from memprof.analysis.records.capture import Speeds, Target, Topology
from memprof.analysis.records.roofline import Roofline
from memprof.analysis.roofline.bound import roofline

# 1000 operations, 100 bytes of memory, 10 bytes to other devices and 1 byte to the host in a second.
SPEEDS = Speeds(
    operations_per_second={"tf32": 1000.0},
    memory_bytes_per_second=100.0,
    link_bytes_per_second=10.0,
    host_bytes_per_second=1.0,
)
TARGET = Target(
    name="plain",
    description="A plain device",
    platform="cuda",
    memory_bytes=1000,
    compute_capability="9.0",
    reason="asked for",
    speeds=SPEEDS,
    topology=Topology(num_devices=4),
)
ON_HOST = Shape("f32", (5,), memory_space=5)


def bound(step: Step, speeds: Speeds = SPEEDS) -> Roofline:
    found = roofline(program_of(step.proto()), replace(TARGET, speeds=speeds))
    assert found is not None
    return found


def value(step: Step, shape: Shape, name: str = "a") -> Node:
    return step.op(name, "constant", shape)


def add(step: Step, name: str = "kernel", *, size: int = 25) -> Node:
    """A kernel of 3 s: 100 bytes are read twice and written once."""
    operand = value(step, f32(size), f"{name}.operand")
    return step.op(name, "add", f32(size), [operand, operand])


def test_a_program_that_does_nothing_has_no_bound() -> None:
    step = Step()
    value(step, f32(5))
    assert roofline(program_of(step.proto()), TARGET) is None


@pytest.mark.parametrize(
    ("result", "source", "seconds", "communication"),
    [
        (ON_HOST, f32(5), 20.0, 17.0),  # 20 bytes at 1 a second, beside a kernel of 3 s
        (f32(5), ON_HOST, 20.0, 17.0),
        (f32(5), f32(5), 3.0, 0.0),  # within the device
        (ON_HOST, ON_HOST, 3.0, 0.0),
    ],
)
def test_only_a_copy_between_host_and_device_takes_their_link(
    result: Shape, source: Shape, seconds: float, communication: float
) -> None:
    step = Step()
    start = step.op("start", "copy-start", tuple_of(result, source, array("u32")), [value(step, source)])
    add(step)
    step.op("done", "copy-done", result, [start])
    found = bound(step)
    assert found.at_least_seconds == seconds
    assert found.communication_share == pytest.approx(communication / seconds)
    assert found.memory_share == pytest.approx(3 / seconds)
    assert found.priced_share == 1.0


def test_a_copy_without_a_context_takes_the_link_too() -> None:
    step = Step()
    start = step.op("start", "copy-start", tuple_of(ON_HOST, f32(5)), [value(step, f32(5))])
    step.op("done", "copy-done", ON_HOST, [start])
    assert bound(step).at_least_seconds == 20.0


@pytest.mark.parametrize(("is_copied_to_host", "seconds"), [(True, 23.0), (False, 40.0)])
def test_a_kernel_that_reads_from_the_host_overlaps_with_copies_to_it(is_copied_to_host: bool, seconds: float) -> None:
    """The copy takes 20 s, the reading kernel 20 s, and the other kernel 3 s."""
    step = Step()
    result, source = (ON_HOST, f32(5)) if is_copied_to_host else (f32(5), ON_HOST)
    start = step.op("start", "copy-start", tuple_of(result, source, array("u32")), [value(step, source)])
    step.op("reader", "negate", f32(5), [value(step, ON_HOST, "b")])
    add(step)
    step.op("done", "copy-done", result, [start])
    assert bound(step).at_least_seconds == seconds


def test_copies_in_both_directions_overlap() -> None:
    step = Step()
    to_host = step.op("out", "copy-start", tuple_of(ON_HOST, f32(5), array("u32")), [value(step, f32(5))])
    to_device = step.op("in", "copy-start", tuple_of(f32(5), ON_HOST, array("u32")), [value(step, ON_HOST, "b")])
    add(step)
    step.op("out.done", "copy-done", ON_HOST, [to_host])
    step.op("in.done", "copy-done", f32(5), [to_device])
    assert bound(step).at_least_seconds == 20.0


@pytest.mark.parametrize(
    ("operand", "result", "seconds"),
    [(ON_HOST, f32(5), 20.0), (f32(5), ON_HOST, 20.0), (f32(5), f32(5), 0.4), (ON_HOST, ON_HOST, 20.0)],
)
def test_a_kernel_reaches_the_memory_of_the_host_over_its_link(operand: Shape, result: Shape, seconds: float) -> None:
    step = Step()
    step.op("kernel", "negate", result, [value(step, operand)])
    found = bound(step)
    assert found.at_least_seconds == seconds
    assert (found.memory_share, found.communication_share) == ((1.0, 0.0) if seconds == 0.4 else (0.0, 1.0))


@pytest.mark.parametrize(
    ("bytes_per_second", "seconds", "compute_share"),
    [(4400 / 12, 12.0, 1.0), (4400 / 13, 13.0, 0.0), (4400 / 11, 12.0, 1.0)],
)
def test_of_two_equal_times_that_of_the_products_counts(
    bytes_per_second: float, seconds: float, compute_share: float
) -> None:
    step = Step()
    a, b = value(step, f32(20, 30)), value(step, f32(30, 10), "b")
    step.op("product", "dot", f32(20, 10), [a, b], contracting=(1,))  # 12,000 operations and 4,400 bytes
    found = bound(step, replace(SPEEDS, memory_bytes_per_second=bytes_per_second))
    assert found.at_least_seconds == pytest.approx(seconds)
    assert (found.compute_share, found.memory_share, found.communication_share) == (
        pytest.approx(compute_share),
        pytest.approx(1 - compute_share),
        0.0,
    )


@pytest.mark.parametrize(
    ("target", "is_priced"),
    [("__cub$DeviceRadixSort", True), ("__gpu$TopK", True), ("cu_threefry2x32", True), ("another", False)],
)
def test_library_calls_that_read_and_write_everything_are_priced_by_their_bytes(target: str, is_priced: bool) -> None:
    step = Step()
    for number in range(19):
        add(step, f"add{number}")
    step.op("call", "custom-call", f32(25), [value(step, f32(25))], target=target)
    found = bound(step)
    assert found.at_least_seconds == (57 + 2 if is_priced else 57)
    assert found.priced_share == (1.0 if is_priced else 0.95)


@pytest.mark.parametrize("opcode", ["cholesky", "ragged-all-to-all"])
def test_what_depends_on_the_values_has_no_price(opcode: str) -> None:
    step = Step()
    for number in range(19):
        add(step, f"add{number}")
    step.op("other", opcode, f32(25), [value(step, f32(25))])
    assert (bound(step).at_least_seconds, bound(step).priced_share) == (57.0, 0.95)


@pytest.mark.parametrize(
    ("opcode", "groups", "seconds"),
    [
        ("reduce-scatter", [[0, 1, 2, 3]], 7.5),  # 3/4 of 100 bytes at 10 a second
        ("all-reduce", [[0], [1], [2], [3]], 0.0),  # each device by itself
        ("all-reduce", [[0, 1], [2], [3]], 0.0),  # the smallest group counts
        ("collective-broadcast", [[0, 1, 2, 3]], 10.0),
        ("collective-broadcast", [], 10.0),
        ("collective-permute", [[0, 0], [1, 1]], 0.0),  # nobody sends to another
        ("collective-permute", [[0, 0], [1, 2]], 10.0),
    ],
)
def test_a_collective_takes_what_its_smallest_group_sends(opcode: str, groups: list[list[int]], seconds: float) -> None:
    step = Step()
    step.op("sent", opcode, f32(25), [value(step, f32(25))], groups=groups)
    add(step)
    found = bound(step)
    assert (found.at_least_seconds, found.priced_share) == (seconds + 3, 1.0)


def test_the_condition_of_a_loop_runs_once_more_than_its_body() -> None:
    carry = tuple_of(f32(25))
    step = Step()
    body, condition = step.computation("body"), step.computation("condition")
    element = body.element(body.parameter(carry), 0)
    body.tuple(body.op("body.add", "add", f32(25), [element, element]))
    element = condition.element(condition.parameter(carry), 0)
    condition.op("condition.add", "add", f32(25), [element, element])
    condition.op("true", "constant", array("pred"))
    step.op("loop", "while", carry, [step.tuple(value(step, f32(25)))], called=[body, condition], number=7)
    found = bound(step)
    assert (found.at_least_seconds, found.priced_share) == (7 * 3 + 8 * 3, 1.0)


@pytest.mark.parametrize("num_adds", [4, 5, 6])
def test_of_a_conditional_no_link_counts_that_a_branch_leaves_idle(num_adds: int) -> None:
    step = Step()
    sends, adds = step.computation("sends"), step.computation("adds")
    sends.op("sent", "all-reduce", f32(25), [sends.parameter(f32(25))], groups=[[0, 1, 2, 3]])  # 15 s
    element = adds.parameter(f32(25))
    for number in range(num_adds):
        element = adds.op(f"add{number}", "add", f32(25), [element, element])
    index, a = value(step, array("s32"), "index"), value(step, f32(25))
    step.op("choice", "conditional", f32(25), [index, a, a], called=[sends, adds])
    found = bound(step)
    assert found.at_least_seconds == min(15, 3 * num_adds)
    assert found.communication_share == (0.0 if num_adds == 4 else 1.0)


@pytest.mark.parametrize(
    ("opcode", "num_elements", "num_read"),
    [
        ("broadcast", 1, 1),
        ("broadcast", 25, 25),
        ("pad", 20, 20),
        ("slice", 100, 25),
        ("negate", 25, 25),
        ("reduce", 250, 250),
    ],
)
def test_a_kernel_reads_what_its_result_needs(opcode: str, num_elements: int, num_read: int) -> None:
    step = Step()
    step.op("kernel", opcode, f32(25), [value(step, f32(num_elements))])
    assert bound(step).at_least_seconds == pytest.approx((num_read + 25) * 4 / 100)


@pytest.mark.parametrize(("is_bitcast_before", "is_bitcast_behind"), [(False, True), (True, False), (True, True)])
def test_an_update_in_place_may_be_seen_in_another_shape(is_bitcast_before: bool, is_bitcast_behind: bool) -> None:
    step = Step()
    stack, row, index = value(step, f32(250)), value(step, f32(25), "row"), value(step, array("s32"), "index")
    inside = step.computation("fusion", fused=True)
    updated, update, at = (inside.parameter(each.shape) for each in (stack, row, index))
    if is_bitcast_before:
        updated = inside.op("seen", "bitcast", f32(250), [updated])
    root = inside.op("updated", "dynamic-update-slice", f32(250), [updated, update, at])
    if is_bitcast_behind:
        inside.op("result", "bitcast", f32(10, 25), [root])
    step.op("fused", "fusion", inside.root.shape, [stack, row, index], called=[inside])
    # 100 bytes of the row are read and written, and 4 of the index are read.
    assert bound(step).at_least_seconds == pytest.approx(2.04)


def test_a_fusion_of_several_results_writes_each() -> None:
    step = Step()
    a, b = value(step, f32(25)), value(step, f32(50), "b")
    inside = step.computation("fusion", fused=True)
    first, second = inside.parameter(a.shape), inside.parameter(b.shape)
    inside.tuple(inside.op("x", "negate", f32(25), [first]), inside.op("y", "negate", f32(50), [second]))
    step.op("fused", "fusion", inside.root.shape, [a, b], called=[inside])
    assert bound(step).at_least_seconds == 2 * (1 + 2)  # 100 and 200 bytes, read and written


@pytest.mark.parametrize(("num_elements", "expected"), [(50, 2 + 2), (25, 1 + 1)])
def test_of_a_fusion_in_a_fusion_counts_the_part_that_is_needed(num_elements: int, expected: float) -> None:
    step = Step()
    a = value(step, f32(50))
    inner, outer = step.computation("inner", fused=True), step.computation("outer", fused=True)
    inner.op("negated", "negate", f32(50), [inner.parameter(f32(50))])
    made = outer.op("made", "fusion", f32(50), [outer.parameter(f32(50))], called=[inner])
    outer.op("part", "slice", f32(num_elements), [made])
    step.op("fused", "fusion", f32(num_elements), [a], called=[outer])
    assert bound(step).at_least_seconds == expected


def test_half_of_a_product_in_a_fusion_takes_half_the_time() -> None:
    step = Step()
    a, b = value(step, f32(20, 30)), value(step, f32(30, 10), "b")
    inside = step.computation("fusion", fused=True)
    operands = [inside.parameter(a.shape), inside.parameter(b.shape)]
    product = inside.op("product", "dot", f32(20, 10), operands, contracting=(1,))
    inside.op("half", "slice", f32(10, 10), [product])
    step.op("fused", "fusion", f32(10, 10), [a, b], called=[inside])
    assert bound(step, replace(SPEEDS, memory_bytes_per_second=1e9)).at_least_seconds == 6.0
