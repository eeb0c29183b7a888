"""What the views say about hand-made reports. The sums are worked out in `tests/transformer_report.py`."""

from __future__ import annotations

from dataclasses import replace

import pytest
import reports_data
from report_builder import buffer, node
from transformer_report import TRANSFORMER_CATEGORIES, transformer

from memprof.analysis.records.capture import Timings
from memprof.analysis.records.categories import Category
from memprof.analysis.records.report import Report
from memprof.analysis.records.timeline import LiveChange, Timeline
from memprof.reports.document import Bar, Cell, Document, Facts, Gauge, Heading, Note, Row, StackedChart, Table, Tone
from memprof.reports.options import By, RenderOptions
from memprof.reports.views.buffers import buffer_table, largest_buffers_table
from memprof.reports.views.cells import category_table, share_table, short_names
from memprof.reports.views.header import setup_facts
from memprof.reports.views.modules import module_table
from memprof.reports.views.report import by_document, notes, provenance, summary_document, timeline_chart


def _texts(row: Row) -> list[str]:
    return [cell.text for cell in row.cells if isinstance(cell, Cell)]


def _tree(rows: tuple[Row, ...]) -> list[str | list[object]]:
    found: list[str | list[object]] = []
    for row in rows:
        found.append(_texts(row)[0])
        if row.children:
            found.append(list(_tree(row.children)))
    return found


def _headings(document: Document) -> list[str]:
    return [block.text for block in document.blocks if isinstance(block, Heading)]


def test_the_summary_says_everything_once() -> None:
    document = summary_document(transformer(), RenderOptions(depth=2, top=10))
    assert _headings(document) == [
        "transformer donate",
        "Memory",
        "Contents of the footprint",
        "Live bytes over program order",
        "By module",
        "Largest buffers at the peak",
        "Configuration",
        "Notes",
    ]


def test_the_summary_of_nothing_leaves_out_what_would_be_empty() -> None:
    document = summary_document(reports_data.empty(), RenderOptions(depth=2, top=10))
    assert _headings(document) == ["tiny baseline", "Memory", "Contents of the footprint", "Notes"]


def test_the_header_says_when_the_plan_was_in_the_cache() -> None:
    compiled = transformer()
    cached = replace(compiled, timings=Timings(lower_seconds=0.84, compile_seconds=0.0, cached_compile_seconds=7.31))
    took = [
        next(fact.values for fact in setup_facts(report).facts if fact.label == "took") for report in (compiled, cached)
    ]
    assert took == [
        ("lowering 840 ms", "compiling 7.3 s", "analysis 312 ms"),
        ("lowering 840 ms", "plan from the cache (compiled in 7.3 s)", "analysis 312 ms"),
    ]


def test_the_header_names_the_setup() -> None:
    document = summary_document(reports_data.on_cpu(), RenderOptions(depth=2, top=10))
    facts = next(block for block in document.blocks if isinstance(block, Facts))
    assert {fact.label: fact.values for fact in facts.facts} == {
        "workload": ("tiny",),
        "techniques": ("baseline",),
        "model": ("0 parameters", "6.53 TFLOP a step (counted in the traced program)"),
        "target": (
            "cpu",
            "the host",
            "no fixed amount of memory",
            "no local accelerator, and the extra `deviceless` is not installed",
        ),
        "toolchain": (
            "jax 0.12.0",
            "jaxlib 0.12.0",
            "flax 0.13.0",
            "optax 0.3.0",
            "python 3.12.3",
            "memprof 0.1.0",
        ),
        "took": ("lowering 840 ms", "compiling 7.3 s", "analysis 312 ms"),
    }


def test_the_configuration_comes_after_the_numbers() -> None:
    document = summary_document(reports_data.on_cpu(), RenderOptions(depth=2, top=10))
    *_, facts = (block for block in document.blocks if isinstance(block, Facts))
    assert {fact.label: fact.values for fact in facts.facts} == {
        "config": ("batch_size=8", "seq_len=1024", "grad_clip=inf", "preset=None")
    }


@pytest.mark.parametrize(
    ("report", "verdict", "tone"),
    [
        (
            reports_data.one_buffer(),
            "fits: footprint 1.00 KiB of JAX's pool of 59.3 GiB (75% of h100-80gb's 79.1 GiB, the default), 59.3 GiB to"
            " spare",
            Tone.GOOD,
        ),
        (
            reports_data.does_not_fit(),
            "does not fit: footprint 128 GiB is 68.7 GiB more than JAX's pool of 59.3 GiB (75% of h100-80gb's 79.1 GiB,"
            " the default), and XLA_CLIENT_MEM_FRACTION=.97, the largest that leaves room for CUDA's libraries, gives"
            " 76.7 GiB",
            Tone.BAD,
        ),
        (reports_data.on_cpu(), "footprint 260 B; cpu has no fixed amount of memory", Tone.MUTED),
    ],
)
def test_the_gauge_says_whether_it_fits(report: Report, verdict: str, tone: Tone) -> None:
    document = summary_document(report, RenderOptions(depth=2, top=10))
    gauge = next(block for block in document.blocks if isinstance(block, Gauge))
    assert (gauge.verdict, gauge.tone) == (verdict, tone)
    assert sum(part.size_bytes for part in gauge.parts) == report.footprint_bytes


def test_categories_are_largest_first_without_empty_ones_and_add_up() -> None:
    table = category_table(transformer().categories)
    names = [_texts(row)[0] for row in table.rows]
    assert names == [
        "activations",
        "cotangents",
        "optimizer_state",
        "params",
        "gradients",
        "workspace",
        "fragmentation",
        "batch",
        "unattributed",
        "other_state",
    ]
    bars = [cell.value for row in table.rows for cell in row.cells if isinstance(cell, Bar)]
    assert bars == [TRANSFORMER_CATEGORIES[Category(name)] for name in names]
    assert f"{sum(bars):,}" == "11,931,151,372"
    assert _texts(table.total)[:3] == ["footprint", "11.1 GiB", "100%"]
    assert _texts(table.total)[-2] == "11,931,151,372"


def test_equal_layers_are_one_row_of_the_module_tree() -> None:
    table = module_table(transformer().modules, depth=2, top=10)
    assert _tree(table.rows) == [
        "layers_{0..11}",
        ["attn", "mlp", "ln_1", "ln_2"],
        "(no module)",
        "wte",
        "wpe",
        "ln_f",
    ]
    titles = [column.title for column in table.columns]
    assert titles == [
        "module",
        "own parameters",
        "count",
        "params",
        "optim",
        "grads",
        "acts",
        "temps",
        "other",
        "total",
    ]
    attn = dict(zip(titles, _texts(table.rows[0].children[0]), strict=True))
    # 12 * 2,362,368 parameters of 4 bytes, twice that for the optimizer; 12 * (402,653,184 + 75,497,472) of activations
    assert attn == {
        "module": "attn",
        "own parameters": "qkv.kernel f32[768,2304], qkv.bias f32[2304], out.kernel f32[768,768], out.bias f32[768]",
        "count": "28.3M",
        "params": "108 MiB",
        "optim": "216 MiB",
        "grads": "-",
        "acts": "5.34 GiB",
        "temps": "-",
        "other": "-",
        "total": "5.66 GiB",
    }
    assert _texts(table.total) == [
        "footprint",
        "",
        "124.4M",
        "475 MiB",
        "949 MiB",
        "147 MiB",
        "8.00 GiB",
        "1.56 GiB",
        "10.0 MiB",
        "11.1 GiB",
    ]


def test_the_module_tree_stops_at_its_depth_and_sums_up_what_top_leaves_out() -> None:
    modules = transformer().modules
    assert _tree(module_table(modules, depth=1, top=2).rows) == ["layers_{0..11}", "(no module)", "(3 more)"]
    assert _tree(module_table(modules, depth=0, top=2).rows) == []


def test_a_module_that_holds_bytes_beside_its_children_says_so() -> None:
    own = buffer((3,), "f32", Category.ACTIVATIONS)
    child = node("block/mlp", [buffer((1,), "f32", Category.ACTIVATIONS)])
    block = node("block", [own], children=(child,))
    table = module_table(node("", (), children=(block,)), depth=2, top=10)
    assert _tree(table.rows) == ["block", ["(itself)", "mlp"]]
    assert [_texts(row)[-1] for row in table.rows[0].children] == ["12 B", "4 B"]


def test_alike_buffers_of_all_layers_are_counted_together() -> None:
    report = transformer()
    table = largest_buffers_table(report.buffers, top=2)
    # 12 * 402,653,184 bytes of attention probabilities
    assert [_texts(row)[:5] for row in table.rows] == [
        ["f32[8,12,1024,1024]", "12", "384 MiB", "4.50 GiB", "40.5%"],
        ["f32[8,1024,50257]", "1", "1.53 GiB", "1.53 GiB", "13.8%"],
        ["(475 more)", "475", "", "5.07 GiB", "45.7%"],
    ]
    assert _texts(table.rows[0])[5:] == [
        "activations",
        "layers_*/attn",
        "attention.py:41",
        "jit(train_step)/jvp(Transformer)/layers_*/attn/softmax/exp",
    ]
    assert _texts(table.total)[:5] == ["live at the peak", "488", "", "11.1 GiB", "100%"]


def test_buffers_one_by_one_say_why() -> None:
    table = buffer_table(transformer().buffers, top=3)
    assert [_texts(row)[0] for row in table.rows] == [
        "f32[8,1024,50257]",
        "f32[8,1024,50257]",
        "f32[8,12,1024,1024]",
        "(485 more)",
    ]
    assert _texts(table.rows[0])[5:] == [
        "0..1",
        "0",
        "model.py:88",
        "jit(train_step)/jvp(Transformer)/wte/attend",
        "activations: made by hand for a test",
    ]


def test_shares_name_the_nameless_and_sum_up_the_rest() -> None:
    table = share_table("source", {"a.py:1": 1, "": 6, "b.py:2": 2, "c.py:3": 1, "d": 0}, nameless="(none)", top=2)
    assert [_texts(row) for row in (*table.rows, table.total)] == [
        ["(none)", "6 B", "60.0%", "6"],
        ["b.py:2", "2 B", "20.0%", "2"],
        ["(2 more)", "2 B", "20.0%", "2"],
        ["footprint", "10 B", "100%", "", "10"],
    ]


def test_what_is_always_live_lies_at_the_bottom_of_the_timeline() -> None:
    timeline = Timeline(
        num_positions=1,
        base={Category.OUTPUTS: 2, Category.PARAMS: 1},
        changes=(LiveChange(position=0, category=Category.ACTIVATIONS, delta_bytes=4),),
        phases=(),
        peak_position=0,
    )
    (moment,) = timeline_chart(timeline, live_peak_bytes=7).moments
    assert [part.category for part in moment.parts] == [Category.PARAMS, Category.OUTPUTS, Category.ACTIVATIONS]


def test_source_lines_lose_the_folders_that_they_share() -> None:
    assert short_names(["", "/home/me/net/mlp.py:1", "/home/me/loss.py:22"]) == {
        "": "",
        "/home/me/net/mlp.py:1": "net/mlp.py:1",
        "/home/me/loss.py:22": "loss.py:22",
    }
    assert short_names(["/a/b.py:1"]) == {"": "", "/a/b.py:1": "b.py:1"}
    assert short_names([""]) == {"": ""}


def test_the_timeline_keeps_the_peak() -> None:
    report = transformer()
    chart = timeline_chart(report.timeline, live_peak_bytes=report.live_peak_bytes)
    assert isinstance(chart, StackedChart)
    assert max(moment.total_bytes for moment in chart.moments) == report.live_peak_bytes == 11_920_665_612
    assert chart.mark == "peak 11.1 GiB, position 600 of 2,000"
    assert list(dict.fromkeys(moment.band for moment in chart.moments)) == ["forward", "backward", "update"]


def test_notes_tell_of_unattributed_bytes_and_unused_arguments() -> None:
    assert notes(reports_data.on_cpu()) == (
        Note(
            tone=Tone.WARNING,
            text="4 B (1.5% of the footprint) is unattributed: no rule explains these bytes.",
        ),
        Note(
            tone=Tone.WARNING,
            text="No result depends on 1 of the step's arguments (4.00 KiB): batch['weights']. jit drops them, so "
            "they are not in the footprint, but the caller still holds them.",
        ),
        provenance(reports_data.on_cpu()),
    )
    assert notes(reports_data.one_buffer()) == (provenance(reports_data.one_buffer()),)


def test_many_unused_arguments_are_not_all_named() -> None:
    report = reports_data.on_cpu()
    unused = report.unused_arguments * 5
    text = notes(replace(report, arguments=unused))[1].text
    assert (
        "5 of the step's arguments (20.0 KiB): batch['weights'], batch['weights'], batch['weights'] and 2 more." in text
    )


@pytest.mark.parametrize("by", [by for by in By if by is not By.LAYOUT])
def test_each_breakdown_ends_with_the_total_that_it_adds_up_to(by: By) -> None:
    report = transformer()
    document = by_document(report, by, RenderOptions(depth=2, top=3))
    table = next(block for block in document.blocks if isinstance(block, Table))
    label = "live at the peak" if by in (By.BUFFER, By.PADDING) else "footprint"
    assert _texts(table.total)[0] == label
    assert "11.1 GiB" in _texts(table.total)
    assert _headings(document) == ["transformer donate", f"By {by.value}"]
