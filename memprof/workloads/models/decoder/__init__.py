"""decoder: a decoder-only Transformer at inference, with its KV cache.

`config.py` defines the user's choices, `params.py` the shapes of weights and cache, `network.py` the forward pass, and
`step.py` the programs of an inference engine.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from memprof.errors import MemprofError
from memprof.workloads import published
from memprof.workloads.models.decoder.config import DecoderConfig
from memprof.workloads.train_config import TrainConfig, inference_fields
from memprof.workloads.workload import Workload

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from memprof.sources.jax.tracing.step import StepSpec


TINY = DecoderConfig(batch_size=4, context_len=32, prompt_len=16, chunk_len=8, **published.TINY)

# The blocks of GPT-2: learned positions, LayerNorm, biases, and equally many query and key/value heads.
TINY_GPT2 = dataclasses.replace(
    TINY,
    num_kv_heads=None,
    mlp_size=None,
    gated_mlp=False,
    activation="gelu",
    norm="layer",
    positions="learned",
    biases=True,
    tied_embeddings=True,
)

# Radford et al. 2019: 124,439,808 parameters.
GPT2 = dataclasses.replace(
    TINY_GPT2,
    batch_size=8,
    context_len=1024,
    prompt_len=None,
    chunk_len=256,
    vocab_size=50257,
    num_layers=12,
    num_heads=12,
    hidden_size=768,
)

LLAMA_1B, LLAMA_8B, LLAMA_70B, GEMMA_2B = (
    DecoderConfig(batch_size=8, context_len=2048, **sizes)
    for sizes in (published.LLAMA_1B, published.LLAMA_8B, published.LLAMA_70B, published.GEMMA_2B)
)


def step(config: DecoderConfig, train_config: TrainConfig, mesh: Mesh | None) -> StepSpec:
    """Return the program. jax is imported here, not above, so that listing workloads stays quick."""
    from memprof.workloads.models.decoder.step import build_step

    if train_config.kv_heads:
        config = dataclasses.replace(config, num_kv_heads=train_config.kv_heads)
    return build_step(config, train_config, mesh)


def check(config: DecoderConfig, train_config: TrainConfig) -> None:
    """Raise `MemprofError` for techniques that do not apply to a decoder."""
    if train_config.data_parallel not in ("none", "batch"):
        raise MemprofError("zero1 and zero2 shard optimizer state, which decoder does not have: use dp.")
    if train_config.cache_paged:
        if train_config.data_parallel != "none":
            raise MemprofError(
                "paged-kv keeps the pages of all sequences in one pool, which dp would shard: leave one of them out."
            )
        num_needed = config.pages_per_sequence(train_config)
        if config.pool_pages(train_config) < num_needed:
            raise MemprofError(
                f"num_pages is {config.num_pages}, but the {config.cache_len(train_config)} tokens of one sequence take"
                f" {num_needed} pages of page_size = {config.page_size}."
            )
    elif config.num_pages is not None:
        raise MemprofError("num_pages applies only to a paged cache: add -t paged-kv.")
    if train_config.cache_window and config.chunk(train_config) is not None:
        raise MemprofError(
            "In a window, a prefill chunk would overwrite positions that its own tokens attend to: leave one of them "
            "out."
        )


WORKLOAD = Workload(
    name="decoder",
    summary="decoder at inference: prefill, decode or chunked-prefill, with a KV cache; grouped heads, rotary, RMSNorm",
    config_type=DecoderConfig,
    presets={
        "tiny": TINY,
        "tiny-gpt2": TINY_GPT2,
        "gpt2": GPT2,
        "gemma-2b": GEMMA_2B,
        "llama-1b": LLAMA_1B,
        "llama-8b": LLAMA_8B,
        "llama-70b": LLAMA_70B,
    },
    default_preset="llama-1b",
    honours=inference_fields()
    | {
        "compute_dtype",
        "param_dtype",
        "loss_scaling",
        "tensor_parallel",
        "data_parallel",
        "donate",
        "compiler_options",
    },
    step=step,
    check=check,
    teaching_rows=(
        "baseline",
        "bf16-params",
        "bf16-params+kv-list",
        "bf16-params+kv-list+int8-kv",
        "bf16-params+kv-list+int8-kv+window=1024",
    ),
)
