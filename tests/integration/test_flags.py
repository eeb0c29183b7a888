"""The flags of XLA that are in force, whatever the environment says by now."""

from __future__ import annotations

import json

import pytest
from integration.command import Command

from memprof.sources.jax.xla.flags import flags_in_force

OPTIONS = """goo.gle/debugonly
xla_disable_hlo_passes: "foo"
xla_disable_hlo_passes: "bar"
xla_gpu_autotune_level: 4
xla_cpu_enable_fast_math: true
xla_dump_to: "/tmp/dump"
xla_gpu_memory_limit_slop_factor: 95
"""


@pytest.mark.parametrize(
    ("current", "initial", "in_force"),
    [
        ("", "", ""),
        ("--xla_gpu_autotune_level=4", "", "--xla_gpu_autotune_level=4"),
        ("--xla_gpu_autotune_level=0", "", ""),
        ("--xla_gpu_autotune_level=0", "--xla_gpu_autotune_level=4", "--xla_gpu_autotune_level=4"),
        ("", "--xla_cpu_enable_fast_math", "--xla_cpu_enable_fast_math"),
        ("--xla_cpu_enable_fast_math=1", "--xla_cpu_enable_fast_math=1", "--xla_cpu_enable_fast_math=1"),
        ("--xla_cpu_enable_fast_math=false", "", ""),
        ("--xla_gpu_deterministic_ops=true", "", ""),
        ("--xla_gpu_deterministic_ops=false", "", "--xla_gpu_deterministic_ops=false"),
        ("--xla_disable_hlo_passes=foo,bar", "", "--xla_disable_hlo_passes=foo,bar"),
        ("--xla_dump_to=/tmp/other", "--xla_dump_to=/tmp/dump", "--xla_dump_to=/tmp/dump"),
        ("flags.txt", "flags.txt", "flags.txt"),
        ("--xla_dump_to='", "", ""),
    ],
)
def test_a_flag_counts_where_xla_has_read_it(current: str, initial: str, in_force: str) -> None:
    assert flags_in_force(current, initial, OPTIONS) == in_force


STEP = """
import os
import jax, jax.numpy as jnp, memprof
{before}
jnp.zeros(3).block_until_ready()
os.environ["XLA_FLAGS"] = "--xla_cpu_enable_fast_math=true"

def step_spec():
    shape = jax.ShapeDtypeStruct((8,), jnp.float32)
    return memprof.StepSpec(lambda x: x * 2, (shape,), roles={{"x": "batch"}})
"""


@pytest.mark.parametrize(
    ("before", "in_force"),
    [("", ""), ('os.environ["XLA_FLAGS"] = "--xla_cpu_enable_fast_math=true"', "--xla_cpu_enable_fast_math=true")],
    ids=["set too late", "set in time"],
)
def test_a_report_has_the_flags_that_the_compile_used(memprof: Command, before: str, in_force: str) -> None:
    (memprof.folder / "train.py").write_text(STEP.format(before=before))
    ended = memprof("run", "train.py:step_spec", "--target", "cpu", "--no-save", "--format", "json", XLA_FLAGS="")
    assert json.loads(ended.stdout)["toolchain"]["xla_flags"] == in_force
