"""The section on Pallas kernels, and the sentence about one over its limit."""

from __future__ import annotations

from memprof.analysis.records.kernel import Kernel, KernelBuffer, KernelCalls, is_about_chip
from memprof.reports.document import Heading, Note, Table
from memprof.reports.views.kernels import kernel_blocks, over_limit_sentence

KIB, MIB = 1 << 10, 1 << 20
BLOCK = KernelBuffer(kind="input", dtype="bf16", shape=(512, 512), num_buffers=2, size_bytes=MIB)
OUTPUT = KernelBuffer(kind="output", dtype="bf16", shape=(512, 512), num_buffers=2, size_bytes=MIB)
SCALARS = KernelBuffer(kind="prefetch", dtype="i32", shape=(256,), num_buffers=1, size_bytes=KIB)
SCRATCH = KernelBuffer(kind="scratch", dtype="f32", shape=(512, 512), num_buffers=1, size_bytes=MIB)


def _calls(*buffers: KernelBuffer, limit_bytes: int | None, used_bytes: int | None = None) -> KernelCalls:
    kernel = Kernel(instruction="product.1", buffers=buffers, limit_bytes=limit_bytes, used_bytes=used_bytes)
    return KernelCalls(name="product", kernel=kernel, num_calls=3, module="layer", source="/home/me/train.py:14")


def _with_smem(smem_limit_bytes: int | None, *, num_semaphores: int = 0) -> KernelCalls:
    kernel = Kernel(
        instruction="gather.1",
        buffers=(BLOCK,),
        limit_bytes=16 * MIB,
        smem_buffers=(SCALARS, SCALARS),
        smem_limit_bytes=smem_limit_bytes,
        num_semaphores=num_semaphores,
    )
    return KernelCalls(name="gather", kernel=kernel, num_calls=1, module="layer", source="train.py:14")


def _texts(*kernels: KernelCalls, top: int = 5) -> list[list[str]]:
    heading, table, *_ = kernel_blocks(kernels, top=top)
    assert isinstance(heading, Heading)
    assert isinstance(table, Table)
    return [[cell.text for cell in row.cells] for row in table.rows]


def test_no_kernels_have_no_section() -> None:
    assert kernel_blocks((), top=5) == ()


def test_a_row_has_the_sums_by_kind_and_the_share_of_the_compilers_figure() -> None:
    # 2 inputs, an output and scratch memory of 1 MiB each: 4 MiB. The compiler's 5 MiB are 31.25% of 16.
    calls = _calls(BLOCK, BLOCK, OUTPUT, SCRATCH, limit_bytes=16 * MIB, used_bytes=5 * MIB)
    (row,) = _texts(calls)
    assert row[:9] == [
        *("product", "3", "2.00 MiB", "1.00 MiB", "1.00 MiB", "4.00 MiB", "5.00 MiB", "16.0 MiB", "31.2%"),
    ]
    assert row[9] == (
        "2 inputs of 2 x bf16[512,512] (1.00 MiB each), output 2 x bf16[512,512] (1.00 MiB),"
        " scratch f32[512,512] (1.00 MiB)"
    )
    assert len(kernel_blocks((calls,), top=5)) == 2


def test_a_plan_has_no_figure_of_the_compiler_and_says_so() -> None:
    calls = _calls(BLOCK, limit_bytes=None)
    (row,) = _texts(calls)
    assert row[5:9] == ["1.00 MiB", "", "", ""]
    assert isinstance(kernel_blocks((calls,), top=5)[-1], Note)


def test_kernels_beyond_the_first_are_counted() -> None:
    assert _texts(*[_calls(BLOCK, limit_bytes=None)] * 3, top=1)[-1][0] == "(2 more)"


def test_the_sentence_names_the_parts_the_limit_and_scratch_memory_that_is_too_large_alone() -> None:
    at_limit = _calls(BLOCK, OUTPUT, limit_bytes=2 * MIB)
    assert over_limit_sentence([at_limit]) == ""
    over = _calls(BLOCK, SCRATCH, limit_bytes=MIB)
    assert over_limit_sentence([at_limit, over]) == (
        "product (/home/me/train.py:14) asks for 2.00 MiB of VMEM: input 2 x bf16[512,512] (1.00 MiB), scratch"
        " f32[512,512] (1.00 MiB). The limit is 1.00 MiB. Use smaller blocks, or raise vmem_limit_bytes."
    )
    alone = _calls(SCRATCH, limit_bytes=MIB - 1)
    assert "Its scratch memory alone, 1.00 MiB, exceeds the limit." in over_limit_sentence([alone])


def test_a_block_of_an_operand_in_vmem_takes_nothing_more() -> None:
    whole = KernelBuffer(kind="input", dtype="f32", shape=(8, 128), num_buffers=1, size_bytes=0)
    (row,) = _texts(_calls(whole, limit_bytes=None))
    assert row[9] == "input f32[8,128] (in VMEM already)"


def test_smem_and_semaphores_have_a_table_of_their_own() -> None:
    # Two arrays of scalars, 1 KiB each, are an eighth of 16 KiB.
    kernels = _with_smem(16 * KIB, num_semaphores=3), _with_smem(None), _calls(BLOCK, limit_bytes=None)
    *_, heading, table = kernel_blocks(kernels, top=5)
    assert isinstance(heading, Heading)
    assert heading.text == "SMEM and semaphores of Pallas kernels"
    assert isinstance(table, Table)
    scalars = "2 prefetch of i32[256] (1.00 KiB each)"
    assert [[cell.text for cell in row.cells] for row in table.rows] == [
        ["gather", "2.00 KiB", "16.0 KiB", "12.5%", "3", scalars, "train.py:14"],
        ["gather", "2.00 KiB", "", "", "0", scalars, "train.py:14"],
    ]
    assert len(table.columns) == len(table.rows[0].cells)
    *_, table = kernel_blocks(kernels, top=1)
    assert isinstance(table, Table)
    assert [row.cells[0].text for row in table.rows] == ["gather", "(1 more)"]
    assert len(table.columns) == len(table.rows[1].cells)


def test_the_sentence_names_smem_if_a_kernel_asks_for_more_than_the_chip_has() -> None:
    assert over_limit_sentence([_with_smem(2 * KIB)]) == ""
    assert over_limit_sentence([_with_smem(2 * KIB - 1)]) == (
        "gather (train.py:14) asks for 2.00 KiB of SMEM: 2 prefetch of i32[256] (1.00 KiB each). The chip has 2.00 KiB."
        " Use VMEM for arrays that are not scalars."
    )


def test_a_refusal_about_semaphores_is_about_the_chip() -> None:
    assert is_about_chip("Ran out of memory in memory space sflag. Used 2.1K of 2.0K sflag.")
    assert not is_about_chip("Ran out of memory on HBM, the total memory required for HLO temporaries")
