"""The Transformer: embeddings, a stack of blocks, a final norm, and an output layer.

Parameter paths read `token_embedding/embedding`, `layers_0/attention/qkv/kernel`, `layers_0/mlp/up/kernel`,
`final_norm/scale`, `head/kernel`.
"""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from memprof.workloads.models.transformer import TransformerConfig
from memprof.workloads.networks.block import Block
from memprof.workloads.networks.embeddings import OutputLayer, PositionEmbedding, TokenEmbedding
from memprof.workloads.networks.masks import causal_mask, combine_masks, custom_mask, padding_mask
from memprof.workloads.train_config import TrainConfig


class Transformer(nn.Module):
    """A decoder (`task` next_token) or an encoder with a classifier on its first token (`task` classification).

    `encode` and `decode` are the two halves, for a loss that never holds all logits at once. They open no scope of
    their own (`nowrap`), so that operation names keep the paths of the parameters.
    """

    config: TransformerConfig
    train_config: TrainConfig

    def setup(self) -> None:
        config, dtype = self.config, jnp.dtype(self.train_config.compute_dtype)
        self.token_embedding = TokenEmbedding(config.vocab_size, config.hidden_size, dtype)
        self.position_embedding = PositionEmbedding(config.max_seq_len, config.hidden_size, dtype)
        self.embedding_dropout = nn.Dropout(config.embedding_dropout_rate, deterministic=False)
        self.layers = [Block(config, self.train_config) for _ in range(config.num_layers)]
        self.final_norm = nn.LayerNorm(dtype=dtype)
        if config.task == "classification":
            self.pooler = nn.Dense(config.hidden_size, dtype=dtype)
            self.pooler_dropout = nn.Dropout(config.dropout_rate, deterministic=False)
            self.head = OutputLayer(config.num_classes, dtype)
        else:
            self.head = OutputLayer(config.vocab_size, dtype)

    def __call__(
        self, inputs: jax.Array, input_mask: jax.Array | None = None, attention_mask: jax.Array | None = None
    ) -> jax.Array:
        """Returns logits in float32: `(batch, length, vocab_size)`, or `(batch, num_classes)` for classification.

        Args:
            inputs: tokens, int32 `(batch, length)`.
            input_mask: bool `(batch, length)`, False for padding; None where there is none.
            attention_mask: bool `(batch, length, length)`, queries before keys, True where attention is allowed.
        """
        return self.decode(self.encode(inputs, input_mask, attention_mask))

    @nn.nowrap
    def encode(
        self, inputs: jax.Array, input_mask: jax.Array | None = None, attention_mask: jax.Array | None = None
    ) -> jax.Array:
        """Returns the normalised residual stream, `(batch, length, hidden_size)` in the compute dtype."""
        length = inputs.shape[1]
        mask = combine_masks(
            causal_mask(length) if self.config.causal else None,
            None if input_mask is None else padding_mask(input_mask),
            None if attention_mask is None else custom_mask(attention_mask),
        )
        hidden = self.embedding_dropout(self.token_embedding(inputs) + self.position_embedding(length))
        for layer in self.layers:
            hidden = layer(hidden, mask)
        return self.final_norm(hidden)

    @nn.nowrap
    def decode(self, hidden: jax.Array) -> jax.Array:
        """Returns the logits, float32, of a residual stream `(batch, length, hidden_size)`."""
        if self.config.task == "classification":
            # As in BERT: the first token stands for the sequence.
            pooled = nn.tanh(self.pooler(hidden[:, 0]))
            return self.head(self.pooler_dropout(pooled))
        return self.head(hidden, self.token_embedding.embedding if self.config.tied_embeddings else None)
