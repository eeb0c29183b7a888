"""The documents of a JAX memory profile: live arrays, leaks, and the arrays that belong to a step."""

from __future__ import annotations

from collections.abc import Sequence

from memprof.analysis.records.live_buffer import StackFrame, array_type
from memprof.analysis.records.memory_profile import Kind, MemoryProfile
from memprof.reports.document import (
    Align,
    Block,
    Cell,
    Column,
    Document,
    Fact,
    Facts,
    Heading,
    Note,
    Row,
    Shorten,
    Table,
    Tone,
)
from memprof.reports.units import format_bytes, format_share, format_signed_bytes
from memprof.reports.views.cells import aside_cell, more_label, share_table
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
    total = profile.size_of(Kind.BUFFER)
    made = by_calls(profile.of(Kind.BUFFER))
    executables = by_calls(profile.of(Kind.EXECUTABLE))
    title = f"{format_bytes(total)} of arrays alive"
    blocks: list[Block] = [
        Heading(text=title, level=1, aside=profile.name),
        _facts(profile),
        *(_beside(beside, top) if beside else ()),
        Heading(text="Arrays by stack", level=2, aside="the user's own calls"),
        _made_table(made, total, top),
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
    facts = [
        Fact(
            label=device,
            values=(
                format_bytes(profile.size_of(Kind.BUFFER, device)),
                f"{profile.count_of(Kind.BUFFER, device):,} arrays",
            ),
        )
        for device in profile.devices
    ]
    num = profile.count_of(Kind.EXECUTABLE)
    if num:
        facts.append(
            Fact(label="executables", values=(f"{format_bytes(profile.size_of(Kind.EXECUTABLE))} in {num:,}",))
        )
    return Facts(facts=tuple(facts))


def _beside(beside: BesideStep, top: int) -> tuple[Block, ...]:
    step = sum(each.num_alive * each.each_bytes for each in beside.step)
    return (
        Heading(text=f"Beside {beside.label}", level=2, aside=f"{beside.device}, arrays matched by size"),
        Facts(
            facts=(
                Fact(label="arguments of the step", values=(format_bytes(step),)),
                Fact(label="other arrays", values=(format_bytes(beside.other_bytes),)),
            )
        ),
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


def _made_table(made: Sequence[Made], total: int, top: int) -> Table:
    rows = [
        Row(
            cells=(
                Cell(text=_place(each.calls)),
                Cell(text=format_bytes(each.size_bytes)),
                Cell(text=format_share(each.size_bytes, total)),
                Cell(text=f"{each.count:,}"),
                aside_cell(_callers(each.calls)),
            )
        )
        for each in made[:top]
    ]
    rest = made[top:]
    if rest:
        size = sum(each.size_bytes for each in rest)
        count = f"{sum(each.count for each in rest):,}"
        label = aside_cell(more_label(len(rest)))
        rows.append(
            Row(
                cells=(
                    label,
                    Cell(text=format_bytes(size)),
                    Cell(text=format_share(size, total)),
                    Cell(text=count),
                    Cell(text=""),
                )
            )
        )
    return Table(columns=(*_made_columns(), _CALLERS), rows=tuple(rows))


def _made_columns() -> tuple[Column, ...]:
    return (
        Column(title="made at", shorten=Shorten.MIDDLE, min_width=24),
        Column(title="size", align=Align.RIGHT),
        Column(title="share", align=Align.RIGHT, priority=1),
        Column(title="count", align=Align.RIGHT),
    )


_CALLERS = Column(title="called from", shorten=Shorten.MIDDLE, min_width=24, below=True)


def _changed_table(changed: Sequence[Changed], top: int) -> Table:
    rows = [
        Row(
            cells=(
                Cell(text=f"{_place(each.calls)}{'' if each.kind is Kind.BUFFER else ' (executable)'}"),
                Cell(text=format_signed_bytes(each.delta_bytes)),
                Cell(text=f"{each.before_count:,} to {each.after_count:,}"),
                Cell(text=format_bytes(each.each_bytes)),
                aside_cell(_callers(each.calls)),
            )
        )
        for each in changed[:top]
    ]
    rest = changed[top:]
    if rest:
        size = format_signed_bytes(sum(each.delta_bytes for each in rest))
        rows.append(Row(cells=(aside_cell(more_label(len(rest))), Cell(text=size), *(Cell(text=""),) * 3)))
    return Table(
        columns=(
            Column(title="made at", shorten=Shorten.MIDDLE, min_width=24),
            Column(title="change", align=Align.RIGHT),
            Column(title="count", align=Align.RIGHT),
            Column(title="each", align=Align.RIGHT, priority=1),
            _CALLERS,
        ),
        rows=tuple(rows),
    )


def _step_table(step: Sequence[StepArrays], top: int) -> Table:
    rows = [
        Row(
            cells=(
                Cell(text=array_type(each.dtype, each.shape)),
                Cell(text=each.category.value, key=each.category),
                Cell(text=f"{each.num_alive:,} of {each.num_wanted:,}"),
                Cell(text=format_bytes(each.num_alive * each.each_bytes)),
            )
        )
        for each in step[:top]
    ]
    rest = step[top:]
    if rest:
        alive, wanted = (sum(getattr(each, name) for each in rest) for name in ("num_alive", "num_wanted"))
        size = sum(each.num_alive * each.each_bytes for each in rest)
        rows.append(
            Row(
                cells=(
                    aside_cell(more_label(len(rest))),
                    Cell(text=""),
                    Cell(text=f"{alive:,} of {wanted:,}"),
                    Cell(text=format_bytes(size)),
                )
            )
        )
    return Table(
        columns=(
            Column(title="argument of the step"),
            Column(title="category"),
            Column(title="alive", align=Align.RIGHT),
            Column(title="size", align=Align.RIGHT),
        ),
        rows=tuple(rows),
    )


def _others_table(others: Sequence[Other], top: int) -> Table:
    rows = [
        Row(
            cells=(
                Cell(text=_place(each.calls)),
                Cell(text=format_bytes(each.size_bytes)),
                Cell(text=f"{each.count:,}"),
                Cell(text=format_bytes(each.each_bytes)),
                Cell(text=", ".join(category.value for category in each.like)),
                aside_cell(_callers(each.calls)),
            )
        )
        for each in others[:top]
    ]
    rest = others[top:]
    if rest:
        size = format_bytes(sum(each.size_bytes for each in rest))
        count = f"{sum(each.count for each in rest):,}"
        rows.append(
            Row(cells=(aside_cell(more_label(len(rest))), Cell(text=size), Cell(text=count), *(Cell(text=""),) * 3))
        )
    return Table(
        columns=(
            Column(title="made at", shorten=Shorten.MIDDLE, min_width=24),
            Column(title="size", align=Align.RIGHT),
            Column(title="count", align=Align.RIGHT),
            Column(title="each", align=Align.RIGHT, priority=2),
            Column(title="as large as", priority=1),
            _CALLERS,
        ),
        rows=tuple(rows),
    )


def _place(calls: Sequence[StackFrame]) -> str:
    return f"{calls[-1].file}:{calls[-1].line} {calls[-1].function}".rstrip() if calls else _NO_STACK


def _callers(calls: Sequence[StackFrame]) -> str:
    """Return the calls around the innermost call, as many as fit."""
    return " < ".join(f"{call.function}:{call.line}" for call in calls[:-1][::-1][:_NUM_CALLS])
