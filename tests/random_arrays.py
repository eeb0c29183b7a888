"""Random arrays for module level: `jax.random` would compile in every process that collects the tests."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np


def normal(seed: int, shape: tuple[int, ...], dtype: object = jnp.float32) -> jax.Array:
    """Normally distributed numbers, of which nothing is compiled."""
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape).astype(dtype))
