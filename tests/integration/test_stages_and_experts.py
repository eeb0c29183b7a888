"""A pipeline and divided experts on eight devices of the CPU: loss and gradients are those of one device."""

from __future__ import annotations

import pytest
from script_rows import ScriptRows
from simple_kernels import SIMPLE_KERNEL_FLAGS

# In a process of its own, since XLA reads the number of its devices once.
SCRIPT = """
import dataclasses
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from memprof.workloads.models.transformer import TINY_MOE
from memprof.workloads.models.transformer.experts import MixtureOfExperts
from memprof.workloads.pipeline import pipeline
from memprof.workloads.train_config import TrainConfig

KEY = np.zeros(2, np.uint32)
normal = lambda *shape: np.random.default_rng(0).standard_normal(shape, np.float32)
mesh = jax.make_mesh((4, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2)

def compare(name, plain, sharded, args, specs):
    def on_mesh(*args):
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            return jax.value_and_grad(sharded, argnums=(0, 1))(*args)
    placed = [jax.device_put(arg, jax.tree.map(lambda spec: NamedSharding(mesh, spec), spec,
              is_leaf=lambda spec: isinstance(spec, P))) for arg, spec in zip(args, specs)]
    compiled = jax.jit(on_mesh).lower(*placed).compile()
    found, wanted = compiled(*placed), jax.jit(jax.value_and_grad(plain, argnums=(0, 1)))(*args)
    distance = jax.tree.map(lambda one, other: float(np.max(np.abs(one - other)) / np.max(np.abs(other))),
                            jax.device_get(found), jax.device_get(wanted))
    text = compiled.as_text()
    row(name, {"distance": max(jax.tree.leaves(distance)),
               "permutes": text.count(" collective-permute("), "all_to_alls": text.count(" all-to-all(")})

# Eight layers in four stages. Each example brings a mask along, and each layer has a loss of its own.
params = {"w": normal(8, 16, 16) / 4, "b": normal(8, 16)}
x, mask = normal(32, 16), (np.arange(32) % 3 > 0)[:, None]

def run_stage(params, microbatch, rng):
    hidden, mask = microbatch
    def layer(hidden, params):
        change = jnp.tanh(hidden @ params["w"] + params["b"])
        return jnp.where(mask, hidden + change, hidden), jnp.mean(change**2)
    hidden, losses = jax.lax.scan(layer, hidden, params)
    return (hidden, mask), jnp.sum(losses)

def loss(result, losses):
    return jnp.mean(result[0] ** 2 * np.arange(32)[:, None]) + losses

with fail_alone():
    compare("pipeline", lambda params, x: loss(*run_stage(params, (x, mask), KEY)),
            lambda params, x: loss(*pipeline(run_stage, params, (x, mask), KEY, axis="a", num_microbatches=8)),
            (params, x), (P("a"), P()))

config = dataclasses.replace(TINY_MOE, dropout_rate=0.0, hidden_size=16, mlp_size=24)
mesh = jax.make_mesh((4, 2), ("ep", "dp"), axis_types=(AxisType.Auto,) * 2)
hidden = normal(8, 16, 16)

def experts(train_config):
    module = MixtureOfExperts(config, train_config)
    def of(params, hidden):
        result, sown = module.apply({"params": params}, hidden, rngs={"dropout": KEY}, mutable=["losses"])
        return jnp.mean(result**2) + sum(jax.tree.leaves(sown))
    return module, of

module, plain = experts(TrainConfig())
_, divided = experts(TrainConfig(expert_parallel=True, data_parallel="batch"))
shapes = jax.eval_shape(module.init, {"params": KEY, "dropout": KEY}, hidden)["params"]
params = jax.tree.map(lambda leaf: normal(*leaf.shape) / 4, shapes)
specs = jax.tree.map(lambda leaf: P(), params)
specs["experts"] = jax.tree.map(lambda leaf: P("ep"), params["experts"])
compare("experts", plain, divided, (params, hidden), (specs, P(("dp", "ep"))))
"""


@pytest.fixture(scope="module")
def rows() -> ScriptRows:
    """By name the largest relative distance of loss and gradients from those of one device, and what is sent."""
    flags = f"--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0 {SIMPLE_KERNEL_FLAGS}"
    return ScriptRows(SCRIPT, XLA_FLAGS=flags, JAX_PLATFORMS="cpu")


@pytest.mark.parametrize("name", ["pipeline", "experts"])
@pytest.mark.slow
def test_loss_and_gradients_are_those_of_one_device(name: str, rows: ScriptRows) -> None:
    assert rows[name]["distance"] < 1e-4


def test_stages_hand_on_by_permutes(rows: ScriptRows) -> None:
    assert rows["pipeline"]["permutes"] > 0


def test_tokens_go_to_their_experts_by_all_to_all(rows: ScriptRows) -> None:
    # there and back, in both passes
    assert rows["experts"]["all_to_alls"] == 4
