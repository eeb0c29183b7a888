"""The VMEM of Pallas kernels, compiled for absent TPUs: the numbers held against the compiler's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

import memprof
from memprof.analysis.records.kernel import KernelCalls
from memprof.sources.jax.targets.tpu.compiler import libtpu_version

pytestmark = pytest.mark.skipif(
    libtpu_version() is None, reason='compiling for TPUs needs libtpu: pip install "jax-memprof[tpu]"'
)

KIB, MIB = 1 << 10, 1 << 20
# Larger than VMEM, where XLA would keep the operands otherwise.
ROWS, COLUMNS, SIDE = 65536, 1024, 8192
BLOCK_ROWS, BLOCK = 512, 512
BIG = jax.ShapeDtypeStruct((ROWS, COLUMNS), jnp.float32)
MATRIX = jax.ShapeDtypeStruct((SIDE, SIDE), jnp.bfloat16)


def _rows(*ins: Any, limit: int | None, name: str) -> Any:
    """Add arrays, some rows at a time."""

    def kernel(*refs: Any) -> None:
        *inputs, output = refs
        output[...] = sum(each[...] for each in inputs)

    spec = pl.BlockSpec((BLOCK_ROWS, COLUMNS), lambda row: (row, 0))
    return pl.pallas_call(
        kernel,
        grid=(ROWS // BLOCK_ROWS,),
        in_specs=[spec] * len(ins),
        out_specs=spec,
        out_shape=BIG,
        name=name,
        compiler_params=pltpu.CompilerParams(vmem_limit_bytes=limit),
    )(*ins)


def add(x: Any, limit: int | None = None) -> Any:
    """Two inputs and an output of 2 MiB, each twice."""
    return _rows(x, x, limit=limit, name="add")


def add_five(x: Any, limit: int | None = None) -> Any:
    """Five inputs and an output of 2 MiB, each twice."""
    return _rows(x, x, x, x, x, limit=limit, name="add_five")


def matmul(a: Any, limit: int | None = None) -> Any:
    """Two inputs and an output of 0.5 MiB, each twice, and 1 MiB of scratch memory."""

    def kernel(left: Any, right: Any, output: Any, total: Any) -> None:
        @pl.when(pl.program_id(2) == 0)
        def _() -> None:
            total[...] = jnp.zeros_like(total)

        total[...] += jnp.dot(left[...], right[...], preferred_element_type=jnp.float32)
        output[...] = total[...].astype(output.dtype)

    return pl.pallas_call(
        kernel,
        grid=(SIDE // BLOCK,) * 3,
        in_specs=[
            pl.BlockSpec((BLOCK, BLOCK), lambda row, column, inner: (row, inner)),
            pl.BlockSpec((BLOCK, BLOCK), lambda row, column, inner: (inner, column)),
        ],
        out_specs=pl.BlockSpec((BLOCK, BLOCK), lambda row, column, inner: (row, column)),
        out_shape=MATRIX,
        scratch_shapes=[pltpu.VMEM((BLOCK, BLOCK), jnp.float32)],
        name="matmul",
        compiler_params=pltpu.CompilerParams(vmem_limit_bytes=limit),
    )(a, a)


ASKED = {add: 12 * MIB, add_five: 24 * MIB, matmul: 4 * MIB}


def _kernel(step: Callable[..., Any], *arguments: Any, **options: Any) -> tuple[KernelCalls, str]:
    report = memprof.profile(step, *arguments, **options).report
    (calls,) = report.kernels
    return calls, report.refusal


def test_kernels_ask_for_what_the_compiler_reports() -> None:
    def step(x: Any, a: Any) -> Any:
        # At the limit, to the byte: the compiler accepts that.
        return add(x, 12 * MIB), add_five(x, 24 * MIB), matmul(a)

    report = memprof.profile(step, BIG, MATRIX, target="v5e", complete=True).report
    assert report.refusal == ""
    found = {each.name: each.kernel for each in report.kernels}
    assert {name: kernel.asked_bytes for name, kernel in found.items()} == {
        step.__name__: asked for step, asked in ASKED.items()
    }
    assert found["add"].used_bytes == found["add"].asked_bytes == found["add"].limit_bytes
    assert found["add_five"].used_bytes == found["add_five"].asked_bytes == found["add_five"].limit_bytes
    assert [each.source.rpartition("/")[2].partition(":")[0] for each in report.kernels] == [
        "test_pallas_kernels.py"
    ] * 3
    # The compiler adds temporaries of its own to the product.
    assert found["matmul"].limit_bytes == 16 * MIB
    assert found["matmul"].used_bytes is not None
    assert found["matmul"].asked_bytes < found["matmul"].used_bytes < 5 * MIB
    assert [(each.kind, each.num_buffers, each.size_bytes) for each in found["matmul"].buffers] == [
        ("input", 2, MIB),
        ("input", 2, MIB),
        ("output", 2, MIB),
        ("scratch", 1, MIB),
    ]


@pytest.mark.parametrize("step", [add, add_five, matmul])
def test_a_kernel_over_its_limit_is_a_result_with_the_compilers_number(step: Callable[..., Any]) -> None:
    argument = MATRIX if step is matmul else BIG
    limit = ASKED[step] - KIB
    calls, refusal = _kernel(lambda x: step(x, limit), argument, target="v5e")
    assert (calls.kernel.asked_bytes, calls.kernel.limit_bytes) == (ASKED[step], limit)
    asked = f"{ASKED[step] / MIB:.2f}M"
    assert f"Scoped allocation with size {asked}" in refusal
    assert refusal.endswith("exceeded scoped vmem limit by 1.0K")


def test_the_limit_is_that_of_the_chip_or_of_an_option() -> None:
    for target, limit in {"v5p": 16 * MIB, "v6e": 32 * MIB}.items():
        assert _kernel(add, BIG, target=target)[0].kernel.limit_bytes == limit
    calls, refusal = _kernel(add, BIG, target="v5e", compiler_options={"xla_tpu_scoped_vmem_limit_kib": "8192"})
    assert calls.kernel.limit_bytes == 8 * MIB
    assert "size 12.00M and limit 8.00M exceeded scoped vmem limit by 4.00M" in refusal


def test_blocks_that_do_not_change_are_held_once_and_operands_in_vmem_need_none() -> None:
    def kernel(x: Any, w: Any, o: Any) -> None:
        o[...] = x[...] + w[0:1, :]

    def step(x: Any, w: Any) -> Any:
        small = jnp.tanh(w)  # which XLA keeps in VMEM
        return pl.pallas_call(
            kernel,
            grid=(ROWS // 8,),
            in_specs=[pl.BlockSpec((8, COLUMNS), lambda row: (row, 0)), pl.BlockSpec((8, COLUMNS), lambda row: (0, 0))],
            out_specs=pl.BlockSpec((8, COLUMNS), lambda row: (row, 0)),
            out_shape=BIG,
            name="small",
        )(x, small)

    calls, _ = _kernel(step, BIG, jax.ShapeDtypeStruct((8, COLUMNS), jnp.float32), target="v5e")
    assert [(each.kind, each.num_buffers, each.size_bytes) for each in calls.kernel.buffers] == [
        ("input", 2, 64 * KIB),
        ("input", 1, 0),
        ("output", 2, 64 * KIB),
    ]


def _gather(num_scalars: int, scratch: Any, num_semaphores: int) -> tuple[Callable[..., Any], tuple[Any, Any]]:
    """Copies rows of x by DMA; numbers in SMEM say which."""

    def kernel(rows: Any, x: Any, o: Any, _: Any, semaphores: Any) -> None:
        copy = pltpu.make_async_copy(x.at[pl.ds(pl.multiple_of(rows[pl.program_id(0)], 8), 8)], o, semaphores.at[0])
        copy.start()
        copy.wait()

    grid = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1,
        grid=(8,),
        in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
        out_specs=pl.BlockSpec((8, COLUMNS), lambda row, _: (row, 0)),
        scratch_shapes=[scratch, pltpu.SemaphoreType.DMA((num_semaphores,))],
    )

    def step(rows: Any, x: Any) -> Any:
        out = jax.ShapeDtypeStruct((64, COLUMNS), jnp.float32)
        return pl.pallas_call(kernel, grid_spec=grid, out_shape=out, name="gather")(rows, x)

    return step, (jax.ShapeDtypeStruct((num_scalars,), jnp.int32), BIG)


def test_smem_and_semaphores_of_a_kernel_that_fits() -> None:
    step, arguments = _gather(8, pltpu.SMEM((9, 2), jnp.int32), 4)
    calls, refusal = _kernel(step, *arguments, target="v5e", complete=True)
    assert refusal == ""
    # 8 numbers take a tile of 128; 9 x 2 numbers are padded to 16 x 128.
    assert [(each.kind, each.size_bytes) for each in calls.kernel.smem_buffers] == [
        ("prefetch", 512),
        ("scratch", 16 * 128 * 4),
    ]
    assert (calls.kernel.smem_limit_bytes, calls.kernel.num_semaphores) == (MIB, 4)


@pytest.mark.parametrize(
    ("num_scalars", "scratch"),
    [
        (300 * KIB + 1, pltpu.SMEM((8,), jnp.int32)),
        (8, pltpu.SMEM((600 * KIB,), jnp.int16)),
        (8, pltpu.SMEM((2500, 2), jnp.int32)),
        (8, pltpu.SMEM((3, 200 * KIB), jnp.int16)),
        (8, pltpu.SMEM((9001, 2), jnp.int8)),
    ],
)
def test_an_array_larger_than_smem_is_a_result_with_the_compilers_number(num_scalars: int, scratch: Any) -> None:
    step, arguments = _gather(num_scalars, scratch, 1)
    calls, refusal = _kernel(step, *arguments, target="v5e")
    largest = max(each.size_bytes for each in calls.kernel.smem_buffers)
    assert refusal == f"Allocation (size={largest}) would exceed memory (size={calls.kernel.smem_limit_bytes})"
    assert calls.kernel.is_over_smem


def test_smem_and_semaphores_that_are_too_many_together_are_a_result() -> None:
    step, arguments = _gather(150 * KIB, pltpu.SMEM((150 * KIB,), jnp.int32), 1)
    calls, refusal = _kernel(step, *arguments, target="v5e")
    assert calls.kernel.smem_bytes == 1200 * KIB
    assert "Ran out of memory in memory space smem. Used 1.17M of 1.00M smem" in refusal

    step, arguments = _gather(8, pltpu.SMEM((8,), jnp.int32), 512)
    report = memprof.profile(step, *arguments, target="v5e", complete=True).report
    assert report.kernels[0].kernel.num_semaphores == 512
    assert "Ran out of memory in memory space sflag" in report.refusal
    assert "the compiler found too little memory on the chip" in report.verdict.sentence
