r"""AdamW with both moments quantised to 8 bits, block by block.

Each step dequantises the moments, updates them in float32 like AdamW, uses them, and quantises them again:

.. math::

    m_t &= \beta_1 \, Q^{-1}(m_{t-1}) + (1 - \beta_1) \, g_t \\
    r_t &= \sqrt{\beta_2 \, Q^{-1}(r_{t-1})^2 + (1 - \beta_2) \, g_t^2} \\
    u_t &= \frac{m_t / (1 - \beta_1^t)}{r_t / \sqrt{1 - \beta_2^t} + \epsilon}

It differs from the published version in two points, for more precision at the same number of bytes:

- It keeps the root :math:`r` of the second moment, whose magnitudes spread half as wide. Beside much larger values in
  the same block (such blocks hold the rows of rare tokens), a second moment could round to zero while its first moment
  does not. A step without a gradient, divided by :math:`\epsilon` alone, would then be enormous.
- It rounds the root at random. A step changes it by a thousandth, but the codes are hundredths apart. The nearest code
  would usually be the old one, and a growing second moment would not change. The random numbers are a hash of the
  element's position and the number of the update, so that a run is reproducible.

Reference: Dettmers et al. 2021, 8-bit Optimizers via Block-wise Quantization, arXiv:2110.02861.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import optax

from memprof.workloads.optimizers.blockwise import NEAREST, SIGNED, UNSIGNED, Code, dequantise, quantise

Tree = Any
MIN_QUANTISED_SIZE: Final = 4096  # as published: smaller tensors use little memory, and are the most fragile
_NO_SCALE = optax.MaskedNode()  # an empty tree: the leaf stays float32


class ScaleByAdam8bitState(NamedTuple):
    """Both moments, each as two trees of the parameters' structure, so that each leaf's path ends like its parameter's.

    Attributes:
        count: number of updates, int32 `()`.
        mu, nu: first moment, and root of the second: int8 and uint8 of the parameter's shape; float32 for small
            parameters.
        mu_scale, nu_scale: float32 `(num_blocks,)`; empty for small parameters.
    """

    count: jax.Array
    mu: Tree
    mu_scale: Tree
    nu: Tree
    nu_scale: Tree


def adam8bit(
    learning_rate: optax.ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 1e-2,
) -> optax.GradientTransformation:
    """AdamW that keeps about 2.03 bytes of state per parameter instead of 8.

    Args:
        learning_rate: a number, or a schedule of the number of updates.
        b1: decay of the first moment.
        b2: decay of the second moment.
        eps: number that is added to the root of the second moment.
        weight_decay: decoupled, times the learning rate, of all parameters.

    Example:
        >>> import jax.numpy as jnp
        >>> params = {"kernel": jnp.ones((64, 64))}
        >>> optimizer = adam8bit(1e-3)
        >>> state = optimizer.init(params)
        >>> state[0].mu["kernel"].dtype, state[0].mu_scale["kernel"].shape
        (dtype('int8'), (16,))
    """
    return optax.chain(
        scale_by_adam8bit(b1=b1, b2=b2, eps=eps),
        optax.add_decayed_weights(weight_decay),
        optax.scale_by_learning_rate(learning_rate),
    )


def scale_by_adam8bit(b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8) -> optax.GradientTransformation:
    """Return the stateful part of `adam8bit`, which documents the arguments."""

    def init(params: optax.Params) -> ScaleByAdam8bitState:
        mu, mu_scale = _split(params, jax.tree.map(lambda param: _pack(jnp.zeros(param.shape), SIGNED), params))
        nu, nu_scale = _split(params, jax.tree.map(lambda param: _pack(jnp.zeros(param.shape), UNSIGNED), params))
        return ScaleByAdam8bitState(jnp.zeros((), jnp.int32), mu, mu_scale, nu, nu_scale)

    def update(
        updates: optax.Updates, state: ScaleByAdam8bitState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, ScaleByAdam8bitState]:
        count = optax.safe_increment(state.count)
        correction = 1 - b1 ** count.astype(jnp.float32)
        root_correction = jnp.sqrt(1 - b2 ** count.astype(jnp.float32))

        def update_leaf(gradient: jax.Array, *moments: Tree) -> tuple[jax.Array, Tree, Tree]:
            mu, mu_scale, nu, nu_scale = moments
            wide = gradient.astype(jnp.float32)
            first = b1 * _unpack(mu, mu_scale, SIGNED) + (1 - b1) * wide
            root = jnp.sqrt(b2 * jnp.square(_unpack(nu, nu_scale, UNSIGNED)) + (1 - b2) * jnp.square(wide))
            step = (first / correction) / (root / root_correction + eps)
            packed_root = _pack(root, UNSIGNED, _uniform(root.shape, count))
            return step.astype(gradient.dtype), _pack(first, SIGNED), packed_root

        results = jax.tree.map(update_leaf, updates, state.mu, state.mu_scale, state.nu, state.nu_scale)
        steps, first, root = _unzip(updates, results, 3)
        mu, mu_scale = _split(updates, first)
        nu, nu_scale = _split(updates, root)
        return steps, ScaleByAdam8bitState(count, mu, mu_scale, nu, nu_scale)

    return optax.GradientTransformation(init, update)


def _pack(moment: jax.Array, code: Code, rounding: jax.Array | float = NEAREST) -> tuple[jax.Array, Tree]:
    """Return a moment in stored form: codes and scales, or a small moment itself and an empty tree."""
    return quantise(moment, code, rounding) if moment.size >= MIN_QUANTISED_SIZE else (moment, _NO_SCALE)


def _unpack(kept: jax.Array, scale: Tree, code: Code) -> jax.Array:
    return kept if isinstance(scale, optax.MaskedNode) else dequantise(kept, scale, code)


def _uniform(shape: tuple[int, ...], count: jax.Array) -> jax.Array:
    """Return pseudorandom numbers from 0 to 1: float32, a function of only each element's position and `count`.

    This is the final mixer of MurmurHash3: a few integer operations that fuse with their users. A generator of
    `jax.random` would cost more than the rest of the update.
    """
    position = jax.lax.iota(jnp.uint32, math.prod(shape)).reshape(shape)
    mixed = position * jnp.uint32(0x9E3779B9) + count.astype(jnp.uint32) * jnp.uint32(0x7FEB352D)
    mixed = (mixed ^ (mixed >> 16)) * jnp.uint32(0x85EBCA6B)
    mixed = (mixed ^ (mixed >> 13)) * jnp.uint32(0xC2B2AE35)
    mixed = mixed ^ (mixed >> 16)
    return (mixed >> 8).astype(jnp.float32) * 2.0**-24


def _split(like: Tree, pairs: Tree) -> tuple[Tree, Tree]:
    first, second = _unzip(like, pairs, 2)
    return first, second


def _unzip(like: Tree, tuples: Tree, length: int) -> tuple[Tree, ...]:
    """Convert a tree of tuples to a tuple of trees, each with the structure of `like`."""
    structure = jax.tree.structure(like)
    leaves = structure.flatten_up_to(tuples)
    return tuple(structure.unflatten([leaf[index] for leaf in leaves]) for index in range(length))
