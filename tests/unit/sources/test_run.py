"""Running a compiled step: which results go into the next step, and what a run that ends early leaves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memprof.analysis.records.categories import Role
from memprof.analysis.records.measurement import Measurement
from memprof.errors import MemprofError
from memprof.sources.jax.compile import compile_step
from memprof.sources.jax.running.run import NUM_WARMUP_STEPS, measure
from memprof.sources.jax.targets.resolve import resolve
from memprof.sources.jax.tracing.step import Feed, StepSpec


def _measure(spec: StepSpec, folder: Path, *, num_steps: int = 3) -> Measurement:
    target = resolve("cpu")
    compiled = compile_step(spec, target, dump_folder=folder, progress=lambda stage: None)
    return measure(spec, compiled, num_steps=num_steps, progress=lambda stage: None)


def test_what_a_step_returns_for_the_next_one_goes_into_it(tmp_path: Path) -> None:
    """The weight counts the steps; the batch, of the same shape as a result, is asked for anew."""

    def step(weight: jax.Array, batch: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        return weight + 1, batch * 100, 10 * weight[0] + batch[0]

    asked: list[tuple[int, int]] = []

    def argument(number: int, step: int) -> np.ndarray:
        asked.append((number, step))
        return np.full(4, 0 if number == 0 else step / 10, np.float32)

    shape = jax.ShapeDtypeStruct((4,), jnp.float32)
    spec = StepSpec(
        fn=step,
        args=(shape, shape),
        roles={"weight": Role.PARAMS, "batch": Role.BATCH},
        donate_argnums=(0,),
        feed=Feed(argument=argument, loss=lambda result: float(result[2]), num_examples=4),
    )
    measured = _measure(spec, tmp_path)
    assert measured.losses == pytest.approx((0, 10.1, 20.2, 30.3, 40.4))
    assert asked == [(0, 0), (1, 0), (1, 1), (1, 2), (1, 3), (1, 4)]
    assert len(measured.step_seconds) == 3
    assert measured.num_warmup_steps == NUM_WARMUP_STEPS == 2
    assert (measured.num_examples, measured.num_tokens) == (4, None)


def test_a_step_without_a_feed_runs_on_its_own_arrays(tmp_path: Path) -> None:
    """Gradient descent on w^2 from 1, by a tenth of the gradient: w is 1, 0.8, 0.64, ...

    `scale` looks like the loss, and still does not become it: it is neither donated nor trained.
    """

    def step(w: jax.Array, scale: jax.Array) -> tuple[jax.Array, jax.Array]:
        loss, gradient = jax.value_and_grad(lambda w: scale * w[0] ** 2)(w)
        return w - 0.1 * gradient, loss

    w = jnp.ones(1)
    spec = StepSpec(fn=step, args=(w, jnp.float32(1)), roles={"w": Role.PARAMS}, donate_argnums=(0,))
    measured = _measure(spec, tmp_path)
    assert measured.losses == pytest.approx([0.64**step for step in range(5)])
    assert w[0] == 1  # the user's own array is not donated
    assert measured.num_examples is None


def test_a_donated_argument_that_no_result_replaces_is_new_in_each_step(tmp_path: Path) -> None:
    spec = StepSpec(fn=lambda x: jnp.sum(x), args=(jnp.arange(4.0),), donate_argnums=(0,))
    with pytest.warns(UserWarning, match="Some donated buffers were not usable"):
        measured = _measure(spec, tmp_path)
    assert measured.losses == (6, 6, 6, 6, 6)


def test_a_step_on_shapes_alone_cannot_run(tmp_path: Path) -> None:
    spec = StepSpec(fn=lambda x: x, args=(jax.ShapeDtypeStruct((4,), jnp.float32),), workload="mine")
    with pytest.raises(MemprofError, match="mine can be compiled but not run, because its arguments are shapes"):
        _measure(spec, tmp_path)


class _Failing:
    """Stands for an executable: fails at its third call."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.num_calls = 0

    def __call__(self, x: Any) -> Any:
        self.num_calls += 1
        if self.num_calls == 3:
            raise self.error
        return x


def _measure_failing(error: Exception, folder: Path) -> Measurement:
    spec = StepSpec(fn=lambda x: x + 1, args=(jnp.ones(4),))
    target = resolve("cpu")
    compiled = compile_step(spec, target, dump_folder=folder, progress=lambda stage: None)
    compiled = replace(compiled, executable=_Failing(error))
    return measure(spec, compiled, num_steps=3, progress=lambda stage: None)


def test_running_out_of_memory_is_a_result(tmp_path: Path) -> None:
    message = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1024 bytes."
    measured = _measure_failing(jax.errors.JaxRuntimeError(f"{message}\nmore"), tmp_path)
    assert measured.out_of_memory is not None
    assert measured.out_of_memory.doing == "running step 3 of 5"
    assert (measured.out_of_memory.asked_bytes, measured.out_of_memory.message) == (1024, message)
    assert measured.step_seconds == ()


def test_running_out_of_host_memory_is_a_result_too(tmp_path: Path) -> None:
    measured = _measure_failing(MemoryError(), tmp_path)
    assert measured.out_of_memory is not None
    assert measured.out_of_memory.message == "out of host memory"


def test_another_error_is_none(tmp_path: Path) -> None:
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"):
        _measure_failing(jax.errors.JaxRuntimeError("INTERNAL: broken"), tmp_path)
