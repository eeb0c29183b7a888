"""The first screen: what it says of the cache and of advice, and that it names no command that shows nothing more."""

from __future__ import annotations

from dataclasses import replace

from transformer_report import transformer

from memprof.reports.document import Table
from memprof.reports.format import format_named
from memprof.reports.options import RenderOptions
from memprof.reports.views.advice import best_advice_table
from memprof.studies.advice.advice import Advice, Proposal
from memprof.workloads.intents import Aim, Intent

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


def _advice(aim: Aim, saving_bytes: int) -> Advice:
    proposal = Proposal(intent=Intent(aim=aim), what=aim.name, evidence="", cost="", without=lambda buffer: None)
    return Advice(rule="", proposal=proposal, bound_bytes=saving_bytes)


def _named(table: Table) -> list[str]:
    return [row.cells[0].text for row in table.rows]


def test_of_several_ways_to_recompute_the_best_is_named() -> None:
    aims = (Aim.DONATE, Aim.RECOMPUTE_MODULES, Aim.RECOMPUTE_ALL_BUT_PRODUCTS, Aim.CAST_PASSES, Aim.RECOMPUTE_SCAN)
    advice = [_advice(aim, 100 - number) for number, aim in enumerate(aims)]
    best = best_advice_table(transformer(), advice, top=9)
    assert _named(best) == ["DONATE", "RECOMPUTE_MODULES", "CAST_PASSES"]
    assert _named(best_advice_table(transformer(), advice, top=2)) == ["DONATE", "RECOMPUTE_MODULES"]
