"""The Transformer with its batch and its loss: embeddings, a stack of blocks, a final norm, and an output layer.

Parameter paths read `token_embedding/embedding`, `layers_0/attention/qkv/kernel`, `layers_0/mlp/up/kernel`,
`final_norm/scale`, `head/kernel`. If a loop goes through the layers, their parameters are stacked under
`layers/attention/...`, with the layer as the first axis.
"""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from memprof.workloads.layers import checkpointed, dense, norm
from memprof.workloads.losses import CrossEntropy
from memprof.workloads.mesh_axes import PP
from memprof.workloads.model import Model, Unpruned
from memprof.workloads.models.transformer.attention import (
    Masking,
    causal_mask,
    combine_masks,
    custom_mask,
    padding_mask,
    real_lengths,
)
from memprof.workloads.models.transformer.batch import batch_shapes, sample
from memprof.workloads.models.transformer.blocks import TENSOR_AXES, Block
from memprof.workloads.models.transformer.config import TransformerConfig
from memprof.workloads.models.transformer.embeddings import OutputLayer, PositionEmbedding, TokenEmbedding
from memprof.workloads.models.transformer.pruning import prune_layers, pruned_config
from memprof.workloads.pipeline import pipeline
from memprof.workloads.scopes import LAYERS, LOSSES
from memprof.workloads.sharding import BATCH, LENGTH, TOKENS, WIDTH, divided
from memprof.workloads.train_config import TrainConfig


class Transformer(nn.Module):
    """A decoder (`task` next_token) or an encoder with a classifier on its first token (`task` classification).

    `encode` and `decode` are the two halves, for a loss that never holds all logits at once. They open no scope of
    their own (`nowrap`), so that operation names keep the paths of the parameters.
    """

    config: TransformerConfig
    train_config: TrainConfig

    def setup(self) -> None:
        config, train_config = self.config, self.train_config
        block = checkpointed(Block, "block", train_config)
        self.token_embedding = TokenEmbedding(config.vocab_size, config.hidden_size, train_config)
        if config.positions == "learned":
            self.position_embedding = PositionEmbedding(config.max_seq_len, config.hidden_size, train_config)
        self.embedding_dropout = nn.Dropout(config.embedding_dropout_rate, deterministic=False)
        layers: Block | list[Block]
        if train_config.scan_layers:
            layers = block(config, train_config)
        else:
            layers = [block(config, train_config) for _ in range(config.num_layers)]
        self.layers = layers
        self.final_norm = norm(config.norm, train_config)
        if config.task == "classification":
            self.pooler = dense(config.hidden_size, train_config, has_bias=config.biases)
            self.pooler_dropout = nn.Dropout(config.dropout_rate, deterministic=False)
            self.head = OutputLayer(config.num_classes, train_config, has_bias=config.biases)
        else:
            self.head = OutputLayer(config.vocab_size, train_config, has_bias=config.biases)

    def __call__(
        self, inputs: jax.Array, input_mask: jax.Array | None = None, attention_mask: jax.Array | None = None
    ) -> jax.Array:
        """Return logits in float32: `(batch, length, vocab_size)`, or `(batch, num_classes)` for classification.

        Args:
            inputs: tokens, int32 `(batch, length)`.
            input_mask: bool `(batch, length)`, False for padding; None without padding.
            attention_mask: bool `(batch, length, length)`, queries before keys, True where attention is allowed.
        """
        return self.decode(self.encode(inputs, input_mask, attention_mask))

    @nn.nowrap
    def encode(
        self, inputs: jax.Array, input_mask: jax.Array | None = None, attention_mask: jax.Array | None = None
    ) -> jax.Array:
        """Return the normalised residual stream, `(batch, length, hidden_size)` in the compute dtype."""
        hidden = self.token_embedding(inputs)
        if self.config.positions == "learned":
            hidden = hidden + self.position_embedding(inputs.shape[1])
        hidden = divided(self.embedding_dropout(hidden), self.train_config, BATCH, LENGTH)
        if self.train_config.pipelined and not self.is_initializing():
            hidden = self._through_stages(hidden, input_mask, attention_mask)
        else:
            hidden = self._through_layers(hidden, self._masking(hidden, input_mask, attention_mask))
        return self.final_norm(hidden)

    @nn.nowrap
    def decode(self, hidden: jax.Array) -> jax.Array:
        """Return the logits, float32, of a residual stream `(batch, length, hidden_size)` or of some of its tokens."""
        if self.config.task == "classification":
            # As in BERT, the first token represents the sequence.
            pooled = nn.tanh(self.pooler(hidden[:, 0]))
            return self.head(self.pooler_dropout(pooled))
        by_token = (BATCH, LENGTH) if hidden.ndim == 3 else (TOKENS,)
        hidden = divided(hidden, self.train_config, *by_token)
        logits = self.head(hidden, self.token_embedding.embedding if self.config.tied_embeddings else None)
        return divided(logits, self.train_config, *by_token, WIDTH)

    @nn.nowrap
    def _masking(self, hidden: jax.Array, input_mask: jax.Array | None, attention_mask: jax.Array | None) -> Masking:
        if self.train_config.attention_kernel == "flash":
            return Masking(lengths=None if input_mask is None else real_lengths(input_mask))
        mask = combine_masks(
            causal_mask(hidden.shape[1]) if self.config.causal else None,
            None if input_mask is None else padding_mask(input_mask),
            None if attention_mask is None else custom_mask(attention_mask),
        )
        return Masking(allowed=mask)

    @nn.nowrap
    def _through_layers(self, hidden: jax.Array, masking: Masking) -> jax.Array:
        if not self.train_config.scan_layers:
            for layer in self.layers:
                hidden = layer(hidden, masking)
            return hidden
        scan = nn.scan(
            lambda layer, hidden, masking: (layer(hidden, masking), None),
            variable_axes={"params": 0, LOSSES: 0},
            split_rngs={"params": True, "dropout": True},
            in_axes=nn.broadcast,
            length=self.config.num_layers,
        )
        hidden, _ = scan(self.layers, hidden, masking)
        return hidden

    @nn.nowrap
    def _through_stages(
        self, hidden: jax.Array, input_mask: jax.Array | None, attention_mask: jax.Array | None
    ) -> jax.Array:
        """Like `_through_layers`, with the stacked layers divided over the devices of a pipeline."""
        block = checkpointed(Block, "block", self.train_config)(
            self.config, self.train_config, parent=None, name=LAYERS
        )

        def run_stage(params: Any, microbatch: Any, rng: jax.Array) -> tuple[Any, Any]:
            hidden, *masks = microbatch
            masking = self._masking(hidden, *masks)

            def run_layer(hidden: jax.Array, numbered: tuple[jax.Array, Any]) -> tuple[jax.Array, Any]:
                number, params = numbered
                rngs = {"dropout": jax.random.fold_in(rng, number)}
                return block.apply({"params": params}, hidden, masking, rngs=rngs, mutable=[LOSSES])

            num_layers = jax.tree.leaves(params)[0].shape[0]
            hidden, sown = jax.lax.scan(run_layer, hidden, (jnp.arange(num_layers), params))
            return (hidden, *masks), jax.tree.map(jnp.sum, sown)

        (hidden, *_), sown = pipeline(
            run_stage,
            self.variables["params"][LAYERS],
            (hidden, input_mask, attention_mask),
            self.make_rng("dropout"),
            axis=PP,
            num_microbatches=self.train_config.num_microbatches,
        )
        self.sow(LOSSES, "stages", sown)
        return hidden


def build_transformer(config: TransformerConfig, train_config: TrainConfig) -> Model:
    """Return the Transformer as a trainable model."""
    masks = (("input_mask", config.padding_mask), ("attention_mask", config.custom_mask))
    counts_by_token = config.padding_mask and config.task == "next_token"
    smaller = pruned_config(config, train_config.structurally_pruned_fraction)
    whole = Transformer(config=config, train_config=train_config)
    return Model(
        module=Transformer(config=smaller, train_config=train_config),
        unpruned=None if smaller == config else Unpruned(whole, lambda params: prune_layers(params, config, smaller)),
        inputs=("inputs", *(name for name, is_on in masks if is_on)),
        loss=CrossEntropy(counted="input_mask" if counts_by_token else None),
        num_loss_chunks=train_config.num_loss_chunks,
        batch_shapes=batch_shapes(config),
        sample=lambda rng: sample(config, rng),
        tensor_axes=TENSOR_AXES,
    )
