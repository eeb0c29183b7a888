"""Advice on the peak: an overview, then each piece with its evidence and its code."""

from __future__ import annotations

from collections.abc import Sequence

from memprof.analysis.records.report import Report
from memprof.reports.document import (
    Align,
    Block,
    Cell,
    Code,
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
from memprof.reports.units import format_bytes, format_flops, format_share
from memprof.reports.views.cells import aside_cell
from memprof.reports.views.header import TONES, pressure_notes
from memprof.studies.advice.advice import Advice, Meaning
from memprof.studies.advice.what_if import changed_at_peak

_NOTHING = "No rule found a saving of 2% or more in this program."
NOTHING_TO_SAVE = Note(text=_NOTHING, tone=Tone.GOOD)
_CAUTION = (
    "Each saving is for one change; two changes together save less than the sum."
    ' "up to" is an upper bound, not compiled.'
)
_COMPILES = " If it gets a step and not a capture, `memprof advise` compiles the changes that memprof can make itself."
_MEANING = {
    Meaning.EQUAL: "the same numbers, bit by bit, in a small instance on the CPU",
    Meaning.CLOSE: "the same numbers within rounding, in a small instance on the CPU",
    Meaning.UNPROVED: "unverified: the step is too large to be run on the CPU, or it does not run there; only its"
    " compile was checked",
    Meaning.DIFFERENT: "different numbers than before",
}


def advice_document(report: Report, advice: Sequence[Advice]) -> Document:
    """Build a document of the advice alone."""
    aside = f"footprint {format_bytes(report.unpressed.footprint_bytes)} on {report.target.name}"
    verdict = Note(text=report.verdict.sentence, tone=TONES[report.verdict.answer])
    heading = Heading(text=report.label, level=1, aside=aside)
    return Document(blocks=(heading, *pressure_notes(report), verdict, *advice_blocks(report, advice)))


def advice_blocks(report: Report, advice: Sequence[Advice]) -> tuple[Block, ...]:
    """Build the advice section of a report."""
    heading = Heading(text="Possible changes", level=2, aside="cheapest first")
    if report.engine_figures is not None:
        return (heading, Note(text="Advice applies to XLA's programs; this is an engine.", tone=Tone.MUTED))
    if not advice:
        return (heading, NOTHING_TO_SAVE)
    details = (block for number, each in enumerate(advice, start=1) for block in _details(number, each))
    return (heading, *unpressed_note(report), _overview(report, advice), *details, caution(advice))


def caution(advice: Sequence[Advice]) -> Note:
    """Explain the savings; if none is compiled, also how to compile them."""
    is_compiled = any(each.is_compiled for each in advice)
    return Note(text=_CAUTION + ("" if is_compiled else _COMPILES), tone=Tone.MUTED)


def unpressed_note(report: Report) -> tuple[Note, ...]:
    """Name the plan that the savings refer to, if there are two plans."""
    if report.without_limit is None:
        return ()
    size = format_bytes(report.without_limit.footprint_bytes)
    text = f"The numbers are those of the plan without XLA's own recomputation, with a footprint of {size}."
    return (Note(text=text, tone=Tone.MUTED),)


def best_advice_table(report: Report, advice: Sequence[Advice], *, top: int) -> Table:
    """Build a table of the largest savings, one line each, with only the best way to recompute activations."""
    recomputing = [each for each in advice if each.proposal.intent.aim.recomputes]
    best = [each for each in advice if each not in recomputing[1:]][:top]
    return Table(
        columns=(
            Column(title="possible changes", shorten=Shorten.END, min_width=30),
            Column(title="saves", align=Align.RIGHT),
            Column(title="share", align=Align.RIGHT, priority=2),
            Column(title="technique", priority=1),
        ),
        rows=tuple(
            Row(
                cells=(
                    Cell(text=each.proposal.what, link="advice-in-detail-section"),
                    Cell(text=saving_text(each), link=buffers_link(report, each)),
                    aside_cell(format_share(each.saving_bytes, report.unpressed.footprint_bytes)),
                    aside_cell(each.proposal.technique or ""),
                )
            )
            for each in best
        ),
        is_extract=True,
    )


def _overview(report: Report, advice: Sequence[Advice]) -> Table:
    is_any_compiled = any(each.is_compiled for each in advice)
    costs = (
        (
            Column(title="recomputes", align=Align.RIGHT, priority=1),
            Column(title="time bound", align=Align.RIGHT, priority=2),
        )
        if is_any_compiled
        else ()
    )
    columns = (
        Column(title="", align=Align.RIGHT),
        Column(title="saves", align=Align.RIGHT),
        *costs,
        Column(title="share", align=Align.RIGHT, priority=2),
        Column(title="what", shorten=Shorten.END, min_width=30),
        Column(title="technique", priority=3),
    )
    rows = tuple(
        Row(
            cells=(
                Cell(text=f"{number}"),
                Cell(text=saving_text(each), link=buffers_link(report, each)),
                *(_costs(each) if is_any_compiled else ()),
                Cell(text=format_share(each.saving_bytes, report.unpressed.footprint_bytes)),
                Cell(text=each.proposal.what),
                Cell(text=each.proposal.technique or ""),
            )
        )
        for number, each in enumerate(advice, start=1)
    )
    return Table(columns=columns, rows=rows)


def saving_text(advice: Advice) -> str:
    """Format a saving: a compiled one, or an upper bound."""
    size = format_bytes(advice.saving_bytes)
    return size if advice.is_compiled else f"up to {size}"


def _costs(advice: Advice) -> tuple[Cell, Cell]:
    """Return the costs of a change: the FLOPs it recomputes, and the increase of the bound on the step time."""
    if advice.compiled is None:
        return aside_cell(""), aside_cell("")
    seconds = advice.compiled.seconds
    return (
        Cell(text=format_flops(advice.compiled.recomputed_flops) if advice.compiled.recomputed_flops else "-"),
        Cell(text="" if seconds is None else f"{seconds * 1e3:+.2f} ms"),
    )


def buffers_link(report: Report, advice: Advice) -> str:
    """Return the link to the buffers that a change affects; empty if it only reorders, or concerns another plan."""
    is_shown = report.without_limit is None and changed_at_peak(report, advice.proposal.without)
    return f"advice={advice.proposal.what}" if is_shown else ""


def advice_facts(advice: Advice) -> dict[str, str]:
    """Return the facts about a piece of advice beside its code, by label."""
    texts = {
        "how": "" if advice.proposal.code_to_paste else advice.proposal.how_to,
        "why": advice.proposal.evidence,
        "cost": advice.proposal.cost,
        "numbers": "" if advice.compiled is None else _MEANING[advice.compiled.meaning],
        "not compiled": advice.refusal,
    }
    return {label: text for label, text in texts.items() if text}


def _details(number: int, advice: Advice) -> tuple[Block, ...]:
    texts = {f"{number}.": advice.proposal.what, **advice_facts(advice)}  # in full, because the overview may shorten it
    facts = [Fact(label=label, values=tuple(text.split("; "))) for label, text in texts.items()]
    code = advice.proposal.code_to_paste.rstrip()
    return (Facts(facts=tuple(facts)), *((Code(text=code),) if code else ()))
