"""The terminal's exact text, compared whole with what was recorded and looked at.

Record again after a change that is meant, and read the difference:

    MEMPROF_RECORD=1 python -m pytest tests/golden/test_terminal_golden.py
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from reports_data import REPORTS

from memprof.reports.format import RenderOptions
from memprof.reports.registry import format_named
from memprof.reports.views.by import By

_RECORDED = Path(__file__).parent / "terminal"
_UNICODE = RenderOptions(width=80)
_ASCII = RenderOptions(width=80, unicode=False)


@pytest.mark.parametrize(
    ("recording", "report", "options"),
    [
        ("transformer", "transformer", _UNICODE),
        ("transformer_ascii", "transformer", _ASCII),
        ("transformer_wide", "transformer", RenderOptions(width=140)),
        ("transformer_by_buffer", "transformer", RenderOptions(width=80, by=By.BUFFER, top=5)),
        ("hostile_names", "hostile_names", _UNICODE),
        ("hostile_names_ascii", "hostile_names", _ASCII),
        ("does_not_fit", "does_not_fit", _UNICODE),
        ("on_cpu", "on_cpu", _UNICODE),
        ("empty", "empty", _UNICODE),
    ],
)
def test_the_text_is_as_recorded(recording: str, report: str, options: RenderOptions) -> None:
    text = format_named("terminal").render_report(REPORTS[report](), options)
    path = _RECORDED / f"{recording}.txt"
    if os.environ.get("MEMPROF_RECORD"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")
    assert text == path.read_text(encoding="utf-8")
