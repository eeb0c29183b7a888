"""Quantised weights: bytes by arithmetic, and products that are those of the dequantised kernel."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memprof.analysis.pipeline import analyze
from memprof.analysis.records.categories import Category, Role
from memprof.errors import MemprofError
from memprof.sources.jax.compile import capture_of
from memprof.sources.jax.targets.resolve import resolve
from memprof.sources.jax.tracing.step import StepSpec
from memprof.sources.jax.xla.xla_adapter import argument_bytes
from memprof.workloads.build import build_step, plan
from memprof.workloads.quantisation import FORMATS, product, quantised

pytestmark = [pytest.mark.usefixtures("quick_compiles"), pytest.mark.with_one_jax]
LABELS = {"int8-weights": "int8", "int4-weights": "int4", "fp8-weights": "float8"}


class Kernels(NamedTuple):
    """Of a model: numbers in its kernels, columns of these, and numbers in all other parameters."""

    num_elements: int
    num_columns: int
    num_others: int


# Layers x (query, key, value, out, gate, up, down), and the head where it is not tied.
LLAMA_8B = Kernels(
    32 * (2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14_336) + 4096 * 128_256,
    32 * (2 * 4096 + 2 * 1024 + 2 * 14_336 + 4096) + 128_256,
    4096 * 128_256 + 65 * 4096,
)
GEMMA_2B = Kernels(
    18 * (2 * 2048**2 + 2 * 2048 * 256 + 3 * 2048 * 16_384),
    18 * (2 * 2048 + 2 * 256 + 2 * 16_384 + 2048),
    2048 * 256_000 + 37 * 2048,
)


def size_bytes(tree: Any) -> int:
    return sum(argument_bytes(leaf) for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize(("preset", "kernels"), [("llama-8b", LLAMA_8B), ("gemma-2b", GEMMA_2B)])
@pytest.mark.parametrize(("label", "size"), [("int8-weights", 1), ("int4-weights", 0.5), ("fp8-weights", 1)])
@pytest.mark.parametrize("other_bytes", [4, 2])
def test_weights_and_scales_are_those_of_arithmetic(
    preset: str, kernels: Kernels, label: str, size: float, other_bytes: int
) -> None:
    techniques = [label] if other_bytes == 4 else [f"bf16-params+{label}"]
    params = build_step(workload="decoder", preset=preset, techniques=techniques).args[0]
    num_scales = kernels.num_elements // 128 if label == "int4-weights" else kernels.num_columns
    assert kernels.num_elements + kernels.num_others in (8_030_261_248, 2_506_172_416)
    assert size_bytes(params) == kernels.num_elements * size + (num_scales + kernels.num_others) * other_bytes


@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize("workload", ["decoder", "transformer", "mlp"])
@pytest.mark.slow_cases
def test_a_compiled_program_has_these_bytes(workload: str, label: str) -> None:
    overrides = [] if workload == "decoder" else ["phase=inference"]
    spec = build_step(workload=workload, preset="tiny", overrides=overrides, techniques=[label])
    report = analyze(capture_of(spec, resolve("cpu"), progress=lambda stage: None).capture)
    assert report.categories[Category.PARAMS] == size_bytes(spec.args[0])
    assert report.categories[Category.UNATTRIBUTED] == 0


def dequantised(kernel: dict[str, jax.Array]) -> np.ndarray:
    (numbers,) = (leaf for name, leaf in kernel.items() if name != "scale")
    scales = np.repeat(np.asarray(kernel["scale"]), numbers.shape[-2] // kernel["scale"].shape[-2], axis=-2)
    return np.asarray(numbers.astype(jnp.float32)) * scales


@pytest.mark.parametrize("weight_dtype", FORMATS)
@pytest.mark.parametrize("rows", [256, 96])
@pytest.mark.parametrize("num_tokens", [2, 300])
def test_a_product_is_that_of_the_dequantised_kernel(weight_dtype: str, rows: int, num_tokens: int) -> None:
    keys = jax.random.split(jax.random.key(0))
    kernel = quantised(jax.random.normal(keys[0], (rows, 48)), FORMATS[weight_dtype])
    inputs = jax.random.normal(keys[1], (2, num_tokens, rows))
    expected = np.asarray(inputs) @ dequantised(kernel)
    found = product(inputs, kernel, jnp.dtype("float32"))
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)
    assert kernel["scale"].shape == (2 if weight_dtype == "int4" and rows == 256 else 1, 48)


@pytest.mark.parametrize(("weight_dtype", "steps"), [("int8", 254), ("int4", 14), ("float8", 16)])
def test_a_weight_is_off_by_half_a_step_at_most(weight_dtype: str, steps: int) -> None:
    """Of the span of its column. 8-bit floats have 3 bits of precision: the largest are off by 1/32 of themselves."""
    kernel = jax.random.normal(jax.random.key(0), (3, 128, 16)).at[0, :, 0].set(0.0)
    form = FORMATS[weight_dtype]
    off = np.abs(dequantised(quantised(kernel, form)) - np.asarray(kernel))
    span = 2 * np.abs(np.asarray(kernel)).max(axis=1, keepdims=True)
    assert (off <= 0.5001 * span / steps).all()
    assert off[0, :, 0].max() == 0


@pytest.mark.parametrize(("label", "share"), [("int8-weights", 0.1), ("fp8-weights", 0.4), ("int4-weights", 0.7)])
@pytest.mark.parametrize("workload", ["decoder", "transformer", "mlp"])
@pytest.mark.slow_cases
def test_results_are_near_those_of_whole_weights(workload: str, label: str, share: float) -> None:
    def logits(techniques: list[str]) -> np.ndarray:
        overrides = [] if workload == "decoder" else ["phase=inference"]
        spec = build_step(workload=workload, preset="tiny", overrides=overrides, techniques=techniques)
        assert spec.feed is not None
        results = jax.jit(spec.fn)(*(spec.feed.argument(number, 0) for number in range(len(spec.args))))
        return np.asarray(jax.tree.leaves(results)[0])

    whole, near = logits([]), logits([label])
    assert 0 < np.abs(near - whole).max() < share * np.abs(whole).max()


def test_routers_of_experts_stay_as_they_are() -> None:
    spec = build_step(
        workload="transformer", preset="tiny-moe", overrides=["phase=inference"], techniques=["int8-weights"]
    )
    mlp = spec.args[0]["layers_0"]["mlp"]
    assert mlp["router"]["kernel"].dtype == jnp.float32
    assert mlp["experts"]["up"]["kernel"]["int8"].shape == (8, 32, 128)
    assert math.prod(mlp["experts"]["up"]["kernel"]["scale"].shape) == 8 * 128
    jax.eval_shape(spec.fn, *spec.args)


@pytest.mark.parametrize("label", LABELS)
def test_a_step_that_trains_has_no_quantised_weights(label: str) -> None:
    with pytest.raises(MemprofError, match=f"Technique '{label}' does not apply to mlp"):
        plan(workload="mlp", preset="tiny", techniques=[label])


@pytest.mark.parametrize("label", LABELS)
def test_devices_share_numbers_and_scales(label: str) -> None:
    from memprof.sources.jax.targets.mesh import mesh_of
    from memprof.sources.jax.targets.resolve import resolve_asked

    mesh = mesh_of(resolve_asked("h100-80gb", mesh="tp=2"))
    spec = build_step(workload="decoder", preset="llama-1b", techniques=[f"tp+{label}"], mesh=mesh)
    kernel = spec.args[0]["layers"]["mlp"]["down"]["kernel"]
    numbers, scale = (kernel[name] for name in (FORMATS[LABELS[label]].dtype, "scale"))
    assert numbers.sharding.shard_shape(numbers.shape) == (16, 4096, 2048)
    rows = scale.shape[1]
    assert scale.sharding.shard_shape(scale.shape) == (16, rows // 2 if rows > 1 else 1, 2048)


def _packed(w: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """Two 4-bit numbers in a byte."""
    numbers = jnp.stack([w["a"] & 15, w["a"] >> 4], axis=1).reshape(-1, w["a"].shape[1]).astype(jnp.int8) - 8
    return (x @ numbers.astype(x.dtype)) * w["b"]


def _in_words(w: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """Eight 4-bit numbers in a word, with a scale and a zero for each group of rows, as GPTQ stores them."""
    shifts = 4 * jnp.arange(8, dtype=jnp.int32)
    numbers = ((w["a"][:, None] >> shifts[:, None]) & 15).reshape(2, -1, w["a"].shape[1])
    return x @ ((numbers - w["c"][:, None]).astype(x.dtype) * w["b"][:, None]).reshape(x.shape[-1], -1)


def _of_a_table(w: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """Numbers that a table of 16 values gives, as in NF4."""
    return x @ (jnp.take(w["b"], w["a"], axis=0) * w["c"])


def _of_integers(w: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """A product of integers: the inputs are quantised, too."""
    scale = jnp.max(jnp.abs(x), axis=-1, keepdims=True) / 127
    rounded = jnp.round(x / scale).astype(jnp.int8)
    return jax.lax.dot(rounded, w["a"], preferred_element_type=jnp.int32) * scale * w["b"]


def _dequantised(w: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """Scales that multiply weights, as in products of qwix."""
    return x @ (w["a"].astype(x.dtype) * w["b"])


@pytest.mark.parametrize("has_tokens", [True, False])
@pytest.mark.parametrize(
    ("layer", "leaves"),
    [
        (_dequantised, {"a": ((64, 48), jnp.int8), "b": ((1, 48), jnp.float32)}),
        (_packed, {"a": ((32, 48), jnp.uint8), "b": ((48,), jnp.float32)}),
        (
            _in_words,
            {"a": ((8, 48), jnp.int32), "b": ((2, 48), jnp.float32), "c": ((2, 48), jnp.int32)},
        ),
        (_of_a_table, {"a": ((64, 48), jnp.uint8), "b": ((16,), jnp.float32), "c": ((48,), jnp.float32)}),
        (_of_integers, {"a": ((64, 48), jnp.int8), "b": ((48,), jnp.float32)}),
    ],
)
def test_the_quantised_weights_of_others_are_parameters(layer: Any, leaves: dict[str, Any], has_tokens: bool) -> None:
    """By the data flow: no name and no type says so."""

    def step(w: Any, t: jax.Array) -> jax.Array:
        hidden = w["e"][t] if has_tokens else t @ w["e"]
        return jax.nn.silu(layer(w, hidden)) @ w["h"]

    shapes = {**leaves, "e": ((100, 64), jnp.float32), "h": ((48, 100), jnp.float32)}
    weights = {name: jax.ShapeDtypeStruct(*each) for name, each in shapes.items()}
    data = jax.ShapeDtypeStruct((8,), jnp.int32) if has_tokens else jax.ShapeDtypeStruct((8, 100), jnp.float32)
    spec = StepSpec(fn=step, args=(weights, data))
    capture = capture_of(spec, resolve("cpu"), progress=lambda stage: None).capture
    assert {leaf.path: leaf.role for leaf in capture.arguments} == {
        **{f"w['{name}']": Role.PARAMS for name in weights},
        "t": Role.BATCH,
    }


@pytest.mark.parametrize(
    "label", ["int8-weights", "int4-weights+fp8-kv", "fp8-weights+paged-kv+int8-kv", "fp8-kv+kv-list"]
)
def test_roles_follow_from_the_program_alone(label: str) -> None:
    """Of a decode step whose arguments have no telling names."""
    built = build_step(workload="decoder", preset="tiny", overrides=["context_len=48"], techniques=[label])

    def four(a: Any, b: Any, c: Any, d: Any) -> Any:
        return built.fn(a, b, c, d)

    def five(a: Any, b: Any, c: Any, d: Any, e: Any) -> Any:
        return built.fn(a, b, c, d, e)

    spec = StepSpec(fn=four if len(built.args) == 4 else five, args=built.args, donate_argnums=built.donate_argnums)
    capture = capture_of(spec, resolve("cpu"), progress=lambda stage: None).capture
    roles = dict(zip("abcde", (Role.PARAMS, Role.KV_CACHE, *[Role.BATCH] * 3), strict=True))
    assert [leaf.path for leaf in capture.arguments if leaf.role is not roles[leaf.path[0]]] == []
