"""The examples for several devices: each framework's own way to say how its parameters are divided."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from memprof import Category
from memprof.api import Profile, profile_spec
from memprof.workloads.user.build import UserStep
from memprof.workloads.user.reference import parse

pytestmark = pytest.mark.with_one_jax
EXAMPLES = Path(__file__).parents[2] / "examples"
WIDTH, NUM_LAYERS, BATCH = 64, 1, 64
SMALL = (("width", str(WIDTH)), ("num_layers", str(NUM_LAYERS)), ("batch_size", str(BATCH)))
NUM_WEIGHTS = NUM_LAYERS * 2 * WIDTH * 4 * WIDTH


@pytest.fixture(autouse=True)
def no_mesh_left() -> Iterator[None]:
    """Some examples set the mesh for their whole process."""
    yield
    jax.set_mesh(Mesh(np.empty((), dtype=object), ()))


def small(name: str, *overrides: tuple[str, str]) -> Any:
    return UserStep(reference=parse(f"{EXAMPLES / name}.py:step_spec"), overrides=overrides or SMALL).build()


def check(profile: Profile, *, num_weights: int, num_counters: int, batch_share: int) -> None:
    """Weights in float32 over eight devices, two moments of each, and counters of four bytes on every device."""
    categories, report = profile.categories, profile.report
    assert categories[Category.PARAMS] == 4 * num_weights // 8
    assert categories[Category.OPTIMIZER_STATE] == 8 * num_weights // 8 + 4 * num_counters
    assert categories[Category.BATCH] == 4 * BATCH * WIDTH // batch_share
    assert sum(categories.values()) == profile.footprint_bytes
    assert categories[Category.UNATTRIBUTED] == 0
    assert report.doubts == ()
    assert profile.live_peak_bytes == report.compiler.peak_memory_bytes
    assert report.target.topology.num_devices == 8


@pytest.mark.parametrize(
    ("name", "num_counters", "batch_share"),
    [("sharded_flax_linen", 1, 4), ("sharded_flax_nnx", 2, 4), ("sharded_by_hand", 1, 8), ("sharded_explicit", 1, 4)],
)
@pytest.mark.slow_cases
def test_each_device_holds_its_share(name: str, num_counters: int, batch_share: int) -> None:
    spec = small(name)
    profile = profile_spec(spec)
    check(profile, num_weights=NUM_WEIGHTS, num_counters=num_counters, batch_share=batch_share)
    if "flax" in name:  # the plan of a mesh is JAX's own in test_meshes.py, too
        return
    jitted = jax.jit(spec.fn, donate_argnums=spec.donate_argnums)
    own, ours = jitted.lower(*spec.args).compile().memory_analysis(), profile.report.compiler
    assert (ours.argument_bytes, ours.alias_bytes, ours.temp_bytes, ours.peak_memory_bytes) == (
        own.argument_size_in_bytes,
        own.alias_size_in_bytes,
        own.temp_size_in_bytes,
        own.peak_memory_in_bytes,
    )


def test_equinox_divides_each_weight_of_its_model() -> None:
    pytest.importorskip("equinox")
    profile = profile_spec(small("sharded_equinox", ("width", str(WIDTH)), ("depth", "2"), ("batch_size", str(BATCH))))
    # in, out and one weight of 256 by 256 between them
    check(profile, num_weights=2 * WIDTH * 4 * WIDTH + (4 * WIDTH) ** 2, num_counters=1, batch_share=8)
