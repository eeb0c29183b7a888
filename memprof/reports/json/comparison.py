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
    """What one row of a comparison changes."""

    label: Annotated[str, about("Of the row.")]
    footprint_delta_bytes: Annotated[int, about("Its footprint minus the reference's.")]
    footprint_ratio: Annotated[float, Meta(ge=0), about("Its footprint divided by the reference's.")]
    categories_delta: Annotated[
        CategoryChanges, about("The same for every category; they add up to `footprint_delta_bytes`.")
    ]
    took_effect: Annotated[
        bool | None,
        about(
            "Whether every technique of the row shows in the compiled program; null where that cannot be told of each."
        ),
    ]
    evidence: Annotated[str, about("What was looked at and what was found.")]


class ComparisonJson(Struct, frozen=True, kw_only=True, tag_field="schema", tag="memprof.comparison/1"):
    """Several configurations of a training step side by side, and what each changes against the reference.

    Sizes are whole bytes. Within version 1, fields may be added, never renamed or removed.
    """

    baseline: Annotated[str, about("The label of the reference row.")]
    rows: Annotated[tuple[ReportJson, ...], about("The whole report of each configuration, in the order given.")]
    effects: Annotated[
        tuple[EffectJson, ...],
        about("What each row changes, in the order of `rows`; that of the reference itself is zero."),
    ]
    failures: Annotated[tuple[FailedRow, ...], about("Configurations that gave no report.")]
    differences: Annotated[
        tuple[str, ...], about("What else the rows do not have in common: a target, a version, XLA flags.")
    ]


class SideJson(Struct, frozen=True, kw_only=True):
    """One of the two reports of a diff, in short."""

    label: str
    target: TargetJson
    toolchain: ToolchainJson
    footprint_bytes: Annotated[Size, about("What the allocator must hold.")]
    live_peak_bytes: Annotated[Size, about("The most bytes live at once.")]
    categories: CategorySizes


class ModuleChangeJson(Struct, frozen=True, kw_only=True):
    """A module that either report has."""

    path: Annotated[str, about("For example `layers_0/mlp`.")]
    delta_bytes: Annotated[int, about("After minus before.")]
    before_bytes: Annotated[Size, about("With what is under it; 0 where it is not there.")]
    after_bytes: Annotated[Size, about("Likewise.")]


class MatchedBuffersJson(Struct, frozen=True, kw_only=True):
    """The buffers of one operation and shape, before and after."""

    delta_bytes: Annotated[int, about("After minus before.")]
    before_bytes: Annotated[Size, about("Sum of those before.")]
    after_bytes: Annotated[Size, about("Sum of those after.")]
    num_before: Annotated[Size, about("How many before.")]
    num_after: Annotated[Size, about("How many after.")]
    shape: Shape
    dtypes: Annotated[tuple[str, ...], Meta(min_length=1), about("More than one where the precision changed.")]
    category: Category
    module: Annotated[str, about("Of the largest after, or, where none is left, before.")]
    op: Annotated[
        str, about("JAX's name of the operation, the argument's path, or, where there is neither, the HLO instruction.")
    ]
    source: Annotated[str, about("Likewise of the largest.")]


class DiffJson(Struct, frozen=True, kw_only=True, tag_field="schema", tag="memprof.diff/1"):
    """What changed from one report to another. Reports are named, not repeated: each has a document of its own.

    Sizes are whole bytes; every `delta_bytes` is after minus before. Within version 1, fields may be added, never
    renamed or removed.
    """

    before: Annotated[SideJson, about("The earlier report.")]
    after: Annotated[SideJson, about("The report that is shown.")]
    footprint_delta_bytes: Annotated[int, about("Change of the footprint.")]
    live_peak_delta_bytes: Annotated[int, about("Change of the live peak.")]
    categories_delta: Annotated[
        CategoryChanges, about("The change of every category; they add up to footprint_delta_bytes.")
    ]
    modules: Annotated[
        tuple[ModuleChangeJson, ...], about('Every module that either has; the root (path "") comes first.')
    ]
    buffers: Annotated[
        tuple[MatchedBuffersJson, ...],
        about("Live at the peak of either, the largest change first. They add up to live_peak_delta_bytes."),
    ]
    differences: Annotated[
        tuple[str, ...], about("What else the two do not have in common: a target, a version, XLA flags.")
    ]


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
