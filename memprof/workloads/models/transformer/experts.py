"""A mixture of experts: several MLPs in place of a block's single one; each token uses a few of them.

The router sends a token to its most probable experts, and weights their results by these probabilities. For more than
one expert per token it follows GShard (Lepikhin et al. 2020, arXiv:2006.16668), and for one the Switch Transformer
(Fedus et al. 2021, arXiv:2101.03961). Each sequence is one of GShard's groups: an expert takes at most

    capacity = ceil(length * experts_per_token / num_experts * capacity_factor)

of its tokens, first choices before second ones, earlier tokens before later ones. The rest are dropped: only the
residual stream of a dropped token continues. With a factor of `num_experts / experts_per_token` no token can be
dropped. Because a group is a sequence, the result does not depend on how the batch is divided over minibatches or
devices.

Tokens are moved by index. GShard multiplies by an array that marks the slot of each token, `(tokens, experts,
capacity)`; its size grows with the square of the length.
"""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from memprof.workloads.layers import norm, param_dtype
from memprof.workloads.models.transformer.config import TransformerConfig
from memprof.workloads.models.transformer.mlp import up_and_down
from memprof.workloads.scopes import EXPERTS, LOSSES, ROUTER
from memprof.workloads.sharding import BATCH, EXPERT, GROUP, WHOLE, divided
from memprof.workloads.train_config import TrainConfig


class Routing(NamedTuple):
    """The slot of each routed token. The slots of all experts are numbered consecutively, expert by expert.

    Attributes:
        token_of_slot: int32 `(batch, num_experts * capacity)`, the token's position; the length if the slot is empty.
        slot_of_choice: int32 `(batch, length, experts_per_token)`; the number of slots if the choice was dropped.
        weights: weights of the chosen experts' results, float32 `(batch, length, experts_per_token)`.
        imbalance: float32 `()`, 1 if all experts get equally many tokens, otherwise more.
    """

    token_of_slot: jax.Array
    slot_of_choice: jax.Array
    weights: jax.Array
    imbalance: jax.Array


class MixtureOfExperts(nn.Module):
    """LayerNorm, router, the experts' MLPs, dropout. The block adds the residual.

    Parameters of all experts are stacked under `experts`, with the expert as the first axis.
    """

    config: TransformerConfig
    train_config: TrainConfig

    @nn.compact
    def __call__(self, hidden: jax.Array) -> jax.Array:
        """Return `(batch, length, hidden_size)` in the compute dtype, of the same shape as `hidden`.

        The loss term for unequal use of the experts is sown into the collection `LOSSES`.
        """
        config, train_config = self.config, self.train_config
        batch, length, hidden_size = hidden.shape
        hidden = norm(config.norm, train_config, name="norm")(hidden)
        # The router is float32 for every compute dtype: rounded logits would choose other experts (Switch, 2.4).
        router = nn.Dense(
            config.num_experts, use_bias=False, dtype=jnp.float32, param_dtype=param_dtype(train_config), name=ROUTER
        )
        routing = route(
            nn.softmax(router(hidden)), experts_per_token=config.experts_per_token, capacity=capacity(config, length)
        )
        self.sow(LOSSES, "imbalance", config.balance_loss_weight * routing.imbalance)
        # Devices that share the experts hold the tokens of their sequences. They send them to the experts (an
        # all-to-all) and get the results back.
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
    """Return the largest number of tokens of a sequence that an expert takes, at most the sequence's length."""
    even = length * config.experts_per_token / config.num_experts
    return min(length, ceil(even * config.capacity_factor))


def route(probabilities: jax.Array, *, experts_per_token: int, capacity: int) -> Routing:
    """Assign each token of each sequence to its most probable experts.

    The imbalance is Switch's equation 4 for each sequence, averaged over sequences: the number of experts times the sum
    over experts of their share of the choices times their mean probability.

    Args:
        probabilities: probabilities of the experts, float32 `(batch, length, num_experts)`.
    """
    batch, length, num_experts = probabilities.shape
    weights, experts = jax.lax.top_k(probabilities, experts_per_token)
    chosen = jax.nn.one_hot(experts, num_experts, dtype=jnp.int32)
    if experts_per_token > 1:  # a single expert keeps its probability, through which the router learns
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
    """Return rows of each sequence, `(batch, ..., hidden_size)`; zeros for an index past the last one."""
    return jax.vmap(lambda rows, index: jnp.take(rows, index, axis=0, mode="fill", fill_value=0))(rows, index)
