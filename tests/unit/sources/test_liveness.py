"""The estimate of a traced step's peak: small functions whose live values are added up by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from memprof.sources.jax.checkpointing.liveness import estimated_peaks

_KIB = 1024
_X = jax.ShapeDtypeStruct((16, 16), jnp.float32)  # 1 KiB


def _peaks(function: Callable[..., Any], *args: Any) -> tuple[int, int]:
    return estimated_peaks(jax.make_jaxpr(function)(*args).jaxpr)


def test_arguments_and_results_do_not_count() -> None:
    assert _peaks(lambda x: x @ x, _X) == (0, 0)


def test_elementwise_operations_are_part_of_the_kernels_that_read_them() -> None:
    assert _peaks(lambda x: jnp.sin(jnp.cos(x)) @ x, _X) == (_KIB, _KIB)
    assert _peaks(lambda x: jnp.sum(jnp.sin(x) * jnp.cos(x)), _X) == (0, 0)


def test_a_product_reads_an_array_that_replaces_the_one_it_is_made_of() -> None:
    """The sine is written where the first product was; the second product is the result."""
    assert _peaks(lambda x: jnp.sin(x @ x) @ x, _X) == (_KIB, _KIB)


def test_an_elementwise_operation_is_part_of_the_product_that_it_alone_reads() -> None:
    """The first kernel writes the sine, the second the result."""
    assert _peaks(lambda x: jnp.sin(x @ x) + jnp.cos(x @ x), _X) == (_KIB, _KIB)


def test_a_sum_of_products_that_is_read_twice_is_written_and_the_products_are_not() -> None:
    """The second product adds to the first in place. Its sum is live beside its sine, for the cosine."""

    def function(x: jax.Array) -> jax.Array:
        total = x @ x + x @ x.T
        return (jnp.sin(total) @ x) * jnp.cos(total)

    assert _peaks(function, _X) == (2 * _KIB, 2 * _KIB)


def test_a_product_does_not_overwrite_its_own_factors() -> None:
    """The first product is live while the second is computed, with its sine."""
    assert _peaks(lambda x: jnp.sin((x @ x) @ x) @ x, _X) == (2 * _KIB, 2 * _KIB)


def test_a_product_is_written_if_a_larger_array_is_made_from_it() -> None:
    """The product, 64 bytes, is live beside the sine of the sum."""
    column = jax.ShapeDtypeStruct((16, 1), jnp.float32)
    assert _peaks(lambda x, v: jnp.sin(x @ v + x) @ x, _X, column) == (_KIB + 64, _KIB + 64)


def test_a_renamed_array_is_the_same_array() -> None:
    assert _peaks(lambda x: ((x @ x).reshape(4, 64).reshape(16, 16)[None])[0] @ x, _X) == (_KIB, _KIB)


def test_values_without_readers_are_not_computed() -> None:
    def function(x: jax.Array) -> jax.Array:
        del_me = x @ x @ x
        return x @ x if del_me.shape else del_me

    assert _peaks(function, _X) == (0, 0)


def test_the_values_in_a_loop_count_once() -> None:
    """An iteration writes the product that is multiplied again. The carry is a result of the function."""

    def function(x: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda carry, _: (carry @ carry @ carry, None), x, None, length=8)[0]

    assert _peaks(function, _X) == (_KIB, _KIB)


def test_the_orders_differ_where_a_large_value_can_be_computed_late() -> None:
    """`wide` is first in the program, so it is live beside `other`'s product; depth first, `other` comes first."""
    up, down = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((16, 1024), (1024, 16)))

    def function(x: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
        wide = x @ up  # 64 KiB
        other = ((x @ up) @ down) @ x
        return other + wide @ down

    assert _peaks(function, _X, up, down) == ((64 + 64 + 1) * _KIB, (64 + 1 + 1) * _KIB)


@pytest.mark.parametrize(("policy", "least", "most"), [("nothing_saveable", 8, 12), ("everything_saveable", 24, 26)])
def test_checkpoints_change_what_is_live(policy: str, least: int, most: int) -> None:
    """Each of eight layers keeps a product, its sine and its cosine (24 KiB), or its argument (8 KiB)."""

    def layer(x: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.sin(x @ w) @ w

    def loss(weights: list[jax.Array], x: jax.Array) -> jax.Array:
        for w in weights:
            x = jax.checkpoint(layer, policy=getattr(jax.checkpoint_policies, policy))(x, w)
        return jnp.sum(x)

    peak, _ = _peaks(jax.grad(loss), [_X] * 8, _X)
    assert least * _KIB <= peak <= most * _KIB
