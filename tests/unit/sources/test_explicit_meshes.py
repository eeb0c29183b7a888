"""Changes of steps whose arrays have shardings in their types, and of steps that differentiate within a `shard_map`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend import core
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from random_arrays import normal

import memprof
from memprof.analysis.records.rewrites import FusedAttention, InChunks, InMinibatches
from memprof.sources.jax.checkpointing.apply import differentiated
from memprof.sources.jax.checkpointing.attention_search import fused
from memprof.sources.jax.checkpointing.attentions import Attention
from memprof.sources.jax.checkpointing.block_programs import blocks_of
from memprof.sources.jax.checkpointing.chunks import chunked
from memprof.sources.jax.checkpointing.evaluation import without_calls
from memprof.sources.jax.checkpointing.regions import Region
from memprof.sources.jax.tracing.jit_adapter import all_equations

_MESH = AbstractMesh((2, 2), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
_WIDTH, _HEADS, _TOKENS = 16, 4, 32


def _attend(weights: Any, x: Any) -> Any:
    query, key, value = (jnp.einsum("btd,dhk->bhtk", x, each) for each in weights[:3])
    places = jnp.arange(_TOKENS)
    scores = jnp.einsum("bhtk,bhsk->bhts", query, key) / 2
    scores = jnp.where((places[:, None] >= places)[None, None], scores, -1e10)
    attended = jnp.einsum("bhts,bhsk->bthk", jax.nn.softmax(scores), value)
    return jnp.einsum("bthk,hkd->btd", attended, weights[3], out_sharding=P("data", None, None))


def _step(weights: Any, x: Any) -> Any:
    def loss(weights: Any) -> Any:
        once = x + _attend(weights, x)
        return jnp.square(once + _attend(weights, once)).mean()

    return jax.value_and_grad(loss)(weights)


def _array(shape: tuple[int, ...], *spec: str | None) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(_MESH, P(*spec)))


_OF_HEADS = _array((_WIDTH, _HEADS, 8), None, "model", None)
_ARGS = (
    (*[_OF_HEADS] * 3, _array((_HEADS, 8, _WIDTH), "model", None, None)),
    _array((4, _TOKENS, _WIDTH), "data", None, None),
)


def _traced(step: Any) -> core.Jaxpr:
    with jax.sharding.use_abstract_mesh(_MESH):
        return jax.make_jaxpr(step)(*_ARGS).jaxpr


def test_an_attention_is_computed_by_a_kernel() -> None:
    """Its mask is a constant, whose type names the mesh."""
    found: list[Attention] = []
    _traced(fused(_step, FusedAttention(implementation="xla"), found))
    assert [each.is_causal for each in found] == [True, True]


def test_an_attention_is_computed_in_blocks_of_queries() -> None:
    found: list[Region] = []
    _traced(chunked(_step, InChunks(attention=4, interleaved=True), found))
    assert [each.num_rows for each in found] == [_TOKENS] * 2


def test_each_device_has_examples_of_each_minibatch() -> None:
    """Four examples on two devices make two minibatches, not four."""
    jaxpr = _traced(memprof.apply(InMinibatches(number=4, interleaved=True))(_step))
    assert [each.params["length"] for each in all_equations(jaxpr) if each.primitive.name == "scan"] == [2]


def test_blocks_are_found() -> None:
    with differentiated() as functions:
        _traced(_step)
    (block,) = blocks_of(without_calls(functions[0]))
    assert (block.count, len(block.closed.in_avals)) == (2, 5)


@pytest.mark.parametrize("checks_types", [False, True])
def test_a_function_that_is_differentiated_within_a_shard_map_is_looked_at_outside(checks_types: bool) -> None:
    """Its collectives name axes that only the `shard_map` knows."""
    mesh = jax.make_mesh((1,), ("d",), axis_types=(AxisType.Auto,))

    def loss(weight: Any, x: Any) -> Any:
        def layer(x: Any, _: None) -> tuple[Any, None]:
            return x + jax.lax.psum(jnp.tanh(x @ weight), "d") * (1 + jax.lax.axis_index("d")), None

        return jnp.square(jax.lax.scan(layer, x, length=3)[0]).mean()

    def of_shards(weight: Any, x: Any) -> Any:
        if checks_types:
            weight, x = jax.lax.pcast((weight, x), "d", to="varying")
        return jax.lax.psum(jax.grad(loss)(weight, x), "d")

    step = jax.shard_map(of_shards, mesh=mesh, in_specs=(P(), P()), out_specs=P(), check_vma=checks_types)
    args = normal(0, (_WIDTH, _WIDTH)), normal(1, (8, _WIDTH))
    with differentiated() as functions:
        jax.make_jaxpr(step)(*args)
    (block,) = blocks_of(without_calls(functions[0]))
    assert (block.count, block.is_loop) == (3, True)
    changed = memprof.apply(jax.checkpoint_policies.nothing_saveable)(step)
    np.testing.assert_allclose(jax.jit(changed)(*args), jax.jit(step)(*args), rtol=1e-5)
