"""The operations of products, counted by hand or pair by pair."""

from __future__ import annotations

import json
from itertools import product as combinations

import pytest
from hlo import Step, program_of
from hlo_nodes import Shape, array, f32, tuple_of

from memprof.analysis.hlo.hlo_proto import ProductFields
from memprof.analysis.roofline.operations import seconds_of_product

# One operation per second in every type that a device has units for.
PEAKS = dict.fromkeys(("s8", "f8", "f16", "bf16", "tf32", "f32", "f64"), 1.0)


def operations(
    opcode: str,
    shapes: list[Shape],
    result: Shape,
    *,
    peaks: dict[str, float] = PEAKS,
    contracting: tuple[int, ...] = (),
    fields: dict[str, bytes] | None = None,
    target: str = "",
) -> float | None:
    step = Step()
    operands = [step.op(f"a{number}", "constant", shape) for number, shape in enumerate(shapes)]
    step.op("product", opcode, result, operands, contracting=contracting, fields=fields, target=target)
    program = program_of(step.proto())
    instruction = next(each for each in program.instructions if each.name == "product")
    return seconds_of_product(program, instruction, peaks)


@pytest.mark.parametrize(
    ("first", "second", "peaks", "expected"),
    [
        # 2 * 2 * 4 * 3 = 48 operations, at the peak of the wider type.
        ("bf16", "f32", {"bf16": 1, "tf32": 2}, 24),
        ("f32", "bf16", {"bf16": 1, "tf32": 2}, 24),
        ("f64", "f32", {"tf32": 1, "f64": 2}, 24),
        ("s8", "u8", {"s8": 2}, 24),
        ("s4", "pred", {"s8": 2}, 24),
        ("s8", "bf16", {"s8": 1, "bf16": 2}, 24),
        ("f8e4m3fn", "f8e5m2", {"f8": 2, "bf16": 1}, 24),
        # Without units for a type, those of the next wider one.
        ("f8e4m3fn", "f8e4m3fn", {"bf16": 2, "f16": 1}, 24),
        ("f8e4m3fn", "f8e4m3fn", {"f16": 2}, 24),
        ("bf16", "bf16", {"f32": 2}, 24),
        ("f16", "f16", {"f32": 2, "bf16": 1}, 24),
        ("f32", "f32", {"f32": 2}, 24),
        ("f64", "f64", {"f32": 2}, None),
        # A product of complex numbers takes three of real ones.
        ("c64", "c64", {"tf32": 2, "f64": 1}, 72),
        ("c64", "f32", {"tf32": 2}, 72),
        ("c128", "c128", {"tf32": 1, "f64": 2}, 72),
        # A type without a known peak.
        ("s32", "f64", {"f64": 1}, None),
    ],
)
def test_a_product_is_computed_in_the_wider_type(
    first: str, second: str, peaks: dict[str, float], expected: float | None
) -> None:
    shapes = [array(first, 2, 3), array(second, 3, 4)]
    assert operations("dot", shapes, f32(2, 4), peaks=peaks, contracting=(1,)) == expected


@pytest.mark.parametrize(
    ("contracting", "expected"),
    [
        ((0,), 2 * 4 * 2),
        ((1,), 2 * 4 * 3),
        ((0, 1), 2 * 4 * 6),
        ((), 2 * 4),
    ],
)
def test_a_dot_counts_the_dimensions_that_it_sums_over(contracting: tuple[int, ...], expected: float) -> None:
    assert operations("dot", [f32(2, 3), f32(9)], f32(4), contracting=contracting) == expected


@pytest.mark.parametrize(("contracting", "expected"), [(0, 2 * 4 * 2), (1, 2 * 4 * 3), (2, None), (-1, None)])
def test_a_library_call_that_sums_over_a_dimension_that_its_operand_lacks_has_no_price(
    contracting: int, expected: float | None
) -> None:
    config = {"gemm_backend_config": {"dot_dimension_numbers": {"lhs_contracting_dimensions": [contracting]}}}
    fields = {"backend_config": json.dumps(config).encode()}
    assert operations("custom-call", [f32(2, 3), f32(9)], f32(4), fields=fields, target="__cublas$gemm") == expected


def test_a_product_of_one_operand_has_no_price() -> None:
    assert operations("dot", [f32(2, 3)], f32(2), contracting=(1,)) is None
    assert operations("dot", [f32(2, 3), f32(3)], f32(2), contracting=(1,)) == 12


@pytest.mark.parametrize("empty", range(3))
def test_a_product_of_or_into_no_array_has_no_price(empty: int) -> None:
    first, second, result = (tuple_of() if empty == place else f32(3) for place in range(3))
    fields = {"backend_config": b'{"gemm_backend_config": {"dot_dimension_numbers": {}}}'}
    assert operations("custom-call", [first, second], result, fields=fields, target="__cublas$gemm") is None
    assert operations("custom-call", [f32(3), f32(3)], f32(3), fields=fields, target="__cublas$gemm") == 6


def convolved(
    num_inputs: int, num_outputs: int, window: dict[str, int], *, kernel_input: int = 1, space: tuple[int, ...] = (1,)
) -> float | None:
    """Operations of a convolution of (batch 2, space, 5 features) to (batch 2, space, 7 features)."""
    numbers = ProductFields["ConvolutionDimensionNumbers"](
        kernel_input_feature_dimension=kernel_input,
        input_spatial_dimensions=space,
        output_spatial_dimensions=space,
    )
    message = ProductFields["Window"]()
    message.dimensions.add(**window)
    fields = {
        "convolution_dimension_numbers": numbers.SerializeToString(),
        "window": message.SerializeToString(),
    }
    shapes = [f32(2, num_inputs, 5), f32(min(window["size"], 9), 5, 7)]
    return operations("convolution", shapes, f32(2, num_outputs, 7), fields=fields)


def test_a_convolution_counts_the_pairs_of_an_output_and_an_element_of_the_input() -> None:
    """Against a count of every pair, for all small strides, dilations and paddings."""
    num_inputs, num_outputs, size = 5, 6, 3
    for stride, base, dilation, padding in combinations((1, 2, 3, 4), (1, 2, 3, 4, 5), (1, 2), (-1, 0, 2)):
        places = [
            output * stride + place * dilation - padding for output in range(num_outputs) for place in range(size)
        ]
        num_pairs = sum(at % base == 0 and 0 <= at // base < num_inputs for at in places)
        window = {
            "size": size,
            "stride": stride,
            "base_dilation": base,
            "window_dilation": dilation,
            "padding_low": padding,
        }
        # Two operations for each of 2 sequences, 5 input features and 7 output features.
        assert convolved(num_inputs, num_outputs, window) == 2 * 2 * num_pairs * 5 * 7, window


@pytest.mark.parametrize(
    ("size", "num_inputs", "num_outputs", "num_pairs"),
    [
        (0, 8, 4, 0),
        (1, 8, 4, 4),
        (3, 0, 4, 0),
        (3, 8, 0, 0),
        (1 << 16, 1, 1, 1),  # of the largest window only the first place meets the one element
        ((1 << 16) + 1, 1, 1, 0),
    ],
)
def test_the_limits_of_a_window(size: int, num_inputs: int, num_outputs: int, num_pairs: int) -> None:
    assert convolved(num_inputs, num_outputs, {"size": size, "stride": 1}) == 2 * 2 * num_pairs * 5 * 7


@pytest.mark.parametrize(
    ("kernel_input", "space"),
    [
        (3, (1,)),  # the kernel has dimensions 0 to 2
        (-1, (1,)),
        (1, (3,)),
        (1, (-1,)),
        (1, ()),  # one dimension of the window, and none of space
        (1, (1, 2)),
    ],
)
def test_a_convolution_of_dimensions_that_an_array_lacks_has_no_price(
    kernel_input: int, space: tuple[int, ...]
) -> None:
    assert convolved(8, 6, {"size": 3, "stride": 1}, kernel_input=kernel_input, space=space) is None


def test_a_convolution_may_have_its_dimensions_in_any_order() -> None:
    """The first dimension of the input is the space, and that of the kernel its input features."""
    numbers = ProductFields["ConvolutionDimensionNumbers"](
        kernel_input_feature_dimension=0, input_spatial_dimensions=(0,), output_spatial_dimensions=(0,)
    )
    window = ProductFields["Window"]()
    window.dimensions.add(size=3, stride=1)
    fields = {
        "convolution_dimension_numbers": numbers.SerializeToString(),
        "window": window.SerializeToString(),
    }
    # 6 outputs of 3 places in 8 inputs each, for a batch of 2, 5 input features and 7 output features.
    found = operations("convolution", [f32(8, 2, 5), f32(5, 3, 7)], f32(6, 2, 7), fields=fields)
    assert found == 2 * 6 * 3 * 2 * 5 * 7


@pytest.mark.parametrize(
    ("scores", "mask", "window", "num_scores"),
    [
        ((2, 3, 4, 6), "NO_MASK", 0, 24),
        ((2, 3, 4, 6), "ALIBI", 0, None),  # a mask whose scores are not known
        ((2, 3, 4, 6), "CAUSAL", 0, 1 + 2 + 3 + 4),
        ((2, 3, 6, 4), "CAUSAL", 0, 1 + 2 + 3 + 4 + 4 + 4),
        ((2, 3, 4, 6), "CAUSAL", 2, 1 + 2 + 2 + 2),
        ((2, 3, 4, 6), "CAUSAL", 1, 4),
        ((2, 3, 4, 6), "CAUSAL", 9, 1 + 2 + 3 + 4),
        ((2, 3, 1, 1), "NO_MASK", 0, 1),
        ((2, 3, 4, 6), "NO_MASK", 2, None),  # which keys a window leaves without a mask is not known
        ((2, 3, 4, 6), "CAUSAL", -1, None),
        ((2, 3, 4, 0), "CAUSAL", 0, None),
        ((2, 3, 4), "NO_MASK", 0, None),
        ((2, 3, 4, 6, 1), "NO_MASK", 0, None),
    ],
)
def test_attention_counts_the_scores_within_its_window(
    scores: tuple[int, ...], mask: str, window: int, num_scores: int | None
) -> None:
    config = {
        "intermediate_tensor_shape": {"dimensions": scores},
        "mask_type": mask,
        "sliding_window_length": window,
    }
    fields = {"backend_config": json.dumps({"cudnn_fmha_backend_config": config}).encode()}
    queries = array("bf16", 2, scores[2], 3, 8)  # batch, tokens, heads, head size
    for target, num_products in (("__cudnn$fmhaSoftmax", 2), ("__cudnn$fmhaSoftmaxBackward", 5)):
        found = operations("custom-call", [queries] * 3, queries, fields=fields, target=target)
        # Two operations for each product: of 2 sequences and 3 heads, over a head size of 8.
        assert found == (None if num_scores is None else 2 * num_products * 2 * 3 * num_scores * 8)
