"""A user's loss over parameters that are no nested dictionary: modules, dataclasses, one array."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from memprof.workloads.composition import apply_techniques, parse_techniques
from memprof.workloads.train_config import TrainConfig
from memprof.workloads.train_step import Trainer
from memprof.workloads.user.train_spec import TrainSpec, UserModel

pytestmark = pytest.mark.usefixtures("quick_compiles")
X, Y = jnp.arange(12.0).reshape(4, 3), jnp.ones((4, 1))


@flax.struct.dataclass
class Line:
    kernel: Any
    bias: Any
    name: str = flax.struct.field(pytree_node=False, default="line")

    def __call__(self, x: Any) -> Any:
        return x @ self.kernel + self.bias


class Permuted(eqx.Module):
    dense: eqx.nn.MLP
    order: Any
    times: float = 2.0

    def __call__(self, x: Any) -> Any:
        return self.times * jax.vmap(self.dense)(x[:, self.order])


def permuted() -> Permuted:
    return Permuted(eqx.nn.MLP(3, 1, 5, 1, key=jax.random.key(0)), jnp.array([2, 0, 1]))


# What makes them, since random numbers take a compile that whoever collects tests need not wait for.
PARAMS = {
    "dataclass": (lambda: Line(jnp.ones((3, 1)), jnp.ones(1)), lambda line, x: line(x)),
    "array": (lambda: jnp.ones((3, 1)), lambda kernel, x: x @ kernel),
    "module": (permuted, lambda module, x: module(x)),
    "module among others": (
        lambda: {"net": permuted(), "scale": 0.5}, lambda all_, x: all_["net"](x) * all_["scale"]
    ),
}  # fmt: skip


def trainer(params: Any, loss_fn: Any, techniques: str = "") -> Trainer:
    config = apply_techniques(TrainConfig(), parse_techniques(techniques))
    model = UserModel(TrainSpec(loss_fn, params, optax.adam(0.1), {"x": X, "y": Y}), config)
    return Trainer(model=model, optimizer=optax.adam(0.1), config=config)


def loss_of(predict: Any) -> Any:
    return lambda params, batch: jnp.mean((predict(params, batch["x"]) - batch["y"]) ** 2)


@pytest.mark.parametrize("name", PARAMS)
def test_a_step_updates_them_as_their_own_framework_does(name: str) -> None:
    make, predict = PARAMS[name]
    params = make()
    made = trainer(params, loss_of(predict))
    after, _ = jax.jit(made.step)(made.init_state(), made.sample_batch(0))
    if name == "module among others":  # a number in a dictionary is trained, one in a module is not
        params = {"net": params["net"], "scale": jnp.float32(params["scale"])}
    trained, fixed = eqx.partition(params, eqx.is_inexact_array)
    optimizer = optax.adam(0.1)
    grads = jax.grad(lambda trained: loss_of(predict)(eqx.combine(trained, fixed), {"x": X, "y": Y}))(trained)
    updates, opt_state = optimizer.update(grads, optimizer.init(trained))
    expected = optax.apply_updates(trained, updates)
    assert jax.tree.structure(after.params) == jax.tree.structure(expected)
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-5), after.params, expected)
    assert jax.tree.map(jnp.shape, after.opt_state) == jax.tree.map(jnp.shape, opt_state)


@pytest.mark.parametrize("technique", ["bf16-params+accum2", "fp16", "opt=adam8bit", "opt=muon", "prune=0.5", "remat"])
@pytest.mark.parametrize("name", ["array", "module"])
def test_techniques_apply_to_them(name: str, technique: str) -> None:
    make, predict = PARAMS[name]
    shapes = eqx.filter_eval_shape(make)
    made = trainer(shapes, loss_of(predict), technique)
    state = made.abstract_state()
    after, _ = jax.eval_shape(made.step, state, made.abstract_batch())
    assert after == state
    dtype = "bfloat16" if "bf16" in technique else "float32"
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(state.params)} == {dtype}
    masked = {"array": 1, "module": 2}[name] if "prune" in technique else 0  # one for each matrix
    assert len(jax.tree.leaves(state.masks)) == masked
