"""transformer: a Transformer that normalises before each sublayer.

It is a decoder (gpt2, uva, llama-8b, gemma-2b) or an encoder with a classifier (bert-large). Each block has an MLP or a
mixture of experts (moe). `config.py` defines the user's choices; `network.py` builds the model from the parts in the
other files.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from memprof.errors import MemprofError
from memprof.workloads import published
from memprof.workloads.models.transformer.config import TransformerConfig
from memprof.workloads.train_config import TrainConfig, model_fields
from memprof.workloads.workload import Workload

if TYPE_CHECKING:
    from memprof.workloads.model import Model


# One dropout per sublayer: each adds a random generator to compile, and this preset should compile in a second.
TINY = TransformerConfig(
    batch_size=4,
    seq_len=16,
    max_seq_len=24,
    vocab_size=64,
    num_layers=2,
    num_heads=2,
    hidden_size=32,
    attention_dropout_rate=0.0,
    embedding_dropout_rate=0.0,
)

# GPT-2 small (Radford et al. 2019): 124,439,808 parameters.
GPT2 = TransformerConfig(
    batch_size=8,
    seq_len=1024,
    max_seq_len=1024,
    vocab_size=50257,
    num_layers=12,
    num_heads=12,
    hidden_size=768,
    tied_embeddings=True,
)

# BERT large, uncased (Devlin et al. 2018), with two labels: 335,141,890 parameters. The published model has 2,048 more,
# its two segment embeddings. It normalises after each sublayer; this one normalises before.
BERT_LARGE = TransformerConfig(
    batch_size=4,
    seq_len=512,
    max_seq_len=512,
    vocab_size=30522,
    num_layers=24,
    num_heads=16,
    hidden_size=1024,
    causal=False,
    padding_mask=True,
    task="classification",
    num_classes=2,
)

# The Transformer of the UvA Deep Learning Tutorials, "Training Models at Scale": 155,877,376 parameters. It applies
# dropout only to the results of attention and MLP blocks.
UVA = TransformerConfig(
    batch_size=64,
    seq_len=512,
    max_seq_len=512,
    vocab_size=2048,
    num_layers=12,
    num_heads=8,
    hidden_size=1024,
    attention_dropout_rate=0.0,
    embedding_dropout_rate=0.0,
)

# Modelled on Mixtral (Jiang et al. 2024, arXiv:2401.04088) at a tenth of its size: 8 experts in each block, 2 per
# token. A token uses 1,478,331,648 of the 4,700,540,160 parameters. One GPU of 80 GB does not hold them with AdamW's
# state and gradients, all float32; eight GPUs that share the experts do.
MOE = TransformerConfig(
    batch_size=16,
    seq_len=2048,
    max_seq_len=2048,
    vocab_size=32000,
    num_layers=16,
    num_heads=16,
    hidden_size=2048,
    num_experts=8,
    attention_dropout_rate=0.0,
    embedding_dropout_rate=0.0,
    dropout_rate=0.0,
)

# Like `tiny`, with 8 experts.
TINY_MOE = dataclasses.replace(TINY, num_experts=8)


def _published(sizes: Mapping[str, Any], *, batch_size: int = 8, seq_len: int = 2048) -> TransformerConfig:
    """Return the configuration that trains a published model, without dropout."""
    return TransformerConfig(
        batch_size=batch_size,
        seq_len=seq_len,
        max_seq_len=seq_len,
        dropout_rate=0.0,
        attention_dropout_rate=0.0,
        embedding_dropout_rate=0.0,
        **sizes,
    )


LLAMA_1B, LLAMA_8B, LLAMA_70B = map(_published, (published.LLAMA_1B, published.LLAMA_8B, published.LLAMA_70B))
GEMMA_2B = _published(published.GEMMA_2B)
TINY_LLAMA = _published(published.TINY, batch_size=4, seq_len=16)


def build(config: TransformerConfig, train_config: TrainConfig) -> Model:
    """Return the model. jax is imported here, not above, so that listing workloads stays quick."""
    from memprof.workloads.models.transformer.network import build_transformer

    return build_transformer(config, train_config)


def check(config: TransformerConfig, train_config: TrainConfig) -> None:
    """Raise `MemprofError` for heads that cannot be pruned one by one."""
    if train_config.structurally_pruned_fraction and config.kv_heads != config.num_heads:
        raise MemprofError(
            "prune-structured removes heads, but groups of heads share keys and values here: set num_kv_heads to "
            f"num_heads = {config.num_heads}, or leave it out."
        )


WORKLOAD = Workload(
    name="transformer",
    summary="Transformer: next token or classification, dense or experts; the blocks of GPT-2, or of Llama and Gemma",
    config_type=TransformerConfig,
    presets={
        "tiny": TINY,
        "gpt2": GPT2,
        "bert-large": BERT_LARGE,
        "uva": UVA,
        "moe": MOE,
        "tiny-moe": TINY_MOE,
        "tiny-llama": TINY_LLAMA,
        "gemma-2b": GEMMA_2B,
        "llama-1b": LLAMA_1B,
        "llama-8b": LLAMA_8B,
        "llama-70b": LLAMA_70B,
    },
    default_preset="gpt2",
    honours=model_fields(),
    build=build,
    check=check,
)
