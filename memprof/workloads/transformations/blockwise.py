"""Block-wise quantisation to 8 bits: each block of 256 numbers has a scale of its own, for an outlier to cost no other.

A number is divided by the largest magnitude of its block, and one of 255 values stands for it: the nearest, or at
random one of its two neighbours. The values are spread as in dynamic tree quantisation: seven decades from 1e-7 to 1,
and the higher the decade the finer its steps, so that neither small nor large magnitudes are lost:

    codes, scales = quantise(moment, SIGNED)
    moment = dequantise(codes, scales, SIGNED)

Within a decade the values are equally far apart, with its end among them, so that the block's largest number is exact,
whatever its sign. Codes and values thus map to each other by a straight line for each decade: arithmetic that XLA fuses
with what is around it. A search in a table of the values would write several arrays of the tensor's size on its way.

Reference: Dettmers et al. 2021, 8-bit Optimizers via Block-wise Quantization, arXiv:2110.02861, section 2.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Final

import jax
import jax.numpy as jnp
import numpy as np

from memprof.workloads.optimizers.adam8bit import BLOCK_SIZE

NEAREST: Final = 0.5
_NUM_DECADES: Final = 7
_SMALLEST_SCALE: Final = float(np.finfo(np.float32).tiny)  # below it, devices may take a number for zero


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One decade of a code: `value = start_value + (code - start_code) * step`, from its start on."""

    start_code: int
    start_value: float
    step: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """How codes and the values from 0 to 1 map to each other. The lowest decade has `num_lowest_steps` steps.

    Each decade has twice the steps of the one below it. A signed code has the same values below zero.
    """

    num_lowest_steps: int
    is_signed: bool

    @property
    def dtype(self) -> np.dtype[np.int8] | np.dtype[np.uint8]:
        return np.dtype(np.int8) if self.is_signed else np.dtype(np.uint8)

    @property
    def max_code(self) -> int:
        """The code of 1."""
        return self.num_lowest_steps * (2**_NUM_DECADES - 1)

    def lines(self) -> Iterator[Line]:
        """Yields the decades, the lowest first. It alone goes down to zero, by a first step of its own."""
        for decade in range(_NUM_DECADES):
            num_steps = self.num_lowest_steps * 2**decade
            end = 10.0 ** (decade + 1 - _NUM_DECADES)
            yield Line(start_code=num_steps - self.num_lowest_steps, start_value=end / 10, step=0.9 * end / num_steps)


SIGNED: Final = Code(num_lowest_steps=1, is_signed=True)
UNSIGNED: Final = Code(num_lowest_steps=2, is_signed=False)


def quantise(numbers: jax.Array, code: Code, rounding: jax.Array | float = NEAREST) -> tuple[jax.Array, jax.Array]:
    """Returns the codes and the scales of the blocks.

    Args:
        numbers: floating point, of any shape; a block is 256 elements in row-major order, the last one may be short.
            They must be finite, and for `UNSIGNED` not negative. Subnormal ones may count as zeros.
        code: `SIGNED` or `UNSIGNED`.
        rounding: is added to where a magnitude lies among the codes before the fraction is dropped. Random numbers of
            the shape of `numbers`, uniform from 0 to 1, make the rounding right on average.

    Returns:
        Codes, int8 (signed) or uint8 of the shape of `numbers`, and scales, float32 `(num_blocks,)`. With `UNSIGNED` no
        number but zero is rounded to zero, since this is what other numbers are divided by.
    """
    blocks = _as_blocks(numbers.astype(jnp.float32))
    magnitudes = jnp.abs(blocks)
    scales = jnp.max(magnitudes, axis=1)
    scales = jnp.where(scales >= _SMALLEST_SCALE, scales, 0.0)
    position = _position(magnitudes / jnp.where(scales > 0, scales, 1.0)[:, None], code)
    added = rounding if isinstance(rounding, float) else _as_blocks(rounding)
    codes = jnp.clip(jnp.floor(position + added), 0, code.max_code)
    if not code.is_signed:
        codes = jnp.where(blocks > 0, jnp.maximum(codes, 1), codes)
    codes = jnp.where((scales > 0)[:, None], jnp.where(blocks < 0, -codes, codes), 0)
    return _from_blocks(codes.astype(code.dtype), numbers.shape), scales


def dequantise(codes: jax.Array, scales: jax.Array, code: Code) -> jax.Array:
    """Returns the numbers that codes stand for, float32 of their shape.

    Args:
        codes: as `quantise` made them.
        scales: float32 `(num_blocks,)`, likewise.
        code: the one that they were quantised with.
    """
    blocks = _as_blocks(codes).astype(jnp.float32)
    values = _value(jnp.abs(blocks), code)
    return _from_blocks(jnp.where(blocks < 0, -values, values) * scales[:, None], codes.shape)


def _position(values: jax.Array, code: Code) -> jax.Array:
    """Returns where magnitudes from 0 to 1 lie among the codes; a whole number for the values of codes."""
    lowest, *others = code.lines()
    first_value = lowest.start_value + lowest.step
    position = jnp.where(values < first_value, values / first_value, 1 + (values - first_value) * (1 / lowest.step))
    for line in others:
        here = line.start_code + (values - line.start_value) * (1 / line.step)
        position = jnp.where(values > line.start_value, here, position)
    return position


def _value(codes: jax.Array, code: Code) -> jax.Array:
    """Returns the magnitudes of codes without their signs, both as float32."""
    lowest, *others = code.lines()
    values = jnp.where(codes > 0, lowest.start_value + codes * lowest.step, 0.0)
    for line in others:
        here = line.start_value + (codes - line.start_code) * line.step
        values = jnp.where(codes > line.start_code, here, values)
    return jnp.where(codes == code.max_code, 1.0, values)  # to the bit


def _as_blocks(array: jax.Array) -> jax.Array:
    """Returns `array` as `(num_blocks, 256)`, the last block filled up with zeros."""
    missing = -array.size % BLOCK_SIZE
    flat = array.reshape(-1)
    return (jnp.pad(flat, (0, missing)) if missing else flat).reshape(-1, BLOCK_SIZE)


def _from_blocks(blocks: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Returns the elements that are not filling, in their own shape."""
    return blocks.reshape(-1)[: prod(shape)].reshape(shape)
