"""CSV, read back with the csv module."""

from __future__ import annotations

import csv
import json

from comparisons_data import COMPARISONS
from reports_data import REPORTS, hostile_names, one_buffer

from memprof.analysis.records.categories import Category
from memprof.reports.format import format_named
from memprof.reports.formats.csv import FORMAT
from memprof.reports.options import RenderOptions


def _buffers(name: str) -> list[dict[str, str]]:
    return list(csv.DictReader(FORMAT.render_report(REPORTS[name](), RenderOptions()).splitlines()))


def _rows(name: str) -> list[dict[str, str]]:
    return list(csv.DictReader(FORMAT.render_comparison(COMPARISONS[name](), RenderOptions()).splitlines()))


def test_a_buffer_has_every_field_that_it_has_in_the_json() -> None:
    assert FORMAT.render_report(one_buffer(), RenderOptions()) == (
        "size_bytes,padding_bytes,shape,dtype,category,module,phase,name,op,source,library,rule,evidence,start,end,offset\n"
        "1024,0,[256],f32,params,,argument,params['w'],params['w'],,,params,made by hand for a test,0,1,\n"
    )
    buffers = json.loads(format_named("json").render_report(REPORTS["transformer"](), RenderOptions()))["buffers"]
    for record, buffer in zip(_buffers("transformer"), buffers, strict=True):
        assert list(record) == list(buffer)
        assert json.loads(record["shape"]) == buffer["shape"]
        assert record["offset"] == ("" if buffer["offset"] is None else str(buffer["offset"]))


def test_the_buffers_add_up_to_the_live_peak() -> None:
    report = REPORTS["transformer"]()
    sizes = dict.fromkeys((category.value for category in Category), 0)
    for record in _buffers("transformer"):
        sizes[record["category"]] += int(record["size_bytes"])
    assert sum(sizes.values()) == report.live_peak_bytes
    fragmentation = report.footprint_bytes - report.live_peak_bytes
    assert sizes | {"fragmentation": fragmentation} == report.categories


def test_nothing_live_is_a_line_of_titles() -> None:
    assert _buffers("empty") == []


def test_a_record_is_one_line_whatever_the_names() -> None:
    text = FORMAT.render_report(hostile_names(), RenderOptions())
    assert text.count("\n") == 1 + len(hostile_names().buffers)
    assert not set(text) & {"\x1b", "\r", "\t", "\u202e", "\ud800"}


def test_a_configuration_has_all_sizes_in_bytes() -> None:
    bf16 = next(row for row in _rows("techniques") if row["label"] == "transformer bf16")
    not_measured = {title for title, text in bf16.items() if not text}
    assert not_measured == {
        *("measured_peak_bytes", "resident_growth_bytes", "step_seconds_median", "examples_per_second"),
        *("tokens_per_second", "mfu", "out_of_memory", "failure", "mem_fraction"),
    }
    assert {title: text for title, text in bf16.items() if text not in ("0", "")} == {
        "label": "transformer bf16",
        "footprint_bytes": "10121653260",
        "footprint_delta_bytes": "-3302774784",
        "footprint_ratio": str(10_121_653_260 / 13_424_428_044),
        "params_bytes": "497759232",
        "optimizer_state_bytes": "995518468",
        "batch_bytes": "32768",
        "other_state_bytes": "8",
        "gradients_bytes": "154389504",
        "activations_bytes": "5119705088",
        "param_copies_bytes": "170108928",
        "cotangents_bytes": "1646821376",
        "outputs_bytes": "1493277696",
        "workspace_bytes": "33554432",
        "fragmentation_bytes": "10485760",
        "flops": "6530000000000",
        "at_least_seconds": "0.025",
        "fits": "true",
        "answer": "fits",
        "pool_bytes": "18971246592",
        "took_effect": "true",
        "evidence": "bf16: 100% of the bytes of activations but the logits are bf16",
    }


def test_a_configuration_that_failed_has_its_reason_in_place_of_numbers() -> None:
    *_, failed = _rows("troubled")
    assert {title: text for title, text in failed.items() if text} == {
        "label": "transformer accum3",
        "failure": "the batch of 8 does not divide by 3",
    }
    assert [row["took_effect"] for row in _rows("troubled")] == ["", "false", "true", ""]


def test_a_spreadsheet_sees_no_formula() -> None:
    rows = _rows("hostile")
    assert rows[1]["label"] == '\'=HYPERLINK("x")'
    assert not any(text.startswith(("=", "+", "@")) for row in rows for text in row.values())
    # A negative number is one.
    assert _rows("techniques")[1]["footprint_delta_bytes"] == "-1493277696"
