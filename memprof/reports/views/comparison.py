"""The document of a comparison: its head, the configurations side by side, evidence, failures and notes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from memprof.analysis.comparison import FailedRow, ReportComparison, failure_reasons
from memprof.analysis.records.categories import Category
from memprof.analysis.records.report import Report
from memprof.reports.document import Block, Document, Fact, Facts, Heading, Note, Tone
from memprof.reports.options import By, RenderOptions
from memprof.reports.units import format_bytes, format_count, format_share
from memprof.reports.views.cells import facts_of, group_legend
from memprof.reports.views.configurations import (
    ComparedRow,
    best_row,
    compared_rows,
    configuration_table,
    footprint_bars,
    num_devices,
    reference_row,
    row_name,
    unbeaten_rows,
)
from memprof.reports.views.differences import difference_blocks
from memprof.reports.views.header import TONES, pressure_sentence, target_values, toolchain_values

_NAMED_ROWS = 3
_NOT_MEASURED = "These numbers were not measured on a device."
_OF_ENGINES = (
    "params, temps and host are totals in the log of TensorRT's builder; cache, batch and outputs have the sizes of the"
    " model's inputs and outputs; a replay of the layers divides temps into forward_temps and workspace."
)
_MEASURED = "Step time and throughput were measured, each row in a separate process."


def comparison_document(
    comparison: ReportComparison, options: RenderOptions, *, with_differences: bool = False
) -> Document:
    """Build the document of a whole comparison, or of the differences by one key.

    Args:
        with_differences: whether the whole comparison also shows the differences by category and by module.

    Raises:
        MemprofError: comparisons have no view by this key.
    """
    rows = compared_rows(comparison, options.order)
    failures = tuple(replace(failure, label=row_name(comparison, failure.label)) for failure in comparison.failures)
    if not rows:
        return Document(blocks=(comparison_title(comparison), *failure_blocks(failures)))
    is_whole = options.by is None
    body = _whole(rows, failures) if options.by is None else difference_blocks(rows, options.by, options)
    if with_differences and is_whole and len(rows) > 1:
        for key in (By.CATEGORY, By.MODULE):
            body += difference_blocks(rows, key, options)
    return Document(
        blocks=(
            comparison_title(comparison),
            *_pressure(rows),
            *body,
            *failure_blocks(failures),
            *(shared_config(rows) if is_whole and options.with_configuration else ()),
            Heading(text="Notes", level=2),
            *comparison_notes(comparison, rows),
        )
    )


def _whole(rows: Sequence[ComparedRow], failures: Sequence[FailedRow]) -> tuple[Block, ...]:
    return (
        comparison_facts(rows),
        Heading(
            text=f"Footprint{_of_each(rows)}", level=2, aside="the memory that the allocator must hold to run the step"
        ),
        footprint_bars(rows),
        Heading(text="Configurations", level=2, aside=f"change and ratio against {reference_row(rows).name}"),
        configuration_table(rows, failures),
        *_best(rows),
        *_bounds(rows),
        *_verdicts(rows),
        group_legend(),
        *effect_blocks(rows),
    )


def _best(rows: Sequence[ComparedRow]) -> tuple[Note, ...]:
    best = best_row(rows)
    return (Note(tone=Tone.ACCENT, text=f"{best[0].name}: {best[1]}"),) if best else ()


def _bounds(rows: Sequence[ComparedRow]) -> tuple[Note, ...]:
    """Explain the column of the roofline bound, if it exists."""
    unbeaten = [row.name for row in unbeaten_rows(rows)]
    if not unbeaten:
        return ()
    text = f"at least: a roofline bound on the time of a step, not measured; Pareto-optimal: {', '.join(unbeaten)}"
    return (Note(tone=Tone.MUTED, text=text),)


def _verdicts(rows: Sequence[ComparedRow]) -> tuple[Note, ...]:
    """Say whether the rows fit, one sentence each. If many rows fit, only the largest of them is mentioned."""
    judged = [row for row in rows if row.report.fits is not None]
    fitting = [row for row in judged if row.report.fits]
    if len(fitting) > _NAMED_ROWS:
        largest = max(fitting, key=lambda row: row.report.footprint_bytes)
        judged = [row for row in judged if row is largest or not row.report.fits]
    return tuple(
        Note(text=f"{row.name} {row.report.verdict.sentence}", tone=TONES[row.report.verdict.answer]) for row in judged
    )


def _pressure(rows: Sequence[ComparedRow]) -> tuple[Note, ...]:
    """Describe the values that XLA itself recomputes, one sentence for each affected row."""
    return tuple(
        Note(text=f"{row.name}: {pressure_sentence(row.report.pressure)}", tone=Tone.WARNING)
        for row in rows
        if row.report.pressure is not None
    )


def _of_each(rows: Sequence[ComparedRow]) -> str:
    """Name the devices of the footprint, if several devices share a step."""
    count = num_devices(rows)
    return "" if count == 1 else f" of each of {count} devices" if count else " of one device"


def comparison_title(comparison: ReportComparison) -> Heading:
    """Build the title: the workload, if all rows share it, and the number of rows."""
    workloads = {row.workload for row in comparison.rows}
    count = len(comparison.rows)
    text = f"{count} configuration{'' if count == 1 else 's'}"
    if comparison.failures:
        text += f", {len(comparison.failures)} failed"
    if len(workloads) == 1:
        text = f"{workloads.pop()}: {text}"
    return Heading(text=text, level=1, aside="memprof compare")


def comparison_facts(rows: Sequence[ComparedRow]) -> Facts:
    """List the facts that all rows share once, and other facts with the rows of each value."""
    facts = [
        Fact(label="reference", values=tuple(row.name for row in rows if row.is_reference)),
        *_shared_facts("workload", rows, lambda report: (report.workload,)),
        *_shared_facts("model", rows, lambda report: (f"{format_count(report.num_params)} parameters",)),
        *_shared_facts("target", rows, lambda report: target_values(report.target)),
        *_shared_facts("toolchain", rows, lambda report: toolchain_values(report.toolchain)),
        *_shared_facts("xla flags", rows, lambda report: tuple(report.toolchain.xla_flags.split())),
        *_shared_facts("jax settings", rows, lambda report: report.toolchain.settings),
        Fact(label="differs", values=_config_values(rows)[1]),
    ]
    return Facts(facts=tuple(fact for fact in facts if fact.values))


def shared_config(rows: Sequence[ComparedRow]) -> tuple[Block, ...]:
    """List the configuration fields that all rows share, in a section because the head has no room for them."""
    shared, _ = _config_values(rows)
    if not shared:
        return ()
    return (Heading(text="Shared configuration", level=2), facts_of({"config": shared}))


def _shared_facts(
    label: str, rows: Sequence[ComparedRow], values_of: Callable[[Report], tuple[str, ...]]
) -> list[Fact]:
    names: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        names.setdefault(values_of(row.report), []).append(row.name)
    if len(names) == 1:
        return [Fact(label=label, values=values) for values in names]
    return [Fact(label=label, values=(*(values or ("none",)), f"in {_who(who)}")) for values, who in names.items()]


def _who(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= _NAMED_ROWS else f"{len(names)} rows"


def _config_values(rows: Sequence[ComparedRow]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the fields that are equal in all rows, and the fields that differ, each with all its values."""
    configs = [row.report.config for row in rows]
    shared: list[str] = []
    differing: list[str] = []
    for field in dict.fromkeys(field for config in configs for field in config):
        values = dict.fromkeys(str(config.get(field, "not set")) for config in configs)
        found = shared if len(values) == 1 else differing
        found.append(f"{field}={' or '.join(values)}")
    return tuple(shared), tuple(differing)


def effect_blocks(rows: Sequence[ComparedRow]) -> tuple[Block, ...]:
    """Show the evidence of each technique in the compiled programs, rows without effect first."""
    flagged = [_evidence(row, Tone.BAD) for row in rows if row.effect.took_effect is False]
    took = [_evidence(row, Tone.GOOD) for row in rows if row.effect.took_effect]
    unclear = [_evidence(row, Tone.MUTED) for row in rows if row.effect.took_effect is None and row.effect.evidence]
    unknown = [row.name for row in rows if row.effect.took_effect is None and not row.effect.evidence]
    if not (flagged or took or unclear):
        return ()
    nothing = [Note(tone=Tone.MUTED, text=f"{', '.join(unknown)}: no visible effect")] if unknown else []
    title = "Every technique took effect" if not unclear else f"Undecided: {len(unclear)} of {len(rows)}"
    if flagged:
        title = f"Without effect: {len(flagged)} of {len(rows)}"
    heading = Heading(text=title, level=2, aside="found in the compiled programs")
    return (heading, *flagged, *unclear, *took, *nothing)


def failure_blocks(failures: Sequence[FailedRow]) -> tuple[Block, ...]:
    """List the rows that failed, with the reasons."""
    if not failures:
        return ()
    notes = (Note(tone=Tone.BAD, text=text) for text in failure_reasons(failures))
    return (Heading(text="Failed", level=2), *notes)


def comparison_notes(comparison: ReportComparison, rows: Sequence[ComparedRow]) -> tuple[Note, ...]:
    """Say why rows may not be comparable, and where the numbers come from."""
    found = [_differences(comparison), _unattributed_note(rows)]
    return (*(note for note in found if note is not None), _provenance_note(rows))


def _evidence(row: ComparedRow, tone: Tone) -> Note:
    evidence = row.effect.evidence
    # Evidence begins with the name of its technique, which is also the name of a row with only that technique.
    return Note(tone=tone, text=evidence if evidence.startswith(f"{row.name}: ") else f"{row.name}: {evidence}")


def _differences(comparison: ReportComparison) -> Note | None:
    if not comparison.differences:
        return None
    text = f"The rows differ in other settings, too. {'; '.join(comparison.differences)}."
    return Note(tone=Tone.WARNING, text=text)


def _names(rows: Sequence[ComparedRow]) -> str:
    names = [row.name for row in rows]
    others = len(names) - _NAMED_ROWS
    return f"{', '.join(names[:_NAMED_ROWS])} and {others} more" if others > 0 else " and ".join(names)


def _provenance_note(rows: Sequence[ComparedRow]) -> Note:
    was_measured = any(row.report.measured is not None for row in rows)
    whose = "" if num_devices(rows) == 1 else "All sizes are per device; FLOPs are those of all devices together. "
    engines = [row for row in rows if row.report.engine_figures is not None]
    others = [row for row in rows if row.report.engine_figures is None]
    recorded = [row.report.allocator is not None for row in others]
    compiled, traced = (
        "the compiler's (XLA's buffer assignment)",
        "those of PyTorch's caching allocator and its tensors",
    )
    totals = (
        f"{compiled}, or {traced}" if any(recorded) and not all(recorded) else traced if all(recorded) else compiled
    )
    sources = f"Sizes and totals are {totals}."
    if engines:
        sources = f"Sizes and totals of {_names(others)} are {totals}. " if others else ""
        sources += f"Of {_names(engines)}, {_OF_ENGINES}"
    text = (
        f"{whose}{sources} Categories, modules and effects are inferred by memprof's rules. FLOPs are those of matrix"
        f" products and convolutions, counted in the traced program. {_MEASURED if was_measured else _NOT_MEASURED}"
    )
    return Note(tone=Tone.MUTED, text=text)


def _unattributed_note(rows: Sequence[ComparedRow]) -> Note | None:
    most = max(rows, key=lambda row: row.report.categories[Category.UNATTRIBUTED])
    size_bytes = most.report.categories[Category.UNATTRIBUTED]
    if not size_bytes:
        return None
    share = format_share(size_bytes, most.report.footprint_bytes)
    text = f"Up to {format_bytes(size_bytes)} of a row ({share} of {most.name}) is unattributed: no rule explains it."
    return Note(tone=Tone.WARNING, text=text)
