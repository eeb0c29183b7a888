"""The document of a fit over techniques: the answer, its code change, and everything that was tried."""

from __future__ import annotations

from memprof.reports.document import Align, Block, Cell, Column, Document, Fact, Facts, Heading, Note, Row, Table, Tone
from memprof.reports.units import (
    format_bytes,
    format_exact_bytes,
    format_flops,
    format_seconds,
    format_short_seconds,
    format_signed_bytes,
)
from memprof.studies.fit.techniques_result import TechniquesResult, TriedTechniques


def techniques_document(result: TechniquesResult) -> Document:
    """The answer first, then how to get it, then what it rests on."""
    return Document(
        blocks=(
            Heading(text=_answer(result), level=1, aside=f"{result.subject} {result.settings}".strip()),
            _facts(result),
            *_changes(result),
            Heading(
                text="Tried", level=2, aside=f"{result.num_compiled} of {result.num_combinations} combinations compiled"
            ),
            _tried(result),
            *_notes(result),
        )
    )


def _answer(result: TechniquesResult) -> str:
    if result.answer is None:
        return "no combination of techniques fits"
    return f"{result.answer.techniques} fits" if result.answer.techniques else "it fits without techniques"


def _facts(result: TechniquesResult) -> Facts:
    shown = result.answer or result.smallest
    sizes = [
        ("memory", result.memory_bytes, ""),
        ("reserve", result.reserve_bytes, ""),
        ("budget", result.budget_bytes, "memory - reserve"),
        (shown.name, shown.footprint_bytes or 0, "fits" if result.answer else "the smallest that was compiled"),
    ]
    exact = (
        Fact(label=label, values=(format_bytes(size), f"{format_exact_bytes(size)} bytes", *([note] if note else [])))
        for label, size, note in sizes
    )
    return Facts(facts=(Fact(label="target", values=(result.target,)), *exact))


def _changes(result: TechniquesResult) -> tuple[Block, ...]:
    if not result.changes:
        return ()
    notes = (
        block
        for change in result.changes
        for block in (
            Note(text=f"{change.technique}: {change.sentence}", tone=Tone.MUTED),
            Note(text=change.code, tone=Tone.ACCENT),
        )
    )
    return (Heading(text="Change of code", level=2), *notes)


def _tried(result: TechniquesResult) -> Table:
    number = Align.RIGHT
    was_run = any(each.step_seconds is not None for each in result.ranked)
    columns = (
        Column(title="techniques", min_width=20),
        Column(title="footprint", align=number),
        Column(title="against budget", align=number, priority=2),
        Column(title="fits"),
        *([Column(title="step", align=number)] if was_run else []),
        Column(title="recomputed", align=number, priority=1),
        Column(title="on the host", align=number, priority=1),
        Column(title="compile", align=number, priority=3),
    )
    tried = (*result.ranked, *result.others)
    return Table(columns=columns, rows=tuple(_row(each, result.budget_bytes, was_run=was_run) for each in tried))


def _row(tried: TriedTechniques, budget_bytes: int, *, was_run: bool) -> Row:
    size = tried.footprint_bytes
    if size is None:
        text, tone = "failed", Tone.BAD
    else:
        text, tone = ("yes", Tone.GOOD) if size <= budget_bytes else ("no", Tone.BAD)
    step = "" if tried.step_seconds is None else format_short_seconds(tried.step_seconds)
    cells = (
        Cell(text=tried.name),
        Cell(text="" if size is None else format_bytes(size)),
        Cell(text="" if size is None else format_signed_bytes(size - budget_bytes)),
        Cell(text=text, key=tone, is_verdict=True),
        *([Cell(text=step)] if was_run else []),
        Cell(text="" if size is None else format_flops(tried.cost.recomputed_flops)),
        Cell(text="" if size is None else format_bytes(tried.host_bytes)),
        Cell(text="" if size is None else format_seconds(tried.seconds)),
    )
    return Row(cells=cells)


def _notes(result: TechniquesResult) -> tuple[Block, ...]:
    muted = [f"The reserve is {result.reserve_reason}."]
    if result.num_inferred:
        muted.append(
            f"{result.num_inferred} combinations that would cost less were not compiled: for each, one that should hold"
            " less was, and does not fit."
        )
    if result.answer is not None and result.num_combinations > 1:
        muted.append("Those that would cost as much or more were not compiled either, but for what the table has.")
    warnings = [f"{name} failed: {problem}" for name, problem in _failures(result)]
    warnings += [f"{sentence}, so that nothing was inferred from their order." for sentence in result.contradictions]
    if result.answer is not None and result.answer.cost.changes_training:
        warnings.append("The answer has another optimizer, which trains otherwise: without one nothing fits.")
    notes = [Note(text=text, tone=Tone.MUTED) for text in muted]
    notes += [Note(text=text, tone=Tone.WARNING) for text in warnings]
    notes += [
        Note(text=f"{label} was left out: {reason.rstrip('.')}.", tone=Tone.MUTED)
        for label, reason in result.left_out.items()
    ]
    if result.command:
        notes.append(Note(text=f"Profile it with: {result.command}", tone=Tone.ACCENT))
    return tuple(notes)


def _failures(result: TechniquesResult) -> list[tuple[str, str]]:
    return [(each.name, each.problem) for each in result.others if each.problem]
