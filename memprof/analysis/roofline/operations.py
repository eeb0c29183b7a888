"""FLOPs of dots, convolutions and fused attention, and the least time that they take.

A multiplication and the addition of its result are two operations. A convolution counts the products of the direct
algorithm, without products with padding or with the holes of a dilated input. Fused attention counts only the products
that its mask keeps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import gcd, prod

from memprof.analysis.hlo.products import Arithmetic, Attention, Convolution, Dot, WindowDimension
from memprof.analysis.hlo.program import Instruction, Program, ResultLeaf

_COMPLEX = {"c64": "f32", "c128": "f64"}
# A product of complex numbers takes at least three products of real numbers (Gauss); cuBLAS has such kernels.
_REAL_PRODUCTS = 3
_ORDER = ("s8", "f8", "f16", "bf16", "tf32", "f32", "f64")  # narrowest first
# The dtypes in which XLA computes if a device has no units for the given one.
_WIDER = {"f8": ("bf16", "f16"), "bf16": ("f32",), "f16": ("f32",), "tf32": ("f32",)}


def seconds_of_product(program: Program, instruction: Instruction, peaks: Mapping[str, float]) -> float | None:
    """Return the least time of a dot, a convolution or a library call in seconds; None if it has no known price.

    Args:
        peaks: operations per second by the dtype of a product, see `Speeds`.
    """
    operands = [program.instructions[operand].shape.leaves for operand in instruction.operands]
    results = instruction.shape.leaves
    if len(operands) < 2 or not (operands[0] and operands[1] and results):
        return None
    first, second, result = operands[0][0], operands[1][0], results[0]
    product = instruction.product
    num_products = None
    arithmetic = Arithmetic()
    if isinstance(product, Dot):
        num_products, arithmetic = _of_dot(product, first, result), product.arithmetic
    elif isinstance(product, Convolution):
        num_products, arithmetic = _of_convolution(product, (first, second, result)), product.arithmetic
    elif isinstance(product, Attention):
        num_products = _of_attention(product, first)
    dtype, num_passes = _computed_in(arithmetic, (first.dtype, second.dtype))
    peak = _peak(peaks, dtype)
    if num_products is None or peak is None:
        return None
    return 2.0 * num_products * num_passes / peak


def _of_dot(dot: Dot, first: ResultLeaf, result: ResultLeaf) -> int | None:
    if not all(0 <= dimension < len(first.dimensions) for dimension in dot.contracting):
        return None
    return result.num_elements * prod(first.dimensions[dimension] for dimension in dot.contracting)


def _of_convolution(convolution: Convolution, arrays: Sequence[ResultLeaf]) -> int | None:
    input_array, kernel, output = (arrays[place] for place in convolution.places)
    rank = len(convolution.window)
    if not (rank == len(convolution.input_spatial) == len(convolution.output_spatial)):
        return None
    wanted = (
        (input_array, convolution.input_spatial),
        (kernel, (convolution.kernel_input,)),
        (output, convolution.output_spatial),
    )
    if not all(0 <= number < len(array.dimensions) for array, numbers in wanted for number in numbers):
        return None
    num_pairs = 1
    outside_of_space = output.num_elements
    for window, of_input, of_output in zip(
        convolution.window, convolution.input_spatial, convolution.output_spatial, strict=True
    ):
        size = output.dimensions[of_output]
        num_pairs *= _pairs(window, input_array.dimensions[of_input], size)
        outside_of_space //= max(size, 1)
    return outside_of_space * num_pairs * kernel.dimensions[convolution.kernel_input]


_MAX_WINDOW = 1 << 16  # a larger window counts as zero pairs: only a damaged file has one


def _pairs(window: WindowDimension, num_inputs: int, num_outputs: int) -> int:
    """Count the pairs of an output and a window element that meet an input element, along one dimension."""
    if not (0 < window.size <= _MAX_WINDOW and num_inputs):
        return 0
    stride, dilation = window.stride, window.base_dilation
    common = gcd(stride, dilation)
    period = dilation // common
    inverse = pow(stride // common, -1, period) if period > 1 else 0
    count = 0
    for place in range(window.size):
        offset = place * window.window_dilation - window.padding_low
        if offset % common:
            continue
        # Outputs whose position output * stride + offset lies within the input, and not in one of its holes.
        low = max(0, -(offset // stride))
        high = min(num_outputs - 1, ((num_inputs - 1) * dilation - offset) // stride)
        first = (-(offset // common) * inverse) % period if period > 1 else 0
        first += -(-(low - first) // period) * period
        count += max(0, (high - first) // period + 1)
    return count


def _of_attention(attention: Attention, queries: ResultLeaf) -> int | None:
    """Count two matrix products forward or five backward, each over the scores that the mask keeps."""
    if len(attention.scores) != 4 or min(attention.scores) < 1 or attention.window < 0:
        return None
    batch, heads, num_queries, num_keys = attention.scores
    most = min(num_keys, attention.window or num_keys)
    num_scores = num_queries * most
    if attention.is_causal:
        growing = min(num_queries, most)
        num_scores = growing * (growing + 1) // 2 + (num_queries - growing) * most
    elif attention.window:
        return None
    head_size = queries.num_elements // (batch * heads * num_queries)
    return batch * heads * num_scores * head_size * (5 if attention.is_backward else 2)


def _computed_in(arithmetic: Arithmetic, dtypes: Sequence[str]) -> tuple[str, int]:
    """Return the dtype in which products are computed, and the number of hardware products per product."""
    num_passes = arithmetic.num_passes
    if any(dtype in _COMPLEX for dtype in dtypes):
        num_passes *= _REAL_PRODUCTS
    if arithmetic.dtype:
        return arithmetic.dtype, num_passes
    widest = max((_kind(_COMPLEX.get(dtype, dtype)) for dtype in dtypes), key=_rank)
    return "tf32" if widest == "f32" and not arithmetic.is_exact else widest, num_passes


def _kind(dtype: str) -> str:
    if dtype.startswith(("f8", "f4")):
        return "f8"
    return "s8" if dtype in ("s8", "u8", "s4", "u4", "pred") else dtype


def _rank(dtype: str) -> int:
    return _ORDER.index(dtype) if dtype in _ORDER else len(_ORDER)


def _peak(peaks: Mapping[str, float], dtype: str) -> float | None:
    found = [peaks[each] for each in (dtype, *_WIDER.get(dtype, ())) if each in peaks]
    return found[0] if found else None
