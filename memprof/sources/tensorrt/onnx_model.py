"""ONNX models before they are built: inputs, weights, variable dimensions, and int8 products."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from memprof.errors import MemprofError, unknown_name
from memprof.sources.tensorrt.request import NamedArray

_LARGE_BYTES = 1 << 30
_INT8_MAX = 127
# Scales affect values, not sizes. Calibration would determine them.
_ACTIVATION_SCALE = 0.05
_PRODUCTS = ("MatMul", "Gemm")
_MOVES = ("Cast", "Gather", "Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze")
_SMALLEST_WEIGHT = 2  # axes


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInput:
    """An input of a model. A variable dimension has a name in place of a size."""

    name: str
    shape: tuple[int | str, ...]

    def at(self, maxima: Mapping[str, int]) -> tuple[int, ...]:
        """Return the shape with values for variable dimensions."""
        return tuple(maxima[size] if isinstance(size, str) else size for size in self.shape)


def read_inputs(path: Path) -> tuple[ModelInput, ...]:
    """Return the inputs of a model.

    Raises:
        MemprofError: the file is not an ONNX model.
    """
    model = _loaded(path, with_weights=False)
    weights = {each.name for each in model.graph.initializer}
    return tuple(
        ModelInput(name=each.name, shape=_shape(each)) for each in model.graph.input if each.name not in weights
    )


def read_weights(path: Path) -> list[NamedArray]:
    """Return the arrays in a model that hold floating-point or quantised numbers."""
    model = _loaded(path, with_weights=False)
    found = []
    for each in model.graph.initializer:
        dtype, shape = helper.tensor_dtype_to_np_dtype(each.data_type), tuple(each.dims)
        if "float" in dtype.name or dtype.name.endswith(("int8", "int4")):
            size_bytes = dtype.itemsize * prod(shape)
            found.append(NamedArray(name=each.name, shape=shape, dtype=dtype.name, size_bytes=size_bytes))
    return found


def check_maxima(inputs: tuple[ModelInput, ...], maxima: Mapping[str, int], *, model: str) -> None:
    """Raise `MemprofError` unless exactly the variable dimensions have a maximum."""
    names = list(dict.fromkeys(size for each in inputs for size in each.shape if isinstance(size, str)))
    for name in maxima:
        if not names:
            raise MemprofError(f"{model} has no variable dimensions: leave out --set {name}=...")
        if name not in names:
            raise unknown_name(f"variable dimension of {model}", name, names)
    missing = [name for name in names if name not in maxima]
    if missing:
        raise MemprofError(
            f"the dimensions {', '.join(missing)} of {model} are variable: give the maximum of each, --set "
            f"{missing[0]}=8"
        )


def with_int8_products(path: Path, target: Path) -> int:
    """Write a model whose matrix products by weights use 8-bit integers: QuantizeLinear and DequantizeLinear.

    Returns:
        The number of such products.

    Raises:
        MemprofError: the file is not an ONNX model, or has no product by a weight.
    """
    model = load(path)
    graph = model.graph
    constants = _Constants(graph)
    nodes: list[Any] = []
    num_products = 0
    for node in graph.node:
        weight = constants.find(node.input[1]) if node.op_type in _PRODUCTS else None
        if weight is not None and weight.ndim >= _SMALLEST_WEIGHT and node.input[0] not in constants.arrays:
            nodes += _quantised(graph, node.input[0], f"{node.name}/activation{num_products}", weight.dtype)
            nodes.append(_dequantised(graph, weight, f"{node.name}/weight{num_products}"))
            node.input[0], node.input[1] = nodes[-2].output[0], nodes[-1].output[0]
            num_products += 1
        nodes.append(node)
    if not num_products:
        raise MemprofError(f"{path.name} has no matrix products with weights to quantize: leave out int8-qdq")
    del graph.node[:]
    graph.node.extend(nodes)
    save(model, target)
    return num_products


def load(path: Path) -> Any:
    """Load a model with its weights.

    Raises:
        MemprofError: the file is not an ONNX model.
    """
    return _loaded(path, with_weights=True)


def save(model: Any, target: Path) -> None:
    """Write a model, with its weights in a file beside it if they are large."""
    large = sum(len(each.raw_data) for each in model.graph.initializer) >= _LARGE_BYTES
    onnx.save(model, target, save_as_external_data=large, **({"location": f"{target.name}.data"} if large else {}))


class _Constants:
    """The arrays of a graph, including results of operations that only move or cast arrays."""

    def __init__(self, graph: Any) -> None:
        self.arrays = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
        self._makers = {name: node for node in graph.node for name in node.output}

    def find(self, name: str) -> np.ndarray[Any, Any] | None:
        """Return the array of a name, or None if it depends on an input."""
        if name in self.arrays:
            return self.arrays[name]
        node = self._makers.get(name)
        if node is None or (node.op_type not in _MOVES and node.op_type != "Constant"):
            return None
        values = {each: self.find(each) for each in node.input if each}
        if any(value is None for value in values.values()):
            return None
        (self.arrays[name],) = ReferenceEvaluator(node).run(None, values)
        return self.arrays[name]


def _quantised(graph: Any, value: str, name: str, dtype: Any) -> list[Any]:
    """Return nodes that convert an activation to 8-bit integers and back."""
    scale, zero = f"{name}/scale", f"{name}/zero"
    graph.initializer.append(numpy_helper.from_array(np.asarray(_ACTIVATION_SCALE, dtype), scale))
    graph.initializer.append(helper.make_tensor(zero, TensorProto.INT8, [], [0]))
    return [
        helper.make_node("QuantizeLinear", [value, scale, zero], [f"{name}/q"], name=f"{name}/QuantizeLinear"),
        helper.make_node(
            "DequantizeLinear", [f"{name}/q", scale, zero], [f"{name}/dq"], name=f"{name}/DequantizeLinear"
        ),
    ]


def _dequantised(graph: Any, weight: np.ndarray[Any, Any], name: str) -> Any:
    """Return a node that reads a weight from 8-bit integers, with a scale for each column."""
    wide = weight.astype(np.float32)
    axes = tuple(range(wide.ndim - 1))
    scales = np.maximum(np.abs(wide).max(axis=axes), 1e-12) / _INT8_MAX
    integers = np.clip(np.rint(wide / scales), -_INT8_MAX, _INT8_MAX).astype(np.int8)
    graph.initializer.append(numpy_helper.from_array(integers, f"{name}/int8"))
    graph.initializer.append(numpy_helper.from_array(scales.astype(weight.dtype), f"{name}/scale"))
    return helper.make_node(
        "DequantizeLinear",
        [f"{name}/int8", f"{name}/scale"],
        [f"{name}/dq"],
        name=f"{name}/DequantizeLinear",
        axis=wide.ndim - 1,
    )


def _shape(value: Any) -> tuple[int | str, ...]:
    sizes: list[int | str] = []
    for number, dim in enumerate(value.type.tensor_type.shape.dim):
        if dim.WhichOneof("value") == "dim_value" and dim.dim_value >= 0:
            sizes.append(int(dim.dim_value))
        else:
            sizes.append(dim.dim_param or f"{value.name}_{number}")
    return tuple(sizes)


def _loaded(path: Path, *, with_weights: bool) -> Any:
    try:
        model = onnx.load(path, load_external_data=with_weights)
    except DecodeError as error:
        raise MemprofError(f"{path} is not an ONNX model, or is damaged") from error
    except (OSError, onnx.checker.ValidationError) as error:
        raise MemprofError(f"{path} cannot be read: {str(error).splitlines()[0]}") from error
    if not model.graph.node:
        raise MemprofError(f"{path} is not an ONNX model, or has no operations")
    return model
