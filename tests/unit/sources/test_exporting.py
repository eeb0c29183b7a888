"""Steps as ONNX models: their results beside JAX's, their names, and what has no operator."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from memprof.analysis.records.categories import Role
from memprof.errors import MemprofError
from memprof.sources.jax.compile import lower_step
from memprof.sources.jax.targets.resolve import resolve
from memprof.sources.jax.tracing.step import Feed, StepSpec
from memprof.workloads.build import plan

_REASON = "onnx or onnxruntime is not installed (the extra onnx)"
onnx: Any = pytest.importorskip("onnx", reason=_REASON)
pytest.importorskip("onnxruntime", reason=_REASON)
export: Any = pytest.importorskip("memprof.sources.jax.exporting.export", reason=_REASON)

INFERENCE = ("phase=inference",)


def _lowered(spec: StepSpec) -> Any:
    return lower_step(spec, resolve("cpu"), lambda stage: None)


def _spec(fn: Any, *args: Any) -> StepSpec:
    feed = Feed(argument=lambda number, step: args[number], loss=lambda result: None, num_examples=1)
    return StepSpec(fn=fn, args=args, roles=dict.fromkeys(inspect.signature(fn).parameters, Role.BATCH), feed=feed)


@pytest.mark.parametrize(
    ("workload", "preset", "overrides", "techniques"),
    [
        ("mlp", "tiny", INFERENCE, ()),
        ("mlp", "tiny", INFERENCE, ("bf16",)),
        ("transformer", "tiny", INFERENCE, ()),
        ("transformer", "tiny", INFERENCE, ("scan",)),
        ("transformer", "tiny", (*INFERENCE, "padding_mask=true", "task=classification"), ()),
        ("transformer", "tiny", INFERENCE, ("bf16-params",)),
        ("decoder", "tiny", ("phase=decode",), ()),
        ("decoder", "tiny", ("phase=prefill",), ("bf16-params",)),
        ("decoder", "tiny-gpt2", ("phase=chunked-prefill",), ("kv-list",)),
        ("decoder", "tiny", ("phase=decode",), ("int8-kv", "window=8")),
        ("decoder", "tiny", ("phase=decode",), ("int8-weights",)),
        ("decoder", "tiny", ("phase=decode",), ("paged-kv", "kv-list")),
        ("transformer", "tiny-llama", INFERENCE, ()),
        ("transformer", "tiny", INFERENCE, ("int8-weights",)),
        ("decoder", "tiny", ("phase=prefill", "all_logits=true"), ("gqa=1",)),
    ],
)
def test_a_model_computes_what_jax_computes(
    workload: str, preset: str, overrides: tuple[str, ...], techniques: tuple[str, ...], tmp_path: Path
) -> None:
    spec = plan(workload=workload, preset=preset, overrides=overrides, techniques=techniques).build()
    step, path = _lowered(spec), tmp_path / "model.onnx"
    export.write_model(spec, step, path)
    agreement = export.compare_with_jax(spec, step, path)
    assert agreement.is_equal, agreement


def test_parameters_are_weights_and_the_rest_are_inputs(tmp_path: Path) -> None:
    spec = plan(workload="decoder", preset="tiny", overrides=("phase=decode",)).build()
    written = export.write_model(spec, _lowered(spec), tmp_path / "model.onnx")
    graph = onnx.load(tmp_path / "model.onnx").graph
    assert [each.name for each in graph.input] == ["cache.k", "cache.v", "tokens", "positions"]
    assert [each.name for each in graph.output] == ["result.0", "result.1.k", "result.1.v"]
    assert {each.name for each in graph.initializer} >= {"params.head.kernel", "params.layers.mlp.up.kernel"}
    assert (written.num_inputs, written.num_outputs) == (4, 3)
    assert any(node.name.startswith("layers_1/attention/") for node in graph.node)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, i: jnp.take(x, i, axis=1),
        lambda x, i: (
            x[i, i[:, None]] + jnp.take_along_axis(x, i[None] + jnp.zeros_like(x[:, :2], jnp.int32), axis=1)[:2]
        ),
        lambda x, i: jnp.stack([x, x])[i - i, i],
        lambda x, i: x.at[i].set(1.0) + x[::2].sum(),
        lambda x, i: jnp.concatenate([x, x[::-1]], axis=1) ** 2,
        lambda x, i: jax.lax.top_k(x, 2)[0] + jnp.argmax(x, axis=1)[:, None],
        lambda x, i: jnp.einsum("ab,cb->ca", x, x) / jnp.linalg.norm(x),
        lambda x, i: jnp.where(x > 0, jnp.cumsum(x, axis=0), jnp.clip(x, -0.5, 0.5)),
        lambda x, i: jnp.round(x * 3) % 2 + jnp.pad(x, ((1, 0), (0, 0)))[:-1],
        lambda x, i: jax.lax.scan(lambda c, row: (c + row, c * row), jnp.zeros(5), x, reverse=True),
        lambda x, i: jnp.tensordot(x, x, axes=2) + jax.nn.gelu(x).std() + jnp.outer(x[0], x[1]),
        lambda x, i: jax.nn.log_softmax(x) + jnp.broadcast_to(jnp.arange(5.0), (4, 5)),
    ],
)
def test_an_operation_computes_what_jax_computes(fn: Any, tmp_path: Path) -> None:
    x = jnp.asarray(jax.random.normal(jax.random.key(0), (4, 5)))
    spec = _spec(fn, x, jnp.array([2, 0], jnp.int32))
    step, path = _lowered(spec), tmp_path / "model.onnx"
    export.write_model(spec, step, path)
    assert export.compare_with_jax(spec, step, path).is_equal


@pytest.mark.parametrize("label", ["int4-weights", "fp8-weights", "fp8-kv"])
def test_a_type_that_onnx_cannot_move_has_a_sentence(label: str, tmp_path: Path) -> None:
    spec = plan(workload="decoder", preset="tiny", techniques=(label,)).build()
    with pytest.raises(MemprofError, match=r"ONNX's operator Gather does not support (int4|float8e4m3fn)"):
        export.write_model(spec, _lowered(spec), tmp_path / "model.onnx")
    assert not (tmp_path / "model.onnx").exists()


def test_what_onnx_cannot_do_has_a_sentence(tmp_path: Path) -> None:
    spec = _spec(lambda x: jax.lax.while_loop(lambda y: y.sum() < 10, lambda y: y + 1, x), jnp.zeros(3))
    with pytest.raises(MemprofError, match="no operator for JAX's primitive while"):
        export.write_model(spec, _lowered(spec), tmp_path / "model.onnx")
