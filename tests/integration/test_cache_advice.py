"""Advice on caches in steps of a user: each is compiled as it is, and as the advice says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from memprof import StepSpec
from memprof.analysis.records.report import Report
from memprof.api import profile_spec
from memprof.studies.advice.advise import upper_bounds

# A cache that grows cannot be donated.
pytestmark = pytest.mark.filterwarnings("ignore:Some donated buffers were not usable:UserWarning")
LAYERS, BATCH, LENGTH, HEADS, KV_HEADS, SIZE, WIDTH, WINDOW = 2, 4, 512, 8, 2, 64, 512, 64
TARGET = "h100-80gb"
Store = Callable[[Any, Any, Any], Any]  # from the cache of a layer, new keys and their position to the next cache
Mask = Callable[[Any, Any], Any]


def array(*shape: int, dtype: Any = jnp.bfloat16) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


LAYER = {
    "q": array(WIDTH, WIDTH),
    "k": array(WIDTH, KV_HEADS * SIZE),
    "v": array(WIDTH, KV_HEADS * SIZE),
    "out": array(WIDTH, WIDTH),
}


def write(cache: Any, new: Any, position: Any) -> Any:
    return jax.lax.dynamic_update_slice(cache, new, (0, position, 0, 0))


def decode(
    *, store: Store = write, mask: Mask = lambda i, p: i <= p, length: int = LENGTH, kv_heads: int = KV_HEADS
) -> StepSpec:
    """A decode step with a cache of `length` tokens and `kv_heads` heads in each of its layers."""

    def split(x: Any, weight: Any) -> Any:
        return (x @ weight).reshape(BATCH, 1, -1, SIZE)

    def step(weights: Any, cache: Any, hidden: Any, position: Any) -> Any:
        written = []
        for layer, (keys, values) in zip(weights, cache, strict=True):
            keys = store(keys, split(hidden, layer["k"]), position)
            values = store(values, split(hidden, layer["v"]), position)
            written.append((keys, values))
            keys, values = (jnp.repeat(each, HEADS // each.shape[2], axis=2) for each in (keys, values))
            scores = jnp.einsum("bqhd,bkhd->bhqk", split(hidden, layer["q"]), keys)
            scores = jnp.where(mask(jnp.arange(keys.shape[1]), position), scores, -1e9)
            attended = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), values)
            hidden = hidden + attended.reshape(BATCH, 1, WIDTH) @ layer["out"]
        return hidden, written

    caches = [(array(BATCH, length, kv_heads, SIZE),) * 2] * LAYERS
    args = ([LAYER] * LAYERS, caches, array(BATCH, 1, WIDTH), array(dtype=jnp.int32))
    return StepSpec(step, args, donate_argnums=(1,))


PLANTED: dict[str, tuple[Callable[[], StepSpec], Callable[[], StepSpec]]] = {
    "repeated_heads": (
        lambda: decode(store=lambda cache, new, p: write(cache, jnp.repeat(new, 4, axis=2), p), kv_heads=HEADS),
        decode,
    ),
    "long_cache": (
        lambda: decode(mask=lambda i, p: (i <= p) & (i > p - WINDOW)),
        lambda: decode(
            store=lambda cache, new, p: write(cache, new, p % WINDOW), mask=lambda i, p: i <= p, length=WINDOW
        ),
    ),
    "growing_cache": (
        lambda: decode(store=lambda cache, new, p: jnp.concatenate([cache, new], axis=1), length=LENGTH - 1),
        decode,
    ),
}


def report_of(spec: StepSpec) -> Report:
    return profile_spec(spec, target=TARGET).report


@pytest.mark.parametrize("rule", PLANTED)
def test_a_cache_that_attention_does_not_need_is_found_and_its_saving_is_that_of_a_compile(rule: str) -> None:
    """What attention reads on its way shrinks with a shorter cache, too, which the upper bound does not count."""
    planted, followed = (report_of(make()) for make in PLANTED[rule])
    found = {each.rule: each for each in upper_bounds(planted)}
    assert next(iter(found)) == rule
    assert not {each.rule for each in upper_bounds(followed)} & set(PLANTED)
    temps_bytes = sum(buffer.size_bytes for buffer in planted.buffers if buffer.is_temp)
    saved_bytes = planted.footprint_bytes - followed.footprint_bytes
    assert 0.9 * found[rule].bound_bytes <= saved_bytes <= found[rule].bound_bytes + temps_bytes


def test_weights_that_every_call_permutes_are_found_and_transposes_that_xla_removes_are_not() -> None:
    spec = decode(length=16)
    weights, *others = spec.args

    def gathered(weights: Any, cache: Any, hidden: Any, position: Any, order: Any) -> Any:
        return spec.fn(jax.tree.map(lambda leaf: leaf[order], weights), cache, hidden, position)

    def transposed(weights: Any, cache: Any, hidden: Any, position: Any) -> Any:
        return spec.fn(jax.tree.map(jnp.transpose, weights), cache, hidden, position)

    order = array(WIDTH, dtype=jnp.int32)
    permuted = report_of(StepSpec(gathered, (weights, *others, order), donate_argnums=(1,)))
    copied = {each.rule: each for each in upper_bounds(permuted)}["copied_weights"]
    assert copied.bound_bytes >= 2 * WIDTH * WIDTH  # at least one whole projection
    other_way = jax.tree.map(lambda leaf: array(*reversed(leaf.shape)), weights)
    turned = report_of(StepSpec(transposed, (other_way, *others), donate_argnums=(1,)))
    assert not any(each.rule == "copied_weights" for each in upper_bounds(turned))
    assert turned.categories["param_copies"] == 0
