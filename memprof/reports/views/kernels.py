"""The VMEM, SMEM and semaphores that each Pallas kernel of a TPU program requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from memprof.analysis.records.kernel import KernelBuffer, KernelCalls
from memprof.analysis.records.live_buffer import array_type, shown_source
from memprof.reports.document import Align, Block, Cell, Column, Heading, Note, Row, Shorten, Table, Tone
from memprof.reports.units import format_bytes, format_share
from memprof.reports.views.cells import more_label, short_names

_KINDS = ("input", "output", "scratch")
_PLANNED = (
    "VMEM of blocks and scratch memory is inferred from the kernels. The compiler adds temporaries while it "
    "generates code: --complete shows its figure."
)
_SEMAPHORES = "semaphores have separate memory"


def kernel_blocks(kernels: Sequence[KernelCalls], *, top: int) -> tuple[Block, ...]:
    """Build the section; empty if there are no kernels."""
    if not kernels:
        return ()
    is_planned = any(each.kernel.used_bytes is None for each in kernels)
    notes = (Note(tone=Tone.MUTED, text=_PLANNED),) if is_planned else ()
    heading = Heading(text="VMEM of Pallas kernels", level=2, aside="equal calls from one line combined")
    return (heading, _table(kernels, top=top), *notes, *_other_memories(kernels, top=top))


def over_limit_sentence(kernels: Sequence[KernelCalls]) -> str:
    """Describe the first kernel that requests more VMEM than its limit or more SMEM than exists; empty if none does."""
    for each in kernels:
        kernel = each.kernel
        where = f" ({shown_source(each.source)})" if each.source else ""
        if kernel.is_over_limit:
            limit_bytes = kernel.limit_bytes or 0
            stops = ""
            if kernel.scratch_bytes > limit_bytes:
                stops = f" Its scratch memory alone, {format_bytes(kernel.scratch_bytes)}, exceeds the limit."
            return (
                f"{each.name}{where} asks for {format_bytes(kernel.asked_bytes)} of VMEM: {_parts(kernel.buffers)}."
                f" The limit is {format_bytes(limit_bytes)}.{stops} Use smaller blocks, or raise vmem_limit_bytes."
            )
        if kernel.is_over_smem:
            return (
                f"{each.name}{where} asks for {format_bytes(kernel.smem_bytes)} of SMEM: {_parts(kernel.smem_buffers)}."
                f" The chip has {format_bytes(kernel.smem_limit_bytes or 0)}. Use VMEM for arrays that are not scalars."
            )
    return ""


def _parts(buffers: Sequence[KernelBuffer]) -> str:
    """List the blocks of a kernel, with equal blocks merged: `2 inputs of 2 x f32[512,1024] (4.00 MiB each)`."""
    return ", ".join(_part(buffer, number) for buffer, number in Counter(buffers).items())


def _part(buffer: KernelBuffer, number: int) -> str:
    times = f"{buffer.num_buffers} x " if buffer.num_buffers > 1 else ""
    array = f"{times}{array_type(buffer.dtype, buffer.shape)}"
    size = format_bytes(buffer.size_bytes) if buffer.size_bytes else "in VMEM already"
    if number == 1:
        return f"{buffer.kind} {array} ({size})"
    plural = "s" if buffer.kind in ("input", "output") else ""
    return f"{number} {buffer.kind}{plural} of {array} ({size}{' each' if buffer.size_bytes else ''})"


def _table(kernels: Sequence[KernelCalls], *, top: int) -> Table:
    names = short_names([each.source for each in kernels])
    rows = [_row(each, names[each.source]) for each in kernels[:top]]
    if len(kernels) > top:
        rows.append(Row(cells=(Cell(text=more_label(len(kernels) - top)), *(Cell(text=""),) * 10)))
    return Table(
        columns=(
            Column(title="kernel", shorten=Shorten.MIDDLE, min_width=16),
            Column(title="calls", align=Align.RIGHT, priority=4),
            *(Column(title=title, align=Align.RIGHT, priority=2) for title in ("inputs", "outputs", "scratch")),
            Column(title="asks for", align=Align.RIGHT),
            Column(title="compiler", align=Align.RIGHT, priority=1),
            Column(title="limit", align=Align.RIGHT),
            Column(title="share", align=Align.RIGHT, priority=1),
            Column(title="blocks", shorten=Shorten.MIDDLE, min_width=16, below=True),
            Column(title="source", shorten=Shorten.MIDDLE, min_width=16, below=True),
        ),
        rows=tuple(rows),
    )


def _row(each: KernelCalls, source: str) -> Row:
    kernel = each.kernel
    sums = [sum(buffer.size_bytes for buffer in kernel.buffers if buffer.kind == kind) for kind in _KINDS]
    held_bytes, limit_bytes = kernel.used_bytes or kernel.asked_bytes, kernel.limit_bytes
    texts = (
        each.name,
        f"{each.num_calls:,}",
        *map(format_bytes, sums),
        format_bytes(kernel.asked_bytes),
        "" if kernel.used_bytes is None else format_bytes(kernel.used_bytes),
        "" if limit_bytes is None else format_bytes(limit_bytes),
        "" if not limit_bytes else format_share(held_bytes, limit_bytes),
        _parts(kernel.buffers),
        source,
    )
    return Row(cells=tuple(Cell(text=text) for text in texts))


def _other_memories(kernels: Sequence[KernelCalls], *, top: int) -> tuple[Block, ...]:
    """Build the section of SMEM, compared with the chip's, and of semaphores; empty if no kernel requests them."""
    asking = [each for each in kernels if each.kernel.smem_buffers or each.kernel.num_semaphores]
    if not asking:
        return ()
    names = short_names([each.source for each in asking])
    rows = [_other_row(each, names[each.source]) for each in asking[:top]]
    if len(asking) > top:
        rows.append(Row(cells=(Cell(text=more_label(len(asking) - top)), *(Cell(text=""),) * 6)))
    table = Table(
        columns=(
            Column(title="kernel", shorten=Shorten.MIDDLE, min_width=16),
            Column(title="SMEM", align=Align.RIGHT),
            Column(title="chip has", align=Align.RIGHT),
            Column(title="share", align=Align.RIGHT, priority=1),
            Column(title="semaphores", align=Align.RIGHT),
            Column(title="in SMEM", shorten=Shorten.MIDDLE, min_width=16, below=True),
            Column(title="source", shorten=Shorten.MIDDLE, min_width=16, below=True),
        ),
        rows=tuple(rows),
    )
    return (Heading(text="SMEM and semaphores of Pallas kernels", level=2, aside=_SEMAPHORES), table)


def _other_row(each: KernelCalls, source: str) -> Row:
    kernel = each.kernel
    limit_bytes = kernel.smem_limit_bytes
    texts = (
        each.name,
        format_bytes(kernel.smem_bytes),
        "" if limit_bytes is None else format_bytes(limit_bytes),
        "" if not limit_bytes else format_share(kernel.smem_bytes, limit_bytes),
        f"{kernel.num_semaphores:,}",
        _parts(kernel.smem_buffers),
        source,
    )
    return Row(cells=tuple(Cell(text=text) for text in texts))
