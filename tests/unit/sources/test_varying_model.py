"""Models whose dimensions vary, made of exports of fixed sizes: their results at a third size beside JAX's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memprof.errors import MemprofError
from memprof.sources.jax.compile import lower_step
from memprof.sources.jax.targets.resolve import resolve
from memprof.sources.tensorrt.request import Dimension
from memprof.workloads.build import plan

_REASON = "onnx or onnxruntime is not installed (the extra onnx)"
onnx: Any = pytest.importorskip("onnx", reason=_REASON)
onnxruntime: Any = pytest.importorskip("onnxruntime", reason=_REASON)
export: Any = pytest.importorskip("memprof.sources.jax.exporting.export", reason=_REASON)
varying: Any = pytest.importorskip("memprof.sources.tensorrt.varying", reason=_REASON)
builder_model: Any = pytest.importorskip("memprof.sources.tensorrt.onnx_model", reason=_REASON)

BATCH = Dimension(name="batch_size", size=8, smaller=7)


def _exported(workload: str, fields: dict[str, Any], path: Path) -> Any:
    overrides = tuple(f"{name}={value}" for name, value in fields.items())
    spec = plan(workload=workload, preset="tiny", overrides=overrides).build()
    step = lower_step(spec, resolve("cpu"), lambda stage: None)
    export.write_model(spec, step, path)
    return spec, step


def _length(name: str, size: int) -> Dimension:
    return Dimension(name=name, size=size, smaller=size - 1)


@pytest.mark.parametrize(
    ("workload", "phase", "dimensions", "others"),
    [
        ("mlp", "inference", (BATCH,), {"batch_size": 3}),
        ("transformer", "inference", (BATCH, _length("seq_len", 16)), {"batch_size": 2, "seq_len": 5}),
        ("decoder", "decode", (BATCH, _length("context_len", 32)), {"batch_size": 3, "context_len": 20}),
        ("decoder", "prefill", (BATCH,), {"batch_size": 1}),
    ],
)
def test_a_varying_model_computes_what_jax_computes_at_another_size(
    workload: str, phase: str, dimensions: tuple[Dimension, ...], others: dict[str, int], tmp_path: Path
) -> None:
    paths = []
    for bits in range(1 << len(dimensions)):
        sizes = {each.name: each.smaller if bits >> n & 1 else each.size for n, each in enumerate(dimensions)}
        paths.append(tmp_path / f"{bits}.onnx")
        _exported(workload, {"phase": phase, **sizes}, paths[-1])
    target = tmp_path / "varying.onnx"
    varying.vary(paths, dimensions, target)
    onnx.checker.check_model(target, full_check=True)
    names = {size for each in builder_model.read_inputs(target) for size in each.shape if isinstance(size, str)}
    assert names == {each.name for each in dimensions}
    spec, step = _exported(workload, {"phase": phase, **others}, tmp_path / "other.onnx")
    given = [
        (leaf.path, np.asarray(value))
        for leaf, value in zip(step.capture.arguments, _leaves(spec), strict=True)
        if leaf.role.value != "params"
    ]
    feeds = {export.model_name(path): value for path, value in given}
    sessions = (onnxruntime.InferenceSession(str(each)) for each in (target, tmp_path / "other.onnx"))
    found, wanted = (session.run(None, feeds) for session in sessions)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def _leaves(spec: Any) -> list[Any]:
    import jax

    return jax.tree.leaves([spec.feed.argument(number, 0) for number in range(len(spec.args))])


def test_a_dimension_of_no_input_cannot_vary(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    _exported("mlp", {"phase": "inference"}, path)
    with pytest.raises(MemprofError, match="batch_size cannot vary in this model: no input has a dimension"):
        varying.vary([path, path], [BATCH], tmp_path / "varying.onnx")


def test_a_size_that_is_a_multiple_cannot_vary(tmp_path: Path) -> None:
    """A product of two axes is one dimension of an input, which no single size describes."""
    paths = [tmp_path / "large.onnx", tmp_path / "small.onnx"]
    for path, size in zip(paths, (16, 14), strict=True):
        value = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [size])
        result = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [size])
        node = onnx.helper.make_node("Exp", ["x"], ["y"])
        onnx.save(onnx.helper.make_model(onnx.helper.make_graph([node], "double", [value], [result])), path)
    with pytest.raises(MemprofError, match="dimension 0 of x is not equal to it, but depends on it"):
        varying.vary(paths, [BATCH], tmp_path / "varying.onnx")
