"""An ONNX graph under construction: named nodes, constants, inputs and outputs. Holds all onnx calls of an export."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from memprof.errors import MemprofError

OPSET, IR_VERSION = 22, 10  # opset 22 is the first one in which all operators used here support bfloat16
DATA_SUFFIX = ".data"
_LARGE_BYTES = 1 << 30  # a protobuf can hold less than 2 GiB
_REFUSED_TYPE = re.compile(
    r"op_type:(?P<operator>\w+), node name: (?P<node>[^)]*)\).*unsupported type: tensor\((?P<type>\w+)\)"
)


class Graph:
    """An ONNX graph under construction."""

    def __init__(self) -> None:
        self._nodes: list[Any] = []
        self._tensors: dict[str, Any] = {}
        self._constants: dict[tuple[bytes, str, tuple[int, ...]], str] = {}
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []
        self._num_named: Counter[str] = Counter()
        self.size_bytes = 0

    def node(self, op: str, *inputs: str, scope: str = "", num_outputs: int = 1, **attributes: Any) -> list[str]:
        """Add a node and return the names of its outputs.

        Args:
            scope: path of the module that the node belongs to, as a prefix of the node's name.
        """
        name = self._unique(f"{scope}/{op}" if scope else op)
        outputs = [name] if num_outputs == 1 else [f"{name}:{number}" for number in range(num_outputs)]
        self._nodes.append(helper.make_node(op, inputs, outputs, name=name, **attributes))
        return outputs

    def constant(self, array: np.ndarray[Any, Any]) -> str:
        """Return the name of a constant. Equal constants share one name."""
        key = (array.tobytes(), array.dtype.name, array.shape)
        if key not in self._constants:
            self._constants[key] = self.weight("const", array)
        return self._constants[key]

    def weight(self, name: str, array: np.ndarray[Any, Any]) -> str:
        """Add an array that is stored in the file, and return its name."""
        name = self._unique(name)
        self._tensors[name] = numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)
        self.size_bytes += array.nbytes
        return name

    def input(self, name: str, shape: Sequence[int], dtype: Any) -> str:
        """Add an input of the model, and return its name."""
        name = self._unique(name)
        self._inputs.append(helper.make_tensor_value_info(name, element_type(dtype), shape))
        return name

    def output(self, name: str, value: str, shape: Sequence[int], dtype: Any) -> None:
        """Add an output of the model under a name."""
        name = self._unique(name)
        self._nodes.append(helper.make_node("Identity", [value], [name], name=f"{name}/Identity"))
        self._outputs.append(helper.make_tensor_value_info(name, element_type(dtype), shape))

    def write(self, path: Path, *, name: str, metadata: Mapping[str, str]) -> None:
        """Write the model, with its weights in a file beside it if they are large, and check it.

        Raises:
            MemprofError: an operator does not support a type of the step: types below 8 bits, and 8-bit floats.
            onnx.checker.ValidationError: the model is invalid, because of a defect of the export.
        """
        graph = helper.make_graph(self._nodes, name, self._inputs, self._outputs, [*self._tensors.values()])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
        model.producer_name = "memprof"
        helper.set_model_props(model, dict(metadata))
        large = self.size_bytes >= _LARGE_BYTES
        where = {"location": f"{path.name}{DATA_SUFFIX}", "size_threshold": 1024} if large else {}
        onnx.save(model, path, save_as_external_data=large, **where)
        try:
            onnx.checker.check_model(path, full_check=True)
        except onnx.shape_inference.InferenceError as error:
            refusal = _REFUSED_TYPE.search(str(error))
            if refusal is None:
                raise
            path.unlink()
            raise MemprofError(
                f"ONNX's operator {refusal['operator']} does not support {refusal['type']} ({refusal['node']}): "
                "leave out the technique that introduces it"
            ) from error

    @property
    def num_nodes(self) -> int:
        return len(self._nodes)

    def _unique(self, name: str) -> str:
        self._num_named[name] += 1
        return name if self._num_named[name] == 1 else f"{name}.{self._num_named[name] - 1}"


def element_type(dtype: Any) -> int:
    """Return ONNX's number of a dtype."""
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


INT64 = int(TensorProto.INT64)
