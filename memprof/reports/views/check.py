"""The document of a check: failed limits, passed limits, and changes from the baseline."""

from __future__ import annotations

from memprof.analysis.comparison import NamedChange
from memprof.reports.document import Block, Document, Heading, Note, Tone
from memprof.reports.units import format_bytes, format_signed_share
from memprof.reports.views.cells import change_cell, size_cell
from memprof.reports.views.fields import Fields, number, table, text, total
from memprof.reports.views.header import pressure_sentence
from memprof.studies.check.check import CheckResult


def check_document(result: CheckResult, *, top: int) -> Document:
    """Build the document: the verdict, every checked limit with failures first, and the changes.

    Args:
        result: the result of the check.
        top: the number of rows in each table of changes; the rest is summed up in one.
    """
    num_failed = sum(not item.passed for item in result.items)
    verdict = f"{num_failed} of {len(result.items)} checks failed" if num_failed else "Every check passed"
    items = sorted(result.items, key=lambda item: item.passed)
    aside = f"{result.label}: {format_bytes(result.footprint_bytes)}"
    return Document(
        blocks=(
            Heading(text=verdict, level=1, aside=aside),
            *_pressure(result),
            *(Note(text=f"{item.sentence}.", tone=Tone.GOOD if item.passed else Tone.BAD) for item in items),
            *_verdict(result),
            *_differences(result),
            *(block for what in ("category", "module", "buffer") for block in _changes(result, what, top)),
        )
    )


def _pressure(result: CheckResult) -> tuple[Note, ...]:
    if result.pressure is None:
        return ()
    return (Note(text=f"{pressure_sentence(result.pressure)}.", tone=Tone.WARNING),)


def _verdict(result: CheckResult) -> tuple[Note, ...]:
    """Say whether the step fits, unless that was one of the checks."""
    verdict = result.verdict
    if verdict.fits is None or any(item.sentence == verdict.sentence for item in result.items):
        return ()
    return (Note(text=f"{verdict.sentence}.", tone=Tone.MUTED),)


def _differences(result: CheckResult) -> tuple[Block, ...]:
    if not result.differences:
        return ()
    text = f"The baseline differs in more than the step: {'; '.join(result.differences)}."
    return (Note(text=text, tone=Tone.WARNING),)


def _changes(result: CheckResult, what: str, top: int) -> tuple[Block, ...]:
    changes = [change for change in result.changes if change.what == what]
    if not changes:
        return ()
    fields: Fields[NamedChange] = (
        text(what, lambda change: change.name or f"(no {what})", min_width=20),
        number("baseline", lambda change: size_cell(change.before_bytes)),
        number("now", lambda change: size_cell(change.after_bytes)),
        total("change", lambda change: change.delta_bytes, change_cell),
        number("share", lambda change: format_signed_share(change.delta_bytes, change.before_bytes), priority=1),
    )
    return (Heading(text=f"Changes by {what}", level=2), table(changes, fields, top=top))
