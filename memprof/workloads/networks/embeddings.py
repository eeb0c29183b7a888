"""The two ends of a Transformer: embeddings of tokens and positions, and the output layer.

Tables are float32. Rows are taken in float32 and cast afterwards: the gradient of a table is a scatter-add over all
tokens of the batch, which would lose small terms in bfloat16.
"""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

_table_init = nn.initializers.normal(stddev=0.02)


class TokenEmbedding(nn.Module):
    """A table with a row for each token."""

    vocab_size: int
    hidden_size: int
    dtype: jnp.dtype

    def setup(self) -> None:
        self.embedding = self.param("embedding", _table_init, (self.vocab_size, self.hidden_size))

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Returns the rows of int32 tokens `(batch, length)`: `(batch, length, hidden_size)`."""
        return jnp.take(self.embedding, tokens, axis=0).astype(self.dtype)


class PositionEmbedding(nn.Module):
    """A learned table with a row for each position up to the longest; only the first ones are used."""

    max_length: int
    hidden_size: int
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, length: int) -> jax.Array:
        """Returns the first rows, `(length, hidden_size)`."""
        table = self.param("embedding", _table_init, (self.max_length, self.hidden_size))
        return table[:length].astype(self.dtype)


class OutputLayer(nn.Module):
    """Logits from the residual stream, with a kernel and bias of its own or with the token table."""

    num_outputs: int
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, hidden: jax.Array, token_table: jax.Array | None = None) -> jax.Array:
        """Returns logits, float32 `(..., num_outputs)`: the product in the compute dtype, cast at once.

        Args:
            hidden: `(..., hidden_size)`.
            token_table: `(num_outputs, hidden_size)` where the layer is tied; it then has no parameters of its own.
        """
        if token_table is not None:
            return jnp.einsum("...h,vh->...v", hidden, token_table.astype(self.dtype)).astype(jnp.float32)
        kernel = self.param("kernel", nn.initializers.lecun_normal(), (hidden.shape[-1], self.num_outputs))
        bias = self.param("bias", nn.initializers.zeros_init(), (self.num_outputs,))
        return jnp.einsum("...h,hv->...v", hidden, kernel.astype(self.dtype)).astype(jnp.float32) + bias
