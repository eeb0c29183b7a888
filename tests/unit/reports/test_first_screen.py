"""The first screen says what it has from the cache, and names no command that shows nothing more."""

from __future__ import annotations

from dataclasses import replace

from transformer_report import transformer

from memprof.reports.format import format_named
from memprof.reports.options import RenderOptions

_OPTIONS = RenderOptions(width=80, first_screen=True, with_configuration=False, capture="a.memprof")
_render = format_named("terminal").render_report


def test_a_plan_from_the_cache_is_said_in_its_first_line() -> None:
    report = transformer()
    cached = replace(report, timings=replace(report.timings, cached_compile_seconds=7.3))
    first, *rest = _render(report, _OPTIONS).splitlines()
    assert _render(cached, _OPTIONS).splitlines() == [f"{first}, plan from the cache", *rest]


def test_advice_that_is_shown_is_not_suggested() -> None:
    for options, command in ((_OPTIONS, "memprof advise a.memprof"), (replace(_OPTIONS, capture=""), "--advise")):
        assert command in _render(transformer(), options)
        assert command not in _render(transformer(), replace(options, with_advice=True))
