"""What `--format json` prints of a comparison and of a diff, as typed records; see `report.py`."""

# Without `from __future__ import annotations`: from texts msgspec makes these types in three times the time.

from typing import Annotated

from msgspec import Meta, Struct

from memprof.analysis.comparison import FailedRow, ReportComparison, changes_between
from memprof.analysis.records.categories import Category
from memprof.analysis.records.report import Report
from memprof.reports.json.report import ReportJson, TargetJson, ToolchainJson, report_json, walk
from memprof.reports.json.types import CategoryChanges, CategorySizes, Shape, Size, about, filled


class EffectJson(Struct, frozen=True, kw_only=True):
    """The changes of one row of a comparison."""

    label: Annotated[str, about("Label of the row.")]
    footprint_delta_bytes: Annotated[int, about("Its footprint minus that of the reference.")]
    footprint_ratio: Annotated[float, Meta(ge=0), about("Its footprint divided by that of the reference.")]
    categories_delta: Annotated[
        CategoryChanges, about("The same difference for every category; they add up to `footprint_delta_bytes`.")
    ]
    took_effect: Annotated[
        bool | None,
        about("Whether every technique of the row shows in the compiled program; null if one cannot be judged."),
    ]
    evidence: Annotated[str, about("The facts behind this verdict.")]


class ComparisonJson(Struct, frozen=True, kw_only=True, tag_field="schema", tag="memprof.comparison/1"):
    """Several configurations of a training step side by side, and their differences to a reference.

    Sizes are whole bytes. Within version 1, fields may be added, never renamed or removed.
    """

    baseline: Annotated[str, about("The label of the reference row.")]
    rows: Annotated[tuple[ReportJson, ...], about("The report of each configuration, in the given order.")]
    effects: Annotated[
        tuple[EffectJson, ...],
        about("The changes of each row, in the order of `rows`; those of the reference are zero."),
    ]
    failures: Annotated[tuple[FailedRow, ...], about("Configurations without a report.")]
    differences: Annotated[
        tuple[str, ...], about("Other differences between the rows: a target, a version, XLA flags.")
    ]


class SideJson(Struct, frozen=True, kw_only=True):
    """A summary of one of the two reports of a diff."""

    label: str
    target: TargetJson
    toolchain: ToolchainJson
    footprint_bytes: Annotated[Size, about("Bytes that the allocator must hold.")]
    live_peak_bytes: Annotated[Size, about("Largest number of bytes that are live at once.")]
    categories: CategorySizes


class ModuleChangeJson(Struct, frozen=True, kw_only=True):
    """A module of either report."""

    path: Annotated[str, about("For example `layers_0/mlp`.")]
    delta_bytes: Annotated[int, about("After minus before.")]
    before_bytes: Annotated[Size, about("Bytes before, with all modules under it; 0 if it did not exist.")]
    after_bytes: Annotated[Size, about("Bytes after, likewise.")]


class MatchedBuffersJson(Struct, frozen=True, kw_only=True):
    """The buffers of one operation and shape, before and after."""

    delta_bytes: Annotated[int, about("After minus before.")]
    before_bytes: Annotated[Size, about("Their total size before.")]
    after_bytes: Annotated[Size, about("Their total size after.")]
    num_before: Annotated[Size, about("Their number before.")]
    num_after: Annotated[Size, about("Their number after.")]
    shape: Shape
    dtypes: Annotated[tuple[str, ...], Meta(min_length=1), about("More than one if the precision changed.")]
    category: Category
    module: Annotated[str, about("Module of the largest buffer after or, if none is left, before.")]
    op: Annotated[
        str, about("JAX's name of the operation, or the argument's path; if there is neither, the HLO instruction.")
    ]
    source: Annotated[str, about("Source line of the same buffer.")]


class DiffJson(Struct, frozen=True, kw_only=True, tag_field="schema", tag="memprof.diff/1"):
    """The changes from one report to another, which have documents of their own.

    Sizes are whole bytes; every `delta_bytes` is after minus before. Within version 1, fields may be added, never
    renamed or removed.
    """

    before: Annotated[SideJson, about("The earlier report.")]
    after: Annotated[SideJson, about("The later report.")]
    footprint_delta_bytes: Annotated[int, about("Change of the footprint.")]
    live_peak_delta_bytes: Annotated[int, about("Change of the live peak.")]
    categories_delta: Annotated[
        CategoryChanges, about("The change of every category; they add up to footprint_delta_bytes.")
    ]
    modules: Annotated[tuple[ModuleChangeJson, ...], about('All modules of either; the root (path "") comes first.')]
    buffers: Annotated[
        tuple[MatchedBuffersJson, ...],
        about(
            "Buffers that are live at the peak of either, largest change first. They add up to live_peak_delta_bytes."
        ),
    ]
    differences: Annotated[tuple[str, ...], about("Other differences between the two: a target, a version, XLA flags.")]


def comparison_json(comparison: ReportComparison) -> ComparisonJson:
    """What is printed of a comparison, with the whole of each report."""
    return filled(ComparisonJson, comparison, rows=[report_json(row) for row in comparison.rows])


def diff_json(diff: ReportComparison) -> DiffJson:
    """What is printed of a diff."""
    before, after = diff.rows
    return filled(
        DiffJson,
        diff.effects[1],
        before=before,
        after=after,
        live_peak_delta_bytes=after.live_peak_bytes - before.live_peak_bytes,
        modules=_module_changes(before, after),
        buffers=diff.buffers,
        differences=diff.differences,
    )


def _module_changes(before: Report, after: Report) -> list[ModuleChangeJson]:
    """Every module that either has, in the order of the models; bytes include those of the modules under it."""
    sizes = [{node.path: node.size_bytes for node in walk(report.modules)} for report in (before, after)]
    return [filled(ModuleChangeJson, each, path=each.name) for each in changes_between("module", *sizes)]
