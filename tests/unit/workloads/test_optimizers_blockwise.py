"""Block-wise quantisation: how far off it may be, and what it keeps exactly."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from memprof.workloads.optimizers.blockwise import SIGNED, UNSIGNED, dequantise, quantise

pytestmark = [pytest.mark.usefixtures("quick_compiles"), pytest.mark.with_one_jax]
TINY = np.finfo(np.float32).tiny
CODES = [pytest.param(SIGNED, id="signed"), pytest.param(UNSIGNED, id="unsigned")]
FEW = settings(max_examples=40)


@jax.jit
def _there_and_back_signed(numbers):
    codes, scales = quantise(numbers, SIGNED)
    return codes, scales, dequantise(codes, scales, SIGNED)


@jax.jit
def _there_and_back_unsigned(numbers):
    codes, scales = quantise(numbers, UNSIGNED)
    return codes, scales, dequantise(codes, scales, UNSIGNED)


def there_and_back(numbers, code):
    if code is UNSIGNED:
        return jax.device_get(_there_and_back_unsigned(np.abs(numbers)))
    return jax.device_get(_there_and_back_signed(numbers))


# Few shapes, since each is a compile: less than a block, one, one and a bit, several axes with a rest.
SHAPES = st.sampled_from([(1,), (255,), (256,), (3, 100), (2, 3, 129)])
MAGNITUDES = st.floats(-12, 12).map(lambda exponent: float(np.float32(10.0**exponent)))


@st.composite
def tensors(draw):
    """Tensors whose elements are of very different magnitudes, with zeros among them but nothing subnormal."""
    shape = draw(SHAPES)
    relative = draw(hnp.arrays(np.float32, shape, elements=st.floats(-1, 1, width=32)))
    exponents = draw(hnp.arrays(np.int32, shape, elements=st.integers(-9, 0)))
    numbers = relative * np.float32(10.0) ** exponents.astype(np.float32) * np.float32(draw(MAGNITUDES))
    numbers = numbers.astype(np.float32)
    return np.where(np.abs(numbers) >= TINY, numbers, np.float32(0))


def blocks_of(numbers):
    flat = np.ravel(numbers)
    return [flat[start : start + 256] for start in range(0, flat.size, 256)]


@pytest.mark.parametrize(("code", "lowest", "highest"), [(SIGNED, -127, 127), (UNSIGNED, 0, 255)])
def test_codes_stand_for_ascending_numbers_from_end_to_end(code, lowest, highest):
    codes = jnp.arange(lowest, highest + 1).astype(code.dtype)
    scales = jnp.ones(1)
    values = np.asarray(jnp.concatenate([dequantise(part, scales, code) for part in (codes[:128], codes[128:])]))
    assert (np.diff(values) > 0).all()
    assert values[-1] == 1
    assert values[-lowest] == 0
    assert values[0] == (-1 if code is SIGNED else 0)


def positions(block, scale, code) -> np.ndarray:
    """Where the magnitudes of a block lie among the codes."""
    return (np.abs(block).astype(np.float64) / float(scale)) ** 0.25 * code.max_code


@pytest.mark.parametrize("code", CODES)
@FEW
@given(numbers=tensors())
def test_each_number_gets_the_nearest_code(code, numbers):
    codes, scales, found = there_and_back(numbers, code)
    exact = numbers if code is SIGNED else np.abs(numbers)
    assert codes.dtype == code.dtype
    assert codes.shape == found.shape == numbers.shape
    assert scales.shape == (-(-numbers.size // 256),)
    for block, block_codes, scale in zip(blocks_of(exact), blocks_of(codes), scales, strict=True):
        assert scale == np.abs(block).max()
        if scale > 0:
            wanted = positions(block, scale, code)
            if code is UNSIGNED:  # nothing but zero becomes zero
                wanted = np.where(block > 0, np.maximum(wanted, 1), wanted)
            assert (np.abs(np.abs(block_codes.astype(np.int32)) - wanted) <= 0.5001).all()


@pytest.mark.parametrize(
    ("code", "smallest", "tolerance"),
    [
        pytest.param(SIGNED, 0.5, 0.02, id="signed-half"),
        pytest.param(SIGNED, 1e-2, 0.052, id="signed-hundredth"),
        pytest.param(SIGNED, 1e-4, 0.17, id="signed-ten-thousandth"),
        pytest.param(UNSIGNED, 0.5, 0.01, id="unsigned-half"),
        pytest.param(UNSIGNED, 1e-2, 0.026, id="unsigned-hundredth"),
        pytest.param(UNSIGNED, 1e-4, 0.083, id="unsigned-ten-thousandth"),
    ],
)
@FEW
@given(numbers=tensors())
def test_the_relative_error_is_small_for_all_but_the_smallest_of_a_block(code, smallest, tolerance, numbers):
    _, scales, found = there_and_back(numbers, code)
    exact = numbers if code is SIGNED else np.abs(numbers)
    for block, block_found, scale in zip(blocks_of(exact), blocks_of(found), scales, strict=True):
        counted = (np.abs(block) >= smallest * scale) & (block != 0)
        assert (np.abs(block - block_found)[counted] <= tolerance * np.abs(block)[counted] + TINY).all()


@pytest.mark.parametrize("code", CODES)
@FEW
@given(numbers=tensors())
def test_the_error_is_within_two_hundredths_of_the_blocks_largest_number(code, numbers):
    _, scales, found = there_and_back(numbers, code)
    exact = numbers if code is SIGNED else np.abs(numbers)
    for block, block_found, scale in zip(blocks_of(exact), blocks_of(found), scales, strict=True):
        assert (np.abs(block - block_found) <= 0.02 * scale).all()


@pytest.mark.parametrize("code", CODES)
@FEW
@given(numbers=tensors())
def test_what_was_quantised_once_is_kept_as_it_is(code, numbers):
    codes, scales, found = there_and_back(numbers, code)
    codes_again, scales_again, found_again = there_and_back(found, code)
    np.testing.assert_array_equal(scales, scales_again)
    np.testing.assert_array_equal(codes, codes_again)
    np.testing.assert_array_equal(found, found_again)


@FEW
@given(numbers=tensors())
def test_signs_zeros_and_the_largest_number_are_kept(numbers):
    _, _, found = there_and_back(numbers, SIGNED)
    assert (found * np.sign(numbers) >= 0).all()
    assert (found[numbers == 0] == 0).all()
    for block, block_found in zip(blocks_of(numbers), blocks_of(found), strict=True):
        largest = np.abs(block).argmax()
        if np.abs(block[largest]) >= TINY:
            assert block_found[largest] == block[largest]


@FEW
@given(numbers=tensors())
def test_nothing_but_zero_becomes_zero_where_others_are_divided_by_it(numbers):
    _, scales, found = there_and_back(numbers, UNSIGNED)
    for block, block_found, scale in zip(blocks_of(numbers), blocks_of(found), scales, strict=True):
        if scale / 255**4 >= TINY:
            np.testing.assert_array_equal(block_found > 0, block != 0)


def test_random_rounding_goes_up_the_more_often_the_nearer_the_next_code_is():
    """A number a third of the way between two codes gets the upper one a third of the time."""
    numbers = np.full((40, 256), ((200 + 1 / 3) / 255) ** 4, np.float32)
    numbers[:, 0] = 1  # the scale of each block
    random = np.random.default_rng(0).uniform(size=numbers.shape).astype(np.float32)
    codes, _ = quantise(jnp.asarray(numbers), UNSIGNED, jnp.asarray(random))
    rounded = np.asarray(codes)[:, 1:]
    assert set(np.unique(rounded)) == {200, 201}
    assert abs(rounded.mean() - (200 + 1 / 3)) < 0.02


def test_an_outlier_costs_its_own_block_alone():
    numbers = np.full(512, 0.01, np.float32)
    numbers[0] = 1e6
    _, scales, found = there_and_back(numbers, SIGNED)
    np.testing.assert_array_equal(scales, np.float32([1e6, 0.01]))
    np.testing.assert_array_equal(found[256:], numbers[256:])
    assert found[0] == numbers[0]
    assert (np.abs(found[1:256] - 0.01) > 0.002).all()


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("shape", [(), (1,), (257,), (5, 7, 11), (0,), (4, 0)])
def test_any_shape_is_kept_and_filling_leaves_no_trace(code, shape):
    numbers = np.random.default_rng(0).uniform(0.1, 1, shape).astype(np.float32)
    codes, scales, found = there_and_back(numbers, code)
    flat, flat_scales, flat_found = there_and_back(numbers.reshape(-1), code)
    assert codes.shape == found.shape == shape
    np.testing.assert_array_equal(codes.reshape(-1), flat)
    np.testing.assert_array_equal(scales, flat_scales)
    np.testing.assert_array_equal(found.reshape(-1), flat_found)


def test_other_floating_point_types_are_taken():
    numbers = jnp.linspace(-1, 1, 300, dtype=jnp.bfloat16)
    codes, scales = quantise(numbers, SIGNED)
    found = dequantise(codes, scales, SIGNED)
    assert found.dtype == jnp.float32
    assert np.abs(np.asarray(found) - np.asarray(numbers, np.float32)).max() <= 0.02
