"""The lines of a notebook: people read `cell 3, line 6`, programs IPython's `Cell In[3]:6`."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from report_builder import buffer, report

from memprof.analysis.memory.named_buffers import buffers_named
from memprof.analysis.records.categories import Category
from memprof.analysis.records.live_buffer import StackFrame, shown_source
from memprof.analysis.records.report import Report
from memprof.reports.format import format_named
from memprof.reports.options import By, RenderOptions
from memprof.reports.views.cells import short_names

_CALLS = (StackFrame("Cell In[4]", "step", 2, is_own=True), StackFrame("Cell In[3]", "loss", 6, is_own=True))


def _notebook() -> Report:
    made = buffer((256,), "f32", Category.ACTIVATIONS, module="mlp", op="mlp/tanh", source="Cell In[3]:6")
    return report([replace(made, stack=_CALLS)])


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Cell In[3]:6", "cell 3, line 6"),
        ("Cell In[12]", "cell 12"),
        ("loss (Cell In[3])", "loss (cell 3)"),
        ("/home/me/Cell Inn.py:6", "/home/me/Cell Inn.py:6"),
        ("", ""),
    ],
)
def test_a_cell_is_named_in_words(text: str, shown: str) -> None:
    assert shown_source(text) == shown
    assert short_names([text])[text] == shown_source(text.removeprefix("/home/me/"))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (RenderOptions(width=120, first_screen=True), "cell 3, line 6"),
        (RenderOptions(width=120), "cell 3, line 6"),
        (RenderOptions(width=120, by=By.BUFFER), "cell 3, line 6"),
        (RenderOptions(width=120, by=By.SOURCE), "cell 3, loss, line 6"),
        (RenderOptions(width=120, by=By.STACK), "step (cell 4) > loss (cell 3) > cell 3, line 6"),
    ],
    ids=["first screen", "summary", "buffer", "source", "stack"],
)
def test_each_view_names_cell_and_line(options: RenderOptions, expected: str) -> None:
    shown = format_named("terminal").render_report(_notebook(), options)
    assert isinstance(shown, str)
    assert expected in shown
    assert "Cell In" not in shown
    assert buffers_named(_notebook().buffers, expected) == _notebook().buffers


def test_the_page_names_cell_and_line_and_data_has_the_name_of_ipython() -> None:
    page = str(format_named("html").render_report(_notebook(), RenderOptions()))
    assert "cell 3, line 6" in page
    assert "cell 4, line 2" in page
    data = json.loads(str(format_named("json").render_report(_notebook(), RenderOptions())))
    assert [each["source"] for each in data["buffers"]] == ["Cell In[3]:6"]
    assert buffers_named(_notebook().buffers, "Cell In[3]:6") == _notebook().buffers
