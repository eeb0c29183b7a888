"""The MLP of a Transformer's block."""

from __future__ import annotations

import flax.linen as nn
import jax
from jax.ad_checkpoint import checkpoint_name

from memprof.workloads.layers import checkpointed_activation, dense, norm
from memprof.workloads.models.transformer.config import TransformerConfig
from memprof.workloads.scopes import MLP_UP
from memprof.workloads.sharding import BATCH, LENGTH, WIDTH, divided
from memprof.workloads.train_config import TrainConfig


class MLPBlock(nn.Module):
    """Norm, up projection (and gate), activation, down projection, dropout. The block adds the residual."""

    config: TransformerConfig
    train_config: TrainConfig

    @nn.compact
    def __call__(self, hidden: jax.Array) -> jax.Array:
        """Return `(batch, length, hidden_size)` in the compute dtype, of the same shape as `hidden`."""
        hidden = norm(self.config.norm, self.train_config, name="norm")(hidden)
        hidden = up_and_down(hidden, self.config, self.train_config, BATCH, LENGTH)
        return nn.Dropout(self.config.dropout_rate, deterministic=False)(hidden)


def up_and_down(
    hidden: jax.Array, config: TransformerConfig, train_config: TrainConfig, *dims: str | None
) -> jax.Array:
    """Apply two projections, with an activation between them, to `(..., hidden_size)`. The result has the same shape.

    The projections are submodules `up` and `down` of the module that calls this. With `gated_mlp`, a third projection,
    `gate`, is the argument of the activation.

    Args:
        dims: the kind of each dimension except the last, for devices that share them (see `sharding.divided`).
    """
    activation = checkpointed_activation(_ACTIVATIONS[config.activation], train_config)

    def projected(name: str) -> jax.Array:
        wide = dense(config.mlp_width, train_config, name=name, has_bias=config.biases)(hidden)
        return checkpoint_name(divided(wide, train_config, *dims, WIDTH), MLP_UP)

    up = projected("up")
    wide = activation(projected("gate")) * up if config.gated_mlp else activation(up)
    down = dense(config.hidden_size, train_config, name="down", has_bias=config.biases)(wide)
    return divided(down, train_config, *dims)


_ACTIVATIONS = {"gelu": nn.gelu, "silu": nn.silu}
