"""The figure and the table of copies that only change a layout."""

from __future__ import annotations

from dataclasses import replace

from full_report import full_report

from memprof.analysis.records.layout_copy import LayoutCopy, Neighbour
from memprof.reports.document import Table
from memprof.reports.views.layout_copies import layout_copy_blocks, layout_copy_facts, layout_copy_table

# Four alike copies of 69,632 bytes, each three times a step; the first lies in VMEM.
COPIES = full_report().layout_copies


def _texts(table: Table) -> list[list[str]]:
    return [[getattr(cell, "text", "") for cell in row.cells] for row in table.rows]


def test_a_report_without_copies_says_nothing_of_them() -> None:
    report = replace(full_report(), layout_copies=())
    assert layout_copy_facts(report) == layout_copy_blocks(report, top=3) == ()


def test_the_figure_has_the_bytes_of_a_step_those_at_the_peak_and_the_largest() -> None:
    (fact,) = layout_copy_facts(full_report())
    # 4 x 3 x 68 KiB; one of them is live at the peak; one is in a loop of unknown length.
    assert fact.values == (
        "4 copies, at least 816 KiB a step",
        "68.0 KiB live at the peak",
        "most in f32[100,130]: {1,0:T(8,128)} to {0,1:T(8,128)}",
    )


def test_copies_of_all_layers_are_one_row_for_each_memory() -> None:
    table = layout_copy_table(COPIES, top=3)
    in_hbm, in_vmem = _texts(table)
    assert in_hbm[3:9] == ["9", "68.0 KiB", "612 KiB", "75.0%", "68.0 KiB", ""]
    assert in_vmem[3:9] == ["3", "68.0 KiB", "204 KiB", "25.0%", "-", "vmem"]
    assert (in_hbm[9], in_vmem[9]) == ("layers_*/attn", "layers_0/attn")
    assert in_hbm[10:] == ["from dot (layers.py:12)", "for the step's result"]


def test_rows_beyond_the_first_are_summed_up() -> None:
    table = layout_copy_table(COPIES, top=1)
    assert _texts(table)[-1][0] == "(1 more)"
    assert _texts(table)[-1][5] == "204 KiB"
    assert table.total is not None


def _row(**fields: object) -> list[str]:
    copy: LayoutCopy = replace(COPIES[0], **fields)  # type: ignore[arg-type]
    return _texts(layout_copy_table([copy], top=1))[0]


def test_neighbours_are_named_by_what_they_are() -> None:
    argument = Neighbour(name="", op="params['w']", source="", role="argument")
    unknown = Neighbour(name="", op="", source="", role="unknown")
    nameless = Neighbour(name="fusion.3", op="", source="", role="operation")
    assert _row(producer=argument, consumer=unknown)[10:] == ["from argument params['w']", "for unknown"]
    assert _row(consumer=nameless)[11] == "for fusion.3"


def test_other_dimensions_are_shown_with_the_old_layout() -> None:
    row = _row(kind="transpose", old_shape=(130, 100), old_layout="", layout="")
    assert row[:3] == ["f32[100,130]", "[130,100]", "row by row"]


def test_a_copy_that_converts_names_the_old_type() -> None:
    assert _row(dtype="bf16")[1] == "f32{1,0:T(8,128)}"
    assert _row(dtype="bf16", old_layout="")[1] == "f32 row by row"
