"""Copies that only change the layout, in programs for a GPU: how many bytes, and between which operations."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

import memprof
from memprof.analysis.records.layout_copy import LayoutCopy

X = jax.ShapeDtypeStruct((8, 1024, 192), "float32")  # 6 MiB


def _copies(step: Any, *arguments: jax.ShapeDtypeStruct) -> tuple[LayoutCopy, ...]:
    return memprof.profile(step, *arguments, target="h100-80gb").report.layout_copies


def test_a_transposition_between_argument_and_result_is_one() -> None:
    (copy,) = _copies(lambda x: jnp.swapaxes(x, 0, 1), X)
    assert (copy.kind, copy.old_shape, copy.shape) == ("transpose", (8, 1024, 192), (1024, 8, 192))
    assert copy.size_bytes == copy.step_bytes == 6 << 20
    assert (copy.producer.role, copy.producer.op, copy.consumer.role) == ("argument", "x", "result")


def test_what_is_fused_with_a_computation_or_free_is_none() -> None:
    assert not _copies(lambda x: jnp.swapaxes(x, 0, 1) * 2, X)
    assert not _copies(lambda x: x.reshape(8 * 1024, 192) + 1, X)


def test_a_transposition_in_a_loop_counts_in_each_turn() -> None:
    def step(x: jax.Array) -> jax.Array:
        def turn(x: jax.Array, _: None) -> tuple[jax.Array, None]:
            turned = jax.lax.optimization_barrier(jnp.swapaxes(jnp.sort(x, axis=1), 0, 1))
            return jnp.sort(turned, axis=1), None

        return jax.lax.scan(turn, x, length=7)[0]

    square = jax.ShapeDtypeStruct((512, 512), "float32")
    found = [copy for copy in _copies(step, square) if copy.kind == "transpose" and copy.num_runs > 1]
    assert [copy.num_runs for copy in found] == [7] * len(found) != []
    for copy in found:
        assert "sort" in copy.producer.op
        assert "sort" in copy.consumer.op
