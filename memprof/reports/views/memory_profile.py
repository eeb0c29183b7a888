"""The documents of a JAX memory profile: live arrays, leaks, and the arrays that belong to a step."""

from __future__ import annotations

from collections.abc import Sequence

from memprof.analysis.records.live_buffer import StackFrame, array_type
from memprof.analysis.records.memory_profile import Kind, MemoryProfile
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
from memprof.reports.units import format_bytes, format_signed_bytes
from memprof.reports.views.cells import aside_cell, facts_of, share_table
from memprof.reports.views.fields import category, count, number, share, summed, table, text, total
from memprof.studies.live_memory import BesideStep, Changed, Made, Other, StepArrays, by_calls, by_folder, changes

_NUM_CALLS = 4
_NO_STACK = "(no Python stack)"


def memory_profile_document(profile: MemoryProfile, beside: BesideStep | None, *, top: int) -> Document:
    """Build the document of what was live, by stack, folder, kind and device.

    Args:
        profile: the memory profile.
        beside: the memory profile compared with a step; None for no comparison.
        top: the number of rows in each table; the rest is summed up in one.
    """
    total_bytes = profile.size_of(Kind.BUFFER)
    made = by_calls(profile.of(Kind.BUFFER))
    executables = by_calls(profile.of(Kind.EXECUTABLE))
    title = f"{format_bytes(total_bytes)} of arrays alive"
    blocks: list[Block] = [
        Heading(text=title, level=1, aside=profile.name),
        _facts(profile),
        *(_beside(beside, top) if beside else ()),
        Heading(text="Arrays by stack", level=2, aside="the user's own calls"),
        _made_table(made, total_bytes, top),
        Heading(text="Arrays by folder", level=2, aside="of the innermost own line"),
        share_table("folder", by_folder(profile.of(Kind.BUFFER)), nameless=_NO_STACK, top=top, whole="arrays"),
    ]
    if executables:
        size = profile.size_of(Kind.EXECUTABLE)
        blocks += [Heading(text="Executables", level=2, aside=f"{format_bytes(size)} of code and constants")]
        blocks += [_made_table(executables, size, top)]
    return Document(blocks=tuple(blocks))


def memory_profile_diff_document(before: MemoryProfile, after: MemoryProfile, *, top: int) -> Document:
    """Build the document of the growth and shrinkage between two profiles, by stack and size."""
    changed = changes(before, after)
    grown = [each for each in changed if each.delta_bytes > 0]
    shrunk = [each for each in changed if each.delta_bytes < 0][::-1]
    sizes = [profile.size_of(Kind.BUFFER) for profile in (before, after)]
    delta = sizes[1] - sizes[0]
    verdict = (
        Note(text=f"Arrays grew by {format_bytes(delta)}; most of it at {_place(grown[0].calls)}.", tone=Tone.WARNING)
        if delta > 0 and grown
        else Note(text="Arrays did not grow.", tone=Tone.GOOD)
    )
    blocks: list[Block] = [
        Heading(
            text=f"{before.name} -> {after.name}",
            level=1,
            aside=f"{format_bytes(sizes[0])} -> {format_bytes(sizes[1])}",
        ),
        verdict,
    ]
    for title, found in (("What grew", grown), ("What shrank", shrunk)):
        if found:
            blocks += [Heading(text=title, level=2, aside="by stack and size"), _changed_table(found, top)]
    return Document(blocks=tuple(blocks))


def _facts(profile: MemoryProfile) -> Facts:
    sizes = {
        device: (
            format_bytes(profile.size_of(Kind.BUFFER, device)),
            f"{profile.count_of(Kind.BUFFER, device):,} arrays",
        )
        for device in profile.devices
    }
    num = profile.count_of(Kind.EXECUTABLE)
    executables = (f"{format_bytes(profile.size_of(Kind.EXECUTABLE))} in {num:,}",) if num else ()
    return facts_of({**sizes, "executables": executables})


def _beside(beside: BesideStep, top: int) -> tuple[Block, ...]:
    step = sum(each.num_alive * each.each_bytes for each in beside.step)
    return (
        Heading(text=f"Beside {beside.label}", level=2, aside=f"{beside.device}, arrays matched by size"),
        facts_of({"arguments of the step": (format_bytes(step),), "other arrays": (format_bytes(beside.other_bytes),)}),
        _room(beside),
        _step_table(beside.step, top),
        *((Heading(text="Other arrays", level=2), _others_table(beside.others, top)) if beside.others else ()),
    )


def _room(beside: BesideStep) -> Note:
    if beside.left_bytes is None:
        return Note(text="The size of JAX's pool on this target is unknown.", tone=Tone.MUTED)
    fits = beside.footprint_bytes <= beside.left_bytes
    pool, left, step = map(format_bytes, (beside.pool_bytes or 0, max(0, beside.left_bytes), beside.footprint_bytes))
    answer = "fits" if fits else "does not fit"
    text = f"JAX's pool of {pool} leaves {left} for the step, whose footprint is {step}: it {answer}."
    return Note(text=text, tone=Tone.GOOD if fits else Tone.BAD)


def _made_table(made: Sequence[Made], total_bytes: int, top: int) -> Table:
    return table(
        made,
        [
            text("made at", lambda each: _place(each.calls), min_width=24),
            total("size", lambda each: each.size_bytes),
            share(lambda each: each.size_bytes, total_bytes, priority=1),
            count("count", lambda each: each.count),
            text("called from", lambda each: _callers(each.calls), min_width=24, below=True),
        ],
        top=top,
    )


def _changed_table(changed: Sequence[Changed], top: int) -> Table:
    return table(
        changed,
        [
            text(
                "made at",
                lambda each: f"{_place(each.calls)}{'' if each.kind is Kind.BUFFER else ' (executable)'}",
                min_width=24,
            ),
            total("change", lambda each: each.delta_bytes, format_signed_bytes),
            number("count", lambda each: f"{each.before_count:,} to {each.after_count:,}"),
            number("each", lambda each: format_bytes(each.each_bytes), priority=1),
            text("called from", lambda each: _callers(each.calls), min_width=24, below=True),
        ],
        top=top,
    )


def _step_table(step: Sequence[StepArrays], top: int) -> Table:
    def alive(arrays: Sequence[StepArrays]) -> str:
        return f"{sum(each.num_alive for each in arrays):,} of {sum(each.num_wanted for each in arrays):,}"

    return table(
        step,
        [
            text("argument of the step", lambda each: array_type(each.dtype, each.shape)),
            category(lambda each: each.category),
            summed("alive", alive),
            total("size", lambda each: each.num_alive * each.each_bytes),
        ],
        top=top,
    )


def _others_table(others: Sequence[Other], top: int) -> Table:
    return table(
        others,
        [
            text("made at", lambda each: _place(each.calls), min_width=24),
            total("size", lambda each: each.size_bytes),
            count("count", lambda each: each.count),
            number("each", lambda each: format_bytes(each.each_bytes), priority=2),
            text("as large as", lambda each: ", ".join(category.value for category in each.like), priority=1),
            text("called from", lambda each: _callers(each.calls), min_width=24, below=True),
        ],
        top=top,
    )


def _place(calls: Sequence[StackFrame]) -> str:
    return f"{calls[-1].file}:{calls[-1].line} {calls[-1].function}".rstrip() if calls else _NO_STACK


def _callers(calls: Sequence[StackFrame]) -> Cell:
    """Make a cell of the calls around the innermost call, as many as fit."""
    return aside_cell(" < ".join(f"{call.function}:{call.line}" for call in calls[:-1][::-1][:_NUM_CALLS]))
