"""Colours, escapes and widths of the terminal format."""

from __future__ import annotations

import re

import pytest
from comparisons_data import COMPARISONS, troubled
from reports_data import REPORTS, hostile_names
from transformer_report import transformer

from memprof.analysis.records.categories import Category
from memprof.reports.format import format_named
from memprof.reports.options import By, ColorSystem, RenderOptions
from memprof.reports.palette import CATEGORY_COLORS
from memprof.reports.text import cell_width

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_render = format_named("terminal").render_report
_render_comparison = format_named("terminal").render_comparison


@pytest.mark.parametrize("color", ["standard", "256", "truecolor"])
def test_colour_adds_nothing_but_colour(color: ColorSystem) -> None:
    plain = _render(transformer(), RenderOptions(width=100))
    coloured = _render(transformer(), RenderOptions(width=100, color=color))
    assert coloured != plain
    assert _ANSI.sub("", coloured) == plain


def test_a_category_has_its_colour() -> None:
    red, green, blue = (int(CATEGORY_COLORS[Category.ACTIVATIONS][index : index + 2], 16) for index in (1, 3, 5))
    coloured = _render(transformer(), RenderOptions(color="truecolor"))
    assert f"48;2;{red};{green};{blue}mA" in coloured


def test_the_environment_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    options = RenderOptions(width=80, color="256")
    before = _render(transformer(), options)
    for name, value in {"NO_COLOR": "1", "FORCE_COLOR": "", "TERM": "dumb", "COLUMNS": "20"}.items():
        monkeypatch.setenv(name, value)
    assert _render(transformer(), options) == before


@pytest.mark.parametrize("width", [80, 100, 140, 400])
@pytest.mark.parametrize("unicode", [True, False])
@pytest.mark.parametrize("name", REPORTS)
def test_no_line_is_wider_than_the_terminal(name: str, unicode: bool, width: int) -> None:
    text = _render(REPORTS[name](), RenderOptions(width=width, unicode=unicode))
    assert max(map(cell_width, text.splitlines())) <= width


@pytest.mark.parametrize("by", By)
def test_no_line_of_a_breakdown_is_wider_than_the_terminal(by: By) -> None:
    for make in (transformer, hostile_names):
        text = _render(make(), RenderOptions(by=by, width=80))
        assert max(map(cell_width, text.splitlines())) <= 80


@pytest.mark.parametrize("width", [80, 100, 140, 400])
@pytest.mark.parametrize("unicode", [True, False])
@pytest.mark.parametrize("by", [None, By.CATEGORY, By.MODULE])
@pytest.mark.parametrize("name", COMPARISONS)
def test_no_line_of_a_comparison_is_wider_than_the_terminal(
    name: str, by: By | None, unicode: bool, width: int
) -> None:
    text = _render_comparison(COMPARISONS[name](), RenderOptions(by=by, width=width, unicode=unicode))
    assert max(map(cell_width, text.splitlines())) <= width


@pytest.mark.parametrize("name", COMPARISONS)
def test_a_comparison_fits_the_narrowest_terminal_somehow(name: str) -> None:
    assert _render_comparison(COMPARISONS[name](), RenderOptions(width=1))


def test_colour_adds_nothing_but_colour_to_a_comparison() -> None:
    plain = _render_comparison(troubled(), RenderOptions())
    coloured = _render_comparison(troubled(), RenderOptions(color="truecolor"))
    assert coloured != plain
    assert _ANSI.sub("", coloured) == plain


def test_names_from_the_program_are_shown_and_not_obeyed() -> None:
    text = _render(hostile_names(), RenderOptions(width=140))
    assert "[red]not red[/red]" in text
    assert "<script>alert('x')</script>" in text
    assert "\\x1b[31mescape" in text
    assert not set(text) & {"\x1b", "\r", "\t", "\u202e", "\ud800"}


def test_more_depth_shows_more_modules() -> None:
    texts = [_render(transformer(), RenderOptions(by=By.MODULE, depth=depth)) for depth in (1, 2)]
    assert ["attn" in text for text in texts] == [False, True]


def test_more_rows_show_more_buffers() -> None:
    few, many = (_render(transformer(), RenderOptions(by=By.BUFFER, top=top)) for top in (3, 500))
    assert "(485 more)" in few
    assert "more)" not in many
