"""Run a step in plain JAX, and print what XLA's allocator counted.

    python -m benchmarks.plain_jax NAME [FIELD=VALUE ...]

NAME is techniques of the built-in transformer's preset gpt2, or a program of `tests/libraries/judged`. Nothing of
memprof runs after the step is made. Values for the arguments are made on the host: floats of programs are small random
numbers, integers (tokens, labels, positions) zero, flags true; the memory of a step does not depend on them.

Compiling a step takes device memory too, because XLA tries kernels out. `run` therefore takes the step from JAX's
compilation cache in a second process, where the peak is that of the step.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from benchmarks.checkpoint_plans import JUDGED, spec_of
from memprof.sources.jax.tracing.step import StepSpec
from memprof.workloads.build import build_step

_NUM_STEPS = 3
_SECONDS = 200.0


def run(name: str, overrides: Sequence[str] = (), *, settings: Mapping[str, str], from_cache: bool) -> dict[str, Any]:
    """Run a step in a process of its own.

    Args:
        settings: environment variables for JAX; otherwise it has its defaults.
        from_cache: compile in another process first, so that compiling does not count.

    Returns:
        `memory_stats()` of the device before the steps, when the program and its arguments are there, and after them;
        or the error.
    """
    own = {key: value for key, value in os.environ.items() if not key.startswith(("XLA_", "TF_", "JAX_"))}
    command = [sys.executable, "-m", "benchmarks.plain_jax", name, *overrides]
    with tempfile.TemporaryDirectory() as folder:
        cache = {"JAX_COMPILATION_CACHE_DIR": folder, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
        environment = {**own, **settings, **(cache if from_cache else {})}
        for _ in range(1 + from_cache):
            try:
                done = subprocess.run(
                    command, capture_output=True, text=True, check=False, timeout=_SECONDS, env=environment
                )
            except subprocess.TimeoutExpired:
                return {"error": f"not done after {_SECONDS:g} s"}
    if done.returncode == 0:
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found
    lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    return {"error": next((line for line in lines if "RESOURCE_EXHAUSTED" in line), lines[-1])[:400]}


def main(name: str, overrides: Sequence[str]) -> None:
    """Run the step in this process, and print the statistics."""
    device = jax.devices()[0]
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        spec, values = _spec_and_values(name, overrides)
    step = spec.fn if hasattr(spec.fn, "lower") else jax.jit(spec.fn, donate_argnums=spec.donate_argnums)
    is_training = spec.feed is not None
    args = jax.device_put(values, device)
    compiled = step.lower(*args).compile()
    before = device.memory_stats()
    for number in range(_NUM_STEPS):
        result = jax.block_until_ready(compiled(*args))
        if is_training:
            args = (result[0], args[1])
        else:
            del args, result
            args = jax.device_put(values, device) if number + 1 < _NUM_STEPS else None
    print(json.dumps({"before": before, "after": device.memory_stats(), "device": device.device_kind}))


def _spec_and_values(name: str, overrides: Sequence[str]) -> tuple[StepSpec, Any]:
    if (JUDGED / f"{name}.py").exists():
        spec, numbers = spec_of(name), np.random.default_rng(0)
        return spec, jax.tree.map(lambda leaf: _filled(leaf, numbers), spec.args)
    spec = build_step(workload="transformer", preset="gpt2", overrides=overrides, techniques=[name])
    assert spec.feed is not None
    return spec, (spec.feed.argument(0, 0), spec.feed.argument(1, 0))


def _filled(leaf: Any, numbers: np.random.Generator) -> Any:
    if not isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.split(jax.random.key(0), leaf.shape)
    if jax.dtypes.issubdtype(leaf.dtype, np.inexact):
        return (0.02 * numbers.standard_normal(leaf.shape, np.float32)).astype(leaf.dtype)
    return np.ones(leaf.shape, leaf.dtype) if leaf.dtype == bool else np.zeros(leaf.shape, leaf.dtype)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
