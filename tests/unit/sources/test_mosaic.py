"""The bodies of Pallas kernels as JAX lowers them for a TPU. Needs no libtpu: jaxlib has Mosaic's dialect."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from memprof.errors import MemprofError
from memprof.sources.jax.xla.mosaic import MosaicArray, read_kernels

X = jax.ShapeDtypeStruct((64, 256), jnp.float32)
ROWS = pl.BlockSpec((8, 256), lambda row: (row, 0))


def _body(step: Callable[..., Any], *arguments: Any) -> str:
    """The body of the one kernel of a step, in base64."""
    text = jax.jit(step).trace(*arguments).lower(lowering_platforms=("tpu",)).as_text()
    (config,) = re.findall(r'tpu_custom_call.*?backend_config = "((?:[^"\\]|\\.)*)"', text)
    return str(json.loads(config.replace("\\22", '"'))["custom_call_config"]["body"])


def _lowering_for(kind: str) -> AbstractContextManager[Any]:
    """What jax 0.12 asks about the chip if a body takes memory; 0.10.2 asks nothing."""
    if jax.__version_info__ < (0, 12):
        return nullcontext()
    device = jax.sharding.AbstractDevice(device_kind=kind, platform="tpu", num_cores=1)
    return jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), (), abstract_device=device))


def _copy(x: Any, o: Any, *_: Any) -> None:
    o[...] = x[...]


def _arrays(step: Callable[..., Any], *arguments: Any) -> list[tuple[int | None, str, tuple[int, ...], int]]:
    (kernel,) = read_kernels([_body(step, *arguments)])
    assert kernel is not None
    return [(each.window, each.dtype, each.shape, each.num_buffers) for each in kernel.arrays]


def test_a_block_that_changes_is_held_twice() -> None:
    def step(x: Any) -> Any:
        return pl.pallas_call(_copy, grid=(8,), in_specs=[ROWS], out_specs=ROWS, out_shape=X)(x)

    assert _arrays(step, X) == [(0, "f32", (8, 256), 2), (1, "f32", (8, 256), 2)]


def test_a_block_is_held_once_that_is_the_same_in_each_iteration_or_of_which_there_is_one() -> None:
    def add(x: Any, y: Any, o: Any) -> None:
        o[...] = x[...] + y[...]

    same = pl.BlockSpec((8, 256), lambda row: (0, 0))

    def step(x: Any, y: Any) -> Any:
        return pl.pallas_call(add, grid=(8,), in_specs=[ROWS, same], out_specs=ROWS, out_shape=X)(x, y)

    def of_one_iteration(x: Any) -> Any:
        return pl.pallas_call(_copy, grid=(1,), in_specs=[ROWS], out_specs=ROWS, out_shape=X)(x)

    assert [num_buffers for *_, num_buffers in _arrays(step, X, X)] == [2, 1, 2]
    assert [num_buffers for *_, num_buffers in _arrays(of_one_iteration, X)] == [1, 1]


def test_scratch_memory_counts_if_the_body_uses_it() -> None:
    def doubled(x: Any, o: Any, used: Any, unused: Any) -> None:
        used[...] = x[...] * 2
        o[...] = used[...]

    scratch = [pltpu.VMEM((8, 128), jnp.bfloat16), pltpu.VMEM((16, 128), jnp.bfloat16)]
    x = jax.ShapeDtypeStruct((8, 128), jnp.bfloat16)

    def step(x: Any) -> Any:
        return pl.pallas_call(doubled, out_shape=x, scratch_shapes=scratch)(x)

    assert _arrays(step, x) == [(0, "bf16", (8, 128), 1), (1, "bf16", (8, 128), 1), (None, "bf16", (8, 128), 1)]


def test_of_memory_taken_within_a_body_the_larger_of_two_that_follow_each_other_counts() -> None:
    def scoped(x: Any, o: Any) -> None:
        def small(memory: Any) -> None:
            memory[...] = x[0:8, :]
            o[0:8, :] = memory[...]

        def large(memory: Any) -> None:
            memory[...] = x[...]
            o[...] = memory[...]

        pl.run_scoped(small, pltpu.VMEM((8, 256), jnp.float32))
        pl.run_scoped(large, pltpu.VMEM((64, 256), jnp.float32))

    def step(x: Any) -> Any:
        return pl.pallas_call(scoped, out_shape=X)(x)

    with _lowering_for("TPU v5 lite"):
        arrays = _arrays(step, X)
    assert arrays[2:] == [(None, "f32", (64, 256), 1)]


def test_scalars_come_before_the_windows() -> None:
    def gather(_: Any, x: Any, o: Any) -> None:
        o[...] = x[...]

    grid = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1,
        grid=(8,),
        in_specs=[pl.BlockSpec((8, 256), lambda row, rows: (rows[row], 0))],
        out_specs=pl.BlockSpec((8, 256), lambda row, _: (row, 0)),
    )

    def step(rows: Any, x: Any) -> Any:
        return pl.pallas_call(gather, grid_spec=grid, out_shape=X)(rows, x)

    (kernel,) = read_kernels([_body(step, jax.ShapeDtypeStruct((8,), jnp.int32), X)])
    assert kernel is not None
    assert kernel.num_prefetched == 1
    block = {"dtype": "f32", "bits": 32, "shape": (8, 256), "num_buffers": 2}
    assert kernel.arrays == (MosaicArray(window=0, **block), MosaicArray(window=1, **block))


def test_smem_and_semaphores_are_those_of_operands_scratch_memory_and_the_body() -> None:
    def kernel(rows: Any, x: Any, whole: Any, sizes: Any, o: Any, counts: Any, _: Any, one: Any, two: Any) -> None:
        counts[0] = rows[0] + sizes[0, 1]

        def copy(source: Any, semaphore: Any) -> None:
            moved = pltpu.make_async_copy(source, o, semaphore)
            moved.start()
            moved.wait()

        copy(x, one)
        copy(x, two.at[1])
        pl.run_scoped(lambda three: copy(whole.at[pl.ds(0, 8)], three.at[2]), pltpu.SemaphoreType.DMA((3,)))

    grid = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1,
        grid=(8,),
        in_specs=[
            pl.BlockSpec((8, 256), lambda row, rows: (rows[row], 0)),
            pl.BlockSpec(memory_space=pl.ANY),
            pl.BlockSpec((8, 128), lambda row, _: (row, 0), memory_space=pltpu.SMEM),
        ],
        out_specs=pl.BlockSpec((8, 256), lambda row, _: (row, 0)),
        scratch_shapes=[
            pltpu.SMEM((4,), jnp.int32),
            pltpu.SMEM((2, 3), jnp.int16),  # not used, but libtpu keeps it
            pltpu.SemaphoreType.DMA,
            pltpu.SemaphoreType.DMA((2,)),
        ],
    )

    def step(rows: Any, x: Any, sizes: Any) -> Any:
        return pl.pallas_call(kernel, grid_spec=grid, out_shape=X)(rows, x, x, sizes)

    numbers = jax.ShapeDtypeStruct((8,), jnp.int32), X, jax.ShapeDtypeStruct((64, 128), jnp.int32)
    with _lowering_for("TPU v5 lite"):
        (found,) = read_kernels([_body(step, *numbers)])
    assert found is not None
    assert [(each.window, each.shape) for each in found.arrays] == [(0, (8, 256)), (3, (8, 256))]
    block = {"bits": 32, "dtype": "i32", "is_in_smem": True}
    assert found.smem_arrays == (
        MosaicArray(window=None, shape=(8,), is_prefetched=True, **block),
        MosaicArray(window=2, shape=(8, 128), num_buffers=2, **block),
        MosaicArray(window=None, shape=(4,), **block),
        MosaicArray(window=None, shape=(2, 3), **(block | {"bits": 16, "dtype": "i16"})),
    )
    assert found.num_semaphores == 1 + 2 + 3


def test_a_body_that_is_none_is_an_error() -> None:
    with pytest.raises(MemprofError, match="cannot read the bodies"):
        read_kernels(["bm8gYm9keQ=="])
