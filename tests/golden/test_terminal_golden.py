"""The terminal's exact text of reports and comparisons."""

from __future__ import annotations

from dataclasses import replace

import pytest
from comparisons_data import COMPARISONS
from recorded import check_recorded
from reports_data import REPORTS
from stacked_report import stacked

from memprof.reports.format import format_named
from memprof.reports.options import By, RenderOptions

_UNICODE = RenderOptions(width=80)
_ASCII = RenderOptions(width=80, unicode=False)
_FIRST_SCREEN = RenderOptions(
    width=80, first_screen=True, with_configuration=False, capture="transformer-donate-h100-80gb.memprof"
)


@pytest.mark.parametrize(
    ("recording", "report", "options"),
    [
        ("transformer", "transformer", _UNICODE),
        ("transformer_ascii", "transformer", _ASCII),
        ("transformer_wide", "transformer", RenderOptions(width=140)),
        ("transformer_by_buffer", "transformer", RenderOptions(width=80, by=By.BUFFER, top=5)),
        ("stacked_by_source", "stacked", RenderOptions(width=80, by=By.SOURCE)),
        ("stacked_by_stack", "stacked", RenderOptions(width=80, by=By.STACK)),
        ("hostile_names", "hostile_names", _UNICODE),
        ("hostile_names_ascii", "hostile_names", _ASCII),
        ("does_not_fit", "does_not_fit", _UNICODE),
        ("on_cpu", "on_cpu", _UNICODE),
        ("empty", "empty", _UNICODE),
        *((f"first_screen_{name}", name, _FIRST_SCREEN) for name in ("transformer", "does_not_fit", "on_cpu", "empty")),
        ("first_screen_ascii", "transformer", replace(_FIRST_SCREEN, unicode=False)),
        ("first_screen_wide", "transformer", replace(_FIRST_SCREEN, width=160)),
        ("first_screen_verbose", "hostile_names", replace(_FIRST_SCREEN, width=100, with_configuration=True)),
        ("first_screen_measured", "measured_on_cpu", replace(_FIRST_SCREEN, width=100)),
    ],
)
def test_the_text_is_as_recorded(recording: str, report: str, options: RenderOptions) -> None:
    made = stacked() if report == "stacked" else REPORTS[report]()
    check_recorded(format_named("terminal").render_report(made, options), f"terminal/{recording}.txt")


@pytest.mark.parametrize(
    ("recording", "comparison", "options"),
    [
        ("techniques", "techniques", _UNICODE),
        ("techniques_120", "techniques", RenderOptions(width=120)),
        ("techniques_ascii", "techniques", _ASCII),
        ("techniques_by_category", "techniques", RenderOptions(width=80, by=By.CATEGORY)),
        ("techniques_by_module", "techniques", RenderOptions(width=120, by=By.MODULE)),
        ("troubled", "troubled", _UNICODE),
        ("one_row", "one_row", _UNICODE),
        ("hostile", "hostile", _UNICODE),
    ],
)
def test_the_text_of_a_comparison_is_as_recorded(recording: str, comparison: str, options: RenderOptions) -> None:
    text = format_named("terminal").render_comparison(COMPARISONS[comparison](), options)
    check_recorded(text, f"comparison/{recording}.txt")
