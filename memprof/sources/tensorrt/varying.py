"""Models with variable dimensions, made from models for two sizes each, because a traced step has fixed sizes.

Both models have the same operations. The parts that differ are made to depend on the size: shapes and indices that grow
linearly with it are computed (`first + step * size`). If the smaller model has the beginning of an array (positions,
masks), the array is sliced.

    vary([Path("batch_8.onnx"), Path("batch_7.onnx")], [Dimension(name="batch_size", size=8, smaller=7)], target)
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from memprof.errors import MemprofError
from memprof.sources.tensorrt.onnx_model import load, save
from memprof.sources.tensorrt.request import Dimension

_INTEGERS = {TensorProto.INT32: np.int32, TensorProto.INT64: np.int64}
_LARGEST_COMPARED = 1 << 16  # elements; larger arrays of one shape are weights
_OPERATIONS = "its operations depend on it"


def vary(paths: Sequence[Path], dimensions: Sequence[Dimension], target: Path) -> None:
    """Write a model with variable dimensions.

    Args:
        paths: the model with all sizes, then with the first dimension smaller. For two dimensions also with the second
            one smaller, and with both smaller.

    Raises:
        MemprofError: no input has such a dimension, or the model depends on it in an unsupported way.
    """
    models = [load(path) for path in paths]
    for dimension in dimensions:
        pairs = zip(models[::2], models[1::2], strict=True)
        models = [_Varying(large, small, dimension).model() for large, small in pairs]
    save(models[0], target)


class _Varying:
    """A model made from two models that differ in the size of one dimension."""

    def __init__(self, large: Any, small: Any, dimension: Dimension) -> None:
        self._large, self._small, self._dimension = large, small, dimension
        self._arrays, self._small_arrays = (
            {each.name: each for each in model.graph.initializer} for model in (large, small)
        )
        self._made: dict[tuple[str, str], str] = {}
        self._nodes: list[Any] = []
        self._size = f"{dimension.name}/size"

    def model(self) -> Any:
        graph, other = self._large.graph, self._small.graph
        where = self._named(graph.input, other.input, always=True)
        if where is None:
            raise self._error("no input has a dimension of that size")
        self._named(graph.output, other.output, always=False)
        self._add("Shape", [where[0]], f"{self._size}s")
        self._add("Gather", [f"{self._size}s", self._constant(np.array(where[1], np.int64))], self._size)
        if [node.op_type for node in graph.node] != [node.op_type for node in other.node]:
            raise self._error(_OPERATIONS)
        nodes = self._nodes
        for node, smaller in zip([*graph.node], other.node, strict=True):
            if node.attribute != smaller.attribute or len(node.input) != len(smaller.input):
                raise self._error(_OPERATIONS)
            for place, names in enumerate(zip(node.input, smaller.input, strict=True)):
                node.input[place] = self._operand(*names)
            nodes.append(node)
        del graph.node[:]
        graph.node.extend(nodes)
        return self._large

    def _named(self, values: Any, others: Any, *, always: bool) -> tuple[str, int] | None:
        """Name the dimensions that differ. Return the value's name and the axis of the first one.

        Args:
            always: reject differing dimensions that are not equal to the variable one; otherwise they get their own
                names.
        """
        found = None
        for value, other in zip(values, others, strict=True):
            dims = zip(value.type.tensor_type.shape.dim, other.type.tensor_type.shape.dim, strict=True)
            for axis, (dim, smaller) in enumerate(dims):
                if dim == smaller:
                    continue
                if (dim.dim_value, smaller.dim_value) == (self._dimension.size, self._dimension.smaller):
                    dim.dim_param = self._dimension.name
                    found = found or (value.name, axis)
                elif always:
                    raise self._error(f"dimension {axis} of {value.name} is not equal to it, but depends on it")
                else:
                    dim.dim_param = f"{value.name}_{axis}"
        return found

    def _operand(self, name: str, smaller: str) -> str:
        """Return the name of an operand that is valid for both models."""
        array, other = self._arrays.get(name), self._small_arrays.get(smaller)
        if array is None or other is None:
            if array is not other:
                raise self._error(_OPERATIONS)
            return name
        if (name, smaller) not in self._made:
            self._made[name, smaller] = self._general(array, other)
        return self._made[name, smaller]

    def _general(self, array: Any, other: Any) -> str:
        """Return an array of both models, made to depend on the size if the models differ in it."""
        name: str = array.name
        if array.dims == other.dims and np.prod(array.dims, dtype=int) > _LARGEST_COMPARED:
            return name
        whole, part = numpy_helper.to_array(array), numpy_helper.to_array(other)
        if np.array_equal(whole, part):
            return name
        if whole.shape == part.shape and array.data_type in _INTEGERS:
            return self._linear(whole, part)
        is_beginning = whole.ndim == part.ndim and np.array_equal(whole[tuple(map(slice, part.shape))], part)
        if whole.shape == part.shape or not is_beginning:
            raise self._error(f"the numbers in {name} depend on it")
        ends = self._linear(np.array(whole.shape, np.int64), np.array(part.shape, np.int64))
        numbers = (np.zeros(whole.ndim, np.int64), np.arange(whole.ndim, dtype=np.int64))
        starts, axes = map(self._constant, numbers)
        return self._add("Slice", [name, starts, ends, axes])

    def _linear(self, whole: np.ndarray[Any, Any], part: np.ndarray[Any, Any]) -> str:
        """Return numbers that grow linearly with the size."""
        large, small = whole.astype(np.int64), part.astype(np.int64)
        step, rest = np.divmod(large - small, self._dimension.size - self._dimension.smaller)
        if np.any(rest):
            raise self._error("sizes do not grow with it by a whole number")
        product = self._add("Mul", [self._size, self._constant(step)])
        result = self._add("Add", [product, self._constant(large - step * self._dimension.size)])
        if whole.dtype == np.int64:
            return result
        return self._add("Cast", [result], to=helper.np_dtype_to_tensor_dtype(whole.dtype))

    def _add(self, op: str, inputs: list[str], name: str = "", **attributes: Any) -> str:
        name = name or f"{self._dimension.name}/{op}.{len(self._nodes)}"
        self._nodes.append(helper.make_node(op, inputs, [name], name=name, **attributes))
        return name

    def _constant(self, array: np.ndarray[Any, Any]) -> str:
        name = f"{self._dimension.name}/const.{len(self._large.graph.initializer)}"
        tensor = numpy_helper.from_array(array, name)
        self._large.graph.initializer.append(tensor)
        self._arrays[name] = tensor
        return name

    def _error(self, reason: str) -> MemprofError:
        return MemprofError(f"{self._dimension.name} cannot vary in this model: {reason}")
