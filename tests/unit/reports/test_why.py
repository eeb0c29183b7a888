"""What is shown of why a buffer is live, of a program by hand (see `test_schedule.py`)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from jsonschema import Draft202012Validator
from unit.analysis.scheduling.test_schedule import deferred

from memprof.analysis import pipeline
from memprof.analysis.pipeline import analyze, analyze_peak
from memprof.reports.format import format_named
from memprof.reports.formats.json import render_object
from memprof.reports.json.answers import schemas
from memprof.reports.json.why import why_json
from memprof.reports.options import RenderOptions
from memprof.reports.views.why import why_document
from memprof.reports.web.report_data import report_data

pytestmark = pytest.mark.with_one_jax


def _shown(name: str, *, top: int = 10) -> str:
    document = why_document(*analyze_peak(deferred().capture(), name), top=top)
    lower = format_named("markdown").lower
    assert lower is not None
    text = lower(document, RenderOptions(width=200))
    assert isinstance(text, str)
    return text


def test_what_waits_is_shown_with_what_it_waits_for_and_since_when_that_could_run() -> None:
    text = _shown("waits")
    assert "position 6" in text  # of `late`
    assert "all its operands after position 2" in text
    assert "only because of the order: its remaining readers do not depend on the operation at the peak" in text
    assert "Due to order alone: 400 B to 404 B" in text


def test_what_more_has_the_name_is_counted() -> None:
    assert "3 more have this name" in _shown("jvp", top=1)


def test_json_keeps_to_its_schema() -> None:
    text = render_object(why_json(*analyze_peak(deferred().capture(), "waits")))
    found = msgspec.json.decode(text)
    Draft202012Validator(schemas()["why"]).validate(found)
    (buffer,) = found["buffers"]
    assert (buffer["reason"], [user["name"] for user in buffer["users"]]) == ("waiting", ["late"])
    assert (found["live_peak_bytes"], found["other_order_bytes"], found["any_order_bytes"]) == (1264, 864, 860)


def test_a_page_has_the_reasons_of_the_largest_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "_MAX_REASONS", 2)
    report = analyze(deferred().capture())
    data: Any = report_data(report, {}, editor="")
    strings, live = data["strings"], data["live_at_peak"]
    assert len(live["of"]) == 2 < data["num_at_peak"]
    assert report.buffers[1].name == "waits"
    shown = [[strings[each] for each in live["facts"][number] if isinstance(each, int)] for number in live["of"][1]]
    assert ["could run", "the last of them has all its operands after position 2"] in shown
    assert "Of the 2 largest" in strings[live["more"]]
    assert report_data(replace(report, schedule=None, reasons=()), {}, editor="")["live_at_peak"] == {}
