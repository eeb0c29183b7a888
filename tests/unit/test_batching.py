"""The largest size that fits: against trying all of them, and with a step that is compiled."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

import memprof


@given(
    growths=st.lists(st.integers(0, 50), min_size=1, max_size=40),
    sizes=st.sets(st.integers(1, 10_000), min_size=40, max_size=40),
    memory=st.integers(1, 2500),
)
def test_it_is_what_trying_all_of_them_finds(growths: list[int], sizes: set[int], memory: int) -> None:
    in_order = sorted(sizes)[: len(growths)]
    needed = {size: sum(growths[: number + 1]) for number, size in enumerate(in_order)}
    asked: list[int] = []

    def fn(size: int) -> int:
        asked.append(size)
        return needed[size]

    fitting = [size for size in in_order if needed[size] <= memory]
    assert memprof.largest(fn, in_order, memory) == (fitting[-1] if fitting else None)
    assert len(asked) <= len(in_order).bit_length()


def test_the_peak_of_a_call_is_its_footprint() -> None:
    def double(x: jax.Array) -> jax.Array:
        return x * 2

    def needed(size: int) -> int:
        return memprof.peak(double, jax.ShapeDtypeStruct((size,), jnp.float32), target="cpu")

    assert needed(256) == 2 * 256 * 4  # the argument and the result
    assert memprof.peak(double, jnp.ones(256), target="cpu", donate_argnums=0) == 256 * 4
    assert memprof.largest(needed, [64, 128, 256, 512], "2KiB") == 256
    assert memprof.largest(needed, [512], "2KiB") is None


@pytest.mark.parametrize(
    ("sizes", "memory", "sentence"),
    [
        (8, 100, "a sequence of whole numbers was expected"),
        ([1, 2.5], 100, "a sequence of whole numbers was expected"),
        ([1, 4, 4], 100, "each must be larger than the one before it"),
        ([1, 2], "plenty", "plenty"),
        ([1, 2], 0, "memory is 0"),
        ([1, 2], None, "memory is None"),
    ],
)
def test_bad_requests_get_a_sentence(sizes: object, memory: object, sentence: str) -> None:
    with pytest.raises(memprof.MemprofError, match=sentence):
        memprof.largest(lambda size: size, sizes, memory)  # type: ignore[arg-type]


def test_the_size_of_a_call_is_kept() -> None:
    traced: list[int] = []

    def mapped(size: int, xs: jax.Array) -> jax.Array:
        traced.append(size)
        return jax.lax.map(lambda x: jnp.sum(jnp.sin(x[:, None] * x)), xs, batch_size=size)

    xs, sizes = jax.ShapeDtypeStruct((64, 32), jnp.float32), [1, 2, 4, 8, 16, 32, 64]
    memory = memprof.peak(lambda xs: mapped(8, xs), xs, target="cpu")
    assert memprof.largest(mapped, sizes, memory, xs, target="cpu") == 8
    traced.clear()
    assert memprof.largest(mapped, sizes, memory, xs, target="cpu") == 8
    assert set(traced) == {1, 64}  # enough to recognise the question
    assert memprof.largest(mapped, sizes, 1, xs, target="cpu") is None


def test_the_length_of_an_axis_is_a_size() -> None:
    def doubled(xs: dict[str, jax.Array]) -> jax.Array:
        return xs["a"] * 2 + xs["b"]

    xs = {name: jax.ShapeDtypeStruct((4, 100), jnp.float32) for name in "ab"}
    assert memprof.largest(doubled, 1, 3 * 4 * 4 * 60, xs, target="cpu") == 60
    assert memprof.largest(doubled, -1, "1GiB", xs, target="cpu") == 100
    with pytest.raises(memprof.MemprofError, match="axis 2 has no single length"):
        memprof.largest(doubled, 2, "1GiB", xs, target="cpu")
