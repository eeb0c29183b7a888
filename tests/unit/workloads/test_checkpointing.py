"""Which parts of the Transformer are checkpointed, with what policy, and where the barrier stands."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from memprof.workloads.build import build_step, plan
from memprof.workloads.models.transformer import TINY
from memprof.workloads.models.transformer.network import build_transformer
from memprof.workloads.scopes import RESIDUALS
from memprof.workloads.train_config import TrainConfig

pytestmark = pytest.mark.usefixtures("quick_compiles")

KEY = jax.random.PRNGKey(0)
PLAIN = dataclasses.replace(TINY, dropout_rate=0.0)
TOKENS = jnp.zeros((4, 16), jnp.int32)


def equations(jaxpr, name):
    """All equations of that primitive, inner ones included."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == name:
            yield equation
        for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda leaf: hasattr(leaf, "eqns")):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                yield from equations(inner, name)


def forward(technique):
    train_config = plan(workload="transformer", preset="tiny", techniques=[technique]).train_config
    model = build_transformer(PLAIN, train_config)
    params = jax.eval_shape(model.init_params, KEY)
    return jax.make_jaxpr(lambda params: model.module.apply({"params": params}, TOKENS, rngs={"dropout": KEY}))(params)


@pytest.mark.parametrize(
    ("technique", "num_parts"),
    [
        ("baseline", 0),
        ("remat", 2),
        ("remat-mlp", 2),
        ("remat-attn", 2),
        ("remat-mlp-attn", 4),
        ("remat-act", 2),
        ("remat-attn+remat-act", 4),
        ("scan+remat", 1),
        ("scan+remat-mlp-attn+remat-act", 3),
    ],
)
def test_each_part_is_checkpointed_once_a_layer(technique, num_parts):
    found = list(equations(forward(technique).jaxpr, "remat2"))
    assert len(found) == num_parts
    # In a loop over layers forward and backward pass are apart already.
    assert all(equation.params["prevent_cse"] == ("scan" not in technique) for equation in found)


def test_the_named_residuals_are_those_that_can_be_asked_for():
    names = {equation.params["name"] for equation in equations(forward("baseline").jaxpr, "name")}
    assert names == set(RESIDUALS)


def saved_shapes(technique):
    """The shapes that the forward pass hands to the backward pass out of the first layer's checkpoint."""
    train_config = plan(workload="transformer", preset="tiny", techniques=[technique]).train_config
    model = build_transformer(dataclasses.replace(PLAIN, num_layers=1), train_config)
    params = model.init_params(KEY)
    _, backward = jax.vjp(lambda params: model.module.apply({"params": params}, TOKENS, rngs={"dropout": KEY}), params)
    return {leaf.shape for leaf in jax.tree.leaves(backward) if hasattr(leaf, "shape")}


def test_policies_keep_what_they_say():
    qkv, up, probabilities = (4, 16, 96), (4, 16, 128), (4, 2, 16, 16)
    assert {qkv, up, probabilities} & saved_shapes("remat") == set()
    assert {qkv, up, probabilities} & saved_shapes("remat-dots") == {qkv, up}
    assert {qkv, up, probabilities} & saved_shapes("remat-names=qkv") == {qkv}


def test_layers_in_a_loop_have_parameters_of_their_own():
    model = build_transformer(PLAIN, TrainConfig(scan_layers=True))
    kernel = jax.jit(model.init_params)(KEY)["layers"]["mlp"]["up"]["kernel"]
    assert kernel.shape == (2, 32, 128)
    assert (kernel[0] != kernel[1]).all()


def test_layers_in_a_loop_draw_dropout_of_their_own():
    spec = build_step(workload="transformer", preset="tiny", techniques=["scan"])
    (loop,) = [
        equation
        for equation in equations(jax.make_jaxpr(spec.fn)(*spec.args).jaxpr, "scan")
        if equation.params["length"] == 2 and not equation.params["reverse"]
    ]
    keys = [variable.aval for variable in loop.invars if variable.aval.dtype == jnp.uint32]
    assert [key.shape for key in keys] == [(2, 2)], "a key for each layer"
