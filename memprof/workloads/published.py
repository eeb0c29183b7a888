"""The sizes of published models, for training and for inference. Parameter counts are those of the papers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

# Llama 3.2 (Meta 2024): 1,235,814,400 parameters.
LLAMA_1B: Final[Mapping[str, Any]] = {
    "vocab_size": 128_256,
    "num_layers": 16,
    "num_heads": 32,
    "num_kv_heads": 8,
    "hidden_size": 2048,
    "mlp_size": 8192,
    "tied_embeddings": True,
    "gated_mlp": True,
    "activation": "silu",
    "norm": "rms",
    "positions": "rotary",
    "biases": False,
}

# Llama 3.1 (Grattafiori et al. 2024, arXiv:2407.21783): 8,030,261,248 parameters.
LLAMA_8B: Final[Mapping[str, Any]] = {
    **LLAMA_1B,
    "num_layers": 32,
    "hidden_size": 4096,
    "mlp_size": 14_336,
    "tied_embeddings": False,
}

# The same paper: 70,553,706,496 parameters.
LLAMA_70B: Final[Mapping[str, Any]] = {
    **LLAMA_8B,
    "num_layers": 80,
    "num_heads": 64,
    "hidden_size": 8192,
    "mlp_size": 28_672,
}

# Gemma Team 2024, arXiv:2403.08295: 2,506,172,416 parameters; one head of keys and values.
GEMMA_2B: Final[Mapping[str, Any]] = {
    **LLAMA_1B,
    "vocab_size": 256_000,
    "num_layers": 18,
    "num_heads": 8,
    "num_kv_heads": 1,
    "head_size": 256,
    "mlp_size": 16_384,
    "activation": "gelu",
}

# The blocks of Llama, small enough for tests.
TINY: Final[Mapping[str, Any]] = {
    **LLAMA_1B,
    "vocab_size": 64,
    "num_layers": 2,
    "num_heads": 4,
    "num_kv_heads": 2,
    "hidden_size": 32,
    "mlp_size": 64,
    "tied_embeddings": False,
}
