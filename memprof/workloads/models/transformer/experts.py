"""A mixture of experts: several MLPs in the place of a block's one, of which each token goes through a few.

The router gives a token to its most probable experts, and weighs their results by these probabilities (the choices are
those of GShard, Lepikhin et al. 2020, arXiv:2006.16668, for more than one expert a token, and of the Switch
Transformer, Fedus et al. 2021, arXiv:2101.03961, for one). Each sequence is one of GShard's groups: of its tokens an
expert takes at most

    capacity = ceil(length * experts_per_token / num_experts * capacity_factor)

first choices before second ones, earlier tokens before later ones. What does not fit is dropped: of the token nothing
but the residual stream goes on. With a factor of `num_experts / experts_per_token` nothing can be dropped. That a group
is a sequence makes the result the same however the batch is divided, over minibatches or over devices.

Tokens are moved by index. GShard's product with an array that is one where a token has a slot, `(tokens, experts,
capacity)`, holds numbers that grow with the square of the length.
"""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from memprof.workloads.layers import param_dtype
from memprof.workloads.models.transformer.config import TransformerConfig
from memprof.workloads.models.transformer.mlp import up_and_down
from memprof.workloads.models.transformer.norms import norm
from memprof.workloads.scopes import EXPERTS, LOSSES, ROUTER
from memprof.workloads.sharding import BATCH, EXPERT, GROUP, WHOLE, divided
from memprof.workloads.train_config import TrainConfig


class Routing(NamedTuple):
    """Which token lies in which slot of which expert. The slots of all experts are numbered through, expert by expert.

    Attributes:
        token_of_slot: int32 `(batch, num_experts * capacity)`, the token's position; the length where there is none.
        slot_of_choice: int32 `(batch, length, experts_per_token)`; the number of slots where the choice was dropped.
        weights: of the chosen experts' results, float32 `(batch, length, experts_per_token)`.
        imbalance: float32 `()`, 1 where all experts get equally much, more where they do not.
    """

    token_of_slot: jax.Array
    slot_of_choice: jax.Array
    weights: jax.Array
    imbalance: jax.Array


class MixtureOfExperts(nn.Module):
    """LayerNorm, router, the experts' MLPs, dropout. The residual is added by the block.

    Parameters of all experts are stacked under `experts`, the expert first.
    """

    config: TransformerConfig
    train_config: TrainConfig

    @nn.compact
    def __call__(self, hidden: jax.Array) -> jax.Array:
        """Return `(batch, length, hidden_size)` in the compute dtype, of the same shape as `hidden`.

        What unequal use of the experts adds to the loss is sown into the collection `LOSSES`.
        """
        config, train_config = self.config, self.train_config
        batch, length, hidden_size = hidden.shape
        hidden = norm(config, train_config, name="norm")(hidden)
        # The router is in float32 whatever the compute dtype: rounded logits would choose other experts (Switch, 2.4).
        router = nn.Dense(
            config.num_experts, use_bias=False, dtype=jnp.float32, param_dtype=param_dtype(train_config), name=ROUTER
        )
        routing = route(
            nn.softmax(router(hidden)), experts_per_token=config.experts_per_token, capacity=capacity(config, length)
        )
        self.sow(LOSSES, "imbalance", config.balance_loss_weight * routing.imbalance)
        # Devices that share the experts have their sequences' tokens, and send them to the experts (an all-to-all), and
        # the results back.
        slots = divided(_take(hidden, routing.token_of_slot), train_config, BATCH)
        slots = slots.reshape(batch, config.num_experts, -1, hidden_size)
        slots = divided(slots, train_config, GROUP, EXPERT)
        experts = nn.vmap(Expert, in_axes=1, out_axes=1, variable_axes={"params": 0}, split_rngs={"params": True})
        slots = experts(config, train_config, name=EXPERTS)(slots)
        slots = divided(divided(slots, train_config, GROUP, EXPERT), train_config, BATCH)
        chosen = _take(slots.reshape(batch, -1, hidden_size), routing.slot_of_choice)
        hidden = jnp.einsum("blkh,blk->blh", chosen, routing.weights.astype(chosen.dtype))
        return nn.Dropout(config.dropout_rate, deterministic=False)(hidden)


class Expert(nn.Module):
    """One expert: the MLP of a block without experts."""

    config: TransformerConfig
    train_config: TrainConfig

    @nn.compact
    def __call__(self, hidden: jax.Array) -> jax.Array:
        """Return `(batch, capacity, hidden_size)` in the compute dtype, of the same shape as `hidden`."""
        return up_and_down(hidden, self.config, self.train_config, GROUP, WHOLE)


def capacity(config: TransformerConfig, length: int) -> int:
    """Return how many tokens of a sequence an expert takes at most; more than all of them never come."""
    even = length * config.experts_per_token / config.num_experts
    return min(length, ceil(even * config.capacity_factor))


def route(probabilities: jax.Array, *, experts_per_token: int, capacity: int) -> Routing:
    """Gives each token of each sequence to its most probable experts.

    The imbalance is Switch's, equation 4, for each sequence, and of these the mean: the number of experts times the
    sum over experts of their part of the choices times their mean probability.

    Args:
        probabilities: of the experts, float32 `(batch, length, num_experts)`.
    """
    batch, length, num_experts = probabilities.shape
    weights, experts = jax.lax.top_k(probabilities, experts_per_token)
    chosen = jax.nn.one_hot(experts, num_experts, dtype=jnp.int32)
    if experts_per_token > 1:  # one alone keeps its probability, through which the router learns
        weights = weights / jnp.sum(weights, axis=-1, keepdims=True)

    queue = chosen.swapaxes(1, 2).reshape(batch, experts_per_token * length, num_experts)
    place = jnp.sum((jnp.cumsum(queue, axis=1) - queue) * queue, axis=-1)
    place = place.reshape(batch, experts_per_token, length).swapaxes(1, 2)
    num_slots = num_experts * capacity
    slots = jnp.where(place < capacity, experts * capacity + place, num_slots)

    tokens = jnp.broadcast_to(jnp.arange(length)[:, None], (length, experts_per_token))
    empty = jnp.full((batch, num_slots), length)
    token_of_slot = jax.vmap(lambda row, slots: row.at[slots].set(tokens, mode="drop"))(empty, slots)
    shares = jnp.mean(chosen.astype(jnp.float32), axis=(1, 2)) * jnp.mean(probabilities, axis=1)
    return Routing(token_of_slot, slots, weights, jnp.mean(num_experts * jnp.sum(shares, axis=-1)))


def _take(rows: jax.Array, index: jax.Array) -> jax.Array:
    """Rows of each sequence, `(batch, ..., hidden_size)`; zeros for an index past the last one."""
    return jax.vmap(lambda rows, index: jnp.take(rows, index, axis=0, mode="fill", fill_value=0))(rows, index)
