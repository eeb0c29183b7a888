"""ONNX models by hand, with random weights: no two are equal, for a builder merges equal ones."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper


class Model:
    """A model under construction."""

    def __init__(self, dtype: str, seed: int = 0) -> None:
        self._dtype = np.dtype(dtype)
        self._rng = np.random.default_rng(seed)
        self._nodes: list[Any] = []
        self._arrays: list[Any] = []

    def weight(self, *shape: int) -> str:
        return self.array((0.02 * self._rng.standard_normal(shape)).astype(self._dtype))

    def array(self, array: Any) -> str:
        name = f"array_{len(self._arrays)}"
        self._arrays.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def node(self, op: str, *inputs: str, **attributes: Any) -> str:
        name = f"{op}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(op, inputs, [name], name=name, **attributes))
        return name

    def write(self, path: Path, result: str, shape: tuple[int | str, ...], result_shape: tuple[int | str, ...]) -> Path:
        element_type = helper.np_dtype_to_tensor_dtype(self._dtype)
        graph = helper.make_graph(
            self._nodes,
            "model",
            [helper.make_tensor_value_info("x", element_type, shape)],
            [helper.make_tensor_value_info(result, element_type, result_shape)],
            self._arrays,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
        onnx.checker.check_model(model, full_check=True)
        onnx.save(model, path)
        return path


def mlp(path: Path, sizes: tuple[int, ...], batch: int | str, dtype: str = "float32") -> Path:
    """Products by weights, with relu between them."""
    model, value = Model(dtype), "x"
    for number, pair in enumerate(itertools.pairwise(sizes)):
        value = model.node("Relu", value) if number else value
        value = model.node("MatMul", value, model.weight(*pair))
    return model.write(path, value, (batch, sizes[0]), (batch, sizes[-1]))


def transformer(path: Path, batch: int, length: int, width: int, num_layers: int, dtype: str) -> Path:
    """Pre-norm blocks with four heads of attention and gelu; 12 width^2 + 4 width weights each."""
    model, value, num_heads = Model(dtype), "x", 4
    by_head = model.array(np.array([batch, length, num_heads, width // num_heads]))
    whole = model.array(np.array([batch, length, width]))
    scale = model.array(np.asarray((width // num_heads) ** -0.5, dtype))
    for _ in range(num_layers):
        normed = model.node("LayerNormalization", value, model.weight(width), model.weight(width))
        heads = [
            model.node("Reshape", model.node("MatMul", normed, model.weight(width, width)), by_head) for _ in range(3)
        ]
        orders = ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
        query, key, head_value = (
            model.node("Transpose", each, perm=order) for each, order in zip(heads, orders, strict=True)
        )
        scores = model.node("Softmax", model.node("Mul", model.node("MatMul", query, key), scale), axis=-1)
        attended = model.node("Transpose", model.node("MatMul", scores, head_value), perm=[0, 2, 1, 3])
        attended = model.node("MatMul", model.node("Reshape", attended, whole), model.weight(width, width))
        value = model.node("Add", value, attended)
        normed = model.node("LayerNormalization", value, model.weight(width), model.weight(width))
        up = model.node("Gelu", model.node("MatMul", normed, model.weight(width, 4 * width)))
        value = model.node("Add", value, model.node("MatMul", up, model.weight(4 * width, width)))
    return model.write(path, value, (batch, length, width), (batch, length, width))
