"""Why buffers are live at the peak: the operation at the peak, later readers, and the effect of another order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from memprof.analysis.records.live_buffer import array_type
from memprof.analysis.records.report import Report, Schedule
from memprof.analysis.records.why_live import Link, Operation, Reason, WhyLive
from memprof.reports.document import Block, Cell, Document, Fact, Facts, Heading, Note, Tone
from memprof.reports.units import format_bytes, format_share
from memprof.reports.views.cells import short_names

_MAX_USERS = 4
_MAX_LINKS = 12
_WARNING_SHARE = 0.02  # share of the footprint, as for advice
_BY_REASON = {
    Reason.WHOLE_STEP: "an argument, a result or a constant: its memory is held for the whole step",
    Reason.ANY_ORDER: "live here in every order of the operations",
    Reason.WAITING: "only because of the order: its remaining readers do not depend on the operation at the peak",
    Reason.EARLY: (
        "only because of the order: the operation at the peak does not depend on it, so it could be made later"
    ),
}


Labelled = tuple[str, tuple[Cell, ...]]  # a fact whose values may be links


def why_document(report: Report, reasons: Sequence[WhyLive], *, top: int) -> Document:
    """Build a section for each buffer, at most `top` of them, and one on the effect of the order on the whole peak."""
    aside = f"footprint {format_bytes(report.footprint_bytes)} on {report.target.name}"
    blocks: list[Block] = [Heading(text=report.label, level=1, aside=aside)]
    names = short_names(sources_of(reasons))
    for why in reasons[:top]:
        buffer = why.buffer
        array = array_type(buffer.dtype, buffer.shape)
        holds = Fact(label="holds", values=(array, format_bytes(buffer.size_bytes), buffer.category.value))
        blocks += [Heading(text=buffer.name, level=2), Facts(facts=(holds, *map(_fact, why_facts(why, names))))]
    if len(reasons) > top:
        blocks.append(Note(text=f"{len(reasons) - top} more have this name: see --top.", tone=Tone.MUTED))
    if report.schedule is not None:
        facts = Facts(facts=tuple(map(_fact, order_facts(report, report.schedule))))
        blocks += [Heading(text="The order of operations", level=2), facts, order_note(report, report.schedule)]
    return Document(blocks=tuple(blocks))


def sources_of(reasons: Sequence[WhyLive]) -> list[str]:
    """Return the source lines that `why_facts` names."""
    operations = [operation for why in reasons for operation in (why.at_peak, *why.users) if operation is not None]
    return [*(each.source for each in operations), *(why.buffer.source for why in reasons)]


def why_facts(why: WhyLive, names: Mapping[str, str]) -> Sequence[Labelled]:
    """List the producer and the later readers of a buffer, the operations between, and why it is live at the peak.

    Args:
        why: the facts about the buffer.
        names: the displayed names of source lines, by source line.
    """
    buffer = why.buffer
    made_at = (_position(buffer.start),) if buffer.is_temp else ()
    facts: list[Labelled] = [
        ("made by", (Cell(text=buffer.op or buffer.name), Cell(text=names[buffer.source]), *made_at))
    ]
    if why.at_peak is not None:
        facts.append(("at the peak", _named(why.at_peak, names)))
    facts += [("waits for", _named(user, names)) for user in why.users[: -_MAX_USERS - 1 : -1]]
    if len(why.users) > _MAX_USERS:
        facts.append(("", (Cell(text=f"and {len(why.users) - _MAX_USERS} before these"),)))
    if buffer.is_temp and not why.users:
        facts.append(("waits for", (Cell(text="nothing after the operation at the peak"),)))
    if why.reason is Reason.WAITING and why.users:
        when = f"after position {why.ready:,}" if why.ready >= 0 else "from the beginning"
        facts.append(("could run", (Cell(text=f"the last of them has all its operands {when}"),)))
    if why.chain:
        facts.append(("between", tuple(map(_link, _shortened(why.chain)))))
    facts.append(("live here", (Cell(text=_BY_REASON[why.reason]),)))
    return [(label, tuple(cell for cell in cells if cell.text)) for label, cells in facts]


def order_facts(report: Report, schedule: Schedule) -> Sequence[Labelled]:
    """List the bytes that are live at the peak, in the chosen order and in others."""
    facts = {
        "live peak": f"{format_bytes(report.live_peak_bytes)} in XLA's order",
        "another order": f"{format_bytes(schedule.other_bytes)} in the best order found",
        "any order": f"at least {format_bytes(schedule.bound_bytes)}: what must be live around one of its operations",
    }
    return [(label, (Cell(text=value),)) for label, value in facts.items()]


def order_note(report: Report, schedule: Schedule) -> Note:
    """Say how much of the live peak is due to the order alone."""
    most_bytes = report.live_peak_bytes - schedule.bound_bytes
    least_bytes = report.live_peak_bytes - schedule.other_bytes
    text = (
        f"Due to order alone: {format_bytes(least_bytes)} to {format_bytes(most_bytes)}"
        f" ({format_share(least_bytes, report.live_peak_bytes)} to {format_share(most_bytes, report.live_peak_bytes)})."
        if most_bytes
        else "No order of the same operations has a lower peak."
    )
    tone = Tone.WARNING if least_bytes > _WARNING_SHARE * report.footprint_bytes else Tone.MUTED
    return Note(text=text, tone=tone)


def _fact(labelled: Labelled) -> Fact:
    label, cells = labelled
    return Fact(label=label, values=tuple(cell.text for cell in cells))


def _named(operation: Operation, names: Mapping[str, str]) -> tuple[Cell, ...]:
    op, source = operation.op or operation.name, names[operation.source]
    return Cell(text=op), Cell(text=source), _position(operation.position)


def _position(position: int) -> Cell:
    return Cell(text=f"position {position:,}", link=f"at={position}")


def _link(link: Link | None) -> Cell:
    if link is None:
        return Cell(text="...")
    where = " ".join(filter(None, (link.phase.value, link.module))) or link.op
    return Cell(text=f"{where} ({link.num_operations:,})", link=f"module={link.module}" if link.module else "")


def _shortened(chain: Sequence[Link]) -> Sequence[Link | None]:
    if len(chain) <= _MAX_LINKS:
        return chain
    return (*chain[: _MAX_LINKS // 2], None, *chain[-_MAX_LINKS // 2 :])
