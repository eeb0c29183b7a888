"""The figures of SVG, PDF and PNG before they are written: lengths, places, ticks, letters and legends."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from memprof.analysis.records.categories import Category
from memprof.reports.document import (
    Block,
    Document,
    Fact,
    Facts,
    Gauge,
    Heading,
    Moment,
    Note,
    Part,
    StackedBar,
    StackedBars,
    StackedChart,
    Tone,
)
from memprof.reports.formats import svg
from memprof.reports.palette import CATEGORY_COLORS, CATEGORY_LETTERS, TONE_COLORS

_PARAMS, _ACTIVATIONS, _BATCH = Category.PARAMS, Category.ACTIVATIONS, Category.BATCH


def _parts(**sizes: int) -> tuple[Part, ...]:
    return tuple(Part(category=Category(name), size_bytes=size) for name, size in sizes.items())


def _gauge(*parts: Part, capacity_bytes: int | None = 200, verdict: str = "fits") -> Gauge:
    return Gauge(parts=parts, capacity_bytes=capacity_bytes, verdict=verdict, tone=Tone.GOOD)


class Drawing:
    """Draws documents, and keeps the figure and the options with which it would be written."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def savefig(figure: Figure, data: Any, **options: Any) -> None:
            self.figure, self.options = figure, options

        monkeypatch.setattr(Figure, "savefig", savefig)

    def of(self, *blocks: Block, file_type: Any = "svg") -> list[Axes]:
        svg.draw(Document(blocks=(Heading(text="title", level=1), *blocks)), file_type)
        return self.figure.axes


@pytest.fixture
def drawing(monkeypatch: pytest.MonkeyPatch) -> Drawing:
    return Drawing(monkeypatch)


def _bars_of(axes: Axes) -> list[tuple[float, float, float, str]]:
    """Middle, left end, length and colour of each bar."""
    return [
        (round(each.get_y() + each.get_height() / 2, 6), each.get_x(), each.get_width(), to_hex(each.get_facecolor()))  # type: ignore[attr-defined]
        for each in axes.patches
    ]


def _texts_of(axes: Axes) -> list[tuple[float, float, str]]:
    return [(*each.get_position(), each.get_text()) for each in axes.texts]


def _legend_of(axes: Axes) -> list[str]:
    legend = axes.get_legend()
    return [] if legend is None else [each.get_text() for each in legend.get_texts()]


def test_a_gauge_is_a_stack_up_to_its_capacity(drawing: Drawing) -> None:
    # A letter needs 2% of the width, 4 of 200 bytes.
    (axes,) = drawing.of(_gauge(*_parts(params=100, activations=4, batch=3)))
    assert _bars_of(axes) == [
        (0, 0, 100, CATEGORY_COLORS[_PARAMS].lower()),
        (0, 100, 4, CATEGORY_COLORS[_ACTIVATIONS].lower()),
        (0, 104, 3, CATEGORY_COLORS[_BATCH].lower()),
    ]
    assert _texts_of(axes) == [
        (50, 0, CATEGORY_LETTERS[_PARAMS]),
        (102, 0, CATEGORY_LETTERS[_ACTIVATIONS]),
    ]
    assert axes.get_xlim() == (0, 200)
    assert axes.get_title(loc="left") == "fits"
    (line,) = axes.lines
    assert [*line.get_xdata()] == [200, 200]  # type: ignore[arg-type]
    assert line.get_color() == TONE_COLORS[Tone.BAD]
    # 200 // 3 is 66: steps of 64.
    assert [*axes.get_xticks()] == [0, 64, 128, 192]
    assert [each.get_text() for each in axes.get_xticklabels()] == ["0 B", "64 B", "128 B", "192 B"]
    assert [*axes.get_yticks()] == []
    assert set(_legend_of(axes)) == {
        f"{CATEGORY_LETTERS[_PARAMS]}  params  100 B",
        f"{CATEGORY_LETTERS[_ACTIVATIONS]}  activations  4 B",
        f"{CATEGORY_LETTERS[_BATCH]}  batch  3 B",
    }


def test_a_gauge_without_capacity_ends_with_its_parts(drawing: Drawing) -> None:
    (axes,) = drawing.of(_gauge(*_parts(params=90), capacity_bytes=None))
    assert (axes.get_xlim(), len(axes.lines)) == ((0, 90), 0)
    (empty,) = drawing.of(_gauge(capacity_bytes=None))
    assert (empty.get_xlim(), _legend_of(empty)) == ((0, 1), [])


def test_bars_lie_one_below_the_other_on_one_scale(drawing: Drawing) -> None:
    bars = (
        StackedBar(label="one", parts=_parts(params=60, batch=30), size="90 B"),
        StackedBar(label="$two$" + "x" * 70, parts=_parts(params=50), size="50 B"),
        StackedBar(label="none", parts=(), size="failed"),
    )
    (axes,) = drawing.of(StackedBars(bars=bars, capacity_bytes=100))
    assert [each[:3] for each in _bars_of(axes)] == [(0, 0, 60), (0, 60, 30), (1, 0, 50)]
    assert _texts_of(axes) == [
        (30, 0, CATEGORY_LETTERS[_PARAMS]),
        (75, 0, CATEGORY_LETTERS[_BATCH]),
        (91, 0, "90 B"),  # one percent of the scale, 100, behind the bar
        (25, 1, CATEGORY_LETTERS[_PARAMS]),
        (51, 1, "50 B"),
        (1, 2, "failed"),
    ]
    assert axes.get_xlim() == (0, 122)
    assert axes.yaxis_inverted()
    labels = [each.get_text() for each in axes.get_yticklabels()]
    assert (labels[0], labels[2]) == ("one", "none")
    assert labels[1].startswith("$two$")
    assert len(labels[1]) == 60
    assert [*axes.get_yticks()] == [0, 1, 2]
    assert not any(each.get_parse_math() for each in (*axes.get_yticklabels(), *axes.texts[2:3]))
    assert [*axes.lines[0].get_xdata()] == [100, 100]  # type: ignore[arg-type]
    assert set(_legend_of(axes)) == {f"{CATEGORY_LETTERS[each]}  {each.value}" for each in (_PARAMS, _BATCH)}


def test_a_chart_has_a_step_for_each_moment(drawing: Drawing) -> None:
    moments = (
        Moment(parts=_parts(params=40), band="forward"),
        Moment(parts=_parts(params=40, activations=60), band="forward"),
        Moment(parts=_parts(activations=20), band="backward"),
        Moment(parts=_parts(params=40), band="backward"),
    )
    (axes,) = drawing.of(StackedChart(moments=moments, mark="100 B at the peak"))
    params, activations = axes.collections
    assert to_hex(params.get_facecolor()[0]) == CATEGORY_COLORS[_PARAMS].lower()
    corners = {tuple(map(float, each)) for each in params.get_paths()[0].vertices}  # type: ignore[arg-type]
    assert {(0.0, 40.0), (0.25, 40.0), (0.5, 0.0), (0.75, 40.0), (1.0, 40.0)} <= corners
    top = {tuple(map(float, each)) for each in activations.get_paths()[0].vertices}  # type: ignore[arg-type]
    assert {(0.25, 100.0), (0.5, 100.0), (0.5, 20.0), (1.0, 40.0)} <= top
    assert axes.get_title(loc="left") == "100 B at the peak"
    assert (axes.get_xlim(), axes.get_ylim()) == ((0, 1), (0, 105))
    assert ([*axes.get_xticks()], axes.get_xlabel()) == ([], "program order")
    assert [*axes.get_yticks()] == [0, 32, 64, 96]


def test_pictures_lie_one_below_the_other_in_their_heights(drawing: Drawing) -> None:
    """A gauge with a line of legend takes 0.6 + 0.6 + 0.2 inches, with 4 categories 0.2 more; each bar 0.34."""
    chart = StackedChart(moments=(Moment(parts=_parts(params=1), band=""),), mark="")
    gauge = _gauge(*_parts(params=1, activations=1, batch=1))
    four = _gauge(*_parts(params=1, activations=1, batch=1, gradients=1))
    one = StackedBars(bars=(StackedBar(label="", parts=(), size=""),), capacity_bytes=None)
    three = StackedBars(bars=one.bars * 3, capacity_bytes=None)
    heights = {"gauge": 1.4, "four": 1.6, "chart": 3.4, "one": 0.68 + 0.6, "three": 1.02 + 0.6}
    for name, picture in {"gauge": gauge, "four": four, "chart": chart, "one": one, "three": three}.items():
        drawing.of(picture)
        assert tuple(drawing.figure.get_size_inches()) == pytest.approx((9.0, 0.6 + heights[name])), name
    axes = drawing.of(gauge, Note(text="between", tone=Tone.MUTED), chart)
    assert len(axes) == 2
    assert tuple(drawing.figure.get_size_inches()) == pytest.approx((9.0, 0.6 + 1.4 + 3.4))
    grid = axes[0].get_subplotspec().get_gridspec()  # type: ignore[union-attr]
    assert [*grid.get_height_ratios()] == pytest.approx([1.4, 3.4])
    assert all(each.axison for each in axes)


def test_a_document_without_pictures_is_its_title(drawing: Drawing) -> None:
    (axes,) = drawing.of()
    assert not axes.axison
    assert tuple(drawing.figure.get_size_inches()) == pytest.approx((9.0, 0.6))


def test_the_legend_lies_below_the_ticks(drawing: Drawing) -> None:
    """0.3 inches below, as a part of the height of the axes: 0.6 inches of a gauge, 0.34 of a bar."""
    parts = _parts(params=1, activations=1, batch=1, gradients=1)
    bar = StackedBar(label="", parts=parts, size="")
    for picture, inches in ((_gauge(*parts), 0.6), (StackedBars(bars=(bar, bar), capacity_bytes=1), 0.68)):
        (axes,) = drawing.of(picture)
        legend = axes.get_legend()
        assert legend is not None
        corner = axes.transAxes.inverted().transform(legend.get_bbox_to_anchor().p0)
        assert tuple(corner) == pytest.approx((0, -0.3 / inches))
        assert (legend._ncols, legend.get_frame_on()) == (3, False)  # type: ignore[attr-defined]


def test_equal_documents_give_equal_files(drawing: Drawing) -> None:
    for file_type, dated in (("pdf", "CreationDate"), ("png", "Software"), ("svg", "Date")):
        drawing.of(file_type=file_type)
        assert drawing.options == {"format": file_type, "dpi": 160, "metadata": {dated: None}}


def test_the_title_has_the_target(drawing: Drawing) -> None:
    facts = Facts(facts=(Fact(label="jax", values=("0.12",)), Fact(label="target", values=("l4", "mesh data=2"))))
    drawing.of(facts)
    title = drawing.figure._suptitle  # type: ignore[attr-defined]
    assert (title.get_text(), title.get_parse_math()) == ("title on l4", False)


@given(st.integers(min_value=3, max_value=1 << 60))
def test_a_scale_has_four_to_seven_ticks_at_powers_of_two(scale: int) -> None:
    found: list[int] = []
    texts: list[str] = []

    def set_ticks(values: list[int], labels: list[str], fontsize: int) -> None:
        found.extend(values)
        texts.extend(labels)

    svg._byte_ticks(set_ticks, scale)
    step = found[1]
    assert step.bit_count() == 1
    assert found == [step * number for number in range(len(found))]
    assert 4 <= len(found) <= 7
    assert found[-1] <= scale < found[-1] + step
    assert len(texts) == len(found)
