"""Names that the training step and its models write into a program; the evidence of techniques looks for them.

JAX keeps them in the names of operations, `jit(step)/jvp(Transformer)/layers_0/mlp/dot_general`, and in the paths of
parameters, `state.params['token_embedding']['embedding']`.
"""

from __future__ import annotations

from typing import Final

# Loops, or numbered copies in the program.
MINIBATCHES: Final = "minibatches"
LOSS_CHUNKS: Final = "loss_chunks"

# Modules of a Transformer. Flax names a module that `setup` makes after its attribute.
TOKEN_EMBEDDING: Final = "token_embedding"
LAYERS: Final = "layers"
ATTENTION: Final = "attention"
MLP: Final = "mlp"
ROUTER: Final = "router"
EXPERTS: Final = "experts"
HEAD: Final = "head"

# The Flax collection of losses that modules sow, besides their results. They are added to the loss.
LOSSES: Final = "losses"

# The intermediate values of a Transformer block that checkpointing may keep by name (`jax.ad_checkpoint`).
BLOCK_INPUT: Final = "block_input"
QKV: Final = "qkv"
ATTENDED: Final = "attention"
ATTENTION_OUT: Final = "attention_out"
MLP_UP: Final = "mlp_up"

# Sizes are per token, in elements of the compute dtype, for hidden size h.
RESIDUALS: Final = {
    BLOCK_INPUT: "the residual stream as it enters the block (h)",
    QKV: "queries, keys and values (3h)",
    ATTENDED: "the attended values, before the output projection (h)",
    ATTENTION_OUT: "what attention adds to the residual stream, before dropout (h)",
    MLP_UP: "the result of the up projection, before the activation function (4h)",
}
