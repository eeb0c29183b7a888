"""Whether the techniques took effect, which rows failed, and what else differs: everything to be said in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from memprof.analysis.categories import Category
from memprof.analysis.comparison import Comparison, FailedRow
from memprof.reports.document import Block, Heading, Note, Tone
from memprof.reports.units import format_bytes, format_share
from memprof.reports.views.compare.rows import ComparedRow

_NOT_MEASURED = "Nothing here was measured on a device."
_MEASURED = "Step time and throughput were measured, each row in a process of its own."


def effect_blocks(rows: Sequence[ComparedRow]) -> tuple[Block, ...]:
    """What was looked for in each program and what was found, the rows without effect first."""
    flagged = [_evidence(row, Tone.BAD) for row in rows if row.effect.took_effect is False]
    took = [_evidence(row, Tone.GOOD) for row in rows if row.effect.took_effect]
    unknown = [row.name for row in rows if row.effect.took_effect is None]
    if not flagged and not took:
        return ()
    nothing = [Note(tone=Tone.MUTED, text=f"{', '.join(unknown)}: nothing to look for")] if unknown else []
    title = f"Without effect: {len(flagged)} of {len(rows)}" if flagged else "Every technique took effect"
    return (Heading(text=title, level=2, aside="found in the compiled programs"), *flagged, *took, *nothing)


def failure_blocks(failures: Sequence[FailedRow]) -> tuple[Block, ...]:
    """The rows that gave no report, and why."""
    if not failures:
        return ()
    reasons = (Note(tone=Tone.BAD, text=f"{failure.label}: {failure.reason}") for failure in failures)
    return (Heading(text="Failed", level=2), *reasons)


def notes(comparison: Comparison, rows: Sequence[ComparedRow]) -> tuple[Note, ...]:
    """What makes the rows harder to compare, and where the numbers come from."""
    found = [_differences(comparison), _unattributed(rows)]
    return (*(note for note in found if note is not None), _provenance(rows))


def _evidence(row: ComparedRow, tone: Tone) -> Note:
    evidence = row.effect.evidence
    # A row of one technique is called like it, and evidence names the technique that it is about.
    return Note(tone=tone, text=evidence if evidence.startswith(f"{row.name}: ") else f"{row.name}: {evidence}")


def _differences(comparison: Comparison) -> Note | None:
    if not comparison.differences:
        return None
    text = f"The rows differ in more than their techniques. {'; '.join(comparison.differences)}."
    return Note(tone=Tone.WARNING, text=text)


def _provenance(rows: Sequence[ComparedRow]) -> Note:
    was_measured = any(row.report.measured is not None for row in rows)
    text = (
        "Sizes and totals are the compiler's (XLA's buffer assignment). Categories, modules and effects are inferred "
        "by memprof's rules. FLOPs are those of matrix products and convolutions, counted in the traced program. "
        f"{_MEASURED if was_measured else _NOT_MEASURED}"
    )
    return Note(tone=Tone.MUTED, text=text)


def _unattributed(rows: Sequence[ComparedRow]) -> Note | None:
    most = max(rows, key=lambda row: row.report.categories[Category.UNATTRIBUTED])
    size_bytes = most.report.categories[Category.UNATTRIBUTED]
    if not size_bytes:
        return None
    share = format_share(size_bytes, most.report.footprint_bytes)
    text = f"Up to {format_bytes(size_bytes)} of a row ({share} of {most.name}) is unattributed: no rule explains it."
    return Note(tone=Tone.WARNING, text=text)
