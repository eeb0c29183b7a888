"""The two ends of a Transformer: embeddings of tokens and positions, and the output layer.

Rows of a float32 table are gathered in float32 and cast afterwards. The gradient of a table is a scatter-add over all
tokens of the batch, which would lose small terms in bfloat16 (as it does if the table itself is bfloat16).
"""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from memprof.workloads.layers import compute_dtype, param_dtype
from memprof.workloads.quantisation import product
from memprof.workloads.train_config import TrainConfig

_table_init = nn.initializers.normal(stddev=0.02)


class TokenEmbedding(nn.Module):
    """A table with a row for each token."""

    vocab_size: int
    hidden_size: int
    train_config: TrainConfig

    def setup(self) -> None:
        shape = (self.vocab_size, self.hidden_size)
        self.embedding = self.param("embedding", _table_init, shape, param_dtype(self.train_config))

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Return the rows of int32 tokens `(batch, length)`: `(batch, length, hidden_size)`."""
        return jnp.take(self.embedding, tokens, axis=0).astype(compute_dtype(self.train_config))


class PositionEmbedding(nn.Module):
    """A learned table with a row for each position up to the maximum; shorter sequences use the first rows."""

    max_length: int
    hidden_size: int
    train_config: TrainConfig

    @nn.compact
    def __call__(self, length: int) -> jax.Array:
        """Return the first rows, `(length, hidden_size)`."""
        shape = (self.max_length, self.hidden_size)
        table = self.param("embedding", _table_init, shape, param_dtype(self.train_config))
        return table[:length].astype(compute_dtype(self.train_config))


class OutputLayer(nn.Module):
    """Logits from the residual stream, with its own kernel and bias or with the token table."""

    num_outputs: int
    train_config: TrainConfig
    has_bias: bool = True

    @nn.compact
    def __call__(self, hidden: jax.Array, token_table: jax.Array | None = None) -> jax.Array:
        """Return logits, float32 `(..., num_outputs)`: the product in the compute dtype, cast immediately.

        Args:
            hidden: `(..., hidden_size)`.
            token_table: `(num_outputs, hidden_size)` if the layer is tied; it then has no parameters of its own.
        """
        dtype, held_as = compute_dtype(self.train_config), param_dtype(self.train_config)
        if token_table is not None:
            return jnp.einsum("...h,vh->...v", hidden, token_table.astype(dtype)).astype(jnp.float32)
        shape = (hidden.shape[-1], self.num_outputs)
        kernel = self.param("kernel", nn.initializers.lecun_normal(), shape, held_as)
        logits = product(hidden, kernel, dtype).astype(jnp.float32)
        if not self.has_bias:
            return logits
        return logits + self.param("bias", nn.initializers.zeros_init(), (self.num_outputs,), held_as)
