"""Weights as narrow numbers with scales: 8-bit or 4-bit integers, or 8-bit floats.

The scheme is symmetric. Each column of a kernel has one scale: its largest absolute value divided by the largest number
of the format (Dettmers et al. 2022, arXiv:2208.07339, section 2.1). 4-bit integers have one scale for each group of 128
rows (Frantar et al. 2022, GPTQ, arXiv:2210.17323, section 5). A kernel of shape `(..., rows, columns)` becomes
`{"int8": (..., rows, columns), "scale": (..., groups, columns)}`, and `product` multiplies by it.

Scales multiply results, not weights: XLA converts integers inside a matrix product, but a scaled weight becomes an
array of its own (jax 0.10.2 and 0.12, H100). The weight-only products of qwix 0.1.8 create these arrays, so memprof
does not use it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from memprof.workloads.scopes import ROUTER

KERNEL, SCALE = "kernel", "scale"
_TINIEST = 1e-6  # keeps the scale of an all-zero column above zero


class Format(NamedTuple):
    """A format of narrow numbers.

    Attributes:
        dtype: JAX's name of the dtype, also the key of the numbers beside `scale`.
        largest: the largest number that is used.
        group_rows: number of rows of a column that share a scale; None means all.
    """

    dtype: str
    largest: float
    group_rows: int | None = None


FORMATS = {
    "int8": Format("int8", 127),
    "int4": Format("int4", 7, group_rows=128),
    "float8": Format("float8_e4m3fn", 448),
}


def with_quantised_kernels(params: Any, weight_dtype: str) -> Any:
    """Return the same parameters with all kernels quantised. Embeddings, norms, biases and expert routers stay.

    Args:
        params: a tree of arrays, in which the kernels of projections have the key `kernel`.
        weight_dtype: a key of `FORMATS`, or `param` to leave the kernels unchanged.
    """
    if weight_dtype not in FORMATS:
        return params

    def of_leaf(path: Any, leaf: jax.Array) -> Any:
        owner, name = jax.tree_util.keystr(path[-2:], simple=True, separator="/").split("/")
        return quantised(leaf, FORMATS[weight_dtype]) if name == KERNEL and owner != ROUTER else leaf

    return jax.tree_util.tree_map_with_path(of_leaf, params)


def quantised(kernel: jax.Array, form: Format) -> dict[str, jax.Array]:
    """Return a kernel `(..., rows, columns)` as narrow numbers, and scales in the dtype of the kernel."""
    rows = kernel.shape[-2]
    is_grouped = form.group_rows is not None and rows % form.group_rows == 0
    grouped = _in_groups(kernel, rows // form.group_rows if form.group_rows and is_grouped else 1).astype(jnp.float32)
    scale = jnp.maximum(jnp.max(jnp.abs(grouped), axis=-2), _TINIEST) / form.largest
    return {
        form.dtype: narrowed(grouped / scale[..., None, :], form).reshape(kernel.shape),
        SCALE: scale.astype(kernel.dtype),
    }


def narrowed(numbers: jax.Array, form: Format) -> jax.Array:
    """Return numbers in a format, clipped to its largest; integers are rounded."""
    dtype = jnp.dtype(form.dtype)
    within = jnp.clip(numbers, -form.largest, form.largest)
    return (jnp.round(within) if jnp.issubdtype(dtype, jnp.integer) else within).astype(dtype)


def product(inputs: jax.Array, kernel: jax.Array | Mapping[str, jax.Array], dtype: jnp.dtype) -> jax.Array:
    """Return `inputs @ kernel` in a dtype, whether the kernel is quantised or not.

    Args:
        inputs: `(..., rows)`.
        kernel: `(rows, columns)`.
    """
    if not isinstance(kernel, Mapping):
        return inputs @ kernel.astype(dtype)
    scale = kernel[SCALE].astype(dtype)
    (numbers,) = (leaf.astype(dtype) for name, leaf in kernel.items() if name != SCALE)
    if len(scale) == 1:
        return (inputs @ numbers) * scale[0]
    # einsum picks the cheaper order: sums of each group for a few tokens, and a dequantised kernel for many.
    grouped = inputs.reshape(*inputs.shape[:-1], len(scale), -1)
    return jnp.einsum("...gr,grc,gc->...c", grouped, _in_groups(numbers, len(scale)), scale)


def _in_groups(kernel: jax.Array, num_groups: int) -> jax.Array:
    *stack, _, columns = kernel.shape
    return kernel.reshape(*stack, num_groups, -1, columns)
