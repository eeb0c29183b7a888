"""The documents of one report: the summary, and a single breakdown (`memprof show CAPTURE --by KEY`)."""

from __future__ import annotations

from memprof.analysis.records.categories import Category, Phase
from memprof.analysis.records.report import Report
from memprof.analysis.records.timeline import Timeline, TimelineSlice
from memprof.files import as_argument
from memprof.reports.document import (
    Block,
    Document,
    Fact,
    Facts,
    Heading,
    Moment,
    Note,
    Part,
    StackedChart,
    Table,
    Tone,
)
from memprof.reports.options import By, RenderOptions
from memprof.reports.units import format_bytes, format_share
from memprof.reports.views import header
from memprof.reports.views.advice import advice_blocks
from memprof.reports.views.buffers import buffer_table, largest_buffers_table
from memprof.reports.views.cells import category_table, group_legend, share_table
from memprof.reports.views.kernels import kernel_blocks
from memprof.reports.views.layout_copies import layout_copy_blocks, layout_copy_table
from memprof.reports.views.measured import measured_blocks, operation_blocks
from memprof.reports.views.mesh import mesh_blocks, partitioner_notes
from memprof.reports.views.modules import module_table
from memprof.reports.views.padding import padding_table
from memprof.reports.views.sources import source_table, stack_table

# More than the columns of a terminal. A format with fewer columns keeps the highest moment of each, so no peak is lost.
_RESOLUTION = 480
_PASSES = frozenset({Phase.FORWARD, Phase.RECOMPUTE, Phase.BACKWARD, Phase.UPDATE, Phase.UNDIFFERENTIATED})
_NAMED_ARGUMENTS = 3
_MORE = 3  # suggested commands show this many times as many rows
_NOT_MEASURED = "These numbers were not measured on a device."
_OF_ENGINE = (
    "Totals and layers are those of TensorRT's builder. Live ranges of tensors, and the workspace's share of the "
    f"activation memory, are inferred from the order of the layers. {_NOT_MEASURED}"
)
_MEASURED = "Only the numbers under Measured were measured."


def summary_document(report: Report, options: RenderOptions) -> Document:
    """Build the summary: header, measurements, categories, timeline, modules, buffers, advice, configuration, notes."""
    depth, top = options.depth, options.top
    return Document(
        blocks=(
            header.title(report),
            *header.refusal_notes(report),
            *header.pressure_notes(report),
            header.setup_facts(report),
            header.memory_heading(report),
            header.gauge(report),
            header.memory_facts(report),
            *measured_blocks(report),
            *operation_blocks(report, top=top),
            Heading(text="Contents of the footprint", level=2),
            category_table(report.categories),
            *mesh_blocks(report),
            *kernel_blocks(report.kernels, top=top),
            *layout_copy_blocks(report, top=top),
            *_timeline(report),
            *_modules(report, depth=depth, top=top),
            *_buffers(report, top=top),
            *(
                advice_blocks(report, options.advice_for(report), of_step=options.of_step)
                if options.with_advice
                else ()
            ),
            *(header.configuration(report) if options.with_configuration else ()),
            Heading(text="Notes", level=2),
            *notes(report),
        )
    )


def _timeline(report: Report) -> tuple[Block, ...]:
    if not report.live_peak_bytes or not report.timeline.num_positions:
        return ()
    chart = timeline_chart(report.timeline, live_peak_bytes=report.live_peak_bytes)
    return (Heading(text="Live bytes over program order", level=2), chart)


def _modules(report: Report, *, depth: int, top: int) -> tuple[Block, ...]:
    if not report.modules.children:
        return ()
    return (
        Heading(text="By module", level=2, aside=f"{depth} levels, equal layers together"),
        module_table(report.modules, depth=depth, top=top),
        group_legend(),
    )


def _buffers(report: Report, *, top: int) -> tuple[Block, ...]:
    if not report.buffers:
        return ()
    return (
        Heading(text="Largest buffers at the peak", level=2, aside="similar ones of all layers combined"),
        largest_buffers_table(report.buffers, top=top),
    )


def by_document(report: Report, by: By, options: RenderOptions) -> Document:
    """Build a document of one breakdown of the footprint, with a short head.

    Breakdowns by buffer and by padding are of the live peak; the breakdown by layout lists layout copies.
    """
    return Document(
        blocks=(
            header.subject_heading(report),
            header.subject_facts(report),
            header.gauge(report),
            Heading(text=f"By {by.value}", level=2),
            _breakdown(report, by=by, depth=options.depth, top=options.top),
            *((group_legend(),) if by is By.MODULE else ()),
            *notes(report),
            *((_more(by, options),) if options.capture else ()),
        )
    )


def _more(by: By, options: RenderOptions) -> Facts:
    """List the commands that show more details."""
    show, top = f"memprof show {as_argument(options.capture)}", _MORE * options.top
    views = {
        By.CATEGORY: f"{show} --by buffer",
        By.MODULE: f"{show} --by module --depth {options.depth + 1} --top {top}",
    }
    commands = (views.get(by, f"{show} --by {by.value} --top {top}"), show)
    return Facts(facts=(Fact(label="next", values=commands, are_commands=True),))


def _breakdown(report: Report, *, by: By, depth: int, top: int) -> Table:
    match by:
        case By.CATEGORY:
            return category_table(report.categories)
        case By.MODULE:
            return module_table(report.modules, depth=depth, top=top)
        case By.SOURCE:
            return source_table(report, top=top)
        case By.STACK:
            return stack_table(report, top=top)
        case By.DTYPE:
            return share_table("dtype", report.by_dtype, nameless="(no dtype)", top=top)
        case By.PHASE:
            phases = {phase_name(phase): size_bytes for phase, size_bytes in report.by_phase.items()}
            return share_table("phase", phases, nameless="(no phase)", top=top)
        case By.BUFFER:
            return buffer_table(report.buffers, top=top)
        case By.PADDING:
            return padding_table(report.buffers, top=top)
        case By.LAYOUT:
            return layout_copy_table(report.layout_copies, top=top)


def phase_name(phase: Phase) -> str:
    """Return the name of a phase; empty for `Phase.NONE`."""
    return "" if phase is Phase.NONE else phase.value


def timeline_chart(timeline: Timeline, *, live_peak_bytes: int) -> StackedChart:
    """Chart the whole program in slices of equal length, each at its highest moment."""
    # Categories that are live throughout are at the bottom, so that the others change on a level base.
    order = sorted(Category, key=lambda category: category not in timeline.base)
    position = f"position {timeline.peak_position:,} of {timeline.num_positions:,}"
    return StackedChart(
        moments=tuple(_moment(each, order) for each in timeline.slices(_RESOLUTION)),
        mark=f"peak {format_bytes(live_peak_bytes)}, {position}",
    )


def _moment(each: TimelineSlice, order: list[Category]) -> Moment:
    parts = tuple(
        Part(category=category, size_bytes=each.categories[category])
        for category in order
        if each.categories.get(category)
    )
    return Moment(parts=parts, band=each.phase.value if each.phase in _PASSES else "")


def notes(report: Report) -> tuple[Note, ...]:
    """Return the notes that apply, the most urgent first."""
    unattributed = _unattributed(report)
    return (*((unattributed,) if unattributed else ()), *warnings(report), provenance(report))


def warnings(report: Report) -> tuple[Note, ...]:
    """Return the warnings about the step itself."""
    unused = _unused_arguments(report)
    doubts = (Note(tone=Tone.WARNING, text=doubt) for doubt in report.doubts)
    return (*((unused,) if unused else ()), *doubts, *partitioner_notes(report))


def provenance(report: Report) -> Note:
    """Say which numbers come from the compiler, which are inferred, and which are measured."""
    if report.engine_figures is not None:
        return Note(tone=Tone.MUTED, text=_OF_ENGINE)
    allocator = report.allocator
    if allocator is None:
        whose = "the compiler's (XLA's buffer assignment)"
        measured = _NOT_MEASURED if report.measured is None else _MEASURED
    elif allocator.allocated_bytes is None:
        whose, measured = "what PyTorch's caching allocator recorded on the device", ""
    else:
        whose, measured = "those of a traced step, with a model of PyTorch's caching allocator", _NOT_MEASURED
    text = (
        f"Sizes, lifetimes and totals are {whose}. Category, module and phase are inferred by memprof's rules."
        f" {measured}"
    )
    return Note(tone=Tone.MUTED, text=text.rstrip())


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
        f"No result depends on {len(unused)} of the step's arguments ({size}): {names}{more}. jit drops them, so "
        "they are not in the footprint, but the caller still holds them."
    )
    return Note(tone=Tone.WARNING, text=text)
