"""Export of a step to an ONNX model: parameters become the model's weights, the other arguments its inputs.

    write_model(spec, lowered, path)          # checked by onnx.checker
    compare_with_jax(spec, lowered, path)     # runs the model in onnxruntime, or onnx's reference, and in JAX

jax2onnx 0.17 was tried: `onnx.checker` rejects its bfloat16 `Einsum`, it replaces functions of `jax.numpy` and Flax for
the whole process, and it does not name nodes after modules.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import numpy as np

from memprof.amounts import format_bytes
from memprof.analysis.records.capture import ArgumentLeaf
from memprof.analysis.records.categories import Role
from memprof.analysis.records.exported import Agreement, ExportedModel
from memprof.errors import MemprofError
from memprof.sources.jax.compile import LoweredStep
from memprof.sources.jax.exporting.lowering import Lowering
from memprof.sources.jax.exporting.onnx_graph import Graph
from memprof.sources.jax.exporting.rules import Place, Value
from memprof.sources.jax.processes.launch import free_memory_bytes
from memprof.sources.jax.tracing.jit_adapter import all_equations
from memprof.sources.jax.tracing.step import StepSpec

# The largest difference from JAX's result that counts as equal, as a share of its largest value, by the dtype of the
# matrix products. Differences arise because the terms of a product are summed in another order.
TOLERANCES = {"float32": 1e-5, "float16": 5e-3, "bfloat16": 5e-2}
_COPIES = 4  # copies of the weights in host memory while an engine is built (measured with 302 MB of weights)
_PART = 1 << 24  # elements of a result that are compared at once
_WEIGHT_SCALE = 0.02  # scale of random weights, for steps without data


def write_model(spec: StepSpec, step: LoweredStep, path: Path) -> ExportedModel:
    """Write the model of a step, and check it with `onnx.checker`.

    Args:
        step: the same step, traced.
        path: path of the file; large weights go to a second file beside it.

    Raises:
        MemprofError: ONNX has no operator for an operation of the step.
    """
    graph = Graph()
    leaves = step.capture.arguments
    _check_room(sum(leaf.size_bytes for leaf in leaves if leaf.role is Role.PARAMS))
    values = _weights(spec, leaves)
    arguments = [
        Value(graph.weight(model_name(leaf.path), values[number]), leaf.shape)
        if number in values
        else Value(graph.input(model_name(leaf.path), leaf.shape, leaf.dtype), leaf.shape)
        for number, leaf in enumerate(leaves)
    ]
    results, place = Lowering(graph).jaxpr(step.traced.jaxpr, arguments), Place(graph=graph)
    outputs = jax.tree_util.tree_leaves_with_path(jax.eval_shape(spec.fn, *spec.args, **spec.kwargs))
    for result, (where, output) in zip(results, outputs, strict=True):
        name = f"result.{model_name(jax.tree_util.keystr(where))}".removesuffix(".")
        graph.output(name, place.whole(result, output.shape), output.shape, output.dtype)
    graph.write(path, name=step.capture.workload, metadata={"memprof.label": step.capture.label})
    return ExportedModel(
        num_nodes=graph.num_nodes,
        num_inputs=len(leaves) - len(values),
        num_outputs=len(outputs),
        weight_bytes=graph.size_bytes,
    )


def compare_with_jax(spec: StepSpec, step: LoweredStep, path: Path) -> Agreement:
    """Run a written model and the step itself on the same arguments.

    onnxruntime runs the model on the CPU. It does not support bfloat16 there, so onnx's reference runs such models.

    Raises:
        MemprofError: the step has no arguments to run with.
    """
    if spec.feed is None:
        raise MemprofError(f"{spec.label} has no example arguments to compare results on: leave out --verify")
    given = tuple(spec.feed.argument(number, 0) for number in range(len(spec.args)))
    leaves = step.capture.arguments
    feeds = {
        model_name(leaf.path): np.asarray(value)
        for leaf, value in zip(leaves, jax.tree.leaves(given), strict=True)
        if leaf.role is not Role.PARAMS
    }
    wanted = [np.asarray(each) for each in jax.tree.leaves(jax.jit(spec.fn)(*given, **spec.kwargs))]
    del given  # the weights are in the model, too
    engine, found = _run(path, feeds)
    products = (each for each in all_equations(step.traced.jaxpr.jaxpr) if each.primitive.name == "dot_general")
    dtypes = {"float32", *(str(var.aval.dtype) for each in products for var in each.invars)}
    return Agreement(
        engine=engine,
        difference=max(_difference(*pair) for pair in zip(found, wanted, strict=True)),
        tolerance=max(TOLERANCES[dtype] for dtype in dtypes & TOLERANCES.keys()),
    )


def model_name(path: str) -> str:
    """Return the name in a model for a path of JAX: `params.layers.0` for `params['layers'][0]`."""
    return re.sub(r"\[(?:'([^']*)'|(\d+))\]", r".\1\2", path).strip(".")


def _check_room(weight_bytes: int) -> None:
    """Raise `MemprofError` if host memory cannot hold the copies of the weights in a model and its builder."""
    free_bytes = free_memory_bytes()
    if free_bytes is not None and _COPIES * weight_bytes > free_bytes:
        raise MemprofError(
            f"the weights take {format_bytes(weight_bytes)}, the model and its builder need {_COPIES} copies of them "
            f"in host memory, but only {format_bytes(free_bytes)} are free: choose a smaller preset, or bf16-params"
        )


def _weights(spec: StepSpec, leaves: tuple[ArgumentLeaf, ...]) -> dict[int, np.ndarray[Any, Any]]:
    """Return the arrays of the parameters, by the number of their leaf."""
    numbers = [number for number, leaf in enumerate(leaves) if leaf.role is Role.PARAMS]
    if spec.feed is None:
        rng = np.random.default_rng(0)
        return {
            number: (_WEIGHT_SCALE * rng.standard_normal(leaves[number].shape)).astype(np.dtype(leaves[number].dtype))
            for number in numbers
        }
    positions = [number for number, args in enumerate(spec.args) for _ in jax.tree.leaves(args)]
    wanted = {positions[number] for number in numbers}
    flat = [
        leaf
        for number, args in enumerate(spec.args)
        for leaf in jax.tree.leaves(spec.feed.argument(number, 0) if number in wanted else args)
    ]
    return {number: np.asarray(flat[number]) for number in numbers}


def _run(path: Path, feeds: dict[str, np.ndarray[Any, Any]]) -> tuple[str, list[np.ndarray[Any, Any]]]:
    import onnxruntime
    from onnx.reference import ReferenceEvaluator

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # errors are raised anyway
    options.enable_cpu_mem_arena = False  # the arena holds up to twice the memory that the model needs
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented:
        return "onnx's reference", list(ReferenceEvaluator(str(path)).run(None, feeds))
    return f"onnxruntime {onnxruntime.__version__}", list(session.run(None, feeds))


def _difference(found: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any]) -> float:
    """Return the largest difference as a share of the largest value, in float32, part by part to save memory."""
    largest, apart = 0.0, 0.0
    for start in range(0, wanted.size, _PART):
        one, other = (np.float32(each.reshape(-1)[start : start + _PART]) for each in (found, wanted))
        largest = max(largest, float(np.max(np.abs(other))))
        apart = max(apart, float(np.max(np.abs(one - other))))
    return apart / max(largest, 1e-30)
