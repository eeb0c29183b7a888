"""The JSON of a report: what DESIGN promises to other programs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from reports_data import REPORTS, on_cpu, one_buffer
from transformer_report import TRANSFORMER_CATEGORIES, transformer

from memprof.analysis.records.categories import Category
from memprof.analysis.records.kernel import Kernel, KernelBuffer, KernelCalls
from memprof.reports.formats.json import FORMAT
from memprof.reports.options import RenderOptions

_SCHEMA = json.loads((Path(__file__).parents[3] / "docs" / "schema" / "report.schema.json").read_text())


def _json(name: str) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(FORMAT.render_report(REPORTS[name](), RenderOptions()))
    return parsed


def _errors(schema: dict[str, Any], value: Any) -> list[str]:
    return [error.message for error in Draft202012Validator(schema).iter_errors(value)]


def test_the_schema_is_a_schema() -> None:
    assert _errors(Draft202012Validator.META_SCHEMA, _SCHEMA) == []


@pytest.mark.parametrize("name", [name for name in REPORTS if name != "many_buffers"])
def test_every_report_is_valid(name: str) -> None:
    assert _errors(_SCHEMA, _json(name)) == []


def test_a_measurement_stands_beside_the_prediction() -> None:
    measured = _json("measured_on_gpu")["measured"]
    # Four steps of 10, 20, 30 and 40 ms: the median is 25 ms, so 8 examples and 8,192 tokens make 320 and 327,680/s.
    assert measured["step_seconds_median"] == 0.025
    assert (measured["examples_per_second"], measured["tokens_per_second"]) == (320, 327_680)
    # 6.53 TFLOP in 25 ms are 261.2 TFLOP/s, of 989.4.
    assert measured["mfu"] == pytest.approx(261.2 / 989.4)
    assert (measured["peak_bytes"], measured["predicted_bytes"]) == (1536, 1024)


def test_the_schema_rejects_what_is_wrong() -> None:
    validator = Draft202012Validator(_SCHEMA)
    for change in ({"footprint_bytes": -1}, {"schema": "memprof.report/2"}, {"categories": {"params": 1}}):
        assert not validator.is_valid(_json("one_buffer") | change)


def test_one_buffer_field_by_field() -> None:
    report = _json("one_buffer")
    assert report["footprint_bytes"] == report["live_peak_bytes"] == 1024
    assert report["fits"] is True
    assert report["categories"] == {category.value: 0 for category in Category} | {"params": 1024}
    assert report["config"] == {"batch_size": 8, "seq_len": 1024, "grad_clip": "inf", "preset": None}
    assert report["measured"] is None
    assert report["buffers"] == [
        {
            "size_bytes": 1024,
            "padding_bytes": 0,
            "shape": [256],
            "dtype": "f32",
            "category": "params",
            "module": "",
            "phase": "argument",
            "name": "params['w']",
            "op": "params['w']",
            "source": "",
            "library": "",
            "rule": "params",
            "evidence": "made by hand for a test",
            "start": 0,
            "end": 1,
            "offset": None,
        }
    ]
    assert [module["path"] for module in report["modules"]] == [""]


def test_what_the_compiler_does_not_give_is_null() -> None:
    report = _json("on_cpu")
    assert report["compiler"]["peak_memory_bytes"] is None
    assert report["compiler"]["total_allocation_bytes"] is None
    assert report["target"]["memory_bytes"] is None
    assert report["fits"] is None


def test_a_kernel_has_the_facts_of_its_calls_and_its_buffers() -> None:
    block = KernelBuffer(kind="input", dtype="bf16", shape=(4, 512), num_buffers=2, size_bytes=4096)
    kernel = Kernel(
        instruction="gather.1",
        buffers=(block, replace(block, num_buffers=1)),
        limit_bytes=16 << 20,
        used_bytes=20_000,
        smem_buffers=(replace(block, dtype="i32"),),
        smem_limit_bytes=1 << 20,
        num_semaphores=3,
    )
    calls = KernelCalls(name="gather", kernel=kernel, num_calls=2, module="layer", source="train.py:14")
    report = json.loads(FORMAT.render_report(replace(one_buffer(), kernels=(calls,)), RenderOptions()))
    assert not _errors(_SCHEMA, report)
    buffer = {"kind": "input", "dtype": "bf16", "shape": [4, 512], "num_buffers": 2, "size_bytes": 4096}
    assert report["kernels"] == [
        {
            "name": "gather",
            "num_calls": 2,
            "module": "layer",
            "source": "train.py:14",
            "asked_bytes": kernel.asked_bytes,
            "used_bytes": 20_000,
            "limit_bytes": 16 << 20,
            "buffers": [buffer, buffer | {"num_buffers": 1}],
            "smem_asked_bytes": kernel.smem_bytes,
            "smem_limit_bytes": 1 << 20,
            "smem_buffers": [buffer | {"dtype": "i32"}],
            "num_semaphores": 3,
        }
    ]


def test_every_breakdown_adds_up_to_the_footprint() -> None:
    report = _json("transformer")
    footprint_bytes = report["footprint_bytes"]
    assert footprint_bytes == sum(TRANSFORMER_CATEGORIES.values()) == 11_931_151_372
    assert report["categories"] == {category.value: TRANSFORMER_CATEGORIES.get(category, 0) for category in Category}
    for key in ("categories", "by_source", "by_dtype", "by_phase"):
        assert sum(report[key].values()) == footprint_bytes
    assert list(report["by_phase"]) == ["forward", "backward", "argument", "none"]
    assert report["modules"][0]["bytes"] == footprint_bytes
    assert sum(buffer["size_bytes"] for buffer in report["buffers"]) == report["live_peak_bytes"]


def test_modules_are_one_list_a_parent_before_its_children() -> None:
    modules = _json("transformer")["modules"]
    assert [module["path"] for module in modules[:3]] == ["", "layers_0", "layers_0/ln_1"]
    assert len(modules) == 1 + 12 * 5 + 3
    assert modules[2]["params"] == [
        {"name": "scale", "shape": [768], "dtype": "f32"},
        {"name": "bias", "shape": [768], "dtype": "f32"},
    ]


def test_the_text_is_the_same_each_time_and_does_not_depend_on_the_options() -> None:
    report = transformer()
    shuffled = replace(report, by_source=dict(reversed(report.by_source.items())))
    first = FORMAT.render_report(report, RenderOptions())
    assert FORMAT.render_report(shuffled, RenderOptions(width=40, top=1, color="256")) == first
    assert first.isascii()
    assert first.endswith("}\n")


def test_numbers_that_json_lacks_are_strings() -> None:
    report = replace(on_cpu(), config={"a": float("nan"), "b": float("-inf"), "c": True, "d": 0.5, "e": None})
    assert json.loads(FORMAT.render_report(report, RenderOptions()))["config"] == {
        "a": "nan",
        "b": "-inf",
        "c": True,
        "d": 0.5,
        "e": None,
    }
    assert one_buffer().config["grad_clip"] == float("inf")
