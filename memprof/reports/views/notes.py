"""What the reader should not miss, and which numbers are the compiler's and which are ours."""

from __future__ import annotations

from memprof.analysis.categories import Category
from memprof.analysis.report import Report
from memprof.reports.document import Note, Tone
from memprof.reports.units import format_bytes, format_share

_NAMED_ARGUMENTS = 3

_NOT_MEASURED = "Nothing here was measured on a device."
_MEASURED = "Only what stands under Measured was measured."


def notes(report: Report) -> tuple[Note, ...]:
    """The notes that apply, the most urgent first."""
    found = [_unattributed(report), _unused_arguments(report)]
    doubts = (Note(tone=Tone.WARNING, text=doubt) for doubt in report.doubts)
    return (*(note for note in found if note is not None), *doubts, provenance(report))


def provenance(report: Report) -> Note:
    """Which numbers are the compiler's, which are inferred, and which are measured."""
    text = (
        "Sizes, lifetimes and totals are the compiler's (XLA's buffer assignment). Category, module and phase are "
        f"inferred by memprof's rules. {_NOT_MEASURED if report.measured is None else _MEASURED}"
    )
    return Note(tone=Tone.MUTED, text=text)


def _unattributed(report: Report) -> Note | None:
    size_bytes = report.categories[Category.UNATTRIBUTED]
    if not size_bytes:
        return None
    share = format_share(size_bytes, report.footprint_bytes)
    text = f"{format_bytes(size_bytes)} ({share} of the footprint) is unattributed: no rule explains these bytes."
    return Note(tone=Tone.WARNING, text=text)


def _unused_arguments(report: Report) -> Note | None:
    unused = report.unused_arguments
    if not unused:
        return None
    names = ", ".join(leaf.path for leaf in unused[:_NAMED_ARGUMENTS])
    more = f" and {len(unused) - _NAMED_ARGUMENTS} more" if len(unused) > _NAMED_ARGUMENTS else ""
    size = format_bytes(sum(leaf.size_bytes for leaf in unused))
    text = (
        f"No result depends on {len(unused)} of the step's arguments ({size}): {names}{more}. jit drops them, so they "
        "are not in the footprint, but whoever calls the step still holds them."
    )
    return Note(tone=Tone.WARNING, text=text)
