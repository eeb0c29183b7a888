"""Advice on the peak: an overview, then each piece with its evidence and its code."""

from __future__ import annotations

from collections.abc import Sequence

from memprof.analysis.records.report import Report
from memprof.reports.document import (
    Block,
    Cell,
    Code,
    Document,
    Fact,
    Facts,
    Heading,
    Note,
    Shorten,
    Table,
    Tone,
)
from memprof.reports.units import format_bytes, format_flops, format_share
from memprof.reports.views.cells import aside_cell
from memprof.reports.views.fields import Fields, number, table, text
from memprof.reports.views.header import TONES, pressure_notes
from memprof.studies.advice.advice import Advice, Meaning
from memprof.studies.advice.what_if import changed_at_peak

_NOTHING = "No rule found a saving of 2% or more in this program."
NOTHING_TO_SAVE = Note(text=_NOTHING, tone=Tone.GOOD)
_CAUTION = (
    "Each saving is for one change alone. Several together may save less than the sum, or more, if each leaves another"
    ' peak (`memprof plan` compiles several). "up to" is an upper bound, not compiled.'
)
_COMPILES = " If it gets a step and not a capture, `memprof advise` compiles the changes that memprof can make itself."
_NONE_SAVES = " memprof has compiled the changes that it can make to this step itself: none saves 2% or more."
_MEANING = {
    Meaning.EQUAL: "the same numbers, bit by bit, in a small instance on the CPU",
    Meaning.CLOSE: "the same numbers within rounding, in a small instance on the CPU",
    Meaning.SAME_OPERATIONS: "the same operations on the same values, proved from traces; only rounding can differ",
    Meaning.UNPROVED: "unverified: it has other operations, and is too large to be run on the CPU, or does not run"
    " there; only its compile was checked",
    Meaning.DIFFERENT: "different numbers than before",
}


def advice_document(
    report: Report, advice: Sequence[Advice], *, of_step: bool, without_saving: Sequence[Advice] = ()
) -> Document:
    """Build a document of the advice alone.

    Args:
        of_step: whether memprof had the step, and not a capture alone: it then has compiled the changes.
        without_saving: compiled changes that save nothing alone, but may after others.
    """
    aside = f"footprint {format_bytes(report.unpressed.footprint_bytes)} on {report.target.name}"
    verdict = Note(text=report.verdict.sentence, tone=TONES[report.verdict.answer])
    heading = Heading(text=report.label, level=1, aside=aside)
    blocks = (*pressure_notes(report), verdict, *advice_blocks(report, advice, of_step=of_step))
    return Document(blocks=(heading, *blocks, *_without_saving(advice, without_saving)))


def advice_blocks(report: Report, advice: Sequence[Advice], *, of_step: bool = False) -> tuple[Block, ...]:
    """Build the advice section of a report."""
    heading = Heading(text="Possible changes", level=2, aside="cheapest first")
    if report.engine_figures is not None:
        return (heading, Note(text="Advice applies to XLA's programs; this is an engine.", tone=Tone.MUTED))
    if not advice:
        return (heading, NOTHING_TO_SAVE)
    details = (block for number, each in enumerate(advice, start=1) for block in _details(number, each))
    return (heading, *unpressed_note(report), _overview(report, advice), *details, caution(advice, of_step=of_step))


def caution(advice: Sequence[Advice], *, of_step: bool = False) -> Note:
    """Explain the savings; if none is compiled, also why, or how to compile them."""
    if any(each.is_compiled for each in advice):
        return Note(text=_CAUTION, tone=Tone.MUTED)
    return Note(text=_CAUTION + (_NONE_SAVES if of_step else _COMPILES), tone=Tone.MUTED)


def _without_saving(advice: Sequence[Advice], changes: Sequence[Advice]) -> tuple[Note, ...]:
    """Name compiled changes without a saving, if there is a change after which they may have one."""
    if not changes or not advice:
        return ()
    names = "; ".join(each.proposal.what for each in changes)
    text = f"Without a saving alone, but maybe with one after another change: {names}."
    return (Note(text=text, tone=Tone.MUTED),)


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
    return table(
        [each for each in advice if each not in recomputing[1:]][:top],
        [
            text(
                "possible changes",
                lambda each: Cell(text=each.proposal.what, link="advice-in-detail-section"),
                shorten=Shorten.END,
                min_width=30,
            ),
            number("saves", lambda each: _saving_cell(report, each)),
            number("share", lambda each: aside_cell(_share(report, each)), priority=2),
            text("technique", lambda each: aside_cell(each.proposal.technique or ""), priority=1),
        ],
        is_extract=True,
    )


def _overview(report: Report, advice: Sequence[Advice]) -> Table:
    costs: Fields[tuple[int, Advice]] = (
        number("recomputes", lambda each: _recomputes(each[1]), priority=1),
        number("time bound", lambda each: _time_bound(each[1]), priority=2),
    )
    return table(
        list(enumerate(advice, start=1)),
        [
            number("", lambda each: f"{each[0]}"),
            number("saves", lambda each: _saving_cell(report, each[1])),
            *(costs if any(each.is_compiled for each in advice) else ()),
            number("share", lambda each: _share(report, each[1]), priority=2),
            # Several begin alike: checkpoints of the same layers that keep different values.
            text("what", lambda each: each[1].proposal.what, shorten=Shorten.MIDDLE, min_width=30),
            text("technique", lambda each: each[1].proposal.technique or "", priority=3),
        ],
    )


def _saving_cell(report: Report, advice: Advice) -> Cell:
    return Cell(text=saving_text(advice), link=buffers_link(report, advice))


def _share(report: Report, advice: Advice) -> str:
    return format_share(advice.saving_bytes, report.unpressed.footprint_bytes)


def saving_text(advice: Advice) -> str:
    """Format a saving: a compiled one, or an upper bound."""
    size = format_bytes(advice.saving_bytes)
    return size if advice.is_compiled else f"up to {size}"


def _recomputes(advice: Advice) -> str | Cell:
    if advice.compiled is None:
        return aside_cell("")
    return format_flops(advice.compiled.recomputed_flops) if advice.compiled.recomputed_flops else "-"


def _time_bound(advice: Advice) -> str | Cell:
    """Show the increase of the bound on the step time."""
    if advice.compiled is None:
        return aside_cell("")
    return "" if advice.compiled.seconds is None else f"{advice.compiled.seconds * 1e3:+.2f} ms"


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
