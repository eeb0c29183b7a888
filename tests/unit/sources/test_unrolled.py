"""State of layers as one array for each layer: which state, and that a step computes the same with it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_arrays import normal

import memprof
from memprof.sources.jax.checkpointing.unrolled import Layers, stacked, updated_by_loops

_LAYERS = 3
_WEIGHTS = normal(0, (_LAYERS, 4, 4))
_CACHE = {"k": normal(1, (_LAYERS, 2, 5, 4)), "length": jnp.int32(2)}
_X = normal(2, (2, 4))


def _decode(weights: Any, cache: Any, x: Any, *, reverse: bool = False) -> Any:
    def layer(x: Any, given: Any) -> Any:
        weight, keys = given
        keys = keys.at[:, cache["length"]].set(x @ weight)
        return x + jnp.tanh(keys.sum(1)), (keys, x.sum())

    x, (keys, sums) = jax.lax.scan(layer, x, (weights, cache["k"]), reverse=reverse)
    return x, {"k": keys, "length": cache["length"] + 1}, sums


@pytest.mark.parametrize("reverse", [False, True])
def test_a_step_computes_the_same_in_layers(reverse: bool) -> None:
    def step(weights: Any, cache: Any, x: Any) -> Any:
        return _decode(weights, cache, x, reverse=reverse)

    cache = memprof.in_layers(_CACHE, _LAYERS)
    changed = memprof.apply(memprof.Unrolled())(jax.jit(step))
    x, after, sums = changed(_WEIGHTS, cache, _X)
    assert isinstance(after["k"], Layers)
    assert [each.shape for each in after["k"].arrays] == [(2, 5, 4)] * _LAYERS
    assert jax.tree.structure(after) == jax.tree.structure(cache)  # so that it goes in again
    for old, new in zip(jax.tree.leaves(step(_WEIGHTS, _CACHE, _X)), jax.tree.leaves(stacked((x, after, sums))),
                        strict=True):  # fmt: skip
        np.testing.assert_allclose(new, old, rtol=1e-5)
    assert "scan" not in str(jax.make_jaxpr(changed)(_WEIGHTS, cache, _X))


def test_a_step_with_whole_arrays_keeps_its_loop() -> None:
    changed = memprof.apply(memprof.Unrolled())(_decode)
    assert "scan" in str(jax.make_jaxpr(changed)(_WEIGHTS, _CACHE, _X))


def test_a_jitted_step_keeps_its_donation() -> None:
    changed: Any = memprof.apply(memprof.Unrolled())(jax.jit(_decode, donate_argnums=1, static_argnames="reverse"))
    cache = memprof.in_layers(jax.eval_shape(lambda: _CACHE), _LAYERS)
    donated = [leaf.donated for leaf in jax.tree.leaves(changed.lower(_WEIGHTS, cache, _X, reverse=False).args_info)]
    assert donated == [False, True, True, True, True, False]


def test_only_what_a_loop_alone_reads_and_writes_is_such_state() -> None:
    closed = jax.make_jaxpr(_decode)(_WEIGHTS, _CACHE, _X)
    assert updated_by_loops(closed) == {1: _LAYERS}

    def read_twice(weights: Any, cache: Any, x: Any) -> Any:
        return _decode(weights, cache, x), cache["k"].sum()

    def not_returned(weights: Any, cache: Any, x: Any) -> Any:
        return _decode(weights, cache, x)[0]

    assert not updated_by_loops(jax.make_jaxpr(read_twice)(_WEIGHTS, _CACHE, _X))
    assert not updated_by_loops(jax.make_jaxpr(not_returned)(_WEIGHTS, _CACHE, _X))
