"""The roofline bound of hand-built programs, on a device whose peaks make every sum plain."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hlo import Step, program_of
from hlo_nodes import Computation, Node, Shape, array, f32, tuple_of

from memprof.analysis.hlo.hlo_proto import ProductFields
from memprof.analysis.records.capture import Speeds, Target, Topology
from memprof.analysis.records.categories import Role
from memprof.analysis.records.roofline import Roofline
from memprof.analysis.roofline.bound import roofline

# 1000 operations, 100 bytes of memory, 10 bytes to other devices and 1 byte to the host in a second.
SPEEDS = Speeds(
    operations_per_second={"tf32": 1000.0, "f32": 500.0, "bf16": 2000.0},
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
)


def bound(step: Step, target: Target = TARGET) -> Roofline | None:
    return roofline(program_of(step.proto()), target)


def seconds(step: Step, target: Target = TARGET) -> float:
    found = bound(step, target)
    assert found is not None
    assert found.compute_share + found.memory_share + found.communication_share == pytest.approx(1)
    return found.at_least_seconds


def argument(step: Step, name: str, shape: Shape) -> Node:
    return step.argument(name, Role.OTHER_STATE, shape)


def fusion(step: Step, name: str, shape: Shape, operands: list[Node]) -> Computation:
    """A fusion, whose computation is still to be filled; its parameters are there."""
    inside = step.computation(f"{name}.fused", fused=True)
    for operand in operands:
        inside.parameter(operand.shape)
    step.op(name, "fusion", shape, operands, called=[inside])
    return inside


def test_a_kernel_takes_the_longer_of_arithmetic_and_memory() -> None:
    step = Step()
    a, b = argument(step, "a", f32(20, 30)), argument(step, "b", f32(30, 10))
    step.op("product", "dot", f32(20, 10), [a, b], contracting=(1,))
    # 2 * 20 * 10 * 30 = 12,000 operations: 12 s. 4 * (600 + 300 + 200) = 4,400 bytes: 44 s.
    assert bound(step) == Roofline(
        at_least_seconds=44.0, compute_share=0.0, memory_share=1.0, communication_share=0.0, priced_share=1.0
    )
    slower = replace(SPEEDS, operations_per_second={"tf32": 100.0})
    found = bound(step, replace(TARGET, speeds=slower))
    assert found is not None
    assert (found.at_least_seconds, found.compute_share) == (120.0, 1.0)


@pytest.mark.parametrize(
    ("dtype", "config", "expected"),
    [
        ("bf16", {}, 6.0),  # 12,000 at 2,000 a second
        ("f32", {}, 12.0),  # as TF32
        ("f32", {"operand_precision": [2, 2]}, 24.0),  # HIGHEST
        ("f32", {"algorithm": 7}, 18.0),  # three passes in bfloat16
    ],
)
def test_a_product_is_priced_by_its_type(dtype: str, config: dict[str, object], expected: float) -> None:
    step = Step()
    a, b = argument(step, "a", array(dtype, 20, 30)), argument(step, "b", array(dtype, 30, 10))
    precision = ProductFields["PrecisionConfig"](**config).SerializeToString()
    step.op("product", "dot", array(dtype, 20, 10), [a, b], contracting=(1,), fields={"precision_config": precision})
    assert seconds(step, fast_memory()) == expected


def fast_memory() -> Target:
    return replace(TARGET, speeds=replace(SPEEDS, memory_bytes_per_second=1e9))


def test_without_a_peak_for_the_type_a_kernel_has_no_price() -> None:
    step = Step()
    a, b = argument(step, "a", array("f64", 4, 4)), argument(step, "b", array("f64", 4, 4))
    step.op("product", "dot", array("f64", 4, 4), [a, b], contracting=(1,))
    assert bound(step) is None


def test_without_the_peaks_of_the_device_there_is_no_bound() -> None:
    step = Step()
    step.op("twice", "add", f32(25), [argument(step, "a", f32(25))] * 2)
    assert seconds(step) == 3.0  # two reads and a write of 100 bytes
    assert bound(step, replace(TARGET, speeds=None)) is None


def test_a_slice_in_a_fusion_reads_the_slice() -> None:
    step = Step()
    stack, index = argument(step, "stack", f32(10, 25)), argument(step, "index", array("s32"))
    inside = fusion(step, "layer", f32(1, 25), [stack, index])
    zero = inside.op("zero", "constant", array("s32"))
    taken = inside.op("taken", "dynamic-slice", f32(1, 25), [inside.nodes[0], inside.nodes[1], zero])
    inside.op("doubled", "add", f32(1, 25), [taken, taken])
    # 100 bytes of the stack's 1000, the index of 4, and 100 written.
    assert seconds(step) == pytest.approx(2.04)


def test_slices_of_one_array_add_up_to_no_more_than_the_array() -> None:
    step = Step()
    whole = argument(step, "whole", f32(100))
    inside = fusion(step, "shifted", f32(60), [whole])
    first = inside.op("first", "slice", f32(60), [inside.nodes[0]])
    second = inside.op("second", "slice", f32(60), [inside.nodes[0]])
    inside.op("sum", "add", f32(60), [first, second])
    # 400 bytes read, and not 480; 240 written.
    assert seconds(step) == pytest.approx(6.4)


def test_an_update_in_place_touches_the_update() -> None:
    step = Step()
    stack, row = argument(step, "stack", f32(10, 25)), argument(step, "row", f32(1, 25))
    index = argument(step, "index", array("s32"))
    inside = fusion(step, "write", f32(10, 25), [stack, row, index])
    at = [inside.nodes[2], inside.op("zero", "constant", array("s32"))]
    doubled = inside.op("doubled", "add", f32(1, 25), [inside.nodes[1], inside.nodes[1]])
    inside.op("updated", "dynamic-update-slice", f32(10, 25), [inside.nodes[0], doubled, *at])
    # The row is read and written, and the index is read.
    assert seconds(step) == pytest.approx(2.04)


def test_an_update_of_what_the_fusion_makes_writes_all_of_it() -> None:
    step = Step()
    row, index = argument(step, "row", f32(1, 25)), argument(step, "index", array("s32"))
    inside = fusion(step, "fill", f32(10, 25), [row, index])
    at = [inside.nodes[1], inside.op("zero", "constant", array("s32"))]
    filled = inside.op("filled", "broadcast", f32(10, 25), [inside.op("one", "constant", f32())])
    inside.op("updated", "dynamic-update-slice", f32(10, 25), [filled, inside.nodes[0], *at])
    assert seconds(step) == pytest.approx(10 + 1.04)  # 1000 bytes written, 104 read


def test_a_gather_reads_the_rows_that_it_takes() -> None:
    step = Step()
    table, rows = argument(step, "table", f32(1000, 25)), argument(step, "rows", array("s32", 5))
    step.op("taken", "gather", f32(5, 25), [table, rows])
    assert seconds(step) == pytest.approx(5 + 0.2 + 5)  # 5 rows of 100 bytes read and written, 20 bytes of indices


def test_a_scatter_touches_the_rows_that_it_updates() -> None:
    step = Step()
    table, rows = argument(step, "table", f32(1000, 25)), argument(step, "rows", array("s32", 5))
    updates = argument(step, "updates", f32(5, 25))
    step.op("added", "scatter", f32(1000, 25), [table, rows, updates])
    assert seconds(step) == pytest.approx(5 + 0.2 + 5)


def test_a_reduction_in_a_fusion_reads_all_of_it() -> None:
    step = Step()
    square = argument(step, "square", f32(25, 25))
    inside = fusion(step, "sums", f32(25), [square])
    doubled = inside.op("doubled", "add", f32(25, 25), [inside.nodes[0], inside.nodes[0]])
    inside.op("sum", "reduce", f32(25), [doubled, inside.op("zero", "constant", f32())])
    assert seconds(step) == 26.0  # 2500 bytes read, 100 written


def test_a_product_in_a_fusion_counts() -> None:
    step = Step()
    a, b = argument(step, "a", f32(20, 30)), argument(step, "b", f32(30, 10))
    inside = fusion(step, "gemm", f32(20, 10), [a, b])
    product = inside.op("product", "dot", f32(20, 10), inside.nodes[:2], contracting=(1,))
    inside.op("doubled", "add", f32(20, 10), [product, product])
    assert seconds(step, fast_memory()) == 12.0


def gemm_config(**fields: object) -> bytes:
    numbers = {"lhs_contracting_dimensions": ["1"], "rhs_contracting_dimensions": ["0"]}
    return json.dumps({"gemm_backend_config": {"dot_dimension_numbers": numbers, **fields}}).encode()


def test_a_call_of_cublas_is_priced_without_its_workspace() -> None:
    step = Step()
    a, b = argument(step, "a", f32(20, 30)), argument(step, "b", f32(30, 10))
    result = tuple_of(f32(20, 10), array("s8", 1_000_000))
    fields = {"backend_config": gemm_config()}
    step.op("gemm", "custom-call", result, [a, b], target="__cublas$gemm", fields=fields)
    assert seconds(step) == 44.0
    assert seconds(step, fast_memory()) == 12.0


def test_an_exact_product_of_cublas_is_no_tf32() -> None:
    step = Step()
    a, b = argument(step, "a", f32(20, 30)), argument(step, "b", f32(30, 10))
    config = gemm_config(precision_config={"operand_precision": ["HIGHEST", "HIGHEST"], "algorithm": "ALG_UNSET"})
    step.op("gemm", "custom-call", f32(20, 10), [a, b], target="__cublas$gemm", fields={"backend_config": config})
    assert seconds(step, fast_memory()) == 24.0


@pytest.mark.parametrize(
    ("target", "mask", "num_products", "num_scores"),
    [
        ("__cudnn$fmhaSoftmax", "NO_MASK", 2, 16),
        ("__cudnn$fmhaSoftmax", "CAUSAL", 2, 10),  # 1 + 2 + 3 + 4 of 4 queries and 4 keys
        ("__cudnn$fmhaSoftmaxBackward", "CAUSAL", 5, 10),
    ],
)
def test_fused_attention_counts_the_scores_that_its_mask_leaves(
    target: str, mask: str, num_products: int, num_scores: int
) -> None:
    step = Step()
    shape = array("bf16", 2, 4, 3, 8)  # batch, tokens, heads, head size
    operands = [argument(step, name, shape) for name in "qkv"]
    config = {"intermediate_tensor_shape": {"dimensions": ["2", "3", "4", "4"]}, "mask_type": mask}
    fields = {"backend_config": json.dumps({"cudnn_fmha_backend_config": config}).encode()}
    step.op("attention", "custom-call", tuple_of(shape, array("u8", 0)), operands, target=target, fields=fields)
    # Two operations for each product: of 2 sequences and 3 heads, over a head size of 8.
    assert seconds(step, fast_memory()) == 2 * num_products * 2 * 3 * num_scores * 8 / 2000


def test_attention_of_padded_sequences_has_no_price() -> None:
    step = Step()
    shape = array("bf16", 2, 4, 3, 8)
    operands = [argument(step, name, shape) for name in "qkv"]
    config = {"intermediate_tensor_shape": {"dimensions": ["2", "3", "4", "4"]}, "mask_type": "PADDING"}
    fields = {"backend_config": json.dumps({"cudnn_fmha_backend_config": config}).encode()}
    step.op("attention", "custom-call", shape, operands, target="__cudnn$fmhaSoftmax", fields=fields)
    assert bound(step) is None


def convolution_fields(**window: int) -> dict[str, bytes]:
    """One spatial dimension; arrays are (batch, space, feature), kernels (space, input, output)."""
    numbers = ProductFields["ConvolutionDimensionNumbers"](
        kernel_input_feature_dimension=1, input_spatial_dimensions=[1], output_spatial_dimensions=[1]
    )
    message = ProductFields["Window"]()
    message.dimensions.add(**window)
    return {
        "convolution_dimension_numbers": numbers.SerializeToString(),
        "window": message.SerializeToString(),
    }


@pytest.mark.parametrize(
    ("window", "num_outputs", "num_pairs"),
    [
        ({"size": 3, "stride": 1}, 6, 18),  # no padding: every place of the window meets the input of 8
        ({"size": 3, "stride": 1, "padding_low": 1}, 8, 22),  # "same": the two ends meet 2 instead of 3
        ({"size": 3, "stride": 2, "padding_low": 1}, 4, 11),  # outputs at -1, 1, 3, 5: 2 + 3 + 3 + 3
        ({"size": 3, "stride": 1, "padding_low": 2, "base_dilation": 2}, 17, 24),  # each of 8 inputs meets 3 places
        ({"size": 2, "stride": 1, "window_dilation": 4}, 4, 8),  # places 0 and 4 of outputs at 0, 1, 2, 3
    ],
)
def test_a_convolution_counts_no_products_with_padding_or_holes(
    window: dict[str, int], num_outputs: int, num_pairs: int
) -> None:
    step = Step()
    a, kernel = argument(step, "a", f32(2, 8, 5)), argument(step, "kernel", f32(window["size"], 5, 7))
    step.op("conv", "convolution", f32(2, num_outputs, 7), [a, kernel], fields=convolution_fields(**window))
    # Two operations for each of 2 sequences, 5 input features and 7 output features.
    assert seconds(step, fast_memory()) == 2 * 2 * num_pairs * 5 * 7 / 1000


@pytest.mark.parametrize(
    ("target", "places"),
    [
        ("__cudnn$convForward", "akc"),
        ("__cudnn$convBackwardInput", "cka"),
        ("__cudnn$convBackwardFilter", "ack"),
    ],
)
def test_gradients_of_a_convolution_take_as_many_products_as_the_convolution(target: str, places: str) -> None:
    shapes = {"a": f32(2, 8, 5), "k": f32(3, 5, 7), "c": f32(2, 6, 7)}
    step = Step()
    operands = [argument(step, name, shapes[name]) for name in places[:2]]
    result = tuple_of(shapes[places[2]], array("u8", 64))
    fields = convolution_fields(size=3, stride=1)
    step.op("conv", "custom-call", result, operands, target=target, fields=fields)
    assert seconds(step, fast_memory()) == 2 * 2 * 18 * 5 * 7 / 1000


def loop(step: Step, trip_count: int, *, body_adds: int = 1) -> None:
    """A loop that adds a vector of 100 bytes to itself, three seconds each time."""
    carry = tuple_of(f32(25))
    body, condition = step.computation("body"), step.computation("condition")
    value = body.element(body.parameter(carry), 0)
    for number in range(body_adds):
        value = body.op(f"add{number}", "add", f32(25), [value, value])
    body.tuple(value)
    condition.parameter(carry)
    condition.op("true", "constant", array("pred"))
    start = step.tuple(argument(step, "a", f32(25)))
    step.op("loop", "while", carry, [start], called=[body, condition], number=trip_count)


def test_a_loop_counts_as_often_as_it_runs() -> None:
    step = Step()
    loop(step, 7)
    assert seconds(step) == 21.0


def test_a_loop_of_unknown_length_counts_as_not_run_and_its_kernels_as_unpriced() -> None:
    step = Step()
    loop(step, 0)
    assert bound(step) is None
    value = argument(step, "b", f32(25))
    for number in range(19):
        value = step.op(f"after{number}", "add", f32(25), [value, value])
    found = bound(step)
    assert found is not None
    assert (found.at_least_seconds, found.priced_share) == (57.0, 0.95)


def test_of_a_conditional_the_cheapest_branch_counts() -> None:
    step = Step()
    index, a = argument(step, "index", array("s32")), argument(step, "a", f32(25))
    branches = [step.computation(f"branch{number}") for number in range(2)]
    for number, branch in enumerate(branches):
        value = branch.parameter(f32(25))
        for add in range(number + 1):
            value = branch.op(f"branch{number}.add{add}", "add", f32(25), [value, value])
    step.op("choice", "conditional", f32(25), [index, a, a], called=branches)
    assert seconds(step) == 3.0


@pytest.mark.parametrize(
    ("opcode", "groups", "expected"),
    [
        ("all-reduce", [[0, 1, 2, 3]], 15.0),  # 2 * 3/4 of 100 bytes at 10 a second
        ("all-reduce", [], 15.0),  # all four devices
        ("all-reduce", [[0, 1], [2, 3]], 10.0),  # 2 * 1/2
        ("all-gather", [[0, 1, 2, 3]], 7.5),
        ("all-to-all", [[0, 1, 2, 3]], 7.5),
        ("collective-permute", [[0, 1], [1, 0]], 10.0),
    ],
)
def test_a_collective_takes_a_ring(opcode: str, groups: list[list[int]], expected: float) -> None:
    step = Step()
    shape = f32(25)
    operand = argument(step, "a", shape)
    step.op("sent", opcode, shape, [operand], groups=groups)
    four = replace(TARGET, topology=Topology(num_devices=4))
    found = bound(step, four)
    assert found is not None
    assert (found.at_least_seconds, found.communication_share) == (expected, 1.0)


@pytest.mark.parametrize(("num_kernels", "expected"), [(0, 15.0), (1, 15.0), (8, 24.0)])
def test_kernels_overlap_a_collective_in_the_background(num_kernels: int, expected: float) -> None:
    """An all-reduce of 15 s, and kernels of 3 s between its start and its end."""
    step = Step()
    operand = argument(step, "a", f32(25))
    start = step.op("start", "all-reduce-start", f32(25), [operand], groups=[[0, 1, 2, 3]])
    value = operand
    for number in range(num_kernels):
        value = step.op(f"kernel{number}", "add", f32(25), [value, value])
    step.op("done", "all-reduce-done", f32(25), [start])
    assert seconds(step) == expected


def test_a_collective_that_ends_before_a_kernel_starts_overlaps_nothing() -> None:
    step = Step()
    operand = argument(step, "a", f32(25))
    start = step.op("start", "all-reduce-start", f32(25), [operand], groups=[[0, 1, 2, 3]])
    done = step.op("done", "all-reduce-done", f32(25), [start])
    step.op("kernel", "add", f32(25), [done, done])
    found = bound(step)
    assert found is not None
    assert found.at_least_seconds == 18.0
    assert found.communication_share == pytest.approx(15 / 18)


def test_kernels_before_a_collective_do_not_overlap_it() -> None:
    """A kernel of 3 s, an all-reduce of 15 s that is waited for at once, another kernel."""
    step = Step()
    before = step.op("before", "add", f32(25), [operand := argument(step, "a", f32(25)), operand])
    start = step.op("start", "all-reduce-start", f32(25), [before], groups=[[0, 1, 2, 3]])
    done = step.op("done", "all-reduce-done", f32(25), [start])
    step.op("after", "add", f32(25), [done, done])
    assert seconds(step) == 21.0


def test_a_transfer_takes_the_link_to_the_host() -> None:
    step = Step()
    a = argument(step, "a", f32(5))
    on_host = Shape("f32", (5,), memory_space=5)
    start = step.op("start", "copy-start", tuple_of(on_host, f32(5), array("u32")), [a])
    step.op("kernel", "add", f32(5), [a, a])
    step.op("done", "copy-done", on_host, [start])
    assert seconds(step) == 20.0  # 20 bytes at 1 a second, beside a kernel of 0.6 s


def test_the_body_of_a_loop_waits_for_the_transfers_that_its_kernels_do_not_hide() -> None:
    """Each of 7 iterations loads 100 bytes at 1 a second beside two kernels of 3 s, and uses them in a third one.

    Meanwhile 4 bytes go to the host, which takes less than the kernels. The buffers in host memory cost nothing.
    """
    step = Step()
    on_host = Shape("f32", (25,), memory_space=5)
    carry = tuple_of(f32(25), on_host)
    body, condition = step.computation("body"), step.computation("condition")
    arguments = body.parameter(carry)
    value, held = body.element(arguments, 0), body.element(arguments, 1)
    load = body.op("load", "copy-start", tuple_of(f32(25), on_host, array("u32")), [held])
    small = Shape("f32", (1,), memory_space=5)
    store = body.op("store", "copy-start", tuple_of(small, array("f32", 1), array("u32")), [value])
    for number in range(2):
        value = body.op(f"add{number}", "add", f32(25), [value, value])
    body.op("stored", "copy-done", small, [store])
    loaded = body.op("loaded", "copy-done", f32(25), [load])
    body.tuple(body.op("use", "add", f32(25), [loaded, loaded]), held)
    condition.parameter(carry)
    condition.op("true", "constant", array("pred"))
    buffer = step.op("buffer", "custom-call", on_host, [], target="AllocateBuffer")
    start = step.tuple(argument(step, "a", f32(25)), buffer)
    step.op("loop", "while", carry, [start], called=[body, condition], number=7)
    found = bound(step)
    assert found is not None
    assert found.at_least_seconds == 7 * (100 + 3.0)
    assert found.communication_share == pytest.approx((100 - 6) / 103)
    assert found.priced_share == 1.0


def test_a_call_that_is_not_known_has_no_price() -> None:
    step = Step()
    value = argument(step, "a", f32(25))
    for number in range(19):
        value = step.op(f"add{number}", "add", f32(25), [value, value])
    step.op("kernel", "custom-call", f32(25), [value], target="a_kernel_of_my_own")
    found = bound(step)
    assert found is not None
    assert (found.at_least_seconds, found.priced_share) == (57.0, 0.95)
    step.op("another", "custom-call", f32(25), [value], target="a_kernel_of_my_own")
    assert bound(step) is None


def test_a_called_computation_counts_as_what_it_runs() -> None:
    step = Step()
    called = step.computation("called")
    value = called.parameter(f32(25))
    called.op("twice", "add", f32(25), [value, value])
    step.op("call", "call", f32(25), [argument(step, "a", f32(25))], called=[called])
    assert seconds(step) == 3.0


def test_the_condition_of_a_loop_runs_once_more_than_its_body() -> None:
    step = Step()
    carry = tuple_of(f32(25))
    body, condition = step.computation("body"), step.computation("condition")
    value = body.element(body.parameter(carry), 0)
    body.tuple(body.op("add", "add", f32(25), [value, value]))
    value = condition.element(condition.parameter(carry), 0)
    condition.op("sum", "add", f32(25), [value, value])
    condition.op("true", "constant", array("pred"))
    start = step.tuple(argument(step, "a", f32(25)))
    step.op("loop", "while", carry, [start], called=[body, condition], number=7)
    assert seconds(step) == 7 * 3.0 + 8 * 3.0


@pytest.mark.parametrize(
    ("num_before", "num_between", "num_updates", "expected"),
    [
        (0, 0, 0, 6.0),
        (0, 0, 2, 6.0),
        (0, 1, 0, 6.0),  # a kernel of 3 s at the same time
        (0, 3, 2, 9.0),
        (2, 0, 1, 6.0 + 6.0),
    ],
)
def test_a_wrapped_collective_runs_beside_kernels(
    num_before: int, num_between: int, num_updates: int, expected: float
) -> None:
    """An all-to-all of 80 bytes between 4 devices: 60 bytes at 10 a second. Each kernel takes 3 s."""
    step = Step()
    a = argument(step, "a", f32(25))
    sent = argument(step, "sent", array("u8", 80))
    for number in range(num_before):
        a = step.op(f"before{number}", "add", f32(25), [a, a])
    inside = step.computation("wrapped")
    inside.op("exchanged", "all-to-all", sent.shape, [inside.parameter(sent.shape)], groups=[[0, 1, 2, 3]])
    state = tuple_of(tuple_of(sent.shape), sent.shape)
    begun = step.op("start", "async-start", state, [sent], called=[inside])
    for number in range(num_updates):
        begun = step.op(f"update{number}", "async-update", state, [begun])
    for number in range(num_between):
        a = step.op(f"between{number}", "add", f32(25), [a, a])
    step.op("done", "async-done", sent.shape, [begun])
    assert seconds(step) == expected


def test_a_wrapped_kernel_uses_memory_but_no_time_of_its_own() -> None:
    step = Step()
    a, b = argument(step, "a", f32(20, 30)), argument(step, "b", f32(30, 10))
    inside = step.computation("wrapped")
    value = inside.parameter(f32(25))
    inside.op("twice", "add", f32(25), [value, value])
    state = tuple_of(tuple_of(f32(25)), f32(25))
    start = step.op("start", "async-start", state, [argument(step, "c", f32(25))], called=[inside])
    step.op("product", "dot", f32(20, 10), [a, b], contracting=(1,))
    step.op("done", "async-done", f32(25), [start])
    found = bound(step)
    assert found is not None
    # The product takes 44 s of memory, and the wrapped kernel adds 3 s to the traffic alone.
    assert (found.at_least_seconds, found.memory_share, found.priced_share) == (47.0, 1.0, 1.0)


_ON_CHIP, _ON_HOST = Shape("f32", (25,), memory_space=1), Shape("f32", (25,), memory_space=5)


@pytest.mark.parametrize(
    ("source", "destination", "copy_seconds"),
    [
        (f32(25), _ON_CHIP, 1.0),  # 100 bytes at 100 a second
        (_ON_CHIP, f32(25), 1.0),
        (_ON_CHIP, _ON_CHIP, 0.0),
        (f32(25), f32(25), 0.0),  # within the memory: not priced
    ],
)
def test_a_copy_to_the_chip_is_traffic_of_the_memory(source: Shape, destination: Shape, copy_seconds: float) -> None:
    step = Step()
    copied, a = argument(step, "copied", source), argument(step, "a", f32(25))
    start = step.op("start", "copy-start", tuple_of(destination, source, array("u32")), [copied])
    step.op("kernel", "add", f32(25), [a, a])
    step.op("done", "copy-done", destination, [start])
    assert seconds(step, replace(TARGET, platform="tpu", compute_capability=None)) == 3.0 + copy_seconds


def test_a_kernel_reads_and_writes_the_chip_for_free() -> None:
    step = Step()
    a = argument(step, "a", _ON_CHIP)
    step.op("kernel", "add", f32(25), [a, argument(step, "b", f32(25))])
    step.op("stays", "add", _ON_CHIP, [a, a])
    # 100 bytes are read from the memory and 100 are written to it; the second kernel touches none of it.
    assert seconds(step, replace(TARGET, platform="tpu", compute_capability=None)) == 2.0


@pytest.mark.parametrize(
    ("shapes", "result", "expected"),
    [
        ((_ON_HOST, f32(25)), f32(25), 100.0),  # 100 bytes from the host at 1 a second
        ((_ON_HOST, _ON_HOST), f32(25), 200.0),
        ((f32(25), f32(25)), _ON_HOST, 100.0),
        ((_ON_HOST, f32(25)), _ON_HOST, 100.0),  # both directions at once
    ],
)
def test_a_kernel_waits_for_the_host(shapes: tuple[Shape, Shape], result: Shape, expected: float) -> None:
    step = Step()
    step.op("kernel", "add", result, [argument(step, f"a{number}", shape) for number, shape in enumerate(shapes)])
    found = bound(step)
    assert found is not None
    assert (found.at_least_seconds, found.communication_share) == (expected, 1.0)


def test_what_a_branch_moves_counts_only_if_each_branch_moves_as_much() -> None:
    """One branch waits 25 s for the host, beside a collective and a kernel; the other has 6 s of kernels."""
    step = Step()
    index, a = argument(step, "index", array("s32")), argument(step, "a", f32(25))
    first, second = step.computation("first"), step.computation("second")
    value = first.parameter(f32(25))
    start = first.op("start", "all-reduce-start", f32(25), [value], groups=[[0, 1, 2, 3]])
    held = tuple_of(_ON_HOST, f32(25), array("u32"))
    copy = first.op("copy", "copy-start", held, [value])
    back = first.op("back", "copy-start", tuple_of(f32(25), _ON_HOST, array("u32")), [value])
    first.op("beside", "add", f32(25), [value, value])
    first.op("copied", "copy-done", _ON_HOST, [copy])
    first.op("fetched", "copy-done", f32(25), [back])
    first.op("reduced", "all-reduce-done", f32(25), [start])
    value = second.parameter(f32(25))
    for number in range(2):
        value = second.op(f"add{number}", "add", f32(25), [value, value])
    step.op("choice", "conditional", f32(25), [index, a, a], called=[first, second])
    assert seconds(step) == 6.0


def test_the_memory_of_copies_can_be_the_limit_of_a_step_that_computes() -> None:
    step = Step()
    a, b = argument(step, "a", array("bf16", 20, 30)), argument(step, "b", array("bf16", 30, 10))
    on_chip = Shape("f32", (25,), memory_space=1)
    starts = [
        step.op(
            f"start{number}", "copy-start", tuple_of(on_chip, f32(25), array("u32")), [argument(step, name, f32(25))]
        )
        for number, name in enumerate("cdef")
    ]
    step.op("product", "dot", array("bf16", 20, 10), [a, b], contracting=(1,))
    for number, start in enumerate(starts):
        step.op(f"done{number}", "copy-done", on_chip, [start])
    slow = replace(SPEEDS, operations_per_second={"bf16": 500.0})
    found = bound(step, replace(TARGET, platform="tpu", compute_capability=None, speeds=slow))
    assert found is not None
    # The product: 12,000 operations take 24 s, its 2,200 bytes 22 s. Four copies of 100 bytes take 4 s of the memory.
    assert found.at_least_seconds == 26.0
    assert (found.compute_share, found.memory_share) == pytest.approx((24 / 26, 2 / 26))
