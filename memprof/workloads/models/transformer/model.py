"""The Transformer with its batch and its loss."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from memprof.workloads import synthetic
from memprof.workloads.losses import CrossEntropy
from memprof.workloads.model import Model, Unpruned
from memprof.workloads.models.transformer.config import TransformerConfig
from memprof.workloads.models.transformer.network import Transformer
from memprof.workloads.models.transformer.pruning import prune_layers, pruned_config
from memprof.workloads.train_config import TrainConfig


def build_transformer(config: TransformerConfig, train_config: TrainConfig) -> Model:
    """Returns the Transformer as a model that can be trained."""
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
    )


def batch_shapes(config: TransformerConfig) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns shape and dtype of the batch: tokens, labels (by token or by sequence), and the masks asked for."""
    by_token = (config.batch_size, config.seq_len)
    by_sequence = (config.batch_size,)
    shapes = {
        "inputs": jax.ShapeDtypeStruct(by_token, jnp.int32),
        "labels": jax.ShapeDtypeStruct(by_sequence if config.task == "classification" else by_token, jnp.int32),
    }
    if config.padding_mask:
        shapes["input_mask"] = jax.ShapeDtypeStruct(by_token, jnp.bool_)
    if config.custom_mask:
        shapes["attention_mask"] = jax.ShapeDtypeStruct((*by_token, config.seq_len), jnp.bool_)
    return shapes


def sample(config: TransformerConfig, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Returns a synthetic batch. A sequence's class is that of its first token; padding is token 0."""
    tokens = synthetic.token_sequences(rng, config.batch_size, config.seq_len + 1, config.vocab_size)
    batch = {"inputs": tokens[:, :-1], "labels": tokens[:, 1:]}
    if config.task == "classification":
        batch["labels"] = tokens[:, 0] % config.num_classes
    if config.padding_mask:
        batch["input_mask"] = synthetic.padding(rng, config.batch_size, config.seq_len)
        batch["inputs"] = np.where(batch["input_mask"], batch["inputs"], 0)
    if config.custom_mask:
        batch["attention_mask"] = synthetic.packing(rng, config.batch_size, config.seq_len)
    return batch
