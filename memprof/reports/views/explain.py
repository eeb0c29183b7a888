"""The document of an explained log: the failed request, why it failed, and the buffers."""

from __future__ import annotations

from memprof.analysis.records.categories import Phase
from memprof.analysis.records.live_buffer import LiveBuffer, array_type, shown_source
from memprof.reports.document import (
    Block,
    Cell,
    Document,
    Facts,
    Heading,
    Note,
    Table,
    Tone,
)
from memprof.reports.units import format_bytes, format_share
from memprof.reports.views.buffers import largest_buffers_table
from memprof.reports.views.cells import aside_cell, category_cell, exact_size, facts_of
from memprof.reports.views.fields import number, table, text, total
from memprof.studies.explain.explanation import AskedFor, ExplainedBuffer, Explanation
from memprof.studies.explain.records import Moment, OutOfMemory

# XLA's names for the parts of a program's memory, and ours.
_PARTS = {
    "parameter allocation": "arguments",
    "arguments": "arguments",
    "constant allocation": "constants",
    "maybe_live_out allocation": "results, and arguments that are overwritten",
    "output": "results",
    "preallocated temp allocation": "temp block",
    "HLO temp": "temp block",
    "total allocation": "footprint",
    "total fragmentation": "fragmentation of the temp block",
    "reserved": "reserved by the runtime",
    "program": "program, with its temp block",
    "global": "constants and code",
    "scoped": "scratch of kernels",
    "overlays": "overlays of code",
    "heap allocations": "live arrays",
}
_MOMENTS = {
    Moment.COMPILING: "when the program was compiled",
    Moment.LOADING: "when the program was loaded",
    Moment.RUNNING: "while it ran",
}
_IS_TEMP_BLOCK = (
    "which a device allocates as one block before the program runs: all values between arguments and results"
)


def explanation_document(explanation: Explanation, *, top: int) -> Document:
    """Build the document: a few sentences, the numbers, XLA's list of buffers, and the request within the program.

    Args:
        explanation: the facts.
        top: the number of rows in each table; the rest is summed up in one.
    """
    log, program = explanation.log, explanation.program
    device = f"{log.device} " if log.device else ""
    title = f"{device}out of memory {_MOMENTS[log.when]}"
    blocks: list[Block] = [
        Heading(text=title[0].upper() + title[1:], level=1, aside="memprof"),
        _facts(explanation),
        *(Note(text=text, tone=Tone.MUTED) for text in sentences(explanation)),
    ]
    if explanation.listed:
        blocks += [Heading(text="The largest buffers, as XLA lists them", level=2), _listed_table(explanation, top)]
    if program is not None and explanation.asked:
        blocks += [
            Heading(text=f"The request, in {program.label}", level=2, aside="at the peak"),
            largest_buffers_table(explanation.asked, top=top),
        ]
    return Document(blocks=tuple(blocks))


def sentences(explanation: Explanation) -> tuple[str, ...]:
    """Describe the failed request, why it failed, and where to learn more."""
    log = explanation.log
    found = [_what(explanation), *_why_not(explanation), _own_attempt(log), _verdict(explanation)]
    if log.num_tries:
        found.append(f"{log.num_tries:,} further warnings are attempts of XLA's autotuner, which are not failures.")
    if log.num_messages > 1:
        found.append(f"The log reports it {log.num_messages:,} times: for each device, and as an exception.")
    return tuple(filter(None, (*found, _more(explanation))))


def _facts(explanation: Explanation) -> Facts:
    log, pool = explanation.log, explanation.log.pool
    sizes = {
        "asked for": (log.asked_bytes, not log.is_rounded),
        "free": (explanation.free_bytes, pool is not None and pool.in_use_bytes is not None),
        "largest free block": (pool.largest_free_bytes if pool else None, False),
        "in use": (pool.in_use_bytes if pool else None, True),
        "there is": (explanation.capacity_bytes, pool is not None),
    }
    shown = {
        label: exact_size(size) if is_exact else (format_bytes(size),)
        for label, (size, is_exact) in sizes.items()
        if size is not None
    }
    parts = [f"{_PARTS[name]} {format_bytes(size)}" for name, size in log.parts.items() if size]
    chunks = [f"{count:,} of {format_bytes(size)}" for size, count in (pool.largest_chunks if pool else ())]
    more = {"the program": tuple(dict.fromkeys(parts)), "most of the pool": chunks, "the message": (log.message,)}
    return facts_of({**shown, **more})


def _what(explanation: Explanation) -> str:
    program = explanation.program
    of_program = program.label if program else "the program"
    if explanation.asked_for is AskedFor.TEMP_BLOCK:
        held = sum(buffer.size_bytes for buffer in explanation.asked)
        live = f", {format_bytes(held)} of them live at once" if held else ""
        return f"The request is the temp block of {of_program}, {_IS_TEMP_BLOCK}{live}."
    if explanation.asked_for is AskedFor.BUFFER:
        (buffer,) = explanation.asked
        return f"The request is one buffer of {of_program}, {_name_of(buffer)}: {buffer.evidence}."
    return {
        AskedFor.PROGRAM: f"The compiler rejected {of_program} before it ran: it needs more than one device has.",
        AskedFor.LOADED_PROGRAM: "The program was compiled, but there was no room for it beside the live arrays.",
        AskedFor.RESULTS: "The request is memory for results that are not written into donated arguments.",
        AskedFor.ARRAY: "The request is an array: one that is copied to the device, or a program's result.",
    }.get(explanation.asked_for, "")


def _name_of(buffer: LiveBuffer) -> str:
    place = f" ({shown_source(buffer.source)})" if buffer.source else ""
    return f"{array_type(buffer.dtype, buffer.shape)} of {buffer.op or buffer.name}{place}"


def _why_not(explanation: Explanation) -> list[str]:
    """Explain why the request failed: too little free memory, or fragmentation."""
    log, pool = explanation.log, explanation.log.pool
    asked, free, capacity = log.asked_bytes or 0, explanation.free_bytes, explanation.capacity_bytes
    found = []
    if log.space not in ("", "hbm"):
        found.append(f"It concerns {log.space}, the on-chip memory of kernels, not the device's memory.")
    if capacity is not None and asked > capacity:
        found.append(
            f"It exceeds the whole memory of one device, {format_bytes(capacity)}, by "
            f"{format_bytes(asked - capacity)}: only a smaller program helps, not freeing memory."
        )
    elif free is not None and asked > free:
        found.append(f"{format_bytes(asked - free)} were missing; live arrays and the memory of programs were in use.")
    elif free is not None:
        largest = pool.largest_free_bytes if pool else None
        pieces = f", in blocks of at most {format_bytes(largest)}" if largest else ", but not in one block"
        found.append(
            f"The pool is fragmented: {format_bytes(free)} were free{pieces}. Freeing memory before the large "
            "program runs, or giving the pool a larger share of the device (XLA_CLIENT_MEM_FRACTION), yields one "
            "block."
        )
    if pool is not None and pool.share_in_use is not None:
        found.append(f"About {pool.share_in_use:.0%} of the allocator's pool was in use, as XLA draws it.")
    return found


def _own_attempt(log: OutOfMemory) -> str:
    """Describe how XLA itself tried to save memory during the compile."""
    tried = log.rematerialization
    if tried is None:
        return ""
    original, reduced = format_bytes(tried.original_bytes), format_bytes(tried.reduced_bytes)
    came_to = f"went from {original} to {reduced}" if original != reduced else f"did not get below {original}"
    if not tried.limit_bytes:
        return f"XLA knew when it compiled: arguments and results alone are more than the device has, and it {came_to}."
    return (
        f"XLA knew when it compiled: it tried to stay below {format_bytes(tried.limit_bytes)} by recomputing values, "
        f"and {came_to}."
    )


def _verdict(explanation: Explanation) -> str:
    """Say whether the program fits the device that it was compiled for."""
    program = explanation.program
    if program is None or program.verdict.fits is None:
        return ""
    return f"On {program.target.name}, {program.label} {program.verdict.sentence}."


def _more(explanation: Explanation) -> str:
    """Say which input would explain more."""
    if explanation.program is not None:
        return ""
    if explanation.num_programs:
        return "None of the given programs has an allocation of that size: it was another program, or an array."
    if explanation.listed:
        return "The program shows the purpose of the buffers: give its dump or its capture with --program."
    return (
        "The log does not name the buffer, but the program does: let XLA dump it"
        ' (XLA_FLAGS="--xla_dump_to=FOLDER --xla_dump_hlo_as_proto"), and give the folder with --program.'
    )


def _listed_table(explanation: Explanation, top: int) -> Table:
    whole = sum(each.listed.size_bytes for each in explanation.listed)

    def what(each: ExplainedBuffer) -> str | Cell:
        return category_cell(each.buffer.category) if each.buffer else _by_name(each)

    def source(each: ExplainedBuffer) -> str:
        return shown_source(each.buffer.source if each.buffer and each.buffer.source else each.listed.source)

    return table(
        explanation.listed,
        [
            text("array", lambda each: each.listed.array),
            total("size", lambda each: each.listed.size_bytes),
            number("share", lambda each: format_share(each.listed.size_bytes, whole), priority=2),
            text("what it is", what, priority=1),
            text("module", lambda each: each.buffer.module if each.buffer else each.scopes, min_width=20),
            text("line", source, min_width=20, below=True),
            text("operation", lambda each: aside_cell(each.listed.op or each.listed.label), min_width=24, below=True),
        ],
        top=top,
    )


def _by_name(each: ExplainedBuffer) -> str:
    if each.phase in (Phase.NONE, Phase.ARGUMENT):
        return "" if each.phase is Phase.NONE else "argument"
    return f"{each.phase} pass"
