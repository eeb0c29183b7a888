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
    """`wide` is first in the program, so it is live beside `other`'s product. The greedy order computes it later."""
    up, down = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((16, 1024), (1024, 16)))

    def function(x: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
        wide = x @ up  # 64 KiB
        other = ((x @ up) @ down) @ x
        return other + wide @ down

    assert _peaks(function, _X, up, down) == ((64 + 64 + 1) * _KIB, (64 + 1 + 1) * _KIB)


def test_a_bias_that_enters_an_epilogue_is_not_written_for_all_rows() -> None:
    """The kernel of the first product adds the row; its result is live for the second product."""
    row = jax.ShapeDtypeStruct((16,), jnp.float32)
    assert _peaks(lambda x, row: ((x @ x) + jnp.broadcast_to(row, (16, 16))) @ x, _X, row) == (_KIB, _KIB)


def test_gathers_and_the_inputs_of_a_concatenation_are_fused() -> None:
    """Only the concatenation is written, 2 KiB, for the product."""
    rows = jax.ShapeDtypeStruct((16,), jnp.int32)

    def function(x: jax.Array, rows: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.concatenate([x.at[rows].get(mode="clip"), jnp.sin(x)], axis=1) @ y

    assert _peaks(function, _X, rows, jax.ShapeDtypeStruct((32, 1), jnp.float32)) == (2 * _KIB, 2 * _KIB)


def test_an_array_is_updated_in_place() -> None:
    """The product is updated twice. Only rows and indices are written besides, no second array."""

    def function(x: jax.Array) -> jax.Array:
        return (x @ x).at[0].set(0.0).at[1].add(1.0, mode="clip") @ x

    assert max(_peaks(function, _X)) < 2 * _KIB


_IMAGE = jax.ShapeDtypeStruct((1, 1, 16, 16), jnp.float32)  # 1 KiB
_FILTERS = jax.ShapeDtypeStruct((1, 1, 3, 3), jnp.float32)


@pytest.mark.parametrize(("combined", "num_live"), [(jnp.add, 1), (jnp.multiply, 2)])
def test_a_convolution_is_one_kernel_with_a_sum_but_not_with_a_product(
    combined: Callable[[jax.Array, jax.Array], jax.Array], num_live: int
) -> None:
    """The second convolution adds to the first in place; a product needs both results."""

    def function(image: jax.Array, first: jax.Array, second: jax.Array) -> jax.Array:
        results = [jax.lax.conv(image, each, (1, 1), "SAME") for each in (first, second)]
        return jax.lax.conv(combined(*results), first, (1, 1), "SAME")

    assert _peaks(function, _IMAGE, _FILTERS, _FILTERS) == (num_live * _KIB, num_live * _KIB)


@pytest.mark.parametrize(
    ("padding", "dilation", "peak_bytes"),
    [((1, 1), 1, 0), ((0, 1), 1, 17 * 17 * 4), ((1, 1), 2, 33 * 33 * 4)],  # 31 rows with those between, and two
)
def test_a_convolution_reads_a_padded_image_unless_cudnn_pads_it(
    padding: tuple[int, int], dilation: int, peak_bytes: int
) -> None:
    def function(image: jax.Array, filters: jax.Array) -> jax.Array:
        return jax.lax.conv_general_dilated(image, filters, (1, 1), (padding,) * 2, lhs_dilation=(dilation,) * 2)

    assert _peaks(function, _IMAGE, _FILTERS) == (peak_bytes, peak_bytes)


def test_the_gradients_of_a_convolution_need_no_padded_image() -> None:
    """The one of the image reads dilated cotangents, and the one of the filters has dilated filters."""

    def loss(image: jax.Array, filters: jax.Array) -> jax.Array:
        return jnp.sum(jax.lax.conv(image, filters, (2, 2), ((1, 1), (1, 1))) ** 2)

    bytes_of_result, bytes_of_reversed_filters = 8 * 8 * 4, 3 * 3 * 4
    peak_bytes = bytes_of_result + bytes_of_reversed_filters
    assert _peaks(jax.grad(loss, argnums=(0, 1)), _IMAGE, _FILTERS) == (peak_bytes, peak_bytes)


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
