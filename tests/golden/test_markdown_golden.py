"""The exact Markdown of reports and comparisons."""

from __future__ import annotations

import pytest
from comparisons_data import COMPARISONS
from recorded import check_recorded
from reports_data import REPORTS

from memprof.reports.format import format_named
from memprof.reports.options import By, RenderOptions

_FORMAT = format_named("markdown")


@pytest.mark.parametrize("report", ["transformer", "hostile_names", "does_not_fit"])
def test_a_report_is_as_recorded(report: str) -> None:
    check_recorded(_FORMAT.render_report(REPORTS[report](), RenderOptions()), f"markdown/{report}.md")


@pytest.mark.parametrize(
    ("recording", "comparison", "by"),
    [
        ("techniques", "techniques", None),
        ("techniques_by_module", "techniques", By.MODULE),
        ("troubled", "troubled", None),
        ("hostile", "hostile", None),
    ],
)
def test_a_comparison_is_as_recorded(recording: str, comparison: str, by: By | None) -> None:
    text = _FORMAT.render_comparison(COMPARISONS[comparison](), RenderOptions(by=by))
    check_recorded(text, f"markdown/{recording}.md")
