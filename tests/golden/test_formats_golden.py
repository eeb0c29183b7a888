"""The whole output of each format for programs, and of each document that a command prints."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from comparisons_data import COMPARISONS
from diffs_data import DIFFS
from recorded import check_recorded
from reports_data import REPORTS
from stacked_report import stacked
from unit.analysis.scheduling.test_schedule import deferred
from unit.reports.test_fit_techniques_view import RESULT as TECHNIQUES
from unit.studies.test_fitting import MEASURED, _result
from unit.studies.test_gate import _step

from memprof.analysis.pipeline import analyze, analyze_peak
from memprof.analysis.records.categories import Category
from memprof.analysis.records.pressure import Pressure
from memprof.reports.document import Document
from memprof.reports.format import format_named
from memprof.reports.options import By, RenderOptions
from memprof.reports.views.check import check_document
from memprof.reports.views.fit import fit_document, techniques_document
from memprof.reports.views.modules import model_summary_document
from memprof.reports.views.why import why_document
from memprof.studies.check.baseline import baseline_of
from memprof.studies.check.check import Maximum, check, parse_threshold
from memprof.studies.fit.results import Batch, LargerValue

_SMALL = ["empty", "on_cpu", "zero_size", "measured_on_gpu", "measured_on_cpu", "out_of_memory"]
_OPTIONS = RenderOptions(width=160, top=3, depth=2)


def _text(rendered: str | bytes) -> str:
    return rendered.decode() if isinstance(rendered, bytes) else rendered


def _lines(text: str) -> str:
    """JSON of one line, indented."""
    return json.dumps(json.loads(text), indent=1, ensure_ascii=False) + "\n"


def _body(page: str) -> str:
    """The texts and figures of a page, a line for each element: without its scripts, styles and data."""
    return re.sub(r"<(script|style)\b.*?</\1>", "", page, flags=re.DOTALL).replace("><", ">\n<")


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *((kind, name) for kind in ("csv", "json", "html", "terminal") for name in _SMALL),
        *((kind, "transformer") for kind in ("html", "terminal")),
    ],
)
def test_a_report_is_as_recorded(kind: str, name: str) -> None:
    text = _text(format_named(kind).render_report(REPORTS[name](), _OPTIONS))
    check_recorded(_body(text) if kind == "html" else text, f"formats/{kind}_{name}.txt")


@pytest.mark.parametrize("by", By)
def test_a_breakdown_is_as_recorded(by: By) -> None:
    text = format_named("terminal").render_report(stacked(), replace(_OPTIONS, by=by))
    check_recorded(_text(text), f"formats/by_{by.value}.txt")


@pytest.mark.parametrize("kind", ["perfetto", "speedscope"])
def test_a_trace_is_as_recorded(kind: str) -> None:
    check_recorded(_lines(_text(format_named(kind).render_report(stacked(), _OPTIONS))), f"formats/{kind}.txt")


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *(
            (kind, name)
            for kind in ("csv", "json", "html", "terminal")
            for name in ("equal_rows", "from_nothing", "all_else_failed")
        ),
        *((kind, "troubled") for kind in ("csv", "html", "terminal")),
    ],
)
def test_a_comparison_is_as_recorded(kind: str, name: str) -> None:
    text = _text(format_named(kind).render_comparison(COMPARISONS[name](), _OPTIONS))
    check_recorded(_body(text) if kind == "html" else text, f"formats/{kind}_comparison_{name}.txt")


@pytest.mark.parametrize("name", ["nothing", "equal", "precision"])
@pytest.mark.parametrize("kind", ["csv", "json", "terminal"])
def test_a_diff_is_as_recorded(kind: str, name: str) -> None:
    check_recorded(_text(format_named(kind).render_diff(DIFFS[name](), _OPTIONS)), f"formats/{kind}_diff_{name}.txt")


def _fit() -> Document:
    """Measured values of GPT-2: from 14 examples XLA recomputes, and 14 fit if the pool is made larger."""
    memory_bytes, sizes, _ = MEASURED["l4"]
    found = _result(*((value, size) for value, size in sizes.items() if value))
    tried = [replace(trial, pressed_footprint_bytes=10**9) if trial.value >= 14 else trial for trial in found.tried]
    pressure = Pressure(
        recomputed_values=3, recomputed_flops=10**9, footprint_without_limit_bytes=2 * 10**9, planned_bytes=10**9
    )
    return fit_document(
        replace(
            found,
            tried=tuple(replace(trial, pressure=pressure) if trial.value >= 14 else trial for trial in tried),
            value=13,
            next_value=14,
            memory_bytes=memory_bytes,
            budget_bytes=memory_bytes - 5 * 10**8,
            batch=Batch(in_all=104, on_a_device=13),
            num_devices=8,
            mesh="fsdp=8",
            larger=LargerValue(value=14, mem_fraction=0.95, footprint_bytes=22_722_401_124),
        )
    )


def _check() -> Document:
    result = check(
        _step(Category.ACTIVATIONS, 50),
        maxima=[Maximum(size_bytes=10**6, reason="--max 1MB")],
        baseline=baseline_of(replace(_step(), toolchain=replace(_step().toolchain, jax="0.1"))),
        thresholds=[parse_threshold("footprint:+1%"), parse_threshold("activations:+1%")],
    )
    return check_document(result, top=2)


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("fit", _fit),
        ("fit_of_nothing_odd", lambda: fit_document(_result((1, 500), (2, 1000)))),
        ("fit_techniques", lambda: techniques_document(TECHNIQUES)),
        ("fit_techniques_nothing_fits", lambda: techniques_document(replace(TECHNIQUES, ranked=()))),
        ("check", _check),
        ("model_summary", lambda: model_summary_document(REPORTS["transformer"](), depth=2)),
        ("model_summary_depth_1", lambda: model_summary_document(REPORTS["transformer"](), depth=1)),
        ("why", lambda: why_document(*analyze_peak(deferred().capture(), "waits"), top=1)),
        ("deferred", lambda: model_summary_document(analyze(deferred().capture()), depth=3)),
    ],
)
def test_a_document_is_as_recorded(name: str, made: Callable[[], Document]) -> None:
    lower = format_named("terminal").lower
    assert lower is not None
    check_recorded(_text(lower(made(), _OPTIONS)), f"documents/{name}.txt")
