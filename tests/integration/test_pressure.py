"""A step for a GPU that is too small: XLA recomputes, and a second plan says what the step needs without that.

The GPU is an L4 with 90 MiB instead of 23 GiB, so that a step of 76 MiB is too large for it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from memprof.analysis.pipeline import analyze
from memprof.analysis.records.capture import Capture
from memprof.sources.jax.compile import capture_of, compile_step
from memprof.sources.jax.targets.nvidia.catalogue import gpus
from memprof.sources.jax.targets.resolve import cpu
from memprof.sources.jax.tracing.step import StepSpec
from memprof.sources.jax.xla import plan
from memprof.sources.jax.xla.plan import with_plan
from memprof.sources.jax.xla.plan_cache import PlanCache

NUM_LAYERS, SIZE = 8, 1024
MIB = 1 << 20


def step(weights: list[jax.Array], x: jax.Array) -> tuple[list[jax.Array], jax.Array]:
    def loss(weights: list[jax.Array]) -> jax.Array:
        h = x
        for each in weights:
            h = jax.nn.relu(h @ each)
        return jnp.mean(h**2)

    value, gradients = jax.value_and_grad(loss)(weights)
    return [w - 1e-3 * g for w, g in zip(weights, gradients, strict=True)], value


def captured(memory_bytes: int) -> Capture:
    array = jax.ShapeDtypeStruct((SIZE, SIZE), jnp.float32)
    target = replace(gpus()["l4"], memory_bytes=memory_bytes).target("a test")
    spec = StepSpec(step, ([array] * NUM_LAYERS, array), donate_argnums=(0,))
    return capture_of(spec, target, progress=lambda stage: None).capture


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMPROF_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))


def test_the_second_plan_is_that_of_a_card_with_enough_memory() -> None:
    # From one line: the place of a call is in its program.
    crowded, cached, free = [captured(memory_bytes) for memory_bytes in (90 * MIB, 90 * MIB, 900 * MIB)]
    report, unlimited = analyze(crowded), analyze(free)
    assert (unlimited.pressure, free.proto_without_limit) == (None, b"")
    pressure = report.pressure
    assert pressure is not None
    assert report.footprint_bytes < pressure.footprint_without_limit_bytes == unlimited.footprint_bytes
    # Products of 1024 x 1024 matrices are all that it recomputes.
    assert pressure.recomputed_values > 0
    assert pressure.recomputed_flops == 2 * SIZE**3 * pressure.recomputed_values
    assert pressure.planned_bytes == 90 * MIB * 3 // 4
    assert report.without_limit is not None
    assert report.without_limit.categories == unlimited.categories

    assert cached.timings.cached_compile_seconds == crowded.timings.compile_seconds
    assert cached.proto_without_limit == crowded.proto_without_limit
    assert PlanCache.of_user().usage().num_plans == 2


@pytest.mark.slow
def test_xla_plans_for_the_pool_and_not_for_a_share_of_the_card(monkeypatch: pytest.MonkeyPatch) -> None:
    # The step takes 76 MiB, by XLA's own estimate up to 100: 120 are enough, 80 are not.
    assert analyze(captured(160 * MIB)).pressure is None
    monkeypatch.setenv("XLA_CLIENT_MEM_FRACTION", "0.5")
    pressure = analyze(captured(160 * MIB)).pressure
    assert pressure is not None
    assert pressure.planned_bytes == 80 * MIB
    # Without a pool of a fixed size, XLA plans for 80% of the card.
    monkeypatch.setenv("XLA_PYTHON_CLIENT_ALLOCATOR", "platform")
    assert analyze(captured(160 * MIB)).pressure is None


def test_on_a_device_of_this_machine_an_option_lifts_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A CPU's program shows no sign, so that the second plan is asked for here.
    monkeypatch.setattr(plan, "may_be_rematerialized", lambda hlo_proto: True)
    arguments = [jnp.ones((4, 4))] * 2, jnp.ones((4, 4))
    compiled = compile_step(
        StepSpec(step, arguments), cpu("a test"), dump_folder=tmp_path / "dump", progress=lambda stage: None
    )
    capture = with_plan(compiled.planned).capture
    assert compiled.executable is not None
    assert capture.replay_without_limit == capture.replay
    assert analyze(capture).pressure is None
