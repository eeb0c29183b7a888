"""The dimension numbers of dots, convolutions and library calls, which determine their FLOPs.

XLA stores them in fields of the instruction or, for a call of cuBLAS or cuDNN, as JSON in its backend config.
`roofline/operations.py` counts the FLOPs.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import msgspec
from google.protobuf.message import DecodeError
from msgspec import Struct

from memprof.analysis.hlo.hlo_proto import ProductFields

# xla_data.proto, PrecisionConfig.Algorithm, by number.
_ALGORITHMS = (
    *("ALG_UNSET", "ALG_DOT_ANY_F8_ANY_F8_F32", "ALG_DOT_ANY_F8_ANY_F8_F32_FAST_ACCUM", "ALG_DOT_F16_F16_F16"),
    *("ALG_DOT_F16_F16_F32", "ALG_DOT_BF16_BF16_BF16", "ALG_DOT_BF16_BF16_F32", "ALG_DOT_BF16_BF16_F32_X3"),
    *("ALG_DOT_BF16_BF16_F32_X6", "ALG_DOT_TF32_TF32_F32", "ALG_DOT_TF32_TF32_F32_X3", "ALG_DOT_F32_F32_F32"),
    *("ALG_DOT_F64_F64_F64", "ALG_DOT_BF16_BF16_F32_X9"),
)
_ALGORITHM = re.compile(r"ALG_DOT_(BF16|TF32|F16|F32|F64)_\w*?(?:_X(\d))?")
_HIGHEST = 2  # xla_data.proto, PrecisionConfig.Precision


class Arithmetic(Struct, frozen=True):
    """The requested arithmetic: the `dtype` of the products (empty: that of the operands) and the number of passes.

    `is_exact`: float32 products must not be rounded to TF32.
    """

    dtype: str = ""
    num_passes: int = 1
    is_exact: bool = False


class Dot(Struct, frozen=True):
    """A matrix product, with the contracted dimensions of its first operand."""

    contracting: tuple[int, ...]
    arithmetic: Arithmetic = Arithmetic()


class WindowDimension(Struct, frozen=True):
    """One spatial dimension of a convolution's window."""

    size: int
    stride: int
    padding_low: int
    window_dilation: int
    base_dilation: int


class Convolution(Struct, frozen=True):
    """A convolution. The dimension numbers are those of the forward pass, also for a gradient.

    `places` are those of input, kernel and output: the number of an operand, or -1 for the result.
    """

    window: tuple[WindowDimension, ...]
    input_spatial: tuple[int, ...]
    kernel_input: int
    output_spatial: tuple[int, ...]
    places: tuple[int, int, int]
    arithmetic: Arithmetic = Arithmetic()


class Attention(Struct, frozen=True):
    """cuDNN's fused attention. `scores` is the shape of its score matrices: batch, heads, queries, keys."""

    scores: tuple[int, ...]
    is_causal: bool
    window: int  # the largest number of keys for a query; 0: all
    is_backward: bool


Product = Dot | Convolution | Attention
_PLACES = {
    "convolution": (0, 1, -1),
    "__cudnn$convForward": (0, 1, -1),
    "__cudnn$convBiasActivationForward": (0, 1, -1),
    "__cudnn$convBackwardInput": (-1, 1, 0),
    "__cudnn$convBackwardFilter": (0, -1, 1),
}
WITH_PRODUCTS = frozenset({"dot", "scaled-dot", "convolution", "custom-call"})


def product_of(message: Any) -> Product | None:
    """Return the product that an instruction of `WITH_PRODUCTS` computes; None if it is unknown."""
    target = message.custom_call_target if message.opcode == "custom-call" else message.opcode
    if target.startswith(("__cublas$", "__cudnn$fmha")):
        return _of_library_call(target, message.backend_config)
    places = _PLACES.get(target)
    if message.opcode == "custom-call" and places is None:
        return None
    try:
        arithmetic = _arithmetic(message.precision_config)
        if places is not None:
            fields = message.window, message.convolution_dimension_numbers
            return _convolution(*fields, places, arithmetic)
        return _dot(message.dot_dimension_numbers, arithmetic)
    except DecodeError:
        return None


@lru_cache(maxsize=1024)
def _dot(dimension_numbers: bytes, arithmetic: Arithmetic) -> Dot:
    read = ProductFields["DotDimensionNumbers"].FromString(dimension_numbers)
    return Dot(tuple(read.lhs_contracting_dimensions), arithmetic)


@lru_cache(maxsize=1024)
def _convolution(
    window: bytes, dimension_numbers: bytes, places: tuple[int, int, int], arithmetic: Arithmetic
) -> Convolution:
    numbers = ProductFields["ConvolutionDimensionNumbers"].FromString(dimension_numbers)
    dimensions = ProductFields["Window"].FromString(window).dimensions
    return Convolution(
        window=tuple(
            WindowDimension(
                size=each.size,
                stride=max(each.stride, 1),
                padding_low=each.padding_low,
                window_dilation=max(each.window_dilation, 1),
                base_dilation=max(each.base_dilation, 1),
            )
            for each in dimensions
        ),
        input_spatial=tuple(numbers.input_spatial_dimensions),
        kernel_input=numbers.kernel_input_feature_dimension,
        output_spatial=tuple(numbers.output_spatial_dimensions),
        places=places,
        arithmetic=arithmetic,
    )


@lru_cache(maxsize=1024)
def _arithmetic(precision_config: bytes) -> Arithmetic:
    read = ProductFields["PrecisionConfig"].FromString(precision_config)
    name = _ALGORITHMS[read.algorithm] if 0 <= read.algorithm < len(_ALGORITHMS) else ""
    return _asked_for(name, is_exact=_HIGHEST in read.operand_precision)


def _asked_for(algorithm: str, *, is_exact: bool) -> Arithmetic:
    found = _ALGORITHM.fullmatch(algorithm)
    if found is None:
        return Arithmetic(is_exact=is_exact)
    return Arithmetic(dtype=found[1].lower(), num_passes=int(found[2] or 1))


class _Precision(Struct):
    operand_precision: tuple[str, ...] = ()
    algorithm: str = ""


class _DotNumbers(Struct):
    lhs_contracting_dimensions: tuple[int, ...] = ()


class _Gemm(Struct):
    dot_dimension_numbers: _DotNumbers | None = None
    precision_config: _Precision = msgspec.field(default_factory=_Precision)


class _Scores(Struct):
    dimensions: tuple[int, ...] = ()


class _Attention(Struct):
    intermediate_tensor_shape: _Scores
    mask_type: str = "NO_MASK"
    sliding_window_length: int = 0


class _Config(Struct):
    gemm_backend_config: _Gemm | None = None
    cudnn_fmha_backend_config: _Attention | None = None


@lru_cache(maxsize=1024)
def _of_library_call(target: str, backend_config: bytes) -> Product | None:
    try:
        # Protobuf's JSON writes 64-bit numbers as strings.
        config = msgspec.convert(msgspec.json.decode(backend_config), _Config, strict=False)
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError):
        return None
    gemm, attention = config.gemm_backend_config, config.cudnn_fmha_backend_config
    if gemm is not None and gemm.dot_dimension_numbers is not None:
        precision = gemm.precision_config
        arithmetic = _asked_for(precision.algorithm, is_exact="HIGHEST" in precision.operand_precision)
        return Dot(gemm.dot_dimension_numbers.lhs_contracting_dimensions, arithmetic)
    # The lengths of padded sequences are known only at run time.
    if attention is not None and attention.mask_type in ("NO_MASK", "CAUSAL"):
        return Attention(
            scores=attention.intermediate_tensor_shape.dimensions,
            is_causal=attention.mask_type == "CAUSAL",
            window=attention.sliding_window_length,
            is_backward=target.endswith(("Backward", "BackwardF8")),
        )
    return None
