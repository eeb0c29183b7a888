"""Calls that JAX divides among devices, compiled in a process that did not lower them."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import NamedSharding, PartitionSpec

import memprof
from memprof.errors import MemprofError
from memprof.sources.jax.compile import lower_step, planned
from memprof.sources.jax.targets.mesh import target_of_step
from memprof.sources.jax.targets.nvidia.tools import missing_for_deviceless
from memprof.sources.jax.targets.resolve import resolve_asked
from memprof.sources.jax.tracing.step import StepSpec

pytestmark = pytest.mark.skipif(
    bool(missing_for_deviceless()), reason="compiling for a GPU that is not there takes the extra `deviceless`"
)
BATCH, LENGTH, HEADS, WIDTH = 8, 512, 8, 64
ARRAY_BYTES = BATCH * LENGTH * HEADS * WIDTH * 2
PROBABILITY_BYTES = BATCH * HEADS * LENGTH * LENGTH * 2


def attend(q: Any, k: Any, v: Any) -> Any:
    """An attention and its gradients: cuDNN has a call for each."""

    def total(*qkv: Any) -> Any:
        return jax.nn.dot_product_attention(*qkv, implementation="cudnn").astype(jnp.float32).sum()

    return jax.grad(total, argnums=(0, 1, 2))(q, k, v)


def arrays(axes: dict[str, int], *spec: str | None) -> list[jax.ShapeDtypeStruct]:
    sharding = NamedSharding(memprof.mesh("h100-80gb", axes), PartitionSpec(*spec))
    return [jax.ShapeDtypeStruct((BATCH, LENGTH, HEADS, WIDTH), jnp.bfloat16, sharding=sharding)] * 3


@pytest.mark.parametrize(("axes", "spec"), [({"data": 4}, ("data",)), ({"data": 2, "tp": 2}, ("data", None, "tp"))])
def test_each_device_attends_with_its_own_examples_and_heads(
    axes: dict[str, int], spec: tuple[str | None, ...]
) -> None:
    """Whole probabilities would take 8 x 8 x 512 x 512 x 2 bytes = 32 MiB, 8 MiB on each of four devices."""
    profile = memprof.profile(attend, *arrays(axes, *spec), target="h100-80gb")
    assert profile.capture.compiler.argument_bytes == 3 * ARRAY_BYTES // 4
    assert profile.footprint_bytes < 7 * ARRAY_BYTES // 4 + PROBABILITY_BYTES // 8
    assert profile.report.collectives == ()


def _by_hand(weights: Any, x: Any) -> Any:
    q, k, v = jnp.einsum("btd,ndhk->nbthk", x, weights)
    scores = jnp.einsum("bthk,bshk->bhts", q, k) * WIDTH**-0.5
    scores = jnp.where(jnp.tril(jnp.ones((LENGTH, LENGTH), bool)), scores, -jnp.inf)
    return jnp.einsum("bhts,bshk->bthk", jax.nn.softmax(scores, axis=-1), v)


def _trained(weights: Any, x: Any) -> Any:
    return jax.grad(lambda weights: jnp.mean(_by_hand(weights, x).astype(jnp.float32) ** 2))(weights)


@pytest.mark.parametrize("step", [_by_hand, _trained])
def test_a_kernel_is_advised_for_a_step_on_a_mesh_of_the_context(step: Any) -> None:
    """Whole probabilities take 8 MiB on each device."""
    mesh = memprof.mesh("h100-80gb", {"data": 4})
    x, weights = (
        jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, PartitionSpec(*spec)))
        for shape, spec in (((BATCH, LENGTH, 256), ("data",)), ((3, 256, HEADS, WIDTH), ()))
    )
    with jax.set_mesh(mesh), warnings.catch_warnings():
        warnings.simplefilter("error")  # "could not be tried"
        advice = {each.rule: each for each in memprof.advise(step, weights, x, target="h100-80gb")}
    kernel = advice["flash_attention"]
    assert kernel.is_compiled
    assert kernel.saving_bytes >= PROBABILITY_BYTES // 4


def test_equal_steps_have_one_plan_in_the_cache() -> None:
    keys = []
    for _ in range(2):
        qkv = tuple(arrays({"data": 4}, "data"))
        spec = StepSpec(jax.jit(lambda *qkv: attend(*qkv)), qkv)
        target = target_of_step(spec, resolve_asked("h100-80gb", mesh="data=4"))
        step = lower_step(spec, target, lambda stage: None)
        keys.append(planned(step, progress=lambda stage: None)().cache_key)
    assert keys[0] == keys[1] != ""


def test_functions_of_this_process_alone_are_refused_in_one_sentence() -> None:
    @custom_partitioning
    def double(x: Any) -> Any:
        return 2 * x

    double.def_partition(
        partition=lambda mesh, args, result: (mesh, lambda x: 2 * x, result.sharding, (args[0].sharding,)),
        infer_sharding_from_operands=lambda mesh, args, result: args[0].sharding,
        sharding_rule="... -> ...",
    )
    with pytest.raises(MemprofError, match="only its own process has"):
        memprof.profile(double, arrays({"data": 4}, "data")[0], target="h100-80gb")
