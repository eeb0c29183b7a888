"""The intermediate values of a Transformer block that checkpointing may keep by name (`jax.ad_checkpoint`)."""

from __future__ import annotations

from typing import Final

# Sizes are for each token, in numbers of the compute dtype, with hidden size h.
RESIDUALS: Final = {
    "block_input": "the residual stream as it enters the block (h)",
    "qkv": "queries, keys and values (3h)",
    "attention": "the attended values, before the output projection (h)",
    "attention_out": "what attention adds to the residual stream, before dropout (h)",
    "mlp_up": "the result of the up projection, before the activation function (4h)",
}
