"""The document of a diff: changes by category, by module and by buffer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from memprof.analysis.comparison import MatchedBuffers, ReportComparison
from memprof.analysis.records.live_buffer import array_type
from memprof.reports.document import Block, Document, Heading, Note, Table, Tone
from memprof.reports.options import By, Order, RenderOptions
from memprof.reports.units import format_bytes, format_ratio, format_signed_bytes
from memprof.reports.views.cells import aside_cell, change_cell, short_names, size_cell
from memprof.reports.views.comparison import comparison_facts, comparison_notes
from memprof.reports.views.configurations import compared_rows, footprint_bars
from memprof.reports.views.differences import difference_blocks
from memprof.reports.views.fields import category, number, table, text, total
from memprof.reports.views.header import pressure_notes
from memprof.reports.views.layers import any_layer


def diff_document(diff: ReportComparison, options: RenderOptions) -> Document:
    """Build the document of a whole diff, or of the changes by one key."""
    before, after = diff.rows
    rows = compared_rows(diff, Order.GIVEN)
    by = options.by
    keys = (By.CATEGORY, By.MODULE, By.BUFFER) if by is None else (by,)
    body = [
        block
        for key in keys
        for block in (
            _buffer_blocks(diff.buffers, top=options.top) if key is By.BUFFER else difference_blocks(rows, key, options)
        )
    ]
    return Document(
        blocks=(
            Heading(text=f"{before.label} -> {after.label}", level=1, aside="memprof diff"),
            *((comparison_facts(rows),) if by is None else ()),
            *pressure_notes(before, after),
            _verdict(diff),
            *((Heading(text="Footprint", level=2), footprint_bars(rows)) if by is None else ()),
            *body,
            Heading(text="Notes", level=2),
            *comparison_notes(diff, rows),
        )
    )


def _verdict(diff: ReportComparison) -> Note:
    before, after = diff.rows
    effect = diff.effects[1]
    delta = effect.footprint_delta_bytes
    sizes = f"{format_bytes(before.footprint_bytes)} before, {format_bytes(after.footprint_bytes)} after"
    if not delta:
        return Note(tone=Tone.MUTED, text=f"The footprint is the same, to the byte: {sizes}.")
    word, tone = ("shrank", Tone.GOOD) if delta < 0 else ("grew", Tone.WARNING)
    text = f"The footprint {word}: {sizes} ({format_signed_bytes(delta)}, {format_ratio(effect.footprint_ratio)})."
    return Note(tone=tone, text=text)


def _buffer_blocks(buffers: Sequence[MatchedBuffers], *, top: int) -> tuple[Block, ...]:
    groups = _alike_layers(buffers)
    names = short_names(group.source for group in groups)
    blocks: list[Block] = []
    for title, sign in (("Buffers that grew", 1), ("Buffers that shrank", -1)):
        changed = [group for group in groups if group.delta_bytes * sign > 0]
        aside = "live at the peak, matched by operation and shape, with those of all layers combined"
        blocks.append(Heading(text=title, level=2, aside=aside))
        blocks.append(_table(changed, names, top=top) if changed else Note(tone=Tone.MUTED, text="none"))
    return tuple(blocks)


def _alike_layers(buffers: Sequence[MatchedBuffers]) -> list[MatchedBuffers]:
    """Merge the entries of buffers that differ only in their layer number, the largest change first."""
    groups: dict[tuple[object, ...], list[MatchedBuffers]] = {}
    for each in buffers:
        groups.setdefault((any_layer(each.op), each.shape, each.dtypes, each.category), []).append(each)
    summed = [_sum(members) if len(members) > 1 else members[0] for members in groups.values()]
    return sorted(summed, key=lambda group: -abs(group.delta_bytes))


def _sum(members: Sequence[MatchedBuffers]) -> MatchedBuffers:
    first = members[0]
    return replace(
        first,
        op=any_layer(first.op),
        module=any_layer(first.module),
        num_before=sum(each.num_before for each in members),
        num_after=sum(each.num_after for each in members),
        before_bytes=sum(each.before_bytes for each in members),
        after_bytes=sum(each.after_bytes for each in members),
    )


def _table(groups: Sequence[MatchedBuffers], names: Mapping[str, str], *, top: int) -> Table:
    def counts(group: MatchedBuffers) -> str:
        before, after = f"{group.num_before:,}", f"{group.num_after:,}"
        return after if before == after else f"{before} to {after}"

    return table(
        groups,
        [
            text("array", lambda group: array_type("->".join(group.dtypes), group.shape), min_width=26),
            number("count", counts, priority=3),
            total("before", lambda group: group.before_bytes, size_cell, priority=2),
            total("after", lambda group: group.after_bytes, size_cell, priority=2),
            total("change", lambda group: group.after_bytes - group.before_bytes, change_cell),
            category(lambda group: group.category, priority=1),
            text("module", lambda group: group.module, priority=1, min_width=16),
            text("source", lambda group: names[group.source], min_width=16, below=True),
            text("op", lambda group: aside_cell(group.op), min_width=24, below=True),
        ],
        top=top,
        whole="together",
    )
