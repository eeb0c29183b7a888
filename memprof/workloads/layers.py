"""Building blocks of all networks: layers in the configuration's dtypes, and the checkpoints around them.

A checkpointed part keeps its arguments (and the values that its policy names) from the forward pass; the backward pass
recomputes the rest. XLA would recognise the recomputation as a duplicate and keep the first result, so JAX puts a
barrier between the two. In a loop over layers the two are already in different loops, and the barrier would only
prevent fusions, so it is left out there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from memprof.workloads import quantisation
from memprof.workloads.train_config import TrainConfig

_Module = TypeVar("_Module", bound=type[nn.Module])
_ROTARY_BASE = 10_000.0
_Function = Callable[[jax.Array], jax.Array]


def compute_dtype(config: TrainConfig) -> jnp.dtype:
    """Return the dtype of matrix products and activations."""
    return jnp.dtype(config.compute_dtype)


def param_dtype(config: TrainConfig) -> jnp.dtype:
    """Return the dtype of the parameters."""
    return jnp.dtype(config.param_dtype)


def dense(num_features: int, config: TrainConfig, name: str | None = None, *, has_bias: bool = True) -> nn.Dense:
    """Return a projection."""
    as_quantised = {} if config.weight_dtype == "param" else _QUANTISED
    return nn.Dense(
        num_features,
        use_bias=has_bias,
        dtype=compute_dtype(config),
        param_dtype=param_dtype(config),
        name=name,
        **as_quantised,
    )


def _promote_around_kernel(
    inputs: jax.Array, kernel: Any, bias: jax.Array | None, *, dtype: jnp.dtype
) -> tuple[Any, ...]:
    return inputs.astype(dtype), kernel, None if bias is None else bias.astype(dtype)


def _quantised_product(inputs: jax.Array, kernel: Any, dimension_numbers: Any, *, precision: Any) -> jax.Array:
    del dimension_numbers, precision  # the last axis of the inputs and the first axis of the kernel
    return quantisation.product(inputs, kernel, inputs.dtype)


_QUANTISED: dict[str, Any] = {"promote_dtype": _promote_around_kernel, "dot_general": _quantised_product}


def layer_norm(config: TrainConfig, name: str | None = None) -> nn.LayerNorm:
    """Return a LayerNorm; Flax computes its mean and variance in float32 for all dtypes."""
    return nn.LayerNorm(dtype=compute_dtype(config), param_dtype=param_dtype(config), name=name)


def rms_norm(config: TrainConfig, name: str | None = None) -> nn.RMSNorm:
    """Return an RMSNorm (Zhang and Sennrich 2019, arXiv:1910.07467); its mean square is also in float32."""
    return nn.RMSNorm(dtype=compute_dtype(config), param_dtype=param_dtype(config), name=name)


def norm(kind: str, config: TrainConfig, name: str | None = None) -> nn.LayerNorm | nn.RMSNorm:
    """Return the norm of a kind: `layer` or `rms`."""
    return (rms_norm if kind == "rms" else layer_norm)(config, name)


def rotated(heads: jax.Array, positions: jax.Array) -> jax.Array:
    """Return queries or keys rotated by their positions (Su et al. 2021, arXiv:2104.09864).

    Args:
        heads: `(batch, tokens, heads, head_size)`, with an even head size.
        positions: `(batch, tokens)`, or with a batch of 1.
    """
    half = heads.shape[-1] // 2
    angles = positions[..., None, None] * _ROTARY_BASE ** (-jnp.arange(half) / half)
    sine, cosine = jnp.sin(angles), jnp.cos(angles)
    one, other = jnp.split(heads.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([one * cosine - other * sine, other * cosine + one * sine], axis=-1)
    return turned.astype(heads.dtype)


def checkpointed(module: _Module, part: str, config: TrainConfig) -> _Module:
    """Return the module class, checkpointed if `config.remat_modules` names this part (`block`, `mlp`, ...)."""
    if part not in config.remat_modules.split(","):
        return module
    wrapped: _Module = nn.remat(module, prevent_cse=not config.scan_layers, policy=_policy(config))
    return wrapped


def checkpointed_activation(function: _Function, config: TrainConfig) -> _Function:
    """Return the activation function, checkpointed if `config.remat_activation` is set."""
    if not config.remat_activation:
        return function
    wrapped: _Function = jax.checkpoint(function, prevent_cse=not config.scan_layers)
    return wrapped


def _policy(config: TrainConfig) -> Callable[..., object] | None:
    policies = jax.checkpoint_policies
    names = config.remat_names.split(",")
    if config.remat_policy == "products":
        # Products with batch dimensions are those of attention. Its probabilities grow with the square of the length,
        # and
        # are the main reason to checkpoint, so they are not kept.
        return policies.dots_with_no_batch_dims_saveable
    if config.remat_policy == "names":
        return policies.save_only_these_names(*names)
    if config.remat_policy == "offload":
        return policies.save_and_offload_only_these_names(
            names_which_can_be_saved=(),
            names_which_can_be_offloaded=names,
            offload_src="device",
            offload_dst="pinned_host",
        )
    return None
