"""What the views say about hand-made comparisons. The sizes are worked out in `tests/gpt2_rows.py`."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import comparisons_data
import diffs_data
import pytest
from gpt2_rows import gpt2
from measurements import GPU_RUN
from report_builder import buffer, node, report
from reports_data import one_buffer

from memprof.analysis.comparison import FailedRow, ReportComparison, Verdict, compare, diff
from memprof.analysis.records.categories import Category
from memprof.analysis.records.report import ModuleNode, Report
from memprof.analysis.records.roofline import Roofline
from memprof.errors import MemprofError
from memprof.reports.document import Cell, Document, Fact, Facts, Heading, Note, Row, StackedBars, Table, Tone
from memprof.reports.format import format_named
from memprof.reports.options import By, Order, RenderOptions
from memprof.reports.text import cell_width
from memprof.reports.views.comparison import comparison_document
from memprof.reports.views.configurations import best_row, compared_rows, unbeaten_rows
from memprof.reports.views.diff import diff_document
from memprof.reports.views.differences import Share, difference_table, module_shares


def _document(
    comparison: ReportComparison, by: By | None = None, *, depth: int = 2, top: int = 10, order: Order = Order.GIVEN
) -> Document:
    return comparison_document(comparison, RenderOptions(by=by, depth=depth, top=top, order=order))


def _table(document: Document) -> Table:
    return next(block for block in document.blocks if isinstance(block, Table))


def _texts(row: Row) -> list[str]:
    return [cell.text for cell in row.cells if isinstance(cell, Cell)]


def _facts(document: Document) -> list[Fact]:
    return [fact for block in document.blocks if isinstance(block, Facts) for fact in block.facts]


def _headings(document: Document) -> list[str]:
    return [block.text for block in document.blocks if isinstance(block, Heading)]


def _notes(document: Document) -> list[Note]:
    return [block for block in document.blocks if isinstance(block, Note)]


def test_the_page_says_everything_once() -> None:
    assert _headings(_document(comparisons_data.techniques())) == [
        "transformer: 8 configurations",
        "Footprint",
        "Configurations",
        "Every technique took effect",
        "Shared configuration",
        "Notes",
    ]
    assert _headings(_document(comparisons_data.troubled())) == [
        "transformer: 3 configurations, 1 failed",
        "Footprint",
        "Configurations",
        "Without effect: 1 of 3",
        "Failed",
        "Shared configuration",
        "Notes",
    ]


def test_no_rows_are_no_table() -> None:
    nothing = comparisons_data.nothing()
    assert _headings(_document(nothing)) == ["0 configurations"]
    failed = replace(nothing, failures=(FailedRow(label="mlp accum3", reason="8 does not divide by 3"),))
    assert _headings(_document(failed, By.MODULE)) == ["0 configurations, 1 failed", "Failed"]


def test_the_header_says_once_what_the_rows_share() -> None:
    facts = {fact.label: fact.values for fact in _facts(_document(comparisons_data.techniques()))}
    assert facts == {
        "reference": ("baseline",),
        "workload": ("transformer",),
        "model": ("124.4M parameters",),
        "target": ("rtx-a5000", "NVIDIA RTX A5000", "23.6 GiB", "compute capability 8.6"),
        "toolchain": (
            "jax 0.12.0",
            "jaxlib 0.12.0",
            "flax 0.13.0",
            "optax 0.3.0",
            "python 3.12.3",
            "memprof 0.1.0",
            "jax-cuda13-plugin 0.12.0",
        ),
        "differs": (
            "compute_dtype=float32 or bfloat16",
            "donate=False or True",
            "num_minibatches=1 or 4",
            "remat=False or True",
            "scan_layers=False or True",
            "optimizer=adamw or lion",
        ),
        "config": ("preset=gpt2", "batch_size=8", "seq_len=1024"),
    }


def test_the_header_says_which_rows_a_target_belongs_to() -> None:
    facts = [fact for fact in _facts(_document(comparisons_data.troubled())) if fact.label in ("target", "xla flags")]
    assert [(fact.values[0], fact.values[-1]) for fact in facts] == [
        ("small-8gb", "in baseline, bf16+scan"),
        ("rtx-a5000", "in bf16+remat"),
        ("none", "in baseline, bf16+scan"),
        ("--xla_gpu_enable_triton_gemm=false", "in bf16+remat"),
    ]


def test_many_rows_are_counted_and_a_field_may_not_be_set() -> None:
    rows = [replace(one_buffer(), label=f"tiny row{number}", num_params=number // 4) for number in range(5)]
    rows[4] = replace(rows[4], config={"depth": 1})
    facts = _facts(_document(compare(rows, baseline="tiny row0")))
    assert [fact.values for fact in facts if fact.label == "model"] == [
        ("0 parameters", "in 4 rows"),
        ("1 parameters", "in row4"),
    ]
    assert [fact.values[-1] for fact in facts if fact.label == "differs"] == ["depth=not set or 1"]


def test_the_table_has_a_row_for_each_configuration() -> None:
    table = _table(_document(comparisons_data.techniques()))
    assert [column.title for column in table.columns] == [
        *("configuration", "footprint", "change", "ratio", "params", "optim", "grads", "acts", "temps", "other"),
        *("FLOPs", "recomputed", "at least", "fits", "effect"),
    ]
    # baseline: 4N + 8N + 4 of state, as much again in outputs, 8,592,588,800 of activations
    assert [" ".join(_texts(row)) for row in table.rows] == [
        "baseline 12.5 GiB reference 1.00x 475 MiB 949 MiB 147 MiB 8.00 GiB 1.56 GiB 1.40 GiB 6.53 T - 50.0 ms yes -",
        "donate 11.1 GiB -1.39 GiB 0.89x 475 MiB 949 MiB 147 MiB 8.00 GiB 1.56 GiB 10.0 MiB 6.53 T - 50.0 ms yes yes",
        "bf16 9.43 GiB -3.08 GiB 0.75x 475 MiB 949 MiB 147 MiB 4.77 GiB 1.72 GiB 1.40 GiB 6.53 T - 25.0 ms yes yes",
        "bf16+accum4 5.02 GiB -7.48 GiB 0.40x 475 MiB 949 MiB 475 MiB 1.19 GiB 587 MiB 1.40 GiB 6.53 T - 25.0 ms "
        "yes yes",
        "bf16+remat 6.60 GiB -5.90 GiB 0.53x 475 MiB 949 MiB 147 MiB 1.67 GiB 1.99 GiB 1.40 GiB 8.27 T 1.74 T "
        "30.0 ms yes yes",
        "bf16+scan 9.43 GiB -3.08 GiB 0.75x 475 MiB 949 MiB 147 MiB 4.77 GiB 1.72 GiB 1.40 GiB 6.53 T - 25.0 ms "
        "yes yes",
        "opt=lion 11.6 GiB -949 MiB 0.93x 475 MiB 475 MiB 147 MiB 8.00 GiB 1.56 GiB 959 MiB 6.53 T - 50.0 ms yes yes",
        "bf16+donate+scan+remat+accum4 2.92 GiB -9.58 GiB 0.23x 475 MiB 949 MiB 475 MiB 429 MiB 656 MiB 10.0 MiB "
        "8.27 T 1.74 T 30.0 ms yes yes",
    ]
    assert table.total is None


def test_the_table_says_what_does_not_fit_what_had_no_effect_and_what_failed() -> None:
    table = _table(_document(comparisons_data.troubled()))
    titles = [column.title for column in table.columns]
    verdicts = [dict(zip(titles, row.cells, strict=True)) for row in table.rows]
    no = Cell(text="no", key=Tone.BAD, is_verdict=True)
    yes = Cell(text="yes", key=Tone.GOOD, is_verdict=True)
    nothing = Cell(text="-", key=Tone.MUTED)
    assert [row["fits"] for row in verdicts[:3]] == [no, no, yes]
    assert [row["effect"] for row in verdicts[:3]] == [
        nothing,
        Cell(text="flagged", key=Tone.BAD, is_verdict=True),
        yes,
    ]
    assert [row["host"] for row in verdicts[:3]] == [nothing, nothing, Cell(text="256 MiB")]
    assert _texts(table.rows[3]) == ["accum3", "failed", *[""] * (len(titles) - 2)]


def test_a_row_that_changes_nothing_says_so() -> None:
    table = _table(_document(comparisons_data.equal_rows()))
    assert _texts(table.rows[1])[:4] == ["scan", "1.00 KiB", "0 B", "1.00x"]
    assert [column.title for column in table.columns][4:] == ["params", "FLOPs", "fits", "effect"]


def test_the_bars_add_up_to_the_footprints() -> None:
    comparison = comparisons_data.techniques()
    bars = next(block for block in _document(comparison).blocks if isinstance(block, StackedBars))
    assert [bar.total_bytes for bar in bars.bars] == [row.footprint_bytes for row in comparison.rows]
    assert (bars.bars[1].label, bars.bars[1].size) == ("donate", "11.1 GiB  0.89x")
    assert bars.capacity_bytes == 18_971_246_592  # three quarters of 25,294,995,456


def test_rows_for_two_targets_have_no_common_capacity() -> None:
    bars = next(block for block in _document(comparisons_data.troubled()).blocks if isinstance(block, StackedBars))
    assert bars.capacity_bytes is None


def test_rows_can_be_sorted_by_footprint() -> None:
    rows = compared_rows(comparisons_data.techniques(), Order.FOOTPRINT)
    assert [row.name for row in rows][:3] == ["bf16+donate+scan+remat+accum4", "bf16+accum4", "bf16+remat"]
    assert rows[-1].is_reference
    document = _document(comparisons_data.techniques(), order=Order.FOOTPRINT)
    assert [_texts(row)[0] for row in _table(document).rows] == [row.name for row in rows]


def test_labels_keep_their_workload_where_rows_differ_in_it() -> None:
    other = replace(one_buffer(), label="mlp baseline", workload="mlp")
    both = compare([one_buffer(), other], baseline="tiny baseline")
    assert [row.name for row in compared_rows(both, Order.GIVEN)] == ["tiny baseline", "mlp baseline"]
    bare = compare([one_buffer(), replace(one_buffer(), label="tiny")], baseline="tiny baseline")
    assert [row.name for row in compared_rows(bare, Order.GIVEN)] == ["tiny baseline", "tiny"]


def test_evidence_comes_flagged_rows_first() -> None:
    notes = _notes(_document(comparisons_data.troubled()))
    notes.remove(Note(tone=Tone.ACCENT, text="bf16+remat: the smallest footprint that fits"))
    assert notes.pop(0).text.endswith("not measured; Pareto-optimal: bf16+scan, bf16+remat")
    verdicts = [note for note in notes if "JAX's pool" in note.text]
    assert len(verdicts) == 3
    notes = [note for note in notes if note not in verdicts]
    assert [(note.tone, note.text) for note in notes[1:5]] == [
        (
            Tone.BAD,
            "bf16+scan: scan: expected a loop of 12 iterations over the layers, but the program has no loop; bf16: "
            "100% of the bytes of activations but the logits are bf16",
        ),
        (Tone.GOOD, "bf16+remat: bf16: 100% of the bytes of activations but the logits are bf16"),
        (Tone.MUTED, "baseline: no visible effect"),
        (Tone.BAD, "accum3: the batch of 8 does not divide by 3"),
    ]
    assert [(note.tone, note.text) for note in notes[5:]] == [
        (
            Tone.WARNING,
            "The rows differ in other settings, too. target: rtx-a5000, small-8gb; device: NVIDIA RTX A5000, "
            "a card of 8 GiB; jax: 0.10.2, 0.12.0; jaxlib: 0.10.2, 0.12.0; "
            "XLA_FLAGS: --xla_gpu_enable_triton_gemm=false, none.",
        ),
        (
            Tone.MUTED,
            "Sizes and totals are the compiler's (XLA's buffer assignment). Categories, modules and effects are "
            "inferred by memprof's rules. FLOPs are those of matrix products and convolutions, counted in the traced "
            "program. These numbers were not measured on a device.",
        ),
    ]


def test_unattributed_bytes_are_told() -> None:
    row = report([buffer((3,), "f32", Category.PARAMS), buffer((), "f32", Category.UNATTRIBUTED)])
    notes = _notes(_document(compare([row], baseline="tiny baseline")))
    assert notes[-2] == Note(
        tone=Tone.WARNING, text="Up to 4 B of a row (25.0% of baseline) is unattributed: no rule explains it."
    )


def test_differences_by_category_lead_with_the_largest_change_and_add_up() -> None:
    table = _table(_document(comparisons_data.techniques(), By.CATEGORY, top=3))
    assert [column.title for column in table.columns] == [
        *("category", "baseline", "donate", "bf16", "bf16+accum4", "bf16+remat", "bf16+scan", "opt=lion"),
        "bf16+donate+scan+remat+accum4",
    ]
    assert [_texts(row)[:5] for row in table.rows] == [
        ["activations", "8.00 GiB", "-", "-3.23 GiB", "-6.81 GiB"],
        ["outputs", "1.39 GiB", "-1.39 GiB", "-", "-"],
        ["cotangents", "1.53 GiB", "-", "-", "-1.15 GiB"],
        ["optimizer_state", "949 MiB", "-", "-", "-"],
        ["gradients", "147 MiB", "-", "-", "+327 MiB"],
        ["recomputed", "-", "-", "-", "-"],
        ["param_copies", "-", "-", "+162 MiB", "+162 MiB"],
        ["params", "475 MiB", "-", "-", "-"],
        ["workspace", "32.0 MiB", "-", "-", "-"],
        ["fragmentation", "10.0 MiB", "-", "-", "-"],
        ["batch", "32.0 KiB", "-", "-", "-"],
        ["other_state", "8 B", "-", "-", "-"],
    ]
    assert table.total is not None
    assert _texts(table.total)[:5] == ["footprint", "12.5 GiB", "-1.39 GiB", "-3.08 GiB", "-7.48 GiB"]


def test_what_shrinks_is_good_news_and_what_grows_a_warning() -> None:
    table = _table(_document(comparisons_data.techniques(), By.CATEGORY))
    changes = [cell for row in table.rows for cell in row.cells[2:] if isinstance(cell, Cell)]
    tones = {(cell.text[0], cell.key) for cell in changes if cell.text != "-"}
    assert tones == {("-", Tone.GOOD), ("+", Tone.WARNING)}


def test_a_footprint_that_shrank_is_good_news_and_one_that_grew_a_warning() -> None:
    shrank = diffs_data.precision()
    before, after = shrank.rows
    grew = compare([after, before], baseline=after.label)
    verdicts = [
        block
        for each in (shrank, grew, diffs_data.equal())
        for block in diff_document(each, RenderOptions(depth=1, top=1)).blocks
        if isinstance(block, Note) and block.text.startswith("The footprint ")
    ]
    assert [(each.tone, each.text.split()[2]) for each in verdicts] == [
        (Tone.GOOD, "shrank:"),
        (Tone.WARNING, "grew:"),
        (Tone.MUTED, "is"),
    ]


def test_a_diff_lists_the_largest_changes_and_sums_up_the_rest() -> None:
    """Two layers shrink by 2 KiB each and a buffer of 512 bytes disappears: one row of 4 KiB, one of the rest."""
    blocks = diff_document(diffs_data.precision(), RenderOptions(by=By.BUFFER, depth=1, top=1)).blocks
    tables = {
        block.text: following
        for block, following in pairwise(blocks)
        if isinstance(block, Heading) and isinstance(following, Table)
    }
    assert {title: [_texts(row)[:6] for row in table.rows] for title, table in tables.items()} == {
        "Buffers that grew": [["bf16[64]", "0 to 1", "-", "128 B", "+128 B", "param_copies"]],
        "Buffers that shrank": [
            ["f32->bf16[1024]", "2", "8.00 KiB", "4.00 KiB", "-4.00 KiB", "activations"],
            ["(1 more)", "", "512 B", "-", "-512 B", ""],
        ],
    }
    assert {title: table.total and _texts(table.total)[:5] for title, table in tables.items()} == {
        "Buffers that grew": ["together", "", "-", "128 B", "+128 B"],
        "Buffers that shrank": ["together", "", "8.50 KiB", "4.00 KiB", "-4.50 KiB"],
    }


def test_layers_whose_changes_cancel_are_not_listed() -> None:
    """One layer's buffer disappears, and another layer gets one of the same size."""
    first, second = (
        report([buffer((1024,), "f32", Category.ACTIVATIONS, op=f"jit(step)/layers_{n}/dot")], label=f"tiny {n}")
        for n in range(2)
    )
    cancelled = diff(first, second)
    assert sorted(each.delta_bytes for each in cancelled.buffers) == [-4096, 4096]
    assert [each.text for each in _notes(diff_document(cancelled, RenderOptions(by=By.BUFFER, depth=1, top=1)))][
        1:3
    ] == ["none"] * 2


@pytest.mark.parametrize("by", [by for by in By if by not in (By.BUFFER, By.PADDING, By.LAYOUT, By.STACK)])
def test_differences_end_with_the_change_of_the_footprint(by: By) -> None:
    comparison = comparisons_data.techniques()
    table = _table(_document(comparison, by, top=2))
    configurations = _table(_document(comparison))
    assert table.total is not None
    assert _texts(table.total)[2:] == [_texts(row)[2] for row in configurations.rows[1:]]


@pytest.mark.parametrize("extra_bytes", [-1, 1])
def test_shares_that_do_not_add_up_to_the_footprint_are_a_defect(extra_bytes: int) -> None:
    rows = compared_rows(compare([gpt2("baseline"), gpt2("bf16")], baseline="transformer baseline"), Order.GIVEN)
    sizes = tuple(row.report.footprint_bytes for row in rows)
    whole = Share(label=Cell(text="all"), sizes=sizes)
    assert difference_table("key", [whole], rows, top=1).rows[0].cells[0] == whole.label
    other = replace(whole, sizes=(sizes[0], sizes[1] + extra_bytes))
    with pytest.raises(AssertionError, match="shares add up to the footprint"):
        difference_table("key", [other], rows, top=1)


def test_the_reference_leads_the_differences_wherever_it_stands() -> None:
    comparison = compare([gpt2("bf16"), gpt2("baseline")], baseline="transformer baseline")
    assert [column.title for column in _table(_document(comparison, By.PHASE)).columns] == ["phase", "baseline", "bf16"]


def test_what_belongs_to_nothing_is_named() -> None:
    labels = [_texts(row)[0] for row in _table(_document(comparisons_data.techniques(), By.PHASE)).rows]
    assert labels == ["forward", "update", "backward", "argument", "recompute", "(no phase)"]


def test_there_is_no_comparison_buffer_by_buffer() -> None:
    with pytest.raises(MemprofError, match=r"^Buffers of several programs cannot be compared\."):
        _document(comparisons_data.techniques(), By.BUFFER)


def test_there_is_no_comparison_by_stack() -> None:
    with pytest.raises(MemprofError, match=r"^Stacks of several programs cannot be compared\."):
        _document(comparisons_data.techniques(), By.STACK)


def test_unrolled_layers_line_up_with_stacked_ones() -> None:
    comparison = compare([gpt2("baseline"), gpt2("scan")], baseline="transformer baseline")
    table = _table(_document(comparison, By.MODULE))
    layers, *others = table.rows
    # The same bytes, in twelve modules and in one: no difference at all.
    assert _texts(layers) == ["layers", "8.37 GiB", "-"]
    assert [_texts(row) for row in layers.children] == [
        ["attn", "5.98 GiB", "-"],
        ["mlp", "2.39 GiB", "-"],
        ["ln_1", "432 KiB", "-"],
        ["ln_2", "432 KiB", "-"],
    ]
    assert [_texts(row)[0] for row in others] == ["(no module)", "wte", "wpe", "ln_f"]


def _layer(path: str, length: int = 1) -> ModuleNode:
    kernel = (("kernel", (2, 2), "f32"),)
    return node(path, [buffer((length,), "f32", Category.ACTIVATIONS)], params=kernel)


def _lined_up(*programs: tuple[ModuleNode, ...]) -> list[tuple[str, tuple[int, ...]]]:
    roots = [node("", (), children=children) for children in programs]
    return [(share.label.text, share.sizes) for share in module_shares(roots, depth=1)]


def test_layers_keep_their_numbers_where_all_programs_have_the_same() -> None:
    layers = tuple(_layer(f"layers_{number}") for number in range(4))
    assert _lined_up(layers, layers) == [("layers_{0..3}", (16, 16))]


def test_models_of_different_depths_line_up() -> None:
    four, six = (tuple(_layer(f"layers_{number}") for number in range(count)) for count in (4, 6))
    assert _lined_up(four, six) == [("layers", (16, 24))]


def test_two_layers_line_up_with_a_stack_of_two() -> None:
    assert _lined_up((_layer("layers_0"), _layer("layers_1")), (_layer("layers", 2),)) == [("layers", (8, 8))]


def test_numbers_that_are_no_layers_stay() -> None:
    dense = (_layer("Dense_0"), _layer("Dense_1"))
    assert _lined_up(dense, dense[:1]) == [("Dense_0", (4, 4)), ("Dense_1", (4, 0))]
    # 13 is not the third of the layers called 1.
    assert _lined_up((_layer("1"),), (_layer("13"),)) == [("1", (4, 0)), ("13", (0, 4))]
    # A program with both names means two things by them.
    both = (_layer("block"), _layer("block_1", 2))
    assert _lined_up(both, both) == [("block", (4, 4)), ("block_1", (8, 8))]


def test_the_best_row_is_the_smallest_that_fits_and_the_fastest_where_steps_ran() -> None:
    rows = compared_rows(comparisons_data.troubled(), Order.GIVEN)
    best = best_row(rows)
    assert best is not None
    assert (best[0].name, best[1]) == ("bf16+remat", "the smallest footprint that fits")
    assert best_row([row for row in rows if not row.report.fits]) is None
    first, second = (replace(one_buffer(), label=label) for label in ("one", "two"))
    timed = [
        replace(each, measured=replace(GPU_RUN, step_seconds=(seconds,)))
        for each, seconds in ((first, 0.2), (second, 0.1))
    ]
    ran = compared_rows(compare(timed, baseline="one"), Order.STEP)
    assert [row.name for row in ran] == ["two", "one"]
    fastest = best_row(ran)
    assert fastest is not None
    assert (fastest[0].name, fastest[1]) == ("two", "the fastest row that fits")
    with pytest.raises(MemprofError, match="--sort step applies to rows that were run"):
        compared_rows(compare([first, second], baseline="one"), Order.STEP)


def test_what_cannot_be_told_is_not_without_effect() -> None:
    row = replace(one_buffer(), label="tiny bf16", techniques=("bf16",))
    verdict = Verdict(took_effect=None, evidence="bf16: nothing shows it")
    document = _document(compare([one_buffer(), row], baseline="tiny baseline", verdicts={"tiny bf16": [verdict]}))
    assert "Undecided: 1 of 2" in _headings(document)
    assert _texts(_table(document).rows[1])[-1] == "unclear"


def test_a_reason_of_several_rows_is_said_once() -> None:
    failures = [FailedRow(label=label, reason="it is a StepSpec") for label in ("a", "b")]
    failures.append(FailedRow(label="c", reason="no room"))
    document = _document(compare([one_buffer()], baseline="tiny baseline", failures=failures))
    said = [note.text for note in _notes(document) if note.tone is Tone.BAD]
    assert said == ["a, b: it is a StepSpec", "c: no room"]


@pytest.mark.parametrize("width", [40, 60, 80, 100, 160])
def test_what_decides_is_there_at_every_width(width: int) -> None:
    text = format_named("terminal").render_comparison(comparisons_data.techniques(), RenderOptions(width=width))
    for title in ("footprint", "change", "recomputed", "fits", "effect"):
        assert f" {title}" in text, title
    assert max(map(cell_width, str(text).splitlines())) <= width


def test_rows_that_no_other_row_beats_are_pareto_optimal() -> None:
    def row(name: str, footprint_bytes: int, seconds: float | None) -> Report:
        bound = None
        if seconds is not None:
            shares = {"compute_share": 1.0, "memory_share": 0.0, "communication_share": 0.0, "priced_share": 1.0}
            bound = Roofline(at_least_seconds=seconds, **shares)
        report = one_buffer()
        more = footprint_bytes - report.footprint_bytes
        categories = {**report.categories, Category.FRAGMENTATION: report.categories[Category.FRAGMENTATION] + more}
        return replace(report, label=name, footprint_bytes=footprint_bytes, roofline=bound, categories=categories)

    size = one_buffer().footprint_bytes
    reports = [
        row("small and slow", size, 3.0),
        row("large and fast", size + 200, 1.0),
        row("beaten in both", size + 300, 2.0),
        row("as large, but slower", size + 200, 1.5),
        row("the same again", size, 3.0),
        row("without a bound", size, None),
    ]
    rows = compared_rows(compare(reports, baseline="small and slow"), Order.GIVEN)
    assert [each.name for each in unbeaten_rows(rows)] == ["small and slow", "large and fast", "the same again"]
