"""What could be done about a peak: an overview, then each piece of advice with its evidence and its line of code."""

from __future__ import annotations

from collections.abc import Sequence

from memprof.analysis.records.report import Report
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
from memprof.reports.units import format_bytes, format_share
from memprof.reports.views.cells import aside_cell
from memprof.reports.views.header import TONES, pressure_notes
from memprof.studies.advice.advice import Advice
from memprof.studies.advice.what_if import changed_at_peak

_NOTHING = "Nothing here wastes a share worth having: no rule found anything to save in this program."
NOTHING_TO_SAVE = Note(text=_NOTHING, tone=Tone.GOOD)
_CAUTION = (
    "Predicted from this program alone, each by itself: two together save less than their sum, and XLA may need memory "
    "for something new in exchange. `--verify` of `memprof run` compiles what memprof can apply."
)


def advice_document(report: Report, advice: Sequence[Advice]) -> Document:
    """The advice alone."""
    aside = f"footprint {format_bytes(report.unpressed.footprint_bytes)} on {report.target.name}"
    verdict = Note(text=report.verdict.sentence, tone=TONES[report.verdict.answer])
    heading = Heading(text=report.label, level=1, aside=aside)
    return Document(blocks=(heading, *pressure_notes(report), verdict, *advice_blocks(report, advice)))


def advice_blocks(report: Report, advice: Sequence[Advice]) -> tuple[Block, ...]:
    """The advice as a part of a report."""
    heading = Heading(text="What could be done", level=2, aside="what saves most first")
    if report.engine_figures is not None:
        return (heading, Note(text="Advice is for programs of XLA, and this is an engine.", tone=Tone.MUTED))
    if not advice:
        return (heading, NOTHING_TO_SAVE)
    details = (_details(number, each) for number, each in enumerate(advice, start=1))
    caution = Note(text=_CAUTION, tone=Tone.MUTED)
    return (heading, *_unpressed_note(report), _overview(report, advice), *details, caution)


def _unpressed_note(report: Report) -> tuple[Note, ...]:
    if report.without_limit is None:
        return ()
    size = format_bytes(report.without_limit.footprint_bytes)
    text = f"The numbers are those of the plan in which XLA recomputes nothing on its own, with a footprint of {size}."
    return (Note(text=text, tone=Tone.MUTED),)


def best_advice_table(report: Report, advice: Sequence[Advice], *, top: int) -> Table:
    """What saves most, in a line each; of several ways to recompute activations the one that does."""
    recomputing = [each for each in advice if each.proposal.intent.aim.recomputes]
    best = [each for each in advice if each not in recomputing[1:]][:top]
    return Table(
        columns=(
            Column(title="what could be done", shorten=Shorten.END, min_width=30),
            Column(title="saves", align=Align.RIGHT),
            Column(title="share", align=Align.RIGHT, priority=2),
            Column(title="technique", priority=1),
        ),
        rows=tuple(
            Row(
                cells=(
                    Cell(text=each.proposal.what, link="advice-in-detail-section"),
                    Cell(text=f"~{format_bytes(each.saving_bytes)}", link=_buffers_link(report, each)),
                    aside_cell(format_share(each.saving_bytes, report.unpressed.footprint_bytes)),
                    aside_cell(each.proposal.technique or ""),
                )
            )
            for each in best
        ),
        is_extract=True,
    )


def _overview(report: Report, advice: Sequence[Advice]) -> Table:
    is_verified = any(each.true_saving_bytes is not None or each.refusal for each in advice)
    compiled = (Column(title="compiled", align=Align.RIGHT, priority=1),) if is_verified else ()
    columns = (
        Column(title="", align=Align.RIGHT),
        Column(title="saves about", align=Align.RIGHT),
        *compiled,
        Column(title="share", align=Align.RIGHT, priority=2),
        Column(title="what", shorten=Shorten.END, min_width=30),
        Column(title="technique", priority=3),
    )
    rows = tuple(
        Row(
            cells=(
                Cell(text=f"{number}"),
                Cell(text=format_bytes(each.saving_bytes), link=_buffers_link(report, each)),
                *((_compiled(each),) if is_verified else ()),
                Cell(text=format_share(each.saving_bytes, report.unpressed.footprint_bytes)),
                Cell(text=each.proposal.what),
                Cell(text=each.proposal.technique or ""),
            )
        )
        for number, each in enumerate(advice, start=1)
    )
    return Table(columns=columns, rows=rows)


def _buffers_link(report: Report, advice: Advice) -> str:
    """To the buffers that it would change; empty if it changes their order alone, or is about another plan."""
    is_shown = report.without_limit is None and changed_at_peak(report, advice.proposal.without)
    return f"advice={advice.proposal.what}" if is_shown else ""


def _compiled(advice: Advice) -> Cell:
    if advice.true_saving_bytes is not None:
        return Cell(text=format_bytes(advice.true_saving_bytes))
    return aside_cell("no" if advice.refusal else "")


def _details(number: int, advice: Advice) -> Facts:
    proposal = advice.proposal
    texts = {
        f"{number}.": proposal.what,  # whole, where the overview has no room for it
        "why": proposal.evidence,
        "cost": proposal.cost,
        "how": proposal.how_to,
        "not compiled": advice.refusal,
    }
    return Facts(
        facts=tuple(Fact(label=label, values=tuple(text.split("; "))) for label, text in texts.items() if text)
    )
