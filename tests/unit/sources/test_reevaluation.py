"""A step that is traced and evaluated in another way still changes the NNX objects that it is given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx

import memprof
from memprof.sources.jax.checkpointing.evaluation import as_function
from memprof.sources.jax.checkpointing.reevaluation import reevaluated

_WIDTH = 8
_X = jnp.ones((4, _WIDTH)) + jnp.arange(_WIDTH) / _WIDTH


class Net(nnx.Module):
    """A module with parameters, running averages and a counter of random numbers."""

    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        self.linear = nnx.Linear(_WIDTH, _WIDTH, rngs=rngs)
        self.norm = nnx.BatchNorm(_WIDTH, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.dropout(self.norm(self.linear(x)))


def _updated(net: Net, optimizer: nnx.Optimizer, batch: dict[str, Any], *, scale: float = 1.0) -> Any:
    """One training step, which returns nothing but its loss."""
    loss, gradients = nnx.value_and_grad(lambda net: jnp.mean((net(batch["x"]) - scale) ** 2))(net)
    optimizer.update(net, gradients)
    return loss


def _trained(step: Callable[..., Any]) -> list[Any]:
    net = Net()
    optimizer = nnx.Optimizer(net, optax.adam(0.1), wrt=nnx.Param)
    jitted = nnx.jit(step, static_argnames="scale")
    losses = [jitted(net, optimizer, {"x": _X}, scale=0.5) for _ in range(3)]
    return [losses, nnx.to_pure_dict(nnx.state(net, (nnx.Param, nnx.BatchStat)))]


@pytest.mark.with_each_jax
@pytest.mark.parametrize("rewrite", [memprof.NarrowSums(), memprof.InChunks(loss=2), memprof.FusedAttention()])
def test_nnx_objects_are_changed_in_place(rewrite: Any) -> None:
    before, after = _trained(_updated), _trained(memprof.apply(rewrite)(_updated))
    assert len({float(loss) for loss in before[0]}) == 3
    assert jax.tree.structure(before) == jax.tree.structure(after)
    for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        assert jnp.allclose(old, new, rtol=1e-5, atol=1e-6)


def test_a_step_can_return_an_nnx_object_that_it_changed() -> None:
    def returning(net: Net, x: Any) -> Any:
        net(x)
        return net, "trained"

    net, other = Net(), Net()
    returned, word = memprof.apply(memprof.NarrowSums())(returning)(net, _X)
    returning(other, _X)
    assert word == "trained"
    for changed in (net, returned):
        assert jnp.allclose(changed.norm.mean[...], other.norm.mean[...])
    assert jnp.any(net.norm.mean[...] != Net().norm.mean[...])


def test_variables_inside_a_state_are_arrays_and_a_variable_of_its_own_is_an_object() -> None:
    """A state returns new values, as any pytree; a variable that is an argument is changed in place."""
    graph, state = nnx.split(Net())
    num_inputs: list[int] = []

    def count(closed: Any, arrays: Any) -> list[Any]:
        num_inputs.append(len(closed.in_avals))
        return as_function(closed)(*arrays)

    def step(state: Any, total: nnx.Variable) -> Any:
        net = nnx.merge(graph, state)
        net(_X)
        total[...] += _X.sum()
        return nnx.state(net)

    totals = [nnx.Variable(jnp.float32(1)) for _ in range(2)]
    found = reevaluated(step, count)(state, totals[0])
    expected = step(state, totals[1])
    assert num_inputs == [len(jax.tree.leaves(state)) + 1]
    assert totals[0][...] != 1
    for old, new in zip(jax.tree.leaves((expected, totals[1])), jax.tree.leaves((found, totals[0])), strict=True):
        assert jnp.array_equal(_data(old), _data(new)) or jnp.allclose(old, new, rtol=1e-5)


def _data(leaf: Any) -> Any:
    return jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
