"""The document of a fit curve: the largest value of a field for each value of another field."""

from __future__ import annotations

from memprof.reports.document import Align, Cell, Column, Document, Fact, Facts, Heading, Note, Row, Table, Tone
from memprof.reports.units import format_bytes, format_exact_bytes, format_signed_bytes
from memprof.studies.fit.results import CurvePoint, FitCurve


def fit_curve_document(curve: FitCurve) -> Document:
    """Build the document: the budget, a row for each value of the other field, and reasons for values without a fit."""
    found = curve.any_found
    target = Fact(label="target", values=(found.target, *([f"mesh {found.mesh}"] if found.mesh else [])))
    sizes = (("memory", found.memory_bytes), ("budget", found.budget_bytes))
    facts = (
        Fact(label=label, values=(format_bytes(size), f"{format_exact_bytes(size)} bytes")) for label, size in sizes
    )
    name = " ".join(part for part in (found.subject, "+".join(found.techniques)) if part)
    return Document(
        blocks=(
            Heading(text=f"the largest {found.field} for each {curve.against}", level=1, aside=name),
            Facts(facts=(target, *facts)),
            _table(curve),
            *_notes(curve),
        )
    )


def _table(curve: FitCurve) -> Table:
    number, field = Align.RIGHT, curve.any_found.field
    columns = (
        Column(title=curve.against, align=number),
        Column(title=f"largest {field}", align=number),
        Column(title=f"{field} x {curve.against}", align=number, priority=1),
        Column(title="footprint", align=number),
        Column(title="against budget", align=number, priority=2),
        Column(title="compiles", align=number, priority=3),
    )
    return Table(columns=columns, rows=tuple(_row(point) for point in curve.points))


def _row(point: CurvePoint) -> Row:
    found = point.found
    if found is None:
        return Row(cells=(Cell(text=f"{point.at:,}"), Cell(text="none fits", key=Tone.BAD), *[Cell(text="")] * 4))
    trial = next(trial for trial in found.tried if trial.value == found.value)
    cells = (
        Cell(text=f"{point.at:,}"),
        Cell(text=f"{found.value:,}"),
        Cell(text=f"{found.value * point.at:,}"),
        Cell(text=format_bytes(trial.footprint_bytes)),
        Cell(text=format_signed_bytes(trial.needed_bytes - found.budget_bytes)),
        Cell(text=str(len(found.tried))),
    )
    return Row(cells=cells)


def _notes(curve: FitCurve) -> tuple[Note, ...]:
    found = curve.any_found
    notes = [
        Note(text=f"{curve.against}={point.at}: {point.refusal.rstrip('.')}.", tone=Tone.WARNING)
        for point in curve.points
        if point.found is None
    ]
    if found.step_reason:
        notes.append(Note(text=f"Only multiples of {found.step}: {found.step_reason}.", tone=Tone.MUTED))
    text = f"Each value and the next larger one were compiled. Profile one with: {found.command}"
    return (*notes, Note(text=text, tone=Tone.ACCENT))
