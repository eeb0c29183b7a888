"""The document of a fit: the answer, the arithmetic of the budget, and everything that was tried."""

from __future__ import annotations

from memprof.reports.document import Align, Block, Cell, Column, Document, Fact, Facts, Heading, Note, Row, Table, Tone
from memprof.reports.units import format_bytes, format_exact_bytes, format_seconds, format_signed_bytes
from memprof.studies.fit.result import FitResult


def fit_document(result: FitResult) -> Document:
    """The answer first, then what it rests on."""
    name = " ".join(part for part in (result.subject, result.techniques) if part)
    return Document(
        blocks=(
            Heading(text=f"{result.field}={result.value} fits, {result.next_value} does not", level=1, aside=name),
            _facts(result),
            Heading(text="Tried", level=2, aside=f"{len(result.tried)} compiles, by {result.field}"),
            _tried(result),
            *_notes(result),
        )
    )


def _facts(result: FitResult) -> Facts:
    def exact(label: str, size_bytes: int, *more: str) -> Fact:
        return Fact(label=label, values=(format_bytes(size_bytes), f"{format_exact_bytes(size_bytes)} bytes", *more))

    return Facts(
        facts=(
            Fact(label="target", values=(result.target,)),
            exact("memory", result.memory_bytes),
            exact("reserve", result.reserve_bytes),
            exact("budget", result.budget_bytes, "memory - reserve"),
            exact(f"{result.field}={result.value}", result.footprint_of(result.value), "fits"),
            exact(f"{result.field}={result.next_value}", result.footprint_of(result.next_value), "does not fit"),
        )
    )


def _tried(result: FitResult) -> Table:
    number = Align.RIGHT
    columns = (
        Column(title=result.field, align=number),
        Column(title="footprint", align=number),
        Column(title="against budget", align=number, priority=1),
        Column(title="fits"),
        Column(title="time", align=number, priority=2),
    )
    rows = []
    for trial in sorted(result.tried, key=lambda trial: trial.value):
        over_bytes = trial.footprint_bytes - result.budget_bytes
        text, tone = ("yes", Tone.GOOD) if over_bytes <= 0 else ("no", Tone.BAD)
        cells = (
            Cell(text=str(trial.value)),
            Cell(text=format_bytes(trial.footprint_bytes)),
            Cell(text=format_signed_bytes(over_bytes)),
            Cell(text=text, key=tone, is_verdict=True),
            Cell(text=format_seconds(trial.seconds)),
        )
        rows.append(Row(cells=cells))
    return Table(columns=columns, rows=tuple(rows))


def _notes(result: FitResult) -> tuple[Block, ...]:
    notes = [Note(text=f"The reserve is {result.reserve_reason}.", tone=Tone.MUTED)]
    if result.step > 1:
        text = f"Only multiples of {result.step} were tried: {result.step_reason}."
        notes.append(Note(text=text, tone=Tone.MUTED))
    notes += [Note(text=f"{finding[0].upper()}{finding[1:]}.", tone=Tone.WARNING) for finding in result.findings()]
    notes.append(Note(text=f"Profile it with: {result.command}", tone=Tone.ACCENT))
    return tuple(notes)
