"""The laws of a report format. Every file in `memprof/reports/formats/` meets them without a line here."""

from __future__ import annotations

import json
import time

import pytest
from reports_data import REPORTS, many_buffers

from memprof.analysis.report import Report
from memprof.reports.format import Format, RenderOptions
from memprof.reports.registry import format_named, formats
from memprof.reports.units import format_bytes, format_exact_bytes
from memprof.reports.views.by import By

every_format = pytest.mark.parametrize("format_", formats(), ids=lambda format_: format_.name)
every_report = pytest.mark.parametrize("report", [make() for make in REPORTS.values()], ids=list(REPORTS))


@every_format
def test_it_says_what_it_is(format_: Format) -> None:
    assert format_.name.isidentifier()
    assert format_.suffix.startswith(".")
    assert format_.summary
    assert not format_.summary.endswith(".")


@every_format
def test_names_and_suffixes_are_its_own(format_: Format) -> None:
    assert [other.name for other in formats()].count(format_.name) == 1
    assert [other.suffix for other in formats()].count(format_.suffix) == 1


@every_format
@every_report
@pytest.mark.parametrize("by", [None, *By])
def test_it_renders_everything(format_: Format, report: Report, by: By | None) -> None:
    text = format_.render_report(report, RenderOptions(by=by))
    text.encode()
    assert text.endswith("\n")
    assert not text.endswith("\n\n")
    assert all(line == line.rstrip() for line in text.split("\n"))


@every_format
@every_report
def test_it_renders_the_same_text_each_time(format_: Format, report: Report) -> None:
    assert format_.render_report(report, RenderOptions()) == format_.render_report(report, RenderOptions())


@every_format
@every_report
def test_plain_options_give_plain_ascii(format_: Format, report: Report) -> None:
    text = format_.render_report(report, RenderOptions(unicode=False))
    assert text.isascii()
    assert "\x1b" not in text


@every_format
@every_report
def test_its_totals_are_those_of_the_json(format_: Format, report: Report) -> None:
    facts = json.loads(format_named("json").render_report(report, RenderOptions()))
    text = format_.render_report(report, RenderOptions(width=140))
    for size_bytes in (facts["footprint_bytes"], facts["live_peak_bytes"], *facts["categories"].values()):
        if size_bytes:
            assert any(
                shown in text for shown in (format_bytes(size_bytes), format_exact_bytes(size_bytes), str(size_bytes))
            )


@every_format
def test_twenty_thousand_buffers_take_under_two_seconds(format_: Format) -> None:
    report = many_buffers(20_000)
    start = time.perf_counter()
    format_.render_report(report, RenderOptions())
    assert time.perf_counter() - start < 2
