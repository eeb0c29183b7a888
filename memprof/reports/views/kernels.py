"""The VMEM, SMEM and semaphores that each Pallas kernel of a TPU program requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from memprof.analysis.records.kernel import KernelBuffer, KernelCalls
from memprof.analysis.records.live_buffer import array_type, shown_source
from memprof.reports.document import Block, Heading, Note, Table, Tone
from memprof.reports.units import format_bytes, format_share
from memprof.reports.views.cells import short_names
from memprof.reports.views.fields import Fields, number, table, text

_KINDS = {"inputs": "input", "outputs": "output", "scratch": "scratch"}  # of blocks, by the titles of their columns
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

    def of_kind(kind: str) -> Callable[[KernelCalls], str]:
        return lambda each: format_bytes(
            sum(buffer.size_bytes for buffer in each.kernel.buffers if buffer.kind == kind)
        )

    def share_of_limit(each: KernelCalls) -> str:
        kernel = each.kernel
        return _share(kernel.used_bytes or kernel.asked_bytes, kernel.limit_bytes)

    return table(
        kernels,
        [
            text("kernel", lambda each: each.name, min_width=16),
            number("calls", lambda each: f"{each.num_calls:,}", priority=4),
            *(number(title, of_kind(kind), priority=2) for title, kind in _KINDS.items()),
            number("asks for", lambda each: format_bytes(each.kernel.asked_bytes)),
            number("compiler", lambda each: _known(each.kernel.used_bytes), priority=1),
            number("limit", lambda each: _known(each.kernel.limit_bytes)),
            number("share", share_of_limit, priority=1),
            text("blocks", lambda each: _parts(each.kernel.buffers), min_width=16, below=True),
            text("source", lambda each: names[each.source], min_width=16, below=True),
        ],
        top=top,
    )


def _known(size_bytes: int | None) -> str:
    return "" if size_bytes is None else format_bytes(size_bytes)


def _other_memories(kernels: Sequence[KernelCalls], *, top: int) -> tuple[Block, ...]:
    """Build the section of SMEM, compared with the chip's, and of semaphores; empty if no kernel requests them."""
    asking = [each for each in kernels if each.kernel.smem_buffers or each.kernel.num_semaphores]
    if not asking:
        return ()
    names = short_names([each.source for each in asking])
    fields: Fields[KernelCalls] = (
        text("kernel", lambda each: each.name, min_width=16),
        number("SMEM", lambda each: format_bytes(each.kernel.smem_bytes)),
        number("chip has", lambda each: _known(each.kernel.smem_limit_bytes)),
        number("share", lambda each: _share(each.kernel.smem_bytes, each.kernel.smem_limit_bytes), priority=1),
        number("semaphores", lambda each: f"{each.kernel.num_semaphores:,}"),
        text("in SMEM", lambda each: _parts(each.kernel.smem_buffers), min_width=16, below=True),
        text("source", lambda each: names[each.source], min_width=16, below=True),
    )
    heading = Heading(text="SMEM and semaphores of Pallas kernels", level=2, aside=_SEMAPHORES)
    return (heading, table(asking, fields, top=top))


def _share(part: int, whole: int | None) -> str:
    return format_share(part, whole) if whole else ""
