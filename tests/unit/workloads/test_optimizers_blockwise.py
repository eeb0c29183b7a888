"""Block-wise quantisation: how far off it may be, and what it keeps exactly."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from memprof.workloads.transformations.blockwise import SIGNED, UNSIGNED, dequantise, quantise

TINY = np.finfo(np.float32).tiny
CODES = [pytest.param(SIGNED, id="signed"), pytest.param(UNSIGNED, id="unsigned")]
FEW = settings(max_examples=40, deadline=None)


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


@pytest.mark.parametrize("code", CODES)
def test_a_code_is_ascending_and_holds_zero_and_the_ends(code):
    distinct = code.values[:-1]
    assert (np.diff(distinct) > 0).all()
    assert code.values[code.zero] == 0
    assert code.values[-2] == code.values[-1] == 1
    assert code.values[0] == (-1 if code is SIGNED else 0)


def test_the_signed_code_is_symmetric():
    distinct = SIGNED.values[:-1]
    np.testing.assert_array_equal(distinct, -distinct[::-1])


@pytest.mark.parametrize(("code", "finest_steps"), [(SIGNED, 64), (UNSIGNED, 128)], ids=["signed", "unsigned"])
def test_a_code_has_seven_decades_each_twice_as_fine_as_the_one_below(code, finest_steps):
    positive = code.values[:-1][code.values[:-1] > 0].astype(np.float64)
    counts = [
        int(((positive > 1.0001 * 10.0 ** (-decade - 1)) & (positive < 1.0001 * 10.0**-decade)).sum())
        for decade in range(7)
    ]
    assert counts == [finest_steps // 2**decade for decade in range(7)]


@pytest.mark.parametrize("code", CODES)
@FEW
@given(numbers=tensors())
def test_each_number_gets_the_nearest_value_of_its_block(code, numbers):
    """By brute force over the whole code, up to the rounding of a division and a product."""
    codes, scales, found = there_and_back(numbers, code)
    exact = numbers if code is SIGNED else np.abs(numbers)
    assert codes.dtype == np.uint8
    assert codes.shape == found.shape == numbers.shape
    assert scales.shape == (-(-numbers.size // 256),)
    for block, block_found, scale in zip(blocks_of(exact), blocks_of(found), scales, strict=True):
        largest = np.abs(block).max()
        assert scale == (largest if largest >= TINY else 0)
        distances = np.abs(block[:, None].astype(np.float64) - code.values.astype(np.float64) * float(scale))
        smallest = float(code.values[code.zero + 1]) * float(scale) if code is UNSIGNED else 0.0
        rounding = 4e-7 * (np.abs(block) + smallest) + TINY
        # Of the unsigned code nothing but zero becomes zero: the smallest value is the nearest one left.
        allowed = np.where(np.abs(block) < smallest / 2, smallest, distances.min(axis=1))
        assert (np.abs(block - block_found) <= allowed + rounding).all()


@pytest.mark.parametrize(("code", "finest_steps"), [(SIGNED, 64), (UNSIGNED, 128)], ids=["signed", "unsigned"])
@FEW
@given(numbers=tensors())
def test_the_error_is_within_half_a_step_of_the_numbers_decade(code, finest_steps, numbers):
    """The highest decade, from 0.1 to 1 of the block's largest number, has 64 steps (signed) or 128 (unsigned)."""
    _, scales, found = there_and_back(numbers, code)
    exact = numbers if code is SIGNED else np.abs(numbers)
    for block, block_found, scale in zip(blocks_of(exact), blocks_of(found), scales, strict=True):
        if scale == 0:
            continue
        relative = np.abs(block).astype(np.float64) / scale
        decade = np.clip(np.floor(-np.log10(np.maximum(relative, 1e-30))), 0, 6)
        half_step = 0.45 * 10.0**-decade / (finest_steps / 2.0**decade)
        # Below the lowest decade it is at most its first value, which is one step and a tenth above zero.
        bound = np.where(relative < 1e-6, 1e-6, half_step)
        assert (np.abs(block - block_found) <= bound * 1.001 * scale + TINY).all()


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
        if scale * UNSIGNED.values[1] >= TINY:
            np.testing.assert_array_equal(block_found > 0, block != 0)


def test_random_thresholds_round_right_on_average():
    """A number a third of the way between two values becomes the upper one a third of the time."""
    lower, upper = UNSIGNED.values[200:202].astype(np.float64)
    numbers = np.full((40, 256), lower + (upper - lower) / 3, np.float32)
    numbers[:, 0] = 1  # the scale of each block
    thresholds = np.random.default_rng(0).uniform(size=numbers.shape).astype(np.float32)
    codes, _ = quantise(jnp.asarray(numbers), UNSIGNED, jnp.asarray(thresholds))
    rounded = np.asarray(codes)[:, 1:]
    assert set(np.unique(rounded)) == {200, 201}
    assert abs(rounded.mean() - (200 + 1 / 3)) < 0.02


def test_what_is_a_value_already_is_not_rounded_whatever_the_threshold():
    numbers = jnp.asarray(np.concatenate([SIGNED.values, SIGNED.values]))
    for threshold in (0.0, 1.0):
        codes, scales = quantise(numbers, SIGNED, jnp.full(numbers.shape, threshold))
        np.testing.assert_array_equal(dequantise(codes, scales, SIGNED), numbers)


def test_an_outlier_costs_its_own_block_alone():
    numbers = np.full(512, 0.01, np.float32)
    numbers[0] = 1e6
    _, scales, found = there_and_back(numbers, SIGNED)
    np.testing.assert_array_equal(scales, np.float32([1e6, 0.01]))
    np.testing.assert_array_equal(found[256:], numbers[256:])
    assert (found[1:256] == 0).all()


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
    assert np.abs(np.asarray(found) - np.asarray(numbers, np.float32)).max() <= 0.45 / 64 * 1.0001
