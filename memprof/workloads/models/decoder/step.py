"""One program of an inference engine: a decode step, a prefill, or one chunk of a prefill.

The cache is an argument. It is donated, so the new cache is returned in the same memory.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from memprof.analysis.records.categories import Role
from memprof.sources.jax.tracing.step import Feed, StepSpec
from memprof.workloads.mesh_axes import DP, TP
from memprof.workloads.models.decoder.config import DecoderConfig
from memprof.workloads.models.decoder.network import Decoder
from memprof.workloads.models.decoder.params import TENSOR_AXES, abstract_cache, abstract_params, unquantised_params
from memprof.workloads.quantisation import with_quantised_kernels
from memprof.workloads.sharding import Layout, with_shardings
from memprof.workloads.train_config import TrainConfig

_ROLES = {"params": Role.PARAMS, "cache": Role.KV_CACHE, "tokens": Role.BATCH, "positions": Role.BATCH}
_CACHE_ARGNUM, _PAGES_ARGNUM = 1, 4
_INIT_SCALE = 0.02


def build_step(config: DecoderConfig, train_config: TrainConfig, mesh: Mesh | None) -> StepSpec:
    """Return the program of a configuration, with abstract arguments for a mesh or one device."""
    params, cache = abstract_params(config, train_config), abstract_cache(config, train_config)
    tokens = jax.ShapeDtypeStruct((config.batch_size, num_tokens(config, train_config)), jnp.int32)
    args: tuple[Any, ...] = (params, cache, tokens, tokens)
    if train_config.cache_paged:
        args += (jax.ShapeDtypeStruct((config.batch_size, config.pages_per_sequence(train_config)), jnp.int32),)
    step = _step_of(config, train_config, mesh)
    if mesh is not None:
        args = with_shardings(args, _shardings(args, train_config, mesh))
    return StepSpec(
        fn=step,
        args=args,
        roles=_ROLES | ({"pages": Role.BATCH} if train_config.cache_paged else {}),
        donate_argnums=(_CACHE_ARGNUM,) if config.donate_cache or train_config.donate else (),
        feed=_feed(config, train_config, args),
    )


def num_tokens(config: DecoderConfig, train_config: TrainConfig) -> int:
    """Return the number of tokens of each sequence that the program reads."""
    return 1 if config.phase == "decode" else config.chunk(train_config) or config.prompt


def _step_of(config: DecoderConfig, train_config: TrainConfig, mesh: Mesh | None) -> Any:
    network = Decoder(config, train_config)

    def run(params: Any, cache: Any, tokens: Any, positions: Any, pages: Any) -> Any:
        if mesh is None:
            return network(params, cache, tokens, positions, pages)
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            logits, written = network(params, cache, tokens, positions, pages)
            return logits, jax.lax.with_sharding_constraint(written, _cache_shardings(cache, train_config, mesh))

    def step(params: Any, cache: Any, tokens: Any, positions: Any) -> Any:
        return run(params, cache, tokens, positions, None)

    def paged_step(params: Any, cache: Any, tokens: Any, positions: Any, pages: Any) -> Any:
        return run(params, cache, tokens, positions, pages)

    return paged_step if train_config.cache_paged else step


def _shardings(args: tuple[Any, ...], train_config: TrainConfig, mesh: Mesh) -> tuple[Any, ...]:
    layout = Layout(mesh=mesh, config=train_config, tensor_axes=TENSOR_AXES)
    params, cache, *batch = args
    return layout.of_params(params), _cache_shardings(cache, train_config, mesh), *layout.of_batch(batch)


def _cache_shardings(cache: Any, train_config: TrainConfig, mesh: Mesh) -> Any:
    """Divide sequences over `dp`, and heads over `tp` if it divides them: `([layers,] batch, tokens, heads, ...)`.

    Pages replace sequences, and are not divided over `dp`.
    """
    axis = 0 if train_config.cache_list else 1
    over_batch = DP if train_config.data_parallel != "none" else None

    def of_leaf(leaf: Any) -> NamedSharding:
        is_divided = train_config.tensor_parallel and leaf.shape[axis + 2] % mesh.shape[TP] == 0
        return NamedSharding(mesh, PartitionSpec(*[None] * axis, over_batch, None, TP if is_divided else None))

    return jax.tree.map(of_leaf, cache)


def _feed(config: DecoderConfig, train_config: TrainConfig, args: tuple[Any, ...]) -> Feed:
    """Return random weights, an empty cache, random tokens at consecutive positions, and pages in order."""
    length = num_tokens(config, train_config)

    def argument(number: int, step: int) -> Any:
        rng = np.random.default_rng((train_config.seed, number, step))
        if number == 0:
            params = jax.tree.map(
                lambda leaf: jnp.asarray(_INIT_SCALE * rng.standard_normal(leaf.shape), leaf.dtype),
                unquantised_params(config, train_config),
            )
            return with_quantised_kernels(params, train_config.weight_dtype)
        if number == _CACHE_ARGNUM:
            return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), args[1])
        if number == _CACHE_ARGNUM + 1:
            return rng.integers(config.vocab_size, size=args[2].shape, dtype=np.int32)
        if number == _PAGES_ARGNUM:
            taken = np.arange(args[4].size, dtype=np.int32) % config.pool_pages(train_config)
            return taken.reshape(args[4].shape)
        first = 0 if config.phase == "prefill" else (step * length) % max(1, config.context_len - length + 1)
        return np.broadcast_to(np.arange(first, first + length, dtype=np.int32), args[3].shape)

    return Feed(
        argument=argument,
        loss=lambda result: None,  # inference has no loss
        num_examples=config.batch_size,
        num_tokens=config.batch_size * length,
    )
