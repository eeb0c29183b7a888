"""SVG, PNG and PDF."""

from __future__ import annotations

import sys
import xml.etree.ElementTree
from collections.abc import Callable

import pytest
from comparisons_data import hostile, techniques
from reports_data import hostile_names
from transformer_report import transformer

from memprof.analysis.records.categories import Category
from memprof.errors import MemprofError
from memprof.reports.document import Document, Heading, Part, StackedBar, StackedBars
from memprof.reports.formats import pdf, png, svg, terminal
from memprof.reports.options import RenderOptions
from memprof.reports.web.blocks import sections_of


def _texts(rendered: str | bytes) -> list[str]:
    root = xml.etree.ElementTree.fromstring(rendered)
    return ["".join(node.itertext()).strip() for node in root.iter("{http://www.w3.org/2000/svg}text")]


def test_the_texts_of_an_svg_are_texts() -> None:
    texts = _texts(svg.FORMAT.render_report(transformer(), RenderOptions()))
    assert "A  activations  8.00 GiB" in texts
    pool = "JAX's pool of 59.3 GiB (75% of h100-80gb's 79.1 GiB, the default)"
    assert f"fits: footprint 11.1 GiB of {pool}, 48.2 GiB to spare" in texts


def test_the_title_says_what_was_compiled_and_for_what() -> None:
    assert "transformer donate on h100-80gb" in _texts(svg.FORMAT.render_report(transformer(), RenderOptions()))


def test_names_are_neither_markup_nor_formulas() -> None:
    assert "[bold]label[/bold] <script>alert('x')</script> on h100-80gb" in _texts(
        svg.FORMAT.render_report(hostile_names(), RenderOptions())
    )
    assert "a|b `c` *d* __e__ @everyone #1 https://example.org" in _texts(
        svg.FORMAT.render_comparison(hostile(), RenderOptions())
    )


def test_a_comparison_has_a_bar_for_each_configuration() -> None:
    texts = _texts(svg.FORMAT.render_comparison(techniques(), RenderOptions()))
    assert "bf16+accum4" in texts
    assert "5.02 GiB  0.40x" in texts


@pytest.mark.parametrize(
    ("lower", "mark"),
    [
        (lambda document: terminal.lower(document, RenderOptions()), "capacity"),
        (lambda document: sections_of(document)[0].html, 'class="capacity"'),
        (lambda document: svg.lower(document, RenderOptions()), "dasharray"),
    ],
    ids=["terminal", "html", "svg"],
)
def test_a_capacity_that_would_leave_the_picture_empty_is_not_shown(
    lower: Callable[[Document], str], mark: str
) -> None:
    def bars(capacity_bytes: int) -> str:
        parts = (Part(category=Category.PARAMS, size_bytes=90),)
        bars = StackedBars(bars=(StackedBar(label="row", parts=parts, size="90 B"),), capacity_bytes=capacity_bytes)
        return lower(Document(blocks=(Heading(text="title", level=1), bars)))

    # The longest bar takes three quarters of the picture, or one byte less.
    assert mark in bars(capacity_bytes=120)
    assert mark not in bars(capacity_bytes=121)
    assert mark in bars(capacity_bytes=40)


@pytest.mark.parametrize("format_", [pdf.FORMAT, png.FORMAT, svg.FORMAT], ids=["pdf", "png", "svg"])
def test_without_matplotlib_it_says_what_is_missing(format_: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MemprofError, match="needs matplotlib, which is not installed"):
        format_.render_report(transformer(), RenderOptions())  # type: ignore[attr-defined]
