"""Block-wise quantisation to 8 bits: each block of 256 numbers has a scale of its own, so that an outlier costs only it.

A number is divided by the largest magnitude of its block, and one of 256 values stands for it: the nearest, or at random
one of its two neighbours. The values are spread as in dynamic tree quantisation: seven decades from 1e-7 to 1, and the
higher the decade the finer its steps, so that neither small nor large magnitudes are lost:

    codes, scales = quantise(moment, SIGNED)
    moment = dequantise(codes, scales, SIGNED)

The values of a decade are its multiples of an equal step, with the end included, so that the block's largest number is
exact, whatever its sign.

Reference: Dettmers et al. 2021, 8-bit Optimizers via Block-wise Quantization, arXiv:2110.02861, section 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from memprof.workloads.optimizers.adam8bit import BLOCK_SIZE

_NUM_DECADES: Final = 7
_TABLE_SIZE: Final = 256
NEAREST: Final = 0.5
_SMALLEST_SCALE: Final = float(np.finfo(np.float32).tiny)  # below it, devices may take a number for zero


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Code:
    """The numbers that the 256 codes stand for.

    Attributes:
        values: float32 `(256,)`, ascending, from -1 or 0 to 1. The last value is there twice, since there are 255.
        zero: the code of 0.
    """

    values: NDArray[np.float32]
    zero: int


def _positive(steps_of_lowest_decade: int) -> NDArray[np.float64]:
    """Returns 7 decades, each with twice the steps of the one below it; the end of each is in it, its start is not."""
    decades = []
    for decade in range(_NUM_DECADES):
        num_steps = steps_of_lowest_decade * 2**decade
        decades.append(np.linspace(0.1, 1.0, num_steps + 1)[1:] * 10.0 ** (decade + 1 - _NUM_DECADES))
    return np.concatenate(decades)


def _code(values: NDArray[np.float64]) -> Code:
    padded = np.append(values, values[-1])
    assert padded.shape == (_TABLE_SIZE,)
    return Code(values=padded.astype(np.float32), zero=int(np.flatnonzero(values == 0.0)[0]))


SIGNED: Final = _code(np.concatenate([-_positive(1)[::-1], [0.0], _positive(1)]))
UNSIGNED: Final = _code(np.concatenate([[0.0], _positive(2)]))


def quantise(
    numbers: jax.Array, code: Code, round_up_from: jax.Array | float = NEAREST
) -> tuple[jax.Array, jax.Array]:
    """Returns the codes and the scales of the blocks.

    Args:
        numbers: floating point, of any shape; a block is 256 elements in row-major order, the last one may be short.
            They must be finite, and for `UNSIGNED` not negative. Subnormal ones may count as zeros.
        code: `SIGNED` or `UNSIGNED`.
        round_up_from: where between two values numbers begin to be rounded up, from 0 at the lower to 1 at the upper
            one. Random numbers of the shape of `numbers`, uniform from 0 to 1, make the rounding right on average.

    Returns:
        Codes, uint8 of the shape of `numbers`, and scales, float32 `(num_blocks,)`. With `UNSIGNED` no number but zero
        is rounded to zero, since this is what other numbers are divided by.
    """
    blocks = _as_blocks(numbers.astype(jnp.float32))
    scales = jnp.max(jnp.abs(blocks), axis=1)
    scales = jnp.where(scales >= _SMALLEST_SCALE, scales, 0.0)
    relative = blocks / jnp.where(scales > 0, scales, 1.0)[:, None]
    threshold = round_up_from if isinstance(round_up_from, float) else _as_blocks(round_up_from)
    codes = _rounded(relative, code, threshold)
    if code is UNSIGNED:
        codes = jnp.where(blocks > 0, jnp.maximum(codes, code.zero + 1), codes)
    codes = jnp.where((scales > 0)[:, None], codes, code.zero)
    return _from_blocks(codes.astype(jnp.uint8), numbers.shape), scales


def dequantise(codes: jax.Array, scales: jax.Array, code: Code) -> jax.Array:
    """Returns the numbers that codes stand for, float32 of their shape.

    Args:
        codes: uint8, as `quantise` made them.
        scales: float32 `(num_blocks,)`, likewise.
        code: the one that they were quantised with.
    """
    blocks = _as_blocks(codes)
    return _from_blocks(jnp.asarray(code.values)[blocks] * scales[:, None], codes.shape)


def _rounded(relative: jax.Array, code: Code, round_up_from: jax.Array | float) -> jax.Array:
    """Returns the codes of numbers from -1 to 1: int32 of their shape.

    The value below a number is found by a binary search in eight steps without a loop, which XLA fuses into one pass
    over the numbers; `jnp.searchsorted` would carry its bounds through memory.
    """
    values = jnp.asarray(np.append(code.values[:-1], np.float32(np.inf)))
    codes = jnp.zeros(relative.shape, jnp.int32)
    for step in (128, 64, 32, 16, 8, 4, 2, 1):
        codes = jnp.where(relative >= values[codes + step], codes + step, codes)
    lower, upper = values[codes], values[codes + 1]
    return codes + ((relative - lower) / (upper - lower) > round_up_from)


def _as_blocks(array: jax.Array) -> jax.Array:
    """Returns `array` as `(num_blocks, 256)`, the last block filled up with zeros."""
    missing = -array.size % BLOCK_SIZE
    flat = array.reshape(-1)
    return (jnp.pad(flat, (0, missing)) if missing else flat).reshape(-1, BLOCK_SIZE)


def _from_blocks(blocks: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Returns the elements that are not filling, in their own shape."""
    return blocks.reshape(-1)[: int(np.prod(shape))].reshape(shape)
