"""Block-wise quantisation to 8 bits: each block of 256 numbers has its own scale, so an outlier affects no other block.

A number is divided by the largest magnitude of its block. The fourth root of the result, from 0 to 1, is rounded to one
of 127 equal steps and a sign, or to one of 255 steps if there are no negative numbers:

    codes, scales = quantise(moment, SIGNED)
    moment = dequantise(codes, scales, SIGNED)

The moments of an optimizer spread over many magnitudes, and the root gives each magnitude a share of the codes. The
step between two codes is 3% of the block's largest number, 10% of one that is a hundred times smaller, 31% of one that
is ten thousand times smaller, and half of that without a sign.

The published dynamic code uses seven decades instead, each with twice the values of the one below it. That requires a
table lookup, or a case for each decade. XLA fuses two square roots with the update around them. We tried the table and
the cases: they took XLA about three times as long to compile, and needed up to two more arrays of the parameter's size
at run time (jax 0.12, H100).

Reference: Dettmers et al. 2021, 8-bit Optimizers via Block-wise Quantization, arXiv:2110.02861, section 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Final

import jax
import jax.numpy as jnp
import numpy as np

BLOCK_SIZE: Final = 256
NEAREST: Final = 0.5
_SMALLEST_SCALE: Final = float(np.finfo(np.float32).tiny)  # below it, devices may treat a number as zero


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """A range of codes: from `-max_code` or 0 to `max_code`, which represents the block's largest magnitude."""

    is_signed: bool

    @property
    def dtype(self) -> np.dtype[np.int8] | np.dtype[np.uint8]:
        return np.dtype(np.int8) if self.is_signed else np.dtype(np.uint8)

    @property
    def max_code(self) -> int:
        return int(np.iinfo(self.dtype).max)


SIGNED: Final = Code(is_signed=True)
UNSIGNED: Final = Code(is_signed=False)


def quantise(numbers: jax.Array, code: Code, rounding: jax.Array | float = NEAREST) -> tuple[jax.Array, jax.Array]:
    """Return the codes, and the scales of the blocks.

    Args:
        numbers: floating point, of any shape. A block is 256 elements in row-major order; the last one may be short.
            The numbers must be finite, and for `UNSIGNED` not negative. Subnormal numbers may count as zeros.
        code: `SIGNED` or `UNSIGNED`.
        rounding: number that is added to the magnitude of a code before its fraction is dropped. With random numbers of
            the shape of `numbers`, uniform from 0 to 1, the chance of rounding up equals the code's fraction.

    Returns:
        Codes, int8 (signed) or uint8 of the shape of `numbers`, and scales, float32 `(num_blocks,)`. With `UNSIGNED`
            only
        zero is rounded to zero, because the result serves as a divisor.
    """
    blocks = _as_blocks(numbers.astype(jnp.float32))
    magnitudes = jnp.abs(blocks)
    scales = jnp.max(magnitudes, axis=1)
    scales = jnp.where(scales >= _SMALLEST_SCALE, scales, 0.0)
    relative = magnitudes / jnp.where(scales > 0, scales, 1.0)[:, None]
    exact = jnp.sqrt(jnp.sqrt(relative)) * code.max_code
    codes = jnp.floor(exact + (rounding if isinstance(rounding, float) else _as_blocks(rounding)))
    codes = jnp.minimum(codes, code.max_code)
    if code.is_signed:
        codes = jnp.where(blocks < 0, -codes, codes)
    else:
        codes = jnp.where(blocks > 0, jnp.maximum(codes, 1), codes)
    codes = jnp.where((scales > 0)[:, None], codes, 0)
    return _from_blocks(codes.astype(code.dtype), numbers.shape), scales


def dequantise(codes: jax.Array, scales: jax.Array, code: Code) -> jax.Array:
    """Return the numbers that codes represent, float32 of their shape.

    Args:
        codes: codes from `quantise`.
        scales: scales from `quantise`, float32 `(num_blocks,)`.
        code: the code that they were quantised with.
    """
    roots = _as_blocks(codes).astype(jnp.float32) * (1 / code.max_code)
    magnitudes = jnp.square(jnp.square(roots)) * scales[:, None]
    return _from_blocks(jnp.where(roots < 0, -magnitudes, magnitudes), codes.shape)


def _as_blocks(array: jax.Array) -> jax.Array:
    """Return `array` as `(num_blocks, 256)`, with the last block padded with zeros."""
    missing = -array.size % BLOCK_SIZE
    flat = array.reshape(-1)
    return (jnp.pad(flat, (0, missing)) if missing else flat).reshape(-1, BLOCK_SIZE)


def _from_blocks(blocks: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Return the elements in their own shape, without the padding."""
    return blocks.reshape(-1)[: prod(shape)].reshape(shape)
